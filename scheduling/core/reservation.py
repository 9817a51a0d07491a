"""No starvation: who gets a reservation in a pool, what is kept for it, and who may pass.

The first job in the order of the walk that is entitled but does not start gets the earliest time and place at which it
can, and whoever comes later may go ahead of it only without delaying it: what ends by its own time limit before that
moment may use anything, everything else only what the job will not need then. Where the moment is not known, the free
parts of the nodes of its place take nobody else.

- *Entitled* is judged as of the moment of the start, when what has ended by then is given back: with the job its team
  and all above it stay within what they deserve, and quota admits it. A job of a ``cluster_wide`` class goes ahead of
  other teams' jobs, so it need not stay within that share. Jobs that run and want to grow get no reservation, but they
  heed it; so do jobs of every kind.
- A job that names several pools reserves in the first of them that could ever host it.
- There is at most one reservation in a pool at a time. The **holder** keeps it from cycle to cycle while it waits, is
  not held and stays entitled, even if the order of the walk puts others first meanwhile. Its time is worked out anew in
  each cycle: it may come earlier, and its place may move; nobody who was let in makes it later.
- Only a **better right** goes before a holder: a job that others gave way to already; a ``cluster_wide`` job before one
  that is not, or one of a higher priority among these; a job of its own team with a higher priority; and a job of a
  team below its guarantee while the holder's (both just below their common ancestor) is not; and where it is a limit
  that the holder waits for rather than room, jobs outside that limit. Such a job takes what is kept only if it does not
  fit beside it. The holder then looks for another time; and where such a job cannot start at
  all, the reservation is its own from now on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.fleet import PlacementRefused
from scheduling.core.future import Future, Holding
from scheduling.core.model import Placement, Reservation, RunningJob, RunningTask, TaskStart
from scheduling.core.room import Room, Want
from scheduling.core.time_ahead import Found, Tenure, TimeAhead, entitled, would_end

MOST_TRIED = 16  # different jobs of one pool for which one cycle looks ahead
# What time does not mend, or what is between the jobs of one member: who fills the own limit keeps nobody else waiting.
NO_MATTER_OF_TIME = frozenset({"pool_unavailable", "class_cap", "next_cycle", "over_user_limit"})


class Kept:
    """One reservation in force: what it keeps is taken in the fleet, but for those who may pass.

    ``room``: the pool without it, where what does not fit fits nowhere. ``used_up``: the holder, or one with a better
    right, has taken what was kept.
    """

    def __init__(self, cycle: Cycle, at: PoolCycle, holder: Candidate, found: Found, future: Future):
        self.holder = holder
        self.found = found
        self.room = at.room
        self.used_up = False
        self._cycle = cycle
        self._at = at
        self._future = future
        self._wanted = _places((task.placement, _team_of(holder, task)) for task in found.tasks)
        self._leaving_here = [each for each in found.leaving if each.placement.node_id in self._wanted.positions]
        self._books = _by_holder(found.leaving)
        self._kept: list[Placement] = []
        self._forks: dict[int, tuple[int, int]] = {}

    # ---- who may pass ------------------------------------------------------------------------------------------------

    def lets(self, candidate: Candidate) -> bool:
        """Whether the candidate may use what is kept: the holder, who ends in time, and who has a better right."""
        return candidate is self.holder or self.ends_in_time(candidate) or self.outranked_by(candidate)

    def ends_in_time(self, candidate: Candidate) -> bool:
        """Whether what the candidate starts now is gone by the reserved moment."""
        ends = would_end(candidate, self._at, self._cycle.snapshot.now)
        return ends is not None and self.found.at is not None and ends <= self.found.at

    def outranked_by(self, candidate: Candidate) -> bool:
        """Whether the candidate has a better right than the holder; see the module."""
        job, holder = candidate.job, self.holder.job
        if candidate is self.holder or not candidate.waits:
            return False
        if job.room_made_at is not None:
            return True
        if job.cluster_wide or holder.cluster_wide:
            return job.cluster_wide and (not holder.cluster_wide or job.priority > holder.priority)
        if candidate.leaf == self.holder.leaf:
            return job.priority > holder.priority
        if self.found.binding is not None and self.found.binding not in self._at.tree.path(candidate.leaf):
            return True
        fork = self._forks.get(candidate.leaf)
        if fork is None:
            fork = self._forks[candidate.leaf] = self._below_the_common_one(candidate)
        own, other = fork
        allocated, guaranteed = self._at.account.allocated, self._at.account.standing.guaranteed
        return allocated[own] < guaranteed[own] and allocated[other] >= guaranteed[other]

    def _below_the_common_one(self, candidate: Candidate) -> tuple[int, int]:
        """The positions of the candidate's and of the holder's path just below where the two meet."""
        tree = self._at.tree
        own, other = tree.path(candidate.leaf), tree.path(self.holder.leaf)
        return next(p for p in reversed(own) if p not in other), next(p for p in reversed(other) if p not in own)

    # ---- giving beside it --------------------------------------------------------------------------------------------

    def take(self, candidate: Candidate, wants: tuple[Want, ...]) -> list[TaskStart] | None:
        """Places and takes ``wants`` for the candidate: beside what is kept if it can, else with it if it may."""
        at = self._at
        tasks = None if candidate is self.holder else at.room.take(wants)
        if tasks is not None and not self.lets(candidate) and self._delays(candidate, at.charge_of_tasks(tasks)):
            at.room.undo(tasks)
            return None
        if tasks is None and self.lets(candidate):
            tasks = self._take_what_is_kept(candidate, wants)
        elif tasks is not None and self.ends_in_time(candidate):
            self._books[candidate.leaf, candidate.job.user_id] += at.charge_of_tasks(tasks)
        return tasks

    def _take_what_is_kept(self, candidate: Candidate, wants: tuple[Want, ...]) -> list[TaskStart] | None:
        at = self._at
        promised = candidate is self.holder and wants is candidate.ask.least
        if self.room.known_full(wants) and not promised:
            return None
        self.lift()
        tasks = self.room.take(wants)
        if tasks is None and promised and self.room.take_as(self.found.tasks, candidate.ask):
            tasks = list(self.found.tasks)  # one after the other its tasks found no place, but there is this one
        if tasks is not None and at.depends_on_place(wants) and self._too_much_there(candidate, tasks):
            at.refused_where_it_lands = True
            self.room.undo(tasks)
            tasks = None
        if tasks is not None and not self.ends_in_time(candidate):
            self.used_up = True
        elif tasks is not None:
            self._note_leaving(candidate, tasks)
        self.put()
        return tasks

    def _too_much_there(self, candidate: Candidate, tasks: list[TaskStart]) -> bool:
        return self._cycle.over_quota(candidate, self._at, self._at.charge_of_tasks(tasks)) is not None

    def _note_leaving(self, candidate: Candidate, tasks: list[TaskStart]) -> None:
        """These will be gone by the reserved moment."""
        ends, job = would_end(candidate, self._at, self._cycle.snapshot.now), candidate.job
        for task in tasks:
            charge = self._at.charge_of_tasks((task,))
            self._books[candidate.leaf, job.user_id] += charge
            if task.placement.node_id in self._wanted.positions:
                team = _team_of(candidate, task)
                self._leaving_here.append(Tenure(ends, candidate.leaf, job.user_id, task.placement, team, charge))

    def keeps_out(self, candidate: Candidate, wants: tuple[Want, ...]) -> bool:
        """Whether the candidate, for whom there is room with what is kept, has none beside it. Takes nothing."""
        if self.lets(candidate):
            return False
        self.put()
        room = Room(self._at.pool.fleet)
        tasks = room.take(wants)
        room.give_back()
        self.lift()
        return tasks is None or self._delays(candidate, self._at.charge_of_tasks(tasks))

    # ---- the shares and limits that the holder needs -----------------------------------------------------------------

    def _delays(self, candidate: Candidate, charge: int) -> bool:
        """Whether the holder could not start at its moment, by quota or by what it is entitled to, if the candidate
        held ``charge`` then."""
        at, holder = self._at, self.holder
        path = at.tree.path(holder.leaf)
        if not charge or not any(position in path for position in at.tree.path(candidate.leaf)):
            return False
        with self._books_then():
            at.account.take(candidate.leaf, candidate.job.user_id, charge)
            refused = self._holder_is_refused()
            at.account.give_up(candidate.leaf, candidate.job.user_id, charge)
        return refused

    def _holder_is_refused(self) -> bool:
        """(What others have reserved is judged by what is free, and that is not what will be free then.)"""
        at, holder, charge = self._at, self.holder, self.found.charge
        job = holder.job
        refusals = at.account.refusals(holder.leaf, job.user_id, charge, preemptible=job.preemptible)
        return any("reserved" not in each.numbers for each in refusals) or not entitled(at, holder, charge)

    @contextmanager
    def _books_then(self) -> Iterator[None]:
        """The books are as they will be at the reserved moment, with all that this cycle has started meanwhile."""
        account, claims = self._at.account, self._future.claims
        account.set_aside({position: -charge for position, charge in self._future.booked.items()})
        for claim in claims:
            account.take(claim.candidate.leaf, claim.candidate.job.user_id, claim.charge)
        for (leaf, user_id), charge in self._books.items():
            account.give_up(leaf, user_id, charge)
        yield
        for (leaf, user_id), charge in self._books.items():
            account.take(leaf, user_id, charge)
        for claim in reversed(claims):
            account.give_up(claim.candidate.leaf, claim.candidate.job.user_id, claim.charge)
        account.set_aside(self._future.booked)

    # ---- while others are told to give way ---------------------------------------------------------------------------

    def _guards_from(self, candidate: Candidate) -> bool:
        return self.holder.claims is None and candidate is not self.holder and not self.outranked_by(candidate)

    @contextmanager
    def guard(self, candidate: Candidate, gone: Mapping[int, tuple[RunningJob, RunningTask]]) -> Iterator[None]:
        """In the pool's future, where what is ``gone`` is: the candidate sees what it may have. Whatever the candidate
        takes there it keeps beyond the reserved moment, for all that is known."""
        if not self._guards_from(candidate):
            yield
            return
        out = {id(task.placement) for _, task in gone.values()}
        leaving = [(each.placement, each.holder) for each in self._leaving_here if id(each.placement) not in out]
        self._keep(self._wanted, _places(leaving))
        yield
        self.lift()

    def delayed_by(self, candidate: Candidate, charge: int, gone: Mapping[int, tuple[RunningJob, RunningTask]]) -> bool:
        """In the pool's future: whether the candidate uses up what the holder may have at its moment."""
        if not self._guards_from(candidate):
            return False
        at = self._at
        out = {id(task.placement) for _, task in gone.values()}
        books = _by_holder(each for each in self.found.leaving if id(each.placement) not in out)
        changes = [(*key, -amount) for key, amount in books.items()]
        changes.append((candidate.leaf, candidate.job.user_id, charge))
        for leaf, user_id, amount in changes:
            at.account.take(leaf, user_id, amount)
        refused = self._holder_is_refused()
        for leaf, user_id, amount in reversed(changes):
            at.account.give_up(leaf, user_id, amount)
        return refused

    # ---- what is kept in the fleet -----------------------------------------------------------------------------------

    def put(self) -> None:
        """In the present: what the holder needs beyond what will be gone is taken, or, where the moment is not known,
        all that is free on its nodes."""
        wanted, leaving = self._wanted, [(each.placement, each.holder) for each in self._leaving_here]
        claims = [task for claim in self._future.claims for task in claim.tasks]
        if claims:
            wanted = _places((task.placement, _team_of(self.holder, task)) for task in self.found.tasks)
            for claim in self._future.claims:
                for task in claim.tasks:
                    if task.placement.node_id in self._wanted.positions:
                        wanted.add(task.placement, _team_of(claim.candidate, task))
            leaving += [(each, 0) for each in self._future.kept if each.node_id in self._wanted.positions]
        self._keep(wanted, _places(leaving))

    def lift(self) -> None:
        """Nothing is kept."""
        for placement in reversed(self._kept):
            self._at.pool.fleet.give_back(placement)
        self._kept.clear()

    def _keep(self, wanted: Holding, leaving: Holding) -> None:
        known = self.found.at is not None
        if not known and self.found.binding is not None:
            return  # there is room, and nobody knows when it may be used
        whole = self._whole(everything=not known)
        for placement, team in wanted.beyond(leaving) if known else ():
            if not (placement.device_ids and placement.device_ids[0] in whole):
                self._take(placement, team)
        for placement, team in whole.values():
            self._take(placement, team)

    def _whole(self, *, everything: bool) -> dict[int, tuple[Placement, int]]:
        """By device (nodes below 0), what is free on the holder's nodes: of ``everything``, or only of devices where
        another team still shares, which must be free of all of it by then."""
        wanted, whole = self._wanted, {}
        if everything or any(wanted.holders.values()):
            for node in sorted(set(wanted.positions.values())):
                for placement, team in self._at.pool.fleet.free_on(node):
                    device_id = placement.device_ids[0] if placement.device_ids else -node - 1
                    if everything or team not in (0, wanted.holders.get(device_id, team)):
                        whole[device_id] = (placement, team)
        return whole

    def _take(self, placement: Placement, team: int) -> None:
        try:
            self._at.pool.fleet.take(placement, team)
        except PlacementRefused:
            return  # nobody else can take it either
        self._kept.append(placement)


class Reservations:
    """The reservations of one cycle, from those that jobs bring along to those that the plan tells of."""

    def __init__(self, cycle: Cycle):
        self._cycle = cycle
        self._futures: dict[int, Future] = dict(cycle.futures)
        self._in_vain: set[Hashable] = set()
        self._tried: Counter[int] = Counter()  # by pool
        self._where: dict[Hashable, PoolCycle | None] = {}
        self._ahead: dict[int, TimeAhead] = {}

    def keep_holders(self) -> None:
        """Who held a reservation still does, if it still is entitled to it."""
        holders = [each for each in self._cycle.candidates if each.job.room_kept_since is not None]
        for candidate in sorted(holders, key=lambda each: (each.job.room_kept_since, each.job.id)):
            self.consider(candidate, None)

    def consider(self, candidate: Candidate, pool: PoolCycle | None) -> None:
        """The candidate was given nothing in ``pool`` (None: anywhere): it gets a reservation, if it is the first."""
        if not candidate.waits or candidate.claims is not None or not candidate.ask.least:
            return
        if pool is not None and pool.kept is not None and not pool.kept.outranked_by(candidate):
            return
        at = self._first_that_could(candidate)
        if at is None or (pool is not None and at is not pool):
            return
        if at.kept is not None and (at.kept.holder is candidate or not at.kept.outranked_by(candidate)):
            return
        self._reserve(candidate, at)

    def settle(self, candidate: Candidate) -> None:
        """The candidate was given something: what it has used up is kept no longer, and the holder looks anew."""
        at = candidate.pool
        if at is None or at.kept is None or not at.kept.used_up:
            return
        holder = at.kept.holder
        self._drop(at)
        at.kept_less = True
        if holder is not candidate:
            self._in_vain.discard(self._key(holder, at))
            self._tried[at.pool.id] -= 1
            self._reserve(holder, at)

    def started_elsewhere(self) -> list[PoolCycle]:
        """The pools whose holder has started in another one: nothing is kept there any more."""
        found = [at for at in self._cycle.pools.values() if at.kept is not None and at.kept.holder.pool is not None]
        for at in found:
            self._drop(at)
        return found

    def lift(self) -> None:
        """The walk is over: the fleets hold only what is bound and started; who was kept out is still known."""
        for at in self._cycle.pools.values():
            if at.kept is not None:
                at.kept.lift()
                at.room = at.kept.room

    def of_plan(self, for_jobs: Collection[int]) -> tuple[Reservation, ...]:
        """What the plan tells; a job that others give way to from now on (``for_jobs``) needs none."""
        now = self._cycle.snapshot.now
        return tuple(
            Reservation(
                job_id=kept.holder.job.id,
                pool_id=at.pool.id,
                at=kept.found.at,
                since=now if kept.holder.job.room_kept_since is None else kept.holder.job.room_kept_since,
                tasks=tuple(sorted(kept.found.tasks, key=lambda task: task.group)),
            )
            for at in self._cycle.pools.values()
            if (kept := at.kept) is not None and kept.holder.job.id not in for_jobs
        )

    def _reserve(self, candidate: Candidate, at: PoolCycle) -> None:
        key = self._key(candidate, at)
        if key in self._in_vain or self._tried[at.pool.id] >= MOST_TRIED:
            return
        refusal = self._cycle.refusal(candidate, at, candidate.ask.least)
        if refusal is not None and refusal.code in NO_MATTER_OF_TIME:
            return
        self._tried[at.pool.id] += 1
        if at.pool.id not in self._ahead:
            future = self._futures.setdefault(at.pool.id, Future(at, ()))
            self._ahead[at.pool.id] = TimeAhead(self._cycle, at, future)
        before = at.kept
        if before is not None:
            before.lift()
        found = self._ahead[at.pool.id].earliest(candidate)
        if found is None:
            self._in_vain.add(key)
            if before is not None:
                before.put()
            return
        if before is not None:
            self._drop(at)
        at.kept = Kept(self._cycle, at, candidate, found, self._futures[at.pool.id])
        at.keep_apart()
        at.kept.put()

    def _drop(self, at: PoolCycle) -> None:
        assert at.kept is not None
        at.kept.lift()
        at.room = at.kept.room
        at.kept = None

    def _key(self, candidate: Candidate, at: PoolCycle) -> Hashable:
        job = candidate.job
        user = job.user_id if at.account.tells_users_apart else None
        return (at.pool.id, candidate.ask, candidate.leaf, job.preemptible, job.cluster_wide, user)

    def _first_that_could(self, candidate: Candidate) -> PoolCycle | None:
        """The first of its pools that is available and has a node for each of its tasks, were it empty."""
        key = (candidate.ask, candidate.job.pool_ids)
        if key not in self._where:
            self._where[key] = next((at for at in candidate.choices if _could_host(at, candidate)), None)
        return self._where[key]


def _could_host(at: PoolCycle, candidate: Candidate) -> bool:
    fleet = at.pool.fleet
    return at.pool.available and all(fleet.possible_nodes(want.request) for want in candidate.ask.least)


def _team_of(candidate: Candidate, task: TaskStart) -> int:
    return candidate.ask.groups[task.group].request.team_id


def _places(held: Iterable[tuple[Placement, int]]) -> Holding:
    places = Holding()
    for placement, team in held:
        places.add(placement, team)
    return places


def _by_holder(tenures: Iterable[Tenure]) -> Counter[tuple[int, int]]:
    """What leaf and user hold of it."""
    held: Counter[tuple[int, int]] = Counter()
    for each in tenures:
        held[each.leaf, each.user_id] += each.charge
    return held
