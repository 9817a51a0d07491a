"""Bills of jobs over rate changes, month ends in any zone, and slices: exact, without a gap or an overlap."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from django.db.models import Q

from billing.models import Rate, UsageRecord
from billing.rates import Price, RateCard, amount_of
from billing.services import close_month, set_rate
from billing.usage import used
from inventory.models import AcceleratorModel
from scheduling import ports
from scheduling.services.reconcile import lose_node
from scheduling.services.stop import cancel_jobs

START = datetime(2023, 4, 1, 3, 30, tzinfo=UTC)


def bill(job) -> list[tuple[datetime, datetime, Decimal]]:
    """The spans of the job's one allocation after another; fails where they overlap or leave a gap inside one."""
    records = list(UsageRecord.objects.filter(job=job).order_by("allocation_id", "started_at"))
    for before, after in pairwise(records):
        if before.allocation_id == after.allocation_id:
            assert before.ended_at == after.started_at
    return [(each.started_at, each.ended_at, each.amount) for each in records]


def price(world, amount: str, at: datetime | None = None) -> None:
    set_rate(Decimal(amount), world.now, model=AcceleratorModel.objects.get(), effective_from=at)


@pytest.fixture
def in_2023(world):
    """The world at the last half hour of March in New York, four hours behind UTC after its clocks changed."""
    Rate.objects.all().delete()
    world.now = START - timedelta(hours=1)
    price(world, "2.00")
    world.now = START
    return world


def test_a_month_ends_at_local_midnight_for_everyone(in_2023, settings):
    settings.BILLING_TIME_ZONE = "America/New_York"
    world = in_2023
    jobs = [world.submit("bob", gpus=1, duration="1h"), world.submit("mallory", team="ads", gpus=1, duration="1h")]
    world.settle()
    world.pass_time(hours=1)
    midnight = datetime(2023, 4, 1, 4, 0, tzinfo=UTC)
    for job in jobs:
        assert bill(job) == [
            (START, midnight, Decimal("1.000000000000")),
            (midnight, START + timedelta(hours=1), Decimal("1.000000000000")),
        ]


@pytest.mark.parametrize(
    ("zone", "month", "hours"),
    [
        ("Europe/Berlin", datetime(2026, 3, 1, tzinfo=UTC), 743),  # the clocks go forward
        ("Europe/Berlin", datetime(2026, 10, 1, tzinfo=UTC), 745),  # and back
        ("Asia/Kolkata", datetime(2026, 3, 1, tzinfo=UTC), 744),
        ("America/New_York", datetime(2023, 3, 1, tzinfo=UTC), 743),
        ("UTC", datetime(2024, 2, 1, tzinfo=UTC), 696),
    ],
)
def test_a_month_has_as_many_hours_as_its_zone_gives_it(world, settings, zone, month, hours):
    settings.BILLING_TIME_ZONE = zone
    Rate.objects.all().delete()
    world.now = month - timedelta(days=2)
    price(world, "1.00")
    job = world.submit(gpus=1)
    world.settle()
    world.now = month + timedelta(days=40)
    cancel_jobs([job.pk], world.now)
    world.settle()
    whole = [(end - start) / timedelta(hours=1) for start, end, _ in bill(job)]
    assert hours in whole
    assert sum(whole) == 42 * 24


def test_closing_a_month_twice_changes_nothing_the_second_time(in_2023, settings):
    settings.BILLING_TIME_ZONE = "Asia/Tokyo"
    world = in_2023
    job = world.submit(gpus=1, duration="72h")
    world.settle()
    world.now = datetime(2023, 4, 30, 15, 5, tzinfo=UTC)
    world.now = START + timedelta(hours=48)
    assert close_month(world.now) == 0
    world.pass_time(hours=24)
    assert sum(amount for *_, amount in bill(job)) == Decimal(144)


def test_an_open_bill_is_cut_once_at_the_month_end(in_2023):
    world = in_2023
    world.now = datetime(2023, 4, 30, 23, 0, tzinfo=UTC)
    job = world.submit(gpus=1, duration="3h")
    world.settle()
    world.now = datetime(2023, 5, 1, 0, 5, tzinfo=UTC)
    assert close_month(world.now) == 1
    assert close_month(world.now) == 0
    world.pass_time(hours=2)
    month = datetime(2023, 5, 1, tzinfo=UTC)
    assert [end for _, end, _ in bill(job)] == [month, datetime(2023, 5, 1, 2, tzinfo=UTC)]
    assert sum(amount for *_, amount in bill(job)) == Decimal(6)


@pytest.mark.parametrize("told_before", [True, False], ids=["told before", "told at the time"])
def test_a_rate_change_splits_the_bill_there(in_2023, told_before):
    world = in_2023
    job = world.submit(gpus=1, duration="2h")
    world.settle()
    change = START + timedelta(hours=1)
    if told_before:
        world.pass_time(minutes=30)
        price(world, "3.00", change)
        world.pass_time(minutes=30)
    else:
        world.pass_time(hours=1)
        price(world, "3.00")
    world.pass_time(hours=1)
    assert bill(job) == [
        (START, change, Decimal("2.000000000000")),
        (change, change + timedelta(hours=1), Decimal("3.000000000000")),
    ]


def test_what_runs_is_shown_at_the_rates_so_far(in_2023):
    world = in_2023
    job = world.submit(gpus=0.5, duration="3h")
    world.settle()
    price(world, "4.00", START + timedelta(hours=1))
    for hours, amount in ((1, "1.00"), (2, "3.00")):
        cost = ports.meter.job_costs([job.pk], START + timedelta(hours=hours))[job.pk]
        assert (cost.amount, cost.running) == (Decimal(amount), True)


def test_slices_of_one_card_never_cost_more_than_the_card(world):
    jobs = [world.submit(gpus=gpus, duration="1h") for gpus in (0.35, 0.3, 0.2, 0.1, 0.05)]
    world.settle()
    world.pass_time(hours=1)
    amounts = [amount for job in jobs for *_, amount in bill(job)]
    assert sum(amounts) == Decimal("2.40")
    assert max(amounts) == Decimal("0.84")


def test_a_start_that_the_platform_spoiled_is_not_billed(world):
    job = world.submit(gpus=4)
    world.clockwork.scheduler.cycle(world.now)
    allocation = job.allocations.get()
    world.now += timedelta(seconds=20)
    lose_node(allocation.node, world.clockwork.reconcilers[0].engine, world.now)
    record = UsageRecord.objects.get(allocation=allocation)
    assert (record.amount, record.waived) == (Decimal(0), "node_lost")


def test_a_short_window_has_what_ran_in_it_and_never_less_than_nothing(in_2023):
    """One job ended before the window, one runs through it, one begins after it."""
    world = in_2023
    gone = world.submit(gpus=1, duration="30m")
    through = world.submit(gpus=1, duration="3h")
    world.settle()
    world.pass_time(hours=2)
    late = world.submit(gpus=1, duration="1h")
    world.settle()
    start = START + timedelta(minutes=44, seconds=57)
    end = start + timedelta(seconds=76)
    found = used(Q(), start, end, world.now, "job")
    assert {key: each.milli_seconds for (key, _), each in found.items()} == {through.pk: 76_000}
    assert used(Q(), end, start, world.now, "job") == {}
    assert used(Q(), start, start, world.now) == {}
    everything = used(Q(), START - timedelta(days=1), START + timedelta(days=1), world.now, "job")
    hours = {key: each.milli_seconds / 3_600_000 for (key, _), each in everything.items() if each.milli_seconds}
    assert hours == {gone.pk: Decimal("0.5"), through.pk: Decimal(2)}
    assert late.pk not in hours


def test_windows_that_meet_add_up_to_the_whole(in_2023):
    world = in_2023
    world.submit(gpus=0.35, duration="1h")
    world.settle()
    price(world, "3.33", START + timedelta(minutes=20))
    world.pass_time(hours=2)
    cuts = [START + timedelta(seconds=seconds) for seconds in (-100, 7, 61, 1199, 1201, 3599, 9000)]
    parts = [used(Q(), left, right, world.now) for left, right in pairwise(cuts)]
    amounts = [each.amount for part in parts for each in part.values()]
    work = [each.milli_seconds for part in parts for each in part.values()]
    assert min(amounts) >= 0
    assert sum(work) == 350 * 3600
    (whole,) = used(Q(), cuts[0], cuts[-1], world.now).values()
    assert abs(sum(amounts) - whole.amount) < Decimal("0.0000001")


def test_a_job_that_moves_has_one_bill_without_overlapping_seconds(world):
    job = world.submit(gpus=4, duration="1h")
    world.settle()
    world.pass_time(minutes=30)
    lose_node(job.allocations.get().node, world.clockwork.reconcilers[0].engine, world.now)
    world.settle()
    world.pass_time(hours=1)
    spans = bill(job)
    assert len(spans) == 2
    assert spans[0][1] <= spans[1][0]
    assert sum(amount for *_, amount in spans) == Decimal("2.40") * 4 * Decimal("1.5")


@pytest.mark.parametrize(
    ("band", "day", "inside"),
    [
        # Hours of the local night in which the price of the band counts, by hand. 29 March 2026: 2:00 becomes 3:00.
        (("02:30", "06:00"), datetime(2026, 3, 28, 23, tzinfo=UTC), "3"),
        (("00:00", "02:30"), datetime(2026, 3, 28, 23, tzinfo=UTC), "2"),
        # 25 October 2026: 3:00 becomes 2:00, and what is shown in between is shown twice.
        (("02:30", "06:00"), datetime(2026, 10, 24, 22, tzinfo=UTC), "4"),
        (("00:00", "02:30"), datetime(2026, 10, 24, 22, tzinfo=UTC), "3"),
        (("02:15", "02:45"), datetime(2026, 10, 24, 22, tzinfo=UTC), "1"),
        (("02:15", "02:45"), datetime(2026, 3, 28, 23, tzinfo=UTC), "0"),
    ],
)
def test_a_band_is_what_the_clock_shows_when_clocks_are_changed(band, day, inside):
    start, end = (time.fromisoformat(each) for each in band)
    base = Price(1, None, None, None, None, Decimal(0), day - timedelta(days=9))
    night = Price(2, None, None, None, (start, end), Decimal(1), day - timedelta(days=9))
    card = RateCard([base, night], "Europe/Berlin")
    segments = card.segments(1, 1, 1, day, day + timedelta(hours=12))
    assert [each.end for each in segments[:-1]] == [each.start for each in segments[1:]]
    cost = sum(amount_of(1000, each.start, each.end, each.per_hour) for each in segments)
    minute = timedelta(minutes=1)
    shown = sum(card.at(1, 1, 1, day + step * minute) for step in range(12 * 60)) / 60
    assert (cost, cost) == (Decimal(inside), shown)
