"""What one decision works with: every pool's books and room, and every job that could be given something.

No order is chosen here; that is the part of ``decide``. What is given is booked and taken at once, and the fleets are
as they were after ``give_back``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduling.core.admission import Account, Refusal
from scheduling.core.charges import Charge, memory_of
from scheduling.core.class_caps import ClassCaps
from scheduling.core.gang_rules import GangRule
from scheduling.core.model import EvictionRefusal, PendingJob, Policy, PoolState, Request, Snapshot, Start, TaskStart
from scheduling.core.room import Ask, Room, Want
from scheduling.core.shares import Standing, standing
from scheduling.core.tree import Tree

if TYPE_CHECKING:
    from scheduling.core.future import Future
    from scheduling.core.reservation import Kept


class Candidate:
    """A job that is not held: what it still asks for, and what it was given in this cycle.

    ``choices``: the pools where it could be given something, its first choice first; a job that runs has one.
    """

    __slots__ = ("ask", "choices", "claims", "extra", "job", "leaf", "numbers", "pool", "rule", "tasks")

    def __init__(self, job: PendingJob, ask: Ask, leaf: int, choices: list[PoolCycle]):
        self.job = job
        self.ask = ask
        self.leaf = leaf
        self.choices = choices
        self.pool: PoolCycle | None = None  # where it was given something
        self.claims: PoolCycle | None = None  # where others give way to it, and it waits until they are gone
        self.tasks: list[TaskStart] = []
        self.extra = list(ask.extra)  # tasks of each group beyond ``ask.least`` that are still to be placed
        self.rule = ""
        self.numbers: dict[str, object] = {}

    @property
    def waits(self) -> bool:
        """Whether it stands in the queue as a job, not as the growth of one that runs."""
        return self.pool is None and not self.job.growing

    @property
    def gang_rule(self) -> GangRule | None:
        """Where its next tasks may be, with what it was given in this cycle."""
        own = self.ask.rule
        return own if own is None else own.having([task.placement.node for task in self.tasks])

    def offers(self) -> Iterator[tuple[Want, ...]]:
        """What it could be given next, each all or nothing: its least, or one more task of an incomplete group."""
        if self.pool is None and self.ask.least:
            yield self.ask.least
            return
        rule = self.gang_rule
        for group, left in enumerate(self.extra):
            if left:
                yield (Want(group, self.ask.groups[group].request, 1, rule),)

    def has_offers(self) -> bool:
        return next(self.offers(), None) is not None


class PoolCycle:
    """One pool while a cycle goes on. ``account`` is there once all ``candidates`` are known: see ``open_books``."""

    account: Account

    def __init__(self, pool: PoolState, tree: Tree):
        self.pool = pool
        self.tree = tree
        self.room = Room(pool.fleet)
        self.rooms = [self.room]  # all that something was taken by
        self.kept: Kept | None = None  # the reservation in force
        self.kept_less = False  # whether one was in force and is so no more, so that others may fit now
        self.candidates: list[Candidate] = []
        self.after_another = 0  # how many jobs name this pool as a later choice
        self.stale = False  # whether a job that named it was started elsewhere since its shares were worked out
        self.refused_where_it_lands = False  # whether quota refused what a task counts where it would have landed
        self._free = (-1, 0)  # the fleet's version, and what was free then
        gpu = pool.unit == "gpu"
        self.counts_memory = gpu and any(each.memory_limit_mib is not None for each in pool.quotas.values())
        self._each: dict[Request, int] = {}
        self._frugal: dict[Request, Request] = {}
        self._varies: dict[Request, bool] = {}  # whether what a request counts is known only where it lands
        self._least: dict[Ask, int] = {}
        self._whole: dict[Ask, int] = {}

    def open_books(self) -> None:
        """Shares as the cycle finds them; from here on what is allocated is kept by ``account``."""
        self.account = Account(self.pool, self.standing_now(), self.free)

    def keep_apart(self) -> None:
        """From now on what does not fit beside what is kept says nothing of the pool as a whole."""
        self.room = Room(self.pool.fleet)
        self.rooms.append(self.room)

    def refresh(self) -> None:
        """Works the shares out anew if jobs that named this pool were started elsewhere."""
        if self.stale:
            self.account.use_standing(self.standing_now())
            self.stale = False

    def free(self) -> int:
        """What new tasks could take, all nodes together."""
        fleet = self.pool.fleet
        if self._free[0] != fleet.version:
            self._free = (fleet.version, fleet.free_milli() if self.pool.unit == "gpu" else fleet.free_cpu_milli())
        return self._free[1]

    def standing_now(self, *, remembering: bool = True) -> Standing:
        """Everyone's numbers, with what this cycle has started counted as running; without ``remembering``, as they
        would be if nobody had a past."""
        running: Counter[int] = Counter()
        pending: Counter[int] = Counter()
        for (team_id, _), amount in self.pool.usage.items():
            running[team_id] += amount
        for candidate in self.candidates:
            if candidate.pool is None:
                pending[candidate.job.team_id] += int(self._charge_of_all(candidate.ask))
            elif candidate.pool is self:
                running[candidate.job.team_id] += int(self.charge_of_tasks(candidate.tasks))
                pending[candidate.job.team_id] += int(self._charge_of_extra(candidate.ask, candidate.extra))
        fleet = self.pool.fleet
        capacity = fleet.capacity_milli() if self.pool.unit == "gpu" else fleet.capacity_cpu_milli()
        past_use = self.pool.past_use if remembering else None
        return standing(self.tree, self.pool.quotas, capacity, running, pending, past_use)

    # ---- charges, in the pool's unit ---------------------------------------------------------------------------------

    def charge(self, wants: tuple[Want, ...]) -> int:
        """What ``wants`` count against quotas; where that depends on the devices, the least that they could."""
        return sum(self._charge_each(want.request) * want.tasks for want in wants)

    def depends_on_place(self, wants: tuple[Want, ...]) -> bool:
        """Whether ``charge`` is only the least: what memory alone comes to is known where it lands, and so is what a
        fraction does where some models round it up, or where memory counts and devices differ in it."""
        return self.pool.unit == "gpu" and any(self._depends_on_place(want.request) for want in wants)

    def _depends_on_place(self, request: Request) -> bool:
        if not request.devices or request.compute_milli is None:
            return request.devices > 0
        if not (self.counts_memory or self.pool.fleet.cuts_by_rule):
            return False
        known = self._varies.get(request)
        if known is None:
            known = self._varies[request] = len(self.pool.fleet.grants(request)) > 1
        return known

    def charge_where_it_lands(self, wants: tuple[Want, ...]) -> int | None:
        """What ``wants`` would count if they were placed now, None where they do not fit. Takes nothing."""
        if not self.depends_on_place(wants):
            return self.charge(wants)
        tasks = self.room.take(wants)
        if tasks is None:
            return None
        self.room.undo(tasks)
        return self.charge_of_tasks(tasks)

    def frugal(self, wants: tuple[Want, ...]) -> tuple[Want, ...]:
        """``wants`` on those of the models they allow where each counts least."""
        return tuple(want._replace(request=self._frugal_request(want.request)) for want in wants)

    def _frugal_request(self, request: Request) -> Request:
        if not self._depends_on_place(request):
            return request
        known = self._frugal.get(request)
        if known is None:
            known = self._frugal[request] = replace(request, models=self.pool.fleet.cheapest_models(request))
        return known

    def least_where_it_lands(self, wants: tuple[Want, ...]) -> int | None:
        """The least that ``wants`` would count if they were placed now, None where they do not fit. Takes nothing."""
        found = [self.charge_where_it_lands(wants)]
        if self.depends_on_place(wants):
            found.append(self.charge_where_it_lands(self.frugal(wants)))
        charges = [charge for charge in found if charge is not None]
        return min(charges, key=lambda charge: (int(charge), memory_of(charge)), default=None)

    def charge_of_least(self, ask: Ask) -> int:
        """``charge(ask.least)``, worked out once."""
        known = self._least.get(ask)
        if known is None:
            known = self._least[ask] = self.charge(ask.least)
        return known

    def charge_of_tasks(self, tasks: Iterable[TaskStart]) -> int:
        """What placed tasks count against quotas."""
        if self.pool.unit == "gpu":
            if self.counts_memory:
                return sum((Charge(task.placement.milli, task.placement.memory_counted) for task in tasks), Charge(0))
            return sum(task.placement.milli for task in tasks)
        return sum(task.placement.cpu_milli for task in tasks)

    def _charge_of_all(self, ask: Ask) -> int:
        known = self._whole.get(ask)
        if known is None:
            known = self._whole[ask] = self.charge_of_least(ask) + self._charge_of_extra(ask, ask.extra)
        return known

    def _charge_of_extra(self, ask: Ask, extra: Iterable[int]) -> int:
        return sum(self._charge_each(group.request) * left for group, left in zip(ask.groups, extra, strict=True))

    def _charge_each(self, request: Request) -> int:
        known = self._each.get(request)
        if known is None:
            known = self._each[request] = self._least_charge(request)
        return known

    def _least_charge(self, request: Request) -> int:
        if self.pool.unit == "cpu":
            return request.cpu_milli
        asked = request.devices * (request.compute_milli or 0)
        fleet = self.pool.fleet
        if request.devices and (request.compute_milli is None or fleet.cuts_by_rule):
            asked = fleet.least_milli(request) or asked
        return Charge(asked, fleet.least_memory(request)) if self.counts_memory else asked


class Cycle:
    """All pools and candidates of one decision. ``give`` is the only way in which a job gets anything."""

    def __init__(self, snapshot: Snapshot, policy: Policy):
        self.snapshot = snapshot
        self.policy = policy
        self.tree = Tree(snapshot.teams)
        self.pools = {pool.id: PoolCycle(pool, self.tree) for pool in sorted(snapshot.pools, key=lambda pool: pool.id)}
        self.started: list[Candidate] = []  # in the order in which they were first given something
        self.candidates: list[Candidate] = []
        self.dropped: list[Candidate] = []  # of those, the ones that are given nothing whatever happens
        self.waits_for: dict[int, tuple[PoolCycle, list[int]]] = {}  # job → where it waits for which jobs to be gone
        self.futures: Mapping[int, Future] = {}  # by pool, where anything runs
        # Job → pool, what it needs, the most that can be freed, what jobs hold that gave way as often as they may.
        self.not_freed: dict[int, tuple[int, int, int, int]] = {}
        self.refusals: dict[int, EvictionRefusal] = {}  # job → why nobody gives way to it
        self.broken: list[int] = []  # jobs that run below their least and cannot be made whole now
        self.caps = ClassCaps(snapshot.pools)
        self._nodes_of_running: Mapping[int, tuple[int, ...]] | None = None
        self._enter_candidates()
        for pool_cycle in self.pools.values():
            pool_cycle.open_books()

    def give(self, candidate: Candidate, at: PoolCycle, wants: tuple[Want, ...]) -> bool:
        """Gives all ``wants`` to the candidate, or nothing where a predicate refuses or there is no room for them."""
        kept = at.kept
        if kept is None or kept.holder is not candidate:
            return self._give(candidate, at, wants)
        kept.lift()
        given = self._give(candidate, at, wants)
        if not given:
            kept.put()
        return given

    def _give(self, candidate: Candidate, at: PoolCycle, wants: tuple[Want, ...]) -> bool:
        if self.refusal(candidate, at, wants) is not None:
            return False
        if at.depends_on_place(wants):
            affordable = self._affordable(candidate, at, wants)
            if affordable is None:
                at.refused_where_it_lands = True
                return False
            wants = affordable
        tasks = at.room.take(wants) if at.kept is None else at.kept.take(candidate, wants)
        if tasks is None:
            return False
        self._book(candidate, at, tasks, at.charge_of_tasks(tasks))
        return True

    def _affordable(self, candidate: Candidate, at: PoolCycle, wants: tuple[Want, ...]) -> tuple[Want, ...] | None:
        """``wants``, or the same on the models where they count least if quota refuses what they count where they land
        best; None where it refuses both."""
        charge = at.charge_where_it_lands(wants)
        if charge is None or self.over_quota(candidate, at, charge) is None:
            return wants
        frugal = at.frugal(wants)
        charge = at.charge_where_it_lands(frugal) if frugal != wants else None
        return None if charge is None or self.over_quota(candidate, at, charge) is not None else frugal

    def refusal(self, candidate: Candidate, at: PoolCycle, wants: tuple[Want, ...]) -> Refusal | None:
        """The first predicate, room apart, that forbids giving ``wants`` to the candidate in that pool."""
        if not at.pool.available:
            return Refusal("pool_unavailable", {"pool": at.pool.name})
        least = wants is candidate.ask.least
        charge = at.charge_of_least(candidate.ask) if least else at.charge(wants)
        return self.over_quota(candidate, at, charge) or self._cycle_full(candidate)

    def over_quota(self, candidate: Candidate, at: PoolCycle, charge: int) -> Refusal | None:
        """The first cap of its class or predicate of quota that forbids the candidate ``charge`` more."""
        job = candidate.job
        if job.max_running_of_class is not None or job.max_milli_of_class is not None:
            team = self.tree.teams[candidate.leaf].name
            over_cap = self.caps.refusal(job, team, at.pool, charge, starts=candidate.waits)
            if over_cap is not None:
                return over_cap
        return at.account.refusal(candidate.leaf, job.user_id, charge, preemptible=job.preemptible)

    def drop(self, job_ids: Collection[int]) -> None:
        """These jobs are given nothing in this cycle; they still have their reasons."""
        gone = set(job_ids)
        self.dropped += [each for each in self.candidates if each.job.id in gone]
        self.candidates = [each for each in self.candidates if each.job.id not in gone]
        for pool_cycle in self.pools.values():
            pool_cycle.candidates = [each for each in pool_cycle.candidates if each.job.id not in gone]

    def give_back(self) -> None:
        """Every fleet is as the cycle found it."""
        for pool_cycle in self.pools.values():
            for room in pool_cycle.rooms:
                room.give_back()

    def starts(self) -> tuple[Start, ...]:
        return tuple(_start(candidate) for candidate in self.started)

    def _enter_candidates(self) -> None:
        asks: dict[object, Ask] = {}
        for job in self.snapshot.pending:
            if job.held is not None:
                continue
            rule = None if job.topology is None and job.apart is None else self._gang_rule(job)
            one_by_one = job.service and job.growing
            key = job.groups if rule is None and not one_by_one else (job.groups, rule, one_by_one)
            ask = asks.get(key)
            if ask is None:
                ask = asks[key] = Ask(job.groups, rule, one_by_one=one_by_one)
            candidate = Candidate(job, ask, self.tree.leaf(job.team_id), self._choices(job))
            self.candidates.append(candidate)
            for rank, pool_cycle in enumerate(candidate.choices):
                pool_cycle.candidates.append(candidate)
                pool_cycle.after_another += rank > 0

    def _gang_rule(self, job: PendingJob) -> GangRule:
        if not job.growing:
            return GangRule(job.topology, job.apart)
        if self._nodes_of_running is None:
            self._nodes_of_running = {
                each.id: tuple(sorted({task.placement.node for task in each.tasks})) for each in self.snapshot.running
            }
        return GangRule(job.topology, job.apart, held=self._nodes_of_running.get(job.id, ()))

    def _choices(self, job: PendingJob) -> list[PoolCycle]:
        pool_ids = job.pool_ids[:1] if job.growing else dict.fromkeys(job.pool_ids)
        return [self.pools[pool_id] for pool_id in pool_ids if pool_id in self.pools]

    def _cycle_full(self, candidate: Candidate) -> Refusal | None:
        most = self.policy.max_starts
        if most is None or candidate.pool is not None or len(self.started) < most:
            return None
        return Refusal("next_cycle", {"max_starts": most})

    def _book(self, candidate: Candidate, at: PoolCycle, tasks: list[TaskStart], charge: int) -> None:
        if candidate.pool is not None or not candidate.ask.least:
            candidate.extra[tasks[0].group] -= 1
        self.caps.take(candidate.job, at.pool, charge, starts=candidate.waits)
        if candidate.pool is None:
            self._begin(candidate, at, charge)
        candidate.tasks.extend(tasks)
        at.account.take(candidate.leaf, candidate.job.user_id, charge)

    def _begin(self, candidate: Candidate, at: PoolCycle, charge: int) -> None:
        candidate.rule, candidate.numbers = _what_it_saw(candidate, at, charge)
        for other in candidate.choices:
            other.stale = other.stale or other is not at
        candidate.pool, candidate.choices = at, [at]
        self.started.append(candidate)


def _what_it_saw(candidate: Candidate, at: PoolCycle, charge: int) -> tuple[str, dict[str, object]]:
    """The rule that let it start, and its team's numbers at that moment, for the ledger."""
    team = candidate.job.team_id
    position = at.tree.position_of[team]
    allocated, guaranteed = at.account.allocated[position], at.account.standing.guaranteed[position]
    if candidate.job.growing:
        rule = "replacement" if candidate.job.is_short else "growth"
    elif candidate.job.cluster_wide:
        rule = "cluster_wide"
    else:
        rule = "guarantee" if allocated < guaranteed else "share"
    return rule, {
        "team": at.account.name(position),
        "requested": int(charge),
        "allocated": allocated,
        "guaranteed": guaranteed,
        "deserved": at.account.standing.deserved[position],
        "limit": at.account.standing.limit[position],
    }


def _start(candidate: Candidate) -> Start:
    assert candidate.pool is not None
    return Start(
        job_id=candidate.job.id,
        pool_id=candidate.pool.pool.id,
        tasks=tuple(sorted(candidate.tasks, key=lambda task: task.group)),
        rule=candidate.rule,
        numbers=candidate.numbers,
    )
