"""What always holds of reservations and estimates, in random worlds whose time passes."""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.forecast import forecast
from tests.core.passing_time import NOBODY_GIVES_WAY, Passing

STEPS = 25
seeds = st.integers(0, 2**32 - 1)


def some_arrive_and_it_is_decided(world):
    for _ in range(world.one_of([0, 1, 1, 2, 3])):
        world.arrive(priority=500)
    plan = world.cycle()
    assert len(plan.reservations) <= 1
    return plan, plan.reservations[0] if plan.reservations else None


def some_time_passes(world):
    moments = [each for each in (world.next_end(), world.now + world.random.randint(1, 15)) if each is not None]
    world.go_to(min(moments))


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([1.0, 0.8, 0.4]))
def test_who_was_let_in_makes_no_reserved_start_later(seed, limits):
    """One team and one priority: nobody has a better right, so only its start ends a reservation."""
    world = Passing(seed, teams=1, limits=limits)
    holder, promised = None, None
    for _ in range(STEPS):
        _, kept = some_arrive_and_it_is_decided(world)
        if holder is not None and (kept is None or kept.job_id != holder):
            event("a holder starts")
            assert promised is None or world.started[holder] <= promised
        if kept is not None and kept.job_id == holder and promised is not None:
            event("a reservation goes on")
            assert kept.at is not None
            assert kept.at <= promised
        holder, promised = (kept.job_id, kept.at) if kept else (None, None)
        some_time_passes(world)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([1.0, 0.7]))
def test_across_teams_only_a_better_right_makes_it_later(seed, limits):
    """Teams side by side, so whoever starts by its guarantee is told so."""
    world = Passing(seed, limits=limits, flat=True)
    holder, promised = None, None
    for _ in range(STEPS):
        before = dict(world.pending)
        plan, kept = some_arrive_and_it_is_decided(world)
        if any(start.rule == "guarantee" for start in plan.starts):
            promised = None
        if kept is not None and kept.job_id == holder and promised is not None:
            event("a reservation goes on")
            assert kept.at is not None
            assert kept.at <= promised
        if holder in before and holder in world.started and promised is not None:
            event("a holder starts")
            assert world.now <= promised
        holder, promised = (kept.job_id, kept.at) if kept else (None, None)
        if holder is not None and plan.reasons[holder][0].code == "over_limit":
            promised = None  # jobs outside its limit go before it
        some_time_passes(world)


@settings(max_examples=100, deadline=None)
@given(seeds, st.sampled_from([1.0, 0.8, 0.5]))
def test_estimates_are_exact_where_nobody_comes_and_jobs_end_at_their_limits(seed, limits):
    world = Passing(seed, limits=limits, exact=True)
    for _ in range(world.random.randint(2, 14)):
        world.arrive()
        if world.random.random() < 0.3:
            world.cycle()
            world.go_to(world.now + world.random.randint(1, 20))
    world.cycle()
    estimates = forecast(world.snapshot())
    event(f"{min(len(estimates), 5)} estimates or more")
    waiting = {key for key, job in world.pending.items() if not job.growing}
    endless = {key for key, job in world.pending.items() if job.time_limit is None}
    endless |= {key for key, job in world.running.items() if any(task.ends_at is None for task in job.tasks)}
    assert set(estimates) <= waiting
    while (moment := world.next_end()) is not None:
        if any(job_id in endless for when, job_id, _ in world.ends if when == moment):
            break  # one ends of which nobody could know
        world.go_to(moment)
        world.cycle()
    for key, estimate in estimates.items():
        if key in world.started:
            assert world.started[key] == estimate
        else:
            assert estimate > world.now
    if not endless:
        assert set(estimates) == {key for key in waiting if key in world.started}


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_where_jobs_end_early_a_holder_starts_no_later_than_estimated(seed):
    """Of the first in order alone that is promised: who comes after it may be passed by others that now fit."""
    world = Passing(seed, teams=1)
    for _ in range(world.random.randint(4, 14)):
        world.arrive(priority=500)
    plan = world.cycle()
    estimates = forecast(world.snapshot())
    while world.next_end() is not None:
        world.go_to(world.next_end())
        world.cycle()
    for kept in plan.reservations:
        assert estimates[kept.job_id] <= kept.at
        assert world.started[kept.job_id] <= estimates[kept.job_id]
        event("a holder starts")


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_a_forecast_changes_nothing_and_repeats_itself(seed):
    world = Passing(seed, limits=0.8)
    for _ in range(world.random.randint(2, 14)):
        world.arrive()
        world.cycle()
        world.go_to(world.now + world.random.randint(1, 20))
    snapshot = world.snapshot()
    shapes = sorted({group.request for job in world.pending.values() for group in job.groups}, key=repr)

    def seen():
        fleet = world.fleet
        free = [fleet.free_on(node) for node in range(world.node_count)]
        return free, [fleet.place(shape) for shape in shapes]

    before = seen()
    plan, estimates = decide(snapshot, NOBODY_GIVES_WAY), forecast(snapshot)
    assert seen() == before
    assert decide(snapshot, NOBODY_GIVES_WAY) == plan
    assert forecast(snapshot) == estimates
    assert seen() == before
