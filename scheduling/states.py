"""The lifecycles as tables. A service moves a row along them by compare-and-swap; nothing else is a move."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.models import Allocation, Job

JOB_MOVES: Mapping[str, frozenset[str]] = {
    Job.State.PENDING: frozenset({Job.State.STARTING, Job.State.CANCELLED}),
    Job.State.STARTING: frozenset(
        {Job.State.RUNNING, Job.State.PENDING, Job.State.SUCCEEDED, Job.State.FAILED, Job.State.CANCELLED}
    ),
    Job.State.RUNNING: frozenset({Job.State.PENDING, Job.State.SUCCEEDED, Job.State.FAILED, Job.State.CANCELLED}),
    Job.State.SUCCEEDED: frozenset(),
    Job.State.FAILED: frozenset(),
    Job.State.CANCELLED: frozenset(),
}
ALLOCATION_MOVES: Mapping[str, frozenset[str]] = {
    Allocation.State.BOUND: frozenset(
        {Allocation.State.RUNNING, Allocation.State.RELEASING, Allocation.State.RELEASED}
    ),
    Allocation.State.RUNNING: frozenset({Allocation.State.RELEASING, Allocation.State.RELEASED}),
    Allocation.State.RELEASING: frozenset({Allocation.State.RELEASED}),
    Allocation.State.RELEASED: frozenset(),
}

JOB_ENDED = frozenset(state for state, onward in JOB_MOVES.items() if not onward)
JOB_ACTIVE = frozenset({Job.State.STARTING, Job.State.RUNNING})


class IllegalMove(Exception):
    """A lifecycle has no such move: an error of ours, never of a person."""


def check_move(moves: Mapping[str, frozenset[str]], before: str, after: str) -> None:
    """Returns when the lifecycle has this move; raises IllegalMove where it has not."""
    if after not in moves[before]:
        raise IllegalMove(f"{before} → {after}")
