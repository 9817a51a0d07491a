"""What always holds of reservations and estimates, in random worlds whose time passes."""

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.forecast import forecast
from tests.core.passing_time import NOBODY_GIVES_WAY, Passing

seeds = st.integers(0, 2**32 - 1)


def outranks(job, holder, teams_alone):
    return job.cluster_wide or (job.team_id == holder.team_id and job.priority > holder.priority)


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([1.0, 0.8]))
def test_who_was_let_in_makes_no_reserved_start_later(seed, limits):
    """One team: nobody has a better right but by priority, which is the same here."""
    world = Passing(seed, teams=1, limits=limits)
    promised = {}
    holder = None
    for _ in range(30):
        for _ in range(world.one_of([0, 1, 1, 2, 3])):
            world.arrive(priority=500)
        plan = world.cycle()
        kept = plan.reservations[0] if plan.reservations else None
        if holder is not None and (kept is None or kept.job_id != holder):
            assert holder in world.started, "only a start ends a reservation here"
            assert promised[holder] is None or world.started[holder] <= promised[holder]
        if kept is not None:
            if kept.job_id == holder and promised[holder] is not None:
                assert kept.at is not None
                assert kept.at <= promised[holder]
                event("a reservation goes on")
            promised[kept.job_id] = kept.at
        holder = kept.job_id if kept else None
        moments = [each for each in (world.next_end(), world.now + world.random.randint(1, 15)) if each is not None]
        world.go_to(min(moments))


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from([1.0, 0.7]))
def test_across_teams_the_time_of_a_holder_never_slips(seed, limits):
    world = Passing(seed, limits=limits)
    holder, promised, ranks = None, None, {}
    for _ in range(30):
        for _ in range(world.one_of([0, 1, 1, 2, 3])):
            world.arrive(priority=500)
        before = dict(world.pending)
        plan = world.cycle()
        kept = plan.reservations[0] if plan.reservations else None
        below = any(share.allocated < share.guaranteed for share in plan.shares[1].values())
        for start in plan.starts:
            ranks[start.job_id] = start.rule
        if any(ranks[start.job_id] == "guarantee" for start in plan.starts):
            promised = None  # a team below its guarantee may go before a holder
        if kept is not None and kept.job_id == holder and promised is not None:
            assert kept.at is not None
            assert kept.at <= promised
            event("a reservation goes on")
        if holder in world.started and promised is not None and holder in before:
            assert world.now <= promised
            event("the holder starts")
        holder, promised = (kept.job_id, kept.at) if kept else (None, None)
        assert below in (True, False)
        moments = [each for each in (world.next_end(), world.now + world.random.randint(1, 15)) if each is not None]
        world.go_to(min(moments))


@settings(max_examples=60, deadline=None)
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
    last = world.now
    for key, estimate in estimates.items():
        if key in world.started:
            assert world.started[key] == estimate
        else:
            assert estimate > last
    if not endless:
        assert set(estimates) == {key for key in waiting if key in world.started}


@settings(max_examples=100, deadline=None)
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
        free = [fleet.free_on(node) for node in range(len(fleet._node_ids))]
        return free, [fleet.place(shape) for shape in shapes]

    before = seen()
    plan, estimates = decide(snapshot, NOBODY_GIVES_WAY), forecast(snapshot)
    assert seen() == before
    assert decide(snapshot, NOBODY_GIVES_WAY) == plan
    assert forecast(snapshot) == estimates
    assert seen() == before
