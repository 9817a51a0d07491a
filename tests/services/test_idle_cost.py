"""Idle capacity in money: told apart, exact, and divided over teams only where that is asked for."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as some

from billing.idle import divided, idle_cost, idle_weights
from billing.services import set_rate
from inventory.models import Device, EngineConnection, Node
from inventory.services import NodeEntry, add_nodes, create_pool, set_device_health, set_node_state
from quotas.services import set_quota

PER_HOUR = 3_600_000_000 * 1000


def seen(world, start, **window):
    return idle_cost(world.pool, start, start + timedelta(**window), world.now)


def test_a_pool_without_accelerators_has_no_idle_gpus(world):
    cores = create_pool("cores", EngineConnection.objects.get(), world.now, unit="cpu", grace_s=0)
    add_nodes(cores, [NodeEntry("c-0", 8000, 16384)], world.now)
    set_rate(Decimal(2), world.now)
    start = world.now
    world.submit(gpus=1, duration="1h")
    world.submit(pool="cores", cpu=4, duration="1h")
    world.settle()
    world.pass_time(hours=2)
    idle = idle_cost(cores, start, start + timedelta(hours=1), world.now)
    assert idle.cost == idle.capacity == idle.idle == 0
    own = seen(world, start, hours=1)
    assert (own.capacity, own.allocated, own.idle) == (8 * PER_HOUR, PER_HOUR, 7 * PER_HOUR)
    assert own.cost == 7 * Decimal("2.40")


def test_slices_and_idle_time_add_up_to_the_card(world):
    """Four quarters in the first hour, two of them in the second, on a pool of eight."""
    start = world.now
    world.settle()
    for number in range(4):
        world.submit(gpus=0.25, duration="2h" if number < 2 else "1h")
    world.settle()
    world.pass_time(hours=3)
    assert seen(world, start, hours=1).idle == 7 * PER_HOUR
    second = idle_cost(world.pool, start + timedelta(hours=1), start + timedelta(hours=2), world.now)
    assert (second.allocated, second.idle) == (PER_HOUR // 2, 15 * PER_HOUR // 2)
    assert second.cost == Decimal("7.5") * Decimal("2.40")


def test_prices_failures_and_cordons_count_from_their_second(world):
    start = world.now
    world.settle()
    world.pass_time(minutes=30)
    set_rate(Decimal("4.80"), world.now, model=Device.objects.first().model)
    world.pass_time(minutes=30)
    set_device_health(Device.objects.order_by("pk")[0], "failed", world.now)
    world.settle()
    world.pass_time(minutes=30)
    set_node_state(Node.objects.order_by("-pk")[0], "cordoned", world.now)
    world.settle()
    world.pass_time(minutes=30)
    whole = seen(world, start, hours=5)
    assert whole.capacity == (8 + 7 // 2) * PER_HOUR + PER_HOUR // 2 + 3 * PER_HOUR // 2
    assert whole.cost == 4 * Decimal("2.40") + (4 + Decimal("3.5") + Decimal("1.5")) * Decimal("4.80")
    parts = [
        idle_cost(world.pool, start + timedelta(minutes=7 * part), start + timedelta(minutes=7 * part + 7), world.now)
        for part in range(20)
    ]
    assert sum(part.idle for part in parts) == whole.idle
    assert abs(sum(part.cost for part in parts) - whole.cost) < Decimal("0.0000001")


def test_more_allocated_than_in_service_is_never_less_than_nothing(world):
    world.submit(gpus=4, tasks=2)
    world.settle()
    start = world.now
    for node in Node.objects.all():
        set_node_state(node, "cordoned", world.now)
    world.settle()
    world.pass_time(hours=1)
    own = seen(world, start, hours=1)
    assert (own.cost, own.idle) == (0, 0)
    assert seen(world, start, hours=-1).cost == 0


def test_it_is_divided_only_where_that_is_asked_for(world):
    start = world.now
    set_quota(world.teams["research"], world.pool, world.now, guaranteed=3000)
    set_quota(world.teams["nlp"], world.pool, world.now, guaranteed=2000)
    set_quota(world.teams["ads"], world.pool, world.now, guaranteed=1000)
    world.submit(gpus=1, duration="1h")
    world.submit("mallory", team="ads", gpus=0.5, duration="1h")
    world.settle()
    world.pass_time(hours=1)
    cost = seen(world, start, hours=1).cost
    end = start + timedelta(hours=1)
    nlp, ads, research = (world.teams[name].pk for name in ("nlp", "ads", "research"))

    def shares(by):
        return divided(cost, idle_weights(world.pool, start, end, world.now, by))

    assert (shares("none").shares, shares("none").rest) == ({}, cost)
    assert shares("usage").shares == {nlp: cost * 2 / 3, ads: cost / 3}
    assert shares("guarantee").shares == {research: cost * 3 / 4, ads: cost / 4}
    later = idle_weights(world.pool, end, end + timedelta(hours=1), world.now, "usage")
    assert divided(cost, later).rest == cost


@given(
    some.decimals(0, 10**9, places=12),
    some.dictionaries(some.integers(1, 50), some.integers(0, 10**18), max_size=8),
)
def test_what_is_divided_adds_up_and_nothing_is_divided_by_nothing(cost, weights):
    found = divided(cost, weights)
    assert sum(found.shares.values(), found.rest) == cost
    assert all(share >= 0 for share in found.shares.values())
    if not any(weights.values()):
        assert (dict(found.shares), found.rest) == ({}, cost)
    for team_id, share in found.shares.items():
        assert abs(share - cost * weights[team_id] / sum(weights.values())) < Decimal("0.00000001")
