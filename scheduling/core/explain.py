"""Why what is left waits: the predicates that decided, asked once more at the end of a cycle, and what would help.

What a cycle refuses it refuses until its end, so every number here is of one moment: after all that the plan starts.
Jobs of the same team with the same request share their reasons.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from scheduling.core.admission import Refusal
from scheduling.core.charges import memory_of
from scheduling.core.cycle import Candidate, Cycle, PoolCycle
from scheduling.core.explain_rules import rule_numbers, without_any_rule, without_rule
from scheduling.core.fleet import Headroom
from scheduling.core.model import PendingJob, Reason, Request, Reservation
from scheduling.core.reasons import held_reason, moment, reason
from scheduling.core.room import Want
from scheduling.core.units import MILLI_PER_DEVICE, gpus_from_milli

Helps = Mapping[str, object] | None
Wants = tuple[Want, ...]


class Explanations:
    """The reasons of one cycle. Tries things out in the fleets, and leaves them as the cycle has them."""

    def __init__(self, cycle: Cycle, reservations: Sequence[Reservation] = ()):
        self._cycle = cycle
        self._reservations = {each.job_id: each for each in reservations}
        self._known: dict[Hashable, tuple[Reason, ...]] = {}
        self._rooms: dict[tuple[int, Wants], Reason | None] = {}  # by pool; None: there is room
        self._freeable: dict[Hashable, tuple[Reason, ...]] = {}

    def by_job(self) -> dict[int, tuple[Reason, ...]]:
        """Job id → why it waits, for every job that is held or still has tasks to place, by ascending id."""
        reasons: dict[int, tuple[Reason, ...]] = {
            job.id: (held_reason(job.held, job.held_numbers),)
            for job in self._cycle.snapshot.pending
            if job.held is not None
        }
        for candidate in (*self._cycle.candidates, *self._cycle.dropped):
            if candidate.has_offers():
                why = self._waiting(candidate) or self._with_freeable(candidate)
                reasons[candidate.job.id] = self._with_kept(candidate, why)
        return dict(sorted(reasons.items()))

    def _waiting(self, candidate: Candidate) -> tuple[Reason, ...]:
        """The one reason of a job that others give way to."""
        known = self._cycle.waits_for.get(candidate.job.id)
        if known is None:
            return ()
        at, jobs = known
        return (reason("waiting_for_preemption", {"pool": at.pool.name, "jobs": jobs}, pool_id=at.pool.id),)

    def _with_kept(self, candidate: Candidate, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """Its reasons; of who has a reservation in a pool, with since when and until when room is kept for it there."""
        kept = self._reservations.get(candidate.job.id)
        if kept is None:
            return reasons
        more = {"kept_since": moment(kept.since), "kept_until": None if kept.at is None else moment(kept.at)}
        return tuple(
            replace(each, numbers={**each.numbers, **more}) if each.pool_id == kept.pool_id else each
            for each in reasons
        )

    def _with_freeable(self, candidate: Candidate) -> tuple[Reason, ...]:
        """Its reasons; where it was entitled to make others give way, with how much that could have freed."""
        reasons = self._of(candidate)
        not_freed = self._cycle.not_freed.get(candidate.job.id)
        if not_freed is None:
            return reasons
        key = (id(reasons), not_freed)
        if key not in self._freeable:
            pool_id, needed, freeable, spared = not_freed
            more = {"needed_milli": needed, "freeable_milli": freeable} | ({"spared_milli": spared} if spared else {})
            self._freeable[key] = tuple(
                replace(each, numbers={**each.numbers, **more})
                if each.pool_id == pool_id and each.code in _TELLS_FREEABLE
                else each
                for each in reasons
            )
        return self._freeable[key]

    def _of(self, candidate: Candidate) -> tuple[Reason, ...]:
        key = self._key(candidate)
        if key not in self._known:
            self._known[key] = self._work_out(candidate)
        return self._known[key]

    def _key(self, candidate: Candidate) -> Hashable:
        job = candidate.job
        user = job.user_id if any(at.account.tells_users_apart for at in candidate.choices) else None
        caps = (job.max_running_of_class, job.max_milli_of_class)
        rank = None if caps == (None, None) else (job.priority_class, *caps)
        given = None if candidate.pool is None else (candidate.pool.pool.id, tuple(candidate.extra))
        asked = (candidate.ask, candidate.gang_rule)
        lets = tuple(at.kept is None or at.kept.lets(candidate) for at in candidate.choices)
        return (asked, candidate.leaf, job.pool_ids, job.preemptible, job.growing, user, rank, given, lets)

    def _work_out(self, candidate: Candidate) -> tuple[Reason, ...]:
        wants = next(candidate.offers())
        here = [self._at(candidate, at, wants) for at in candidate.choices]
        gone = [] if candidate.pool else _pools_that_are_gone(self._cycle, candidate.job)
        return (*here, *gone)

    def _at(self, candidate: Candidate, at: PoolCycle, wants: Wants) -> Reason:
        refusal = self._cycle.refusal(candidate, at, wants)
        if refusal is None or refusal.code == "next_cycle":
            no_room = self._no_room(at, wants)
            if no_room is not None:
                return no_room
            lands = at.least_where_it_lands(wants) or 0
            kept = _reserved_for(candidate, at, wants)
            refusal = self._cycle.over_quota(candidate, at, lands) or kept or refusal or _NOTHING_IN_THE_WAY
        helps = self._what_helps(refusal, candidate, at, wants)
        return reason(refusal.code, refusal.numbers, pool_id=at.pool.id, helps=helps)

    def _no_room(self, at: PoolCycle, wants: Wants) -> Reason | None:
        key = (at.pool.id, wants)
        if key not in self._rooms:
            self._rooms[key] = None if at.room.fits(wants) else self._kept(at, wants) or _no_room(at, wants)
        return self._rooms[key]

    def _kept(self, at: PoolCycle, wants: Wants) -> Reason | None:
        future = self._cycle.futures.get(at.pool.id)
        job_id = future.kept_for(wants) if future is not None else None
        if job_id is None:
            return None
        return reason("reserved_for", {"pool": at.pool.name, "job": job_id}, pool_id=at.pool.id)

    def _what_helps(self, refusal: Refusal, candidate: Candidate, at: PoolCycle, wants: Wants) -> Helps:
        """The one change after which nothing else stands in the way; None where there is none, or it is not known."""
        if refusal.code not in _QUOTA_FIELD and refusal.code != "over_share":
            return None
        job, team, charge = candidate.job, refusal.numbers["team"], at.least_where_it_lands(wants)
        if charge is None:
            return None
        all_refusals = at.account.refusals(candidate.leaf, job.user_id, charge, preemptible=job.preemptible)
        if any((other.code, other.numbers["team"]) != (refusal.code, team) for other in all_refusals):
            return None
        if self._no_room(at, wants) is not None or _reserved_for(candidate, at, wants) is not None:
            return None
        if refusal.code == "over_share":
            lent = at.account.refusal(candidate.leaf, job.user_id, charge, preemptible=True) is None
            return {"request": {"preemptible": True}} if lent else None
        if refusal.code == "over_memory_limit":
            needed = refusal.numbers["allocated_mib"] + memory_of(charge)
            by_mib = needed - refusal.numbers["limit_mib"]
            return {"quota": {"team": team, "memory_limit_mib": needed, "by_mib": by_mib}}
        needed = refusal.numbers["allocated"] + int(charge)
        by_milli = needed - refusal.numbers["limit"]
        return {"quota": {"team": team, _QUOTA_FIELD[refusal.code]: needed, "by_milli": by_milli}}


_TELLS_FREEABLE = frozenset({"no_fit", "gang_incomplete", "over_limit", "over_memory_limit", "over_share"})
_QUOTA_FIELD = {"over_limit": "limit", "over_user_limit": "per_user_limit", "over_memory_limit": "memory_limit_mib"}
# What was refused in its turn, because of where a task would have landed then, could be started now.
_NOTHING_IN_THE_WAY = Refusal("next_cycle", {})


def _reserved_for(candidate: Candidate, at: PoolCycle, wants: Wants) -> Refusal | None:
    """Of a job for which there is room: whether that is kept for another."""
    if at.kept is None or not at.kept.keeps_out(candidate, wants):
        return None
    return Refusal("reserved_for", {"pool": at.pool.name, "job": at.kept.holder.job.id})


def _pools_that_are_gone(cycle: Cycle, job: PendingJob) -> list[Reason]:
    gone = [pool_id for pool_id in job.pool_ids if pool_id not in cycle.pools]
    return [reason("pool_unavailable", {"pool": f"#{pool_id}"}, pool_id=pool_id) for pool_id in gone]


# ---- room ------------------------------------------------------------------------------------------------------------


def _no_room(at: PoolCycle, wants: Wants) -> Reason:
    """What is short, told of the group that no node could ever host if there is one, else of the hardest to place."""
    fleet = at.pool.fleet
    hopeless = [want for want in wants if fleet.headroom(want.request).possible_nodes == 0]
    request = (hopeless or wants)[0].request
    there = fleet.headroom(request)
    if there.matching_nodes == 0 and request.devices:
        whole_only = {"whole_only": list(names)} if (names := fleet.whole_only(request)) else {}
        numbers = _wishes(at, request) | whole_only | _kept_away(there)
        return reason("no_matching_accelerator", numbers, pool_id=at.pool.id)
    fitting = 0 if hopeless else at.room.count_fitting(without_any_rule(wants))
    by_rule = rule_numbers(at.room, wants) if fitting else None
    if by_rule is not None:
        numbers = _seen(at, request, there) | by_rule
        return reason("gang_incomplete", numbers, pool_id=at.pool.id, helps=without_rule(at.room, wants))
    if fitting:
        numbers = _seen(at, request, there) | {"needed": sum(want.tasks for want in wants), "fitting": fitting}
        return reason("gang_incomplete", numbers, pool_id=at.pool.id)
    numbers = _wishes(at, request) | _seen(at, request, there) | _room_of(request, there)
    numbers |= _kept_away(there) | _rounded(at, request)
    return reason("no_fit", numbers, pool_id=at.pool.id, helps=_smaller_slice(at, wants, there))


def _wishes(at: PoolCycle, request: Request) -> dict[str, object]:
    return {
        "pool": at.pool.name,
        "models": list(request.models),
        "vendors": list(request.vendors),
        "min_device_memory_mib": request.min_device_memory_mib,
        "node_selector": [list(label) for label in request.node_selector],
    }


def _kept_away(there: Headroom) -> dict[str, object]:
    """Where taints keep the request from nodes that would match: how many, and which."""
    if not there.tainted_nodes:
        return {}
    return {"tainted_nodes": there.tainted_nodes, "taints": [list(taint) for taint in there.taints]}


def _seen(at: PoolCycle, request: Request, there: Headroom) -> dict[str, object]:
    return {
        "pool": at.pool.name,
        "devices": request.devices,
        "free": there.free_milli if request.devices else there.free_cpu_milli,
        "cordoned_nodes": there.cordoned_nodes,
    }


def _room_of(request: Request, there: Headroom) -> dict[str, object]:
    return {
        "compute": request.compute_milli,
        "memory_mib": request.memory_mib,
        "cpu_milli": request.cpu_milli,
        "host_memory_mib": request.host_memory_mib,
        "matching_nodes": there.matching_nodes,
        "possible_nodes": there.possible_nodes,
        "largest_piece": there.largest_piece_milli,
        "free_devices": there.free_devices,
        "most_devices": there.most_devices,
        "largest_free_memory_mib": there.largest_free_memory_mib,
        "free_cpu_milli": there.free_cpu_milli,
        "largest_free_cpu_milli": there.largest_free_cpu_milli,
        "largest_free_host_memory_mib": there.largest_free_host_memory_mib,
        "short": there.short,
    }


def _rounded(at: PoolCycle, request: Request) -> dict[str, object]:
    """The least slice that the request would be granted of a device, where the models here make more of it."""
    grants = at.pool.fleet.grants(request) if at.pool.fleet.cuts_by_rule else ()
    if not grants or grants[0][0] <= (request.compute_milli or 0):
        return {}
    compute, memory = grants[0]
    return {"granted_milli": compute, "granted_mib": memory}


def _smaller_slice(at: PoolCycle, wants: Wants, there: Headroom) -> Helps:
    """For one task that asks for part of one device: the largest slice that fits now, and what is missing to it.

    If a task with that slice fits where the largest free piece is, freeing the rest beside it makes room for the whole.
    """
    (want, *more), step = wants, at.pool.fleet.step_milli
    asked = want.request.compute_milli
    if at.pool.fleet.cuts_by_rule:
        return None  # a smaller request may be rounded up to the same slice
    if more or want.tasks > 1 or want.request.devices != 1 or asked is None or want.request.memory_mib is not None:
        return None
    piece = there.largest_piece_milli
    slice_milli = piece if piece == MILLI_PER_DEVICE else piece // step * step
    if not 0 < slice_milli < asked or not at.room.fits((Want(0, replace(want.request, compute_milli=slice_milli), 1),)):
        return None
    return {"free_milli": asked - slice_milli, "request": {"gpus": gpus_from_milli(slice_milli)}}
