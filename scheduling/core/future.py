"""One pool as it will be once everything that is being stopped has gone, and what must stay free until then.

What is being stopped holds its devices until its engine confirms that it is gone. Whoever waits for it has a *claim*:
the place that it will take. A cycle works in the present, where ``set_aside`` keeps free what the claims need beside
what is being stopped; ``enter`` leads to the future, where that is gone and every claim is taken, and ``leave`` back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from scheduling.core.charges import memory_of, not_negative
from scheduling.core.cycle import Candidate, PoolCycle
from scheduling.core.fleet import PlacementRefused
from scheduling.core.model import Placement, RunningJob, RunningTask, TaskStart
from scheduling.core.room import Room, Want


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that others give way to, and where it will start."""

    candidate: Candidate
    tasks: tuple[TaskStart, ...]
    charge: int


class Future:
    """The present and the future of one pool. Only one of the two at a time: everything taken in it is undone."""

    def __init__(self, at: PoolCycle, running: Sequence[RunningJob]):
        self.at = at
        self.running = tuple(sorted(running, key=lambda job: job.id))
        self.claims: list[Claim] = []
        self.rescues: list[tuple[Claim, Sequence[tuple[RunningJob, tuple[RunningTask, ...]]]]] = []
        self.leaving = [(job, task) for job in self.running for task in job.tasks if task.releasing]
        self.kept: list[Placement] = []
        self.booked: dict[int, int] = {}
        self._gone: dict[int, tuple[RunningJob, RunningTask]] = {}  # by allocation id

    def stop(self, job_ids: Collection[int]) -> None:
        """In the present: all that these jobs hold is being stopped, from now on."""
        gone = set(job_ids)
        self.running = tuple(_stopping(job) if job.id in gone else job for job in self.running)
        self.leaving = [(job, task) for job in self.running for task in job.tasks if task.releasing]

    def place(self, candidate: Candidate, wants: tuple[Want, ...] | None = None) -> Claim | None:
        """Where the candidate's least (or ``wants``, the same on some models only) would be placed now; taken and
        booked, or None with nothing changed."""
        at, wants = self.at, candidate.ask.least if wants is None else wants
        with at.kept.guard(candidate, self._gone) if at.kept is not None else nullcontext():
            tasks = Room(at.pool.fleet).take(wants)
        if tasks is None:
            return None
        if at.kept is not None and at.kept.delayed_by(candidate, at.charge_of_tasks(tasks), self._gone):
            for task in reversed(tasks):
                at.pool.fleet.give_back(task.placement)
            return None
        claim = Claim(candidate, tuple(tasks), at.charge_of_tasks(tasks))
        at.account.take(candidate.leaf, candidate.job.user_id, claim.charge)
        return claim

    def forget(self, claim: Claim) -> None:
        """Undoes the latest ``place``."""
        for task in reversed(claim.tasks):
            self.at.pool.fleet.give_back(task.placement)
        self.at.account.give_up(claim.candidate.leaf, claim.candidate.job.user_id, claim.charge)

    def remove(self, job: RunningJob, tasks: Iterable[RunningTask]) -> None:
        """These tasks are gone."""
        for task in tasks:
            self.at.pool.fleet.give_back(task.placement)
            self._book(job, task, -1)
            self._gone[task.allocation_id] = (job, task)

    def bring_back(self, job: RunningJob, tasks: Iterable[RunningTask]) -> bool:
        """These tasks of those that were removed are there again; False, with nothing changed, where others took their
        place."""
        back: list[RunningTask] = []
        for task in tasks:
            try:
                self.at.pool.fleet.take(task.placement, task.holder)
            except PlacementRefused:
                for other in reversed(back):
                    self.at.pool.fleet.give_back(other.placement)
                return False
            back.append(task)
        for task in back:
            self._book(job, task, 1)
            del self._gone[task.allocation_id]
        return True

    def enter(self) -> None:
        """Nothing is set aside any more: what is being stopped is gone, and all claims are taken."""
        self._let_go()
        for job, task in self.leaving:
            self.remove(job, (task,))
        claims, self.claims = self.claims, []
        for claim in claims:
            held = claim if self._take(claim) else self.place(claim.candidate)
            if held is not None:
                self.claims.append(held)

    def leave(self, keep: int | None = None) -> None:
        """The present is back, with what the claims (the first ``keep`` of them) need set aside."""
        for claim in reversed(self.claims):
            self.forget(claim)
        for job, task in reversed(list(self._gone.values())):
            self.at.pool.fleet.take(task.placement, task.holder)
            self._book(job, task, 1)
        self._gone.clear()
        del self.claims[len(self.claims) if keep is None else keep :]
        self._set_aside()

    def close(self) -> None:
        """Nothing is set aside any more: the present is as it was found."""
        self._let_go()

    def give_way(self, claim: Claim, victims: Sequence[tuple[RunningJob, tuple[RunningTask, ...]]]) -> None:
        """The claim, which is taken, is good; the victims, which were removed, are being stopped for it from now on."""
        for_job = claim.candidate.job.id
        self.rescues.append((claim, victims))
        for job, tasks in victims:
            self.leaving += [(job, replace(task, releasing=True, for_job=for_job)) for task in tasks]

    def confirm(self, keep: int) -> set[int]:
        """Keeps as many rescues, in their order, as will start once all their victims are gone, and takes the
        others back; returns for which jobs others give way now. The first ``keep`` claims come before them.

        Each rescue was found with the victims of later ones still there. With those gone it may land elsewhere.
        """
        if not self.rescues:
            return set()
        for claim in reversed(self.claims):
            self.forget(claim)
        kept = self.claims[:keep]
        while (placed := self._placed([*kept, *(claim for claim, _ in self.rescues)])) is None and self.rescues:
            claim, victims = self.rescues.pop()
            self.leaving = [each for each in self.leaving if each[1].for_job != claim.candidate.job.id]
            for job, tasks in victims:
                self.bring_back(job, tasks)
        self.claims = placed or []
        return {claim.candidate.job.id for claim, _ in self.rescues}

    def _placed(self, claims: Sequence[Claim]) -> list[Claim] | None:
        """All of them placed anew in this order; None, with none placed, where one does not fit."""
        placed: list[Claim] = []
        for claim in claims:
            job = claim.candidate.job
            refused = self.at.account.refusal(
                claim.candidate.leaf, job.user_id, claim.charge, preemptible=job.preemptible
            )
            found = self.place(claim.candidate) if refused is None else None
            if found is None:
                for other in reversed(placed):
                    self.forget(other)
                return None
            placed.append(found)
        return placed

    def kept_for(self, wants: tuple[Want, ...]) -> int | None:
        """In the present: the first job that room is set aside for, if ``wants`` would fit were it not for that."""
        if not self.kept:
            return None
        self._let_go()
        fits = Room(self.at.pool.fleet).fits(wants)
        self._set_aside()
        return self.claims[0].candidate.job.id if fits else None

    def leaving_for(self, job_id: int) -> list[int]:
        """Ids of the jobs that something is being stopped of for this job, or of all where that is gone already."""
        own = {job.id for job, task in self.leaving if task.for_job == job_id}
        return sorted(own or {job.id for job, _ in self.leaving})

    @property
    def somebody_gives_way(self) -> bool:
        """Whether anything is being stopped so that a job can start."""
        return any(task.for_job is not None for _, task in self.leaving)

    def _take(self, claim: Claim) -> bool:
        fleet = self.at.pool.fleet
        taken: list[TaskStart] = []
        for task in claim.tasks:
            try:
                fleet.take(task.placement, claim.candidate.ask.groups[task.group].request.team_id)
            except PlacementRefused:
                for other in reversed(taken):
                    fleet.give_back(other.placement)
                return False
            taken.append(task)
        self.at.account.take(claim.candidate.leaf, claim.candidate.job.user_id, claim.charge)
        return True

    def _book(self, job: RunningJob, task: RunningTask, sign: int) -> None:
        charge = self.at.charge_of_tasks((TaskStart(task.group, task.placement),))
        self.at.account.take(self.at.tree.leaf(job.team_id), job.user_id, sign * charge)

    # ---- what is kept free in the present ----------------------------------------------------------------------------

    def _set_aside(self) -> None:
        if not self.claims:
            return
        wanted = Holding()
        leaving = Holding()
        teams = {task.placement.node_id: 0 for claim in self.claims for task in claim.tasks}
        for claim in self.claims:
            for start in claim.tasks:
                wanted.add(start.placement, claim.candidate.ask.groups[start.group].request.team_id)
        for _, task in self.leaving:
            if task.placement.node_id in teams:
                leaving.add(task.placement, task.holder)
        for placement, holder in wanted.beyond(leaving):
            self._keep(placement, holder)
        self.booked = self._charges_beyond()
        self.at.account.set_aside(self.booked)

    def _keep(self, placement: Placement, holder: int) -> None:
        try:
            self.at.pool.fleet.take(placement, holder)
        except PlacementRefused:
            return  # nobody else can take it either: who holds the rest of the device shares with nobody
        self.kept.append(placement)

    def _charges_beyond(self) -> dict[int, int]:
        """By position of the tree: what the claims need there beyond what is being stopped there."""
        tree, charges = self.at.tree, Counter[int]()
        for claim in self.claims:
            for position in tree.path(claim.candidate.leaf):
                charges[position] += claim.charge
        for job, task in self.leaving:
            charge = self.at.charge_of_tasks((TaskStart(task.group, task.placement),))
            for position in tree.path(tree.leaf(job.team_id)):
                charges[position] -= charge
        beyond = {position: not_negative(charge) for position, charge in sorted(charges.items())}
        return {position: charge for position, charge in beyond.items() if charge or memory_of(charge)}

    def _let_go(self) -> None:
        for placement in reversed(self.kept):
            self.at.pool.fleet.give_back(placement)
        self.kept.clear()
        self.at.account.set_aside({position: -charge for position, charge in self.booked.items()})
        self.booked = {}


def _stopping(job: RunningJob) -> RunningJob:
    return replace(job, tasks=tuple(replace(task, releasing=True) for task in job.tasks))


class Holding:
    """What some placements come to, device by device and node by node."""

    def __init__(self) -> None:
        self.nodes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.devices: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.places: dict[int, tuple[int, int, int]] = {}  # device id → node position, node id, index in it
        self.positions: dict[int, int] = {}  # node id → its position
        self.holders: dict[int, int] = {}

    def add(self, placement: Placement, holder: int) -> None:
        node = self.nodes[placement.node_id]
        node[0] += placement.cpu_milli
        node[1] += placement.host_memory_mib
        self.positions[placement.node_id] = placement.node
        slices = zip(placement.device_ids, placement.device_indexes, placement.memory_mib, strict=True)
        for device_id, index, memory in slices:
            device = self.devices[device_id]
            device[0] += placement.compute_milli
            device[1] += memory
            self.places[device_id] = (placement.node, placement.node_id, index)
            self.holders[device_id] = holder

    def beyond(self, other: Holding) -> Iterable[tuple[Placement, int]]:
        """Placements that together are what is here and not in ``other``, each with who would hold it."""
        for node_id in sorted(self.nodes):
            cpu, host = (max(0, a - b) for a, b in zip(self.nodes[node_id], other.nodes[node_id], strict=True))
            if cpu or host:
                yield Placement(self.positions[node_id], node_id, (), (), 0, (), cpu, host), 0
        for device_id in sorted(self.devices):
            compute, memory = (a - b for a, b in zip(self.devices[device_id], other.devices[device_id], strict=True))
            if compute > 0 or memory > 0:
                node, node_id, index = self.places[device_id]
                holder = other.holders.get(device_id, self.holders[device_id])
                # Memory alone is no slice: the least of compute goes with it.
                slice_ = Placement(node, node_id, (index,), (device_id,), max(1, compute), (max(0, memory),), 0, 0)
                yield slice_, holder
