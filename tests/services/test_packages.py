"""Packages: drawn to the milli-GPU-microsecond, in the order of time, never below zero, confirmed once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as some

from billing.models import Package, PackageDraw, UsageRecord
from billing.rates import MICROSECOND, Segment
from billing.services.packages import WORK_PER_HOUR, add_package, confirm_package
from billing.tills import DUST, OpenSpan, Till, drawn, first_run_out, work_of
from events.errors import Invalid
from events.models import Event

START = datetime(2026, 5, 4, 10, tzinfo=UTC)


def moment(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


@some.composite
def segments(draw):
    """One to four spans side by side, some at no price."""
    edges = sorted(draw(some.sets(some.integers(0, 600), min_size=2, max_size=5)))
    prices = some.sampled_from([None, Decimal(0), Decimal("2.40"), Decimal("0.000001")])
    return [Segment(moment(left), moment(right), draw(prices)) for left, right in pairwise(edges)]


@some.composite
def tills(draw):
    found = []
    for key in range(draw(some.integers(0, 4))):
        start = draw(some.integers(-60, 600))
        ends = draw(some.one_of(some.none(), some.integers(start + 1, 700)))
        left = draw(some.one_of(some.integers(0, 10**7), some.integers(0, 3 * WORK_PER_HOUR)))
        found.append(Till(key, left, moment(start), None if ends is None else moment(ends)))
    return found


@given(segments(), some.integers(1, 8000), tills())
def test_what_is_drawn_and_what_is_not_are_all_that_was_used(spans, milli, found):
    before = {till.id: till.left for till in found}
    parts = drawn(spans, milli, found)
    assert parts[0].start == spans[0].start
    assert parts[-1].end == spans[-1].end
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert all(part.start < part.end for part in parts)
    used = sum(work_of(milli, part.start, part.end) for part in parts)
    assert used == milli * ((spans[-1].end - spans[0].start) // MICROSECOND)
    by_id = {till.id: till for till in found}
    for till in found:
        own = [part for part in parts if part.till_id == till.id]
        assert till.left >= 0
        assert before[till.id] - till.left == sum(work_of(milli, part.start, part.end) for part in own)
        assert all(till.starts_at <= part.start and part.end <= till.ends_at for part in own)
    assert all(part.per_hour for part in parts if part.till_id is not None)
    # Nothing that could be prepaid was left unpaid, and the one that expires first came first.
    for part in parts:
        chosen = by_id[part.till_id].rank if part.till_id is not None else None
        open_then = [till for till in found if till.starts_at <= part.start < till.ends_at]
        if part.per_hour:
            assert not [
                till for till in open_then if till.left >= max(milli, DUST) and (chosen is None or till.rank < chosen)
            ]


@given(some.lists(some.tuples(some.integers(1, 4000), some.integers(0, 120)), min_size=1, max_size=6), tills())
def test_at_the_moment_of_running_out_all_together_have_drawn_what_there_was(rows, found):
    always = ((moment(-60), moment(2000)),)
    spans = [OpenSpan(milli, 1, 1, 1, moment(start), always) for milli, start in rows]
    before = {till.id: till.left for till in found}
    result = first_run_out(spans, found, moment(2000))
    assert {till.id: till.left for till in found} == before
    if result is None:
        return
    # Each drawn for itself up to that moment, in any order: the same comes out.
    for span in spans:
        if span.started_at < result.at:
            drawn([Segment(span.started_at, result.at, Decimal(1))], span.milli, found)
    milli = sum(span.milli for span in spans)
    assert 0 <= result.till.left < max(milli, DUST)


def hours(package: Package) -> Decimal:
    package.refresh_from_db()
    return package.left / Decimal(WORK_PER_HOUR)


def paid(package: Package) -> int:
    return PackageDraw.objects.filter(package=package).aggregate(sum=Sum("work"))["sum"] or 0


def test_the_span_in_which_a_package_runs_out_is_split_there(world):
    package = add_package(world.teams["nlp"], Decimal("0.5"), world.now, confirmed=True)
    start = world.now
    job = world.submit(gpus=0.35, duration="2h")
    world.settle()
    world.pass_time(hours=3)
    first, second = UsageRecord.objects.filter(job=job).order_by("started_at")
    assert hours(package) < Decimal("0.000000001")
    assert first.draw.package == package
    assert not PackageDraw.objects.filter(record=second).exists()
    assert first.ended_at == second.started_at
    # 0.5 GPU-hours at 0.35 GPU: 1 h 25 min 42.857142 s.
    assert first.ended_at - start == timedelta(seconds=5142, microseconds=857142)
    assert package.work - package.left == paid(package) == 350 * 5_142_857_142


def test_metering_twice_draws_once(world):
    package = add_package(world.teams["nlp"], Decimal(3), world.now, confirmed=True)
    world.submit(gpus=1, duration="1h")
    world.settle()
    world.pass_time(hours=2)
    allocations = list(UsageRecord.objects.values_list("allocation_id", flat=True))
    from scheduling import ports
    from scheduling.models import Allocation

    ports.meter.closed(list(Allocation.objects.filter(pk__in=allocations)), world.now)
    assert hours(package) == 2
    assert PackageDraw.objects.count() == 1


def test_a_package_pays_for_nothing_before_it_is_confirmed_or_after_it_expired(world):
    start = world.now
    package = add_package(world.teams["research"], Decimal(10), start, expires_at=start + timedelta(hours=3))
    job = world.submit(gpus=1)
    world.settle()
    world.pass_time(hours=1)
    assert confirm_package(package, world.now)
    assert not confirm_package(package, world.now)
    world.pass_time(hours=5)
    from scheduling.services.stop import cancel_jobs

    cancel_jobs([job.pk], world.now)
    world.settle()
    spans = [
        (record.started_at - start, record.ended_at - start, hasattr(record, "draw"))
        for record in UsageRecord.objects.filter(job=job).order_by("started_at")
    ]
    hour = timedelta(hours=1)
    assert spans == [(0 * hour, hour, False), (hour, 3 * hour, True), (3 * hour, 6 * hour, False)]
    assert hours(package) == 8
    assert Event.objects.filter(kind="package.confirmed").count() == 1


def test_what_costs_nothing_draws_nothing(world):
    from scheduling.services.reconcile import lose_node

    package = add_package(world.teams["nlp"], Decimal(10), world.now, confirmed=True)
    job = world.submit(gpus=4)
    world.clockwork.scheduler.cycle(world.now)
    world.now += timedelta(seconds=20)
    lose_node(job.allocations.get().node, world.engine, world.now)
    assert UsageRecord.objects.get(job=job, ended_at__isnull=False).waived
    assert hours(package) == 10


def test_the_order_of_ends_does_not_matter(world):
    """Of two that run side by side the one that stops first does not take the other's part."""
    from billing.services import set_rate

    package = add_package(world.teams["nlp"], Decimal(2), world.now, confirmed=True)
    short = world.submit(gpus=1, duration="2h")
    long = world.submit(gpus=1, duration="3h")
    world.settle()
    world.pass_time(hours=1)
    set_rate(Decimal("4.80"), world.now)
    world.pass_time(hours=4)
    for job, billed in ((short, 1), (long, 2)):
        rows = UsageRecord.objects.filter(job=job, draw__isnull=True)
        assert sum((row.microseconds or 0) for row in rows) == billed * 3_600_000_000
    assert hours(package) == 0


def test_no_package_is_ever_below_zero(world):
    package = add_package(world.teams["nlp"], Decimal(1), world.now, confirmed=True)
    for wrong in (-1, package.work + 1):
        with pytest.raises(DatabaseError), transaction.atomic():
            Package.objects.filter(pk=package.pk).update(left=wrong)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"gpu_hours": Decimal(0)}, "gpu_hours"),
        ({"gpu_hours": Decimal(-1)}, "gpu_hours"),
        ({"gpu_hours": Decimal("NaN")}, "gpu_hours"),
        ({"gpu_hours": Decimal(1_000_001)}, "gpu_hours"),
        ({"gpu_hours": Decimal(1), "price": Decimal(-1)}, "price"),
        ({"gpu_hours": Decimal(1), "starts_at": START - timedelta(days=900)}, "starts_at"),
        ({"gpu_hours": Decimal(1), "expires_at": START - timedelta(days=900)}, "expires_at"),
    ],
    ids=str,
)
def test_a_package_that_cannot_be_is_refused_and_changes_nothing(world, values, field):
    before = (Package.objects.count(), Event.objects.count())
    with pytest.raises(Invalid) as refusal:
        add_package(world.teams["nlp"], values.pop("gpu_hours"), world.now, **values)
    assert refusal.value.faults[0].field == field
    assert (Package.objects.count(), Event.objects.count()) == before
