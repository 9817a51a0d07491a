"""The search for those who give way to one job in one pool: reclaim across teams, then preemption inside the team.

Victims are taken out of the pool's future one by one until the job fits; then everyone who is not needed is put back.
The rules are those that ``reclaim`` tells.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from scheduling.core.admission import Refusal
from scheduling.core.cycle import Candidate, Cycle
from scheduling.core.future import Claim, Future
from scheduling.core.model import Eviction, EvictionRefusal, TaskStart
from scheduling.core.past_claims import PastClaims
from scheduling.core.refusals import Others, WhyNot
from scheduling.core.room import Room, Want
from scheduling.core.search_areas import Area, search_areas
from scheduling.core.victims import Rule, Unit, Victims

MOST_NODES = 32
FEW_NODES = 64  # up to so many, their victims are found node by node, not among those of the whole pool
NOBODY = 1 << 63  # above every priority
NO_ROOM_TO_MAKE = frozenset({"pool_unavailable", "class_cap", "next_cycle"})  # what no eviction changes


@dataclass(slots=True)
class Chosen:
    """A victim, by which rule, and its team's numbers just before."""

    unit: Unit
    rule: Rule
    numbers: dict[str, object]


class Search:
    """Looks in one pool's future for who could give way. What was looked for in vain is remembered for the cycle."""

    def __init__(self, cycle: Cycle, future: Future):
        self._cycle = cycle
        self._future = future
        self._at = future.at
        self._lowest = min((job.priority for job in future.running if job.preemptible), default=NOBODY)
        self._any_spared = any(job.spared for job in future.running)
        standing = future.at.account.standing
        self._deserved = standing.deserved
        # Guarantees beyond the capacity are scaled down in what is deserved, yet nobody reclaims what is inside one.
        self._floor = [max(pair) for pair in zip(standing.deserved, standing.guaranteed, strict=True)]
        self._guaranteed = [
            0 if own else amount for own, amount in zip(self._at.tree.own, standing.guaranteed, strict=True)
        ]
        self._past = PastClaims(future.at, cycle.snapshot.now)
        self._in_vain: dict[Hashable, tuple[int, int, int] | None] = {}
        self._why_not: dict[Hashable, WhyNot] = {}
        self._others = Others(future.at, future.running, cycle.snapshot.now, self._floor)
        self._rescued = 0
        self.touched: set[int] = set()  # leaves that something was taken from

    @cached_property
    def _victims(self) -> Victims:
        """Laid out when the first candidate comes that anyone could give way to: mostly none does."""
        return Victims(self._at, self._future.running, self._cycle.snapshot.now)

    def evictions_for(self, candidate: Candidate) -> list[Eviction]:
        """The evictions that let the candidate start once they are done: it then has a claim on the room. None where
        it is not entitled, or nothing that could be freed is enough (the cycle then notes how much could)."""
        key = self._key(candidate)
        if key in self._in_vain:
            self._note(candidate, key)
            return []
        if not candidate.ask.least or self._rescued >= self._cycle.policy.max_rescues:
            return []
        refusal = self._cycle.refusal(candidate, self._at, candidate.ask.least)
        if refusal is not None and refusal.code in NO_ROOM_TO_MAKE:
            self._in_vain[key] = None
            return []
        case = _Case(candidate, self._at.charge_of_least(candidate.ask))
        claim = self._fit(case, [])
        if claim is not None:
            self._accept(claim)
            if self._future.somebody_gives_way:
                self._cycle.waits_for[candidate.job.id] = (self._at, self._future.leaving_for(candidate.job.id))
            return []
        for rules in self._rules(case):
            found = self._search(case, rules)
            if found is not None:
                return self._carry_out(candidate, *found)
        spared = self._spared(case)
        tells = case.tried or spared or self._entitled(case, case.charge)
        vain = (int(case.charge), int(case.freeable), spared) if tells else None
        self._in_vain[key] = vain
        if vain is not None:
            blocked = self._cycle.over_quota(candidate, self._at, case.charge)
            own = blocked is not None and blocked.code != "over_share" and self._is_own(case, blocked)
            tried = case.freeable if case.tried else None
            self._why_not[key] = self._others.why_not(candidate, case.charge, tried, blocked if own else None)
        self._note(candidate, key)
        return []

    def _rules(self, case: _Case) -> Iterator[tuple[Rule, ...]]:
        """What may be tried, one after the other: only rules that have a victim at all."""
        leaf, allocated = case.candidate.leaf, self._at.account.allocated
        height = self._entitled(case, case.charge)
        if not height and case.candidate.job.priority <= self._lowest:
            return
        blocked = self._cycle.over_quota(case.candidate, self._at, case.charge)
        own_quota = blocked is not None and blocked.code != "over_share" and self._is_own(case, blocked)
        above = [other for other in self._victims.leaves if other != leaf and allocated[other] > self._floor[other]]
        reclaim = height > 0 and not own_quota and any(self._can_lose(case, other, height) for other in above)
        preempt = any(
            unit.job.priority < case.candidate.job.priority
            for whole in (False, True)
            for unit in self._victims.of_kind(whole=whole).get(leaf, ())[:1]
        )
        if reclaim:
            yield ("reclaim",)
        if preempt:
            yield ("preempt",)
        if preempt and above:
            yield ("preempt", "reclaim")

    def _can_lose(self, case: _Case, leaf: int, height: int) -> bool:
        """Whether anything of another leaf may be reclaimed by a candidate that is entitled up to ``height``."""
        below, chain = self._victims.apart(case.candidate.leaf, leaf)
        if height < below:
            return False
        allocated = self._at.account.allocated
        spare = min(allocated[position] - self._floor[position] for position in chain)
        return spare >= self._victims.smallest[leaf] or (spare > 0 and self._inside_guarantee(case, below))

    def _is_own(self, case: _Case, refusal: Refusal) -> bool:
        """Whether it is a quota of the candidate's own team that nobody else's eviction gives room in."""
        leaf, tree = case.candidate.leaf, self._at.tree
        return not tree.own[leaf] and refusal.numbers["team"] == tree.teams[leaf].name

    def _spared(self, case: _Case) -> int:
        """What could be taken back, were it not of jobs that gave way as often as they may be made to."""
        if not self._any_spared:
            return 0
        own, allocated = case.candidate.leaf, self._at.account.allocated
        entitled = self._entitled(case, case.charge) > 0
        found = 0
        for leaf, jobs in self._victims.spared.items():
            if leaf == own:
                found += sum(charge for priority, charge in jobs if priority < case.candidate.job.priority)
            elif entitled and allocated[leaf] > self._floor[leaf]:
                found += sum(charge for _, charge in jobs)
        return found

    def _note(self, candidate: Candidate, key: Hashable) -> None:
        vain = self._in_vain[key]
        if vain is not None:
            job_id, pool_id = candidate.job.id, self._at.pool.id
            self._cycle.not_freed.setdefault(job_id, (pool_id, *vain))
            self._cycle.refusals.setdefault(job_id, EvictionRefusal(job_id, pool_id, *self._why_not[key]))

    def _key(self, candidate: Candidate) -> Hashable:
        job = candidate.job
        user = job.user_id if self._at.account.tells_users_apart else None
        caps = (job.max_running_of_class, job.max_milli_of_class)
        rank = None if caps == (None, None) else (job.priority_class, *caps)
        return (candidate.ask, candidate.leaf, job.preemptible, user, rank, job.priority)

    def _accept(self, claim: Claim) -> None:
        """The job has its place in the future; where others are being stopped for nobody else, it waits for them."""
        self._future.claims.append(claim)
        claim.candidate.claims = self._at
        self._cycle.caps.take(claim.candidate.job, self._at.pool, claim.charge, starts=True)

    def _carry_out(self, candidate: Candidate, claim: Claim, chosen: list[Chosen]) -> list[Eviction]:
        self._accept(claim)
        self._rescued += 1
        self.touched |= {each.unit.leaf for each in chosen}
        self._victims.drop([each.unit for each in chosen])
        self._future.give_way(claim, [(each.unit.job, each.unit.tasks) for each in chosen])
        return list(_evictions(chosen, self._at.pool.id, candidate.job.id))

    # ---- whether it fits ---------------------------------------------------------------------------------------------

    def _entitled(self, case: _Case, charge: int) -> int:
        """How many positions from the candidate's own up stay within what they deserve, the job included."""
        allocated = self._at.account.allocated
        height = 0
        for position in self._at.tree.path(case.candidate.leaf):
            if allocated[position] + charge > self._deserved[position]:
                break
            height += 1
        return height

    def _fit(self, case: _Case, chosen: list[Chosen]) -> Claim | None:
        """The candidate's place now that the chosen are gone, taken; None where it may not or cannot start."""
        if not self._may(case, case.charge, chosen):
            return None
        least = case.wants
        varies = self._at.depends_on_place(least)
        # Where what it counts is known only where it lands, and is too much there, it may land where it counts least.
        for wants in (least, self._at.frugal(least)) if varies else (least,):
            claim = self._future.place(case.candidate, wants)
            if claim is None or not varies:
                return claim
            self._future.forget(claim)
            if self._may(case, claim.charge, chosen):
                return self._future.place(case.candidate, wants)
        return None

    def _may(self, case: _Case, charge: int, chosen: list[Chosen]) -> bool:
        height = 1
        for each in chosen:
            if each.rule == "reclaim":
                height = max(height, self._victims.apart(case.candidate.leaf, each.unit.leaf)[0])
        if self._entitled(case, charge) < height:
            return False
        return self._cycle.over_quota(case.candidate, self._at, charge) is None

    # ---- the search --------------------------------------------------------------------------------------------------

    def _search(self, case: _Case, rules: tuple[Rule, ...]) -> tuple[Claim, list[Chosen]] | None:
        """The claim and those who give way to it, or None with everything as before."""
        wants = case.candidate.ask.least
        if Room(self._at.pool.fleet).fits(wants):  # only quota is in the way
            return self._search_in(case, rules, Area(None, wants))
        areas = search_areas(self._at.pool.fleet, wants)
        if all(area.nodes is not None and not area.nodes for area in areas):
            return None  # no node could ever host it
        if len(areas) == 1:
            return self._search_in(case, rules, areas[0])
        best: tuple[tuple[int, int, int], Area] | None = None
        for tried, area in enumerate(self._worth_trying(case, rules, areas)):
            if best is not None and tried >= MOST_NODES:
                break
            found = self._search_in(case, rules, area)
            if found is None:
                continue
            claim, chosen = found
            cost = (sum(each.unit.whole for each in chosen), sum(each.unit.charge for each in chosen), tried)
            self._future.forget(claim)
            self._undo(chosen)
            if best is None or cost < best[0]:
                best = (cost, area)
        return None if best is None else self._search_in(case, rules, best[1])

    def _worth_trying(self, case: _Case, rules: tuple[Rule, ...], areas: Sequence[Area]) -> Iterator[Area]:
        """Those in which what is free and what all victims hold is enough; others only note what could be freed."""
        fleet = self._at.pool.fleet
        free_milli, free_cpu, _ = fleet.room_by_node()
        for area in areas:
            nodes = sorted(area.nodes or ())
            milli, cpu = self._victims.at_most_on(nodes)
            enough_milli = milli + free_milli[nodes].sum() >= sum(
                fleet.least_milli(want.request) * want.tasks for want in area.wants
            )
            if enough_milli and cpu + free_cpu[nodes].sum() >= sum(w.request.cpu_milli * w.tasks for w in area.wants):
                yield area
            else:
                self._in_turn(case, rules, area.nodes, in_vain=True)

    def _search_in(self, case: _Case, rules: tuple[Rule, ...], area: Area) -> tuple[Claim, list[Chosen]] | None:
        """As ``_search``, with victims that hold something of this area only."""
        case.wants = area.wants
        found = self._in_turn(case, rules, area.nodes)
        if found is None and area.nodes is not None and case.gave:
            found = self._node_by_node(case, rules, area.nodes)
        return None if found is None else self._give_back(case, *found)

    def _in_turn(
        self, case: _Case, rules: tuple[Rule, ...], nodes: frozenset[int] | None, *, in_vain: bool = False
    ) -> tuple[Claim, list[Chosen]] | None:
        """Takes victim after victim in their order until the candidate fits; ``in_vain``: it is known that it never
        will."""
        chosen: list[Chosen] = []
        case.gave = False
        for each in self._victims_in_turn(case, rules, nodes, chosen):
            case.tried = case.gave = True
            chosen.append(each)
            self._future.remove(each.unit.job, each.unit.tasks)
            claim = None if in_vain else self._fit(case, chosen)
            if claim is not None:
                return claim, chosen
        case.freeable = max(case.freeable, sum(each.unit.charge for each in chosen))
        self._undo(chosen)
        return None

    def _victims_in_turn(
        self, case: _Case, rules: tuple[Rule, ...], nodes: frozenset[int] | None, chosen: list[Chosen]
    ) -> Iterator[Chosen]:
        """Own jobs of lower priority first where they count; then from the team furthest above what it deserves. Tasks
        that elastic jobs can do without come before any job as a whole."""
        for rule in rules:
            for whole in (False, True):
                own = case.candidate.leaf
                if nodes is not None and len(nodes) <= FEW_NODES:
                    units_of = self._victims.on_nodes(nodes, whole=whole)
                else:
                    units_of = self._victims.of_kind(whole=whole)
                queues = {
                    leaf: iter(units)
                    for leaf, units in sorted(units_of.items())
                    if (leaf == own) == (rule == "preempt")
                }
                heads: dict[int, Unit] = {}
                while (found := self._next(case, rule, queues, heads, nodes, chosen)) is not None:
                    yield found

    def _next(
        self,
        case: _Case,
        rule: Rule,
        queues: dict[int, Iterator[Unit]],
        heads: dict[int, Unit],
        nodes: frozenset[int] | None,
        chosen: list[Chosen],
    ) -> Chosen | None:
        """The next victim, taken out of its queue; those that may not be touched, or would not help, are passed over.

        What may not be touched now may not be touched later in the same search either: teams only come closer to what
        they deserve.
        """
        best: tuple[tuple[object, ...], int, Unit] | None = None
        height = self._entitled(case, case.charge)
        for leaf in list(queues):
            if rule == "reclaim" and not self._can_lose(case, leaf, height):
                del queues[leaf]
                continue
            unit = self._head(case, rule, queues[leaf], heads.get(leaf), nodes, chosen)
            if unit is None:
                del queues[leaf]
                continue
            heads[leaf] = unit
            order = (self._above(case, leaf), unit.order)
            if best is None or order < best[0]:
                best = (order, leaf, unit)
        if best is None:
            return None
        del heads[best[1]]
        return Chosen(best[2], rule, self._numbers(best[2], case))

    def _head(
        self,
        case: _Case,
        rule: Rule,
        queue: Iterator[Unit],
        head: Unit | None,
        nodes: frozenset[int] | None,
        chosen: list[Chosen],
    ) -> Unit | None:
        unit = next(queue, None) if head is None else head
        while unit is not None:
            if nodes is None or any(task.placement.node in nodes for task in unit.job.tasks):
                now = self._victims.whole_of(unit, (each.unit for each in chosen))
                helps = nodes is None or any(task.placement.node in nodes for task in now.tasks)
                if helps and self._eligible(case, rule, now):
                    return now
            unit = next(queue, None)
        return None

    def _above(self, case: _Case, leaf: int) -> tuple[int, ...]:
        """How far the leaf's teams below the common one are above what they deserve, from the top; further is less."""
        allocated = self._at.account.allocated
        positions = self._victims.apart(case.candidate.leaf, leaf)[1]
        return tuple(self._deserved[position] - allocated[position] for position in reversed(positions))

    def _eligible(self, case: _Case, rule: Rule, unit: Unit) -> bool:
        """Whether the rule lets the candidate have what the unit holds."""
        candidate = case.candidate
        if rule == "preempt":
            return unit.job.priority < candidate.job.priority
        below, chain = self._victims.apart(candidate.leaf, unit.leaf)
        if self._entitled(case, case.charge) < below:
            return False
        allocated = self._at.account.allocated
        if self._inside_guarantee(case, below):
            return all(allocated[position] > self._floor[position] for position in chain)
        if any(allocated[position] - unit.charge < self._floor[position] for position in chain):
            return False
        path = self._at.tree.path(candidate.leaf)[:below]
        return self._past.may_stop(unit.job.started_at, path, case.charge, chain, unit.charge)

    def _inside_guarantee(self, case: _Case, below: int) -> bool:
        """Whether the candidate's team stays within its guarantee, and those above it below the common one."""
        path = self._at.tree.path(case.candidate.leaf)[:below]
        if below > 1 and self._at.tree.own[path[0]]:
            path = path[1:]
        allocated = self._at.account.allocated
        return all(allocated[position] + case.charge <= self._guaranteed[position] for position in path)

    def _numbers(self, unit: Unit, case: _Case) -> dict[str, object]:
        position = self._at.tree.position_of[unit.job.team_id]
        numbers: dict[str, object] = {
            "team": self._at.account.name(position),
            "allocated": self._at.account.allocated[position],
            "guaranteed": self._at.account.standing.guaranteed[position],
            "deserved": self._deserved[position],
            "freed": int(unit.charge),
            "requested": int(case.charge),
        }
        if unit.leaf == case.candidate.leaf:
            numbers |= {"priority": unit.job.priority, "over_priority": case.candidate.job.priority}
        return numbers

    def _node_by_node(
        self, case: _Case, rules: tuple[Rule, ...], nodes: frozenset[int]
    ) -> tuple[Claim, list[Chosen]] | None:
        """For each task in turn that does not fit: frees the node where least has to be freed for it.

        Once one is found no more than MOST_NODES are looked at.
        """
        chosen: list[Chosen] = []
        placed: list[TaskStart] = []
        for want in _one_by_one(case.wants, placed):
            tasks = Room(self._at.pool.fleet).take(want)
            if tasks is None:
                self._free_a_node(case, rules, nodes, want, chosen)
                tasks = Room(self._at.pool.fleet).take(want)
            if tasks is None:
                break
            placed += tasks
        for task in reversed(placed):
            self._at.pool.fleet.give_back(task.placement)
        claim = self._fit(case, chosen) if chosen else None
        if claim is None:
            self._undo(chosen)
            return None
        return claim, chosen

    def _free_a_node(
        self, case: _Case, rules: tuple[Rule, ...], nodes: frozenset[int], want: tuple[Want, ...], chosen: list[Chosen]
    ) -> None:
        """Adds the victims of the best node to ``chosen``, removed; adds nothing where no node can be freed enough."""
        best: tuple[tuple[int, int, int], int] | None = None
        for tried, node in enumerate(sorted(nodes)):
            if best is not None and tried >= MOST_NODES:
                break
            there = self._removed_on(case, rules, node, want, chosen)
            if there is None:
                continue
            cost = (sum(each.unit.whole for each in there), sum(each.unit.charge for each in there), node)
            self._undo(there)
            if best is None or cost < best[0]:
                best = (cost, node)
        if best is not None:
            chosen += self._removed_on(case, rules, best[1], want, chosen) or ()

    def _removed_on(
        self, case: _Case, rules: tuple[Rule, ...], node: int, want: tuple[Want, ...], chosen: list[Chosen]
    ) -> list[Chosen] | None:
        """Removes victims of one node until the task fits; None, with nothing removed, where it never does."""
        there: list[Chosen] = []
        everyone = chosen.copy()
        taken = {task.allocation_id for each in chosen for task in each.unit.tasks}
        for each in self._victims_in_turn(case, rules, frozenset({node}), everyone):
            if not each.unit.tasks or any(task.allocation_id in taken for task in each.unit.tasks):
                continue
            there.append(each)
            everyone.append(each)
            taken.update(task.allocation_id for task in each.unit.tasks)
            self._future.remove(each.unit.job, each.unit.tasks)
            if Room(self._at.pool.fleet).fits(want):
                return there
        self._undo(there)
        return None

    def _give_back(self, case: _Case, claim: Claim, chosen: list[Chosen]) -> tuple[Claim, list[Chosen]] | None:
        """Everyone who turns out not to be needed stays, those last who were the first to go."""
        for each in reversed(chosen.copy()):
            rest = [other for other in chosen if other is not each]
            if not each.unit.whole and any(other.unit.whole and other.unit.job is each.unit.job for other in rest):
                continue
            self._future.forget(claim)
            again = None
            if self._future.bring_back(each.unit.job, each.unit.tasks):
                again = self._fit(case, rest) if rest else None
                if again is None:
                    self._future.remove(each.unit.job, each.unit.tasks)
            if again is not None:
                chosen = rest
            else:
                again = self._fit(case, chosen)
                assert again is not None, "what fitted before fits again"
            claim = again
        return claim, chosen

    def _undo(self, chosen: list[Chosen]) -> None:
        for each in reversed(chosen):
            back = self._future.bring_back(each.unit.job, each.unit.tasks)
            assert back, "what was removed goes back where it was"


class _Case:
    """One candidate in one pool, what it counts there at the least, and what became of the search."""

    __slots__ = ("candidate", "charge", "freeable", "gave", "tried", "wants")

    def __init__(self, candidate: Candidate, charge: int):
        self.candidate = candidate
        self.charge = charge
        self.wants = candidate.ask.least  # under a narrower rule while one domain is looked at
        self.freeable = 0  # the most that was free to take
        self.tried = False  # whether anybody at all could be told to give way
        self.gave = False  # whether anybody could in the latest search


def _one_by_one(wants: tuple[Want, ...], placed: Sequence[TaskStart]) -> Iterator[tuple[Want, ...]]:
    """Each task on its own, beside those of the gang that are placed by then."""
    for want in wants:
        for _ in range(want.tasks):
            rule = None if want.rule is None else want.rule.having([task.placement.node for task in placed])
            yield (Want(want.group, want.request, 1, rule),)


def _evictions(chosen: Iterable[Chosen], pool_id: int, for_job: int) -> Iterator[Eviction]:
    """One for each job, in the order in which they were chosen."""
    by_job: dict[int, list[Chosen]] = {}
    for each in chosen:
        by_job.setdefault(each.unit.job.id, []).append(each)
    for job_id, own in by_job.items():
        yield Eviction(
            job_id=job_id,
            pool_id=pool_id,
            allocation_ids=tuple(sorted(task.allocation_id for each in own for task in each.unit.tasks)),
            whole=any(each.unit.whole for each in own),
            for_job=for_job,
            rule=own[0].rule,
            numbers={**own[0].numbers, "freed": int(sum(each.unit.charge for each in own))},
        )
