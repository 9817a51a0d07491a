"""What an engine sees of its nodes comes into the pool, and what an operator decided about them stays."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from events.errors import Invalid
from events.models import Event
from inventory.models import Device, Node, Pool
from inventory.services import (
    FoundDevice,
    FoundNode,
    create_engine,
    create_pool,
    set_device_health,
    set_node_state,
    sync_nodes,
)

GPUS = tuple(FoundDevice(index, f"uuid-{index}", "A100-80G", "nvidia", 81920) for index in range(2))
NODE = FoundNode("host", 8000, 65536, GPUS)


@pytest.fixture
def pool(world):
    found = create_pool("here", create_engine("this-machine", "local"), world.now)
    sync_nodes(found, [NODE], world.now)
    return found


def later(world):
    return world.now + timedelta(minutes=1)


def node() -> Node:
    return Node.objects.get(name="host")


def device(index: int) -> Device:
    return Device.objects.select_related("node").get(node__name="host", index=index)


def test_what_is_seen_again_unchanged_tells_nothing(world, pool):
    before = Event.objects.count()
    sync_nodes(pool, [NODE], later(world))
    assert Event.objects.count() == before
    assert node().last_seen_at == later(world)


def test_a_scheduler_hears_of_a_node_that_offers_something_else(world, pool):
    picture = world.clockwork.scheduler.picture
    picture.refresh(world.now)
    job = world.submit(pool="here", gpus=1, cpu=12)
    world.clockwork.scheduler.cycle(world.now)
    job.refresh_from_db()
    assert job.state == "pending"
    sync_nodes(pool, [replace(NODE, cpu_milli=16000, labels={"rack": "r1"})], later(world))
    assert Event.objects.filter(kind="nodes.changed", pool_id=pool.pk).count() == 1
    assert world.clockwork.scheduler.cycle(later(world)).started == 1


def test_devices_come_and_go(world, pool):
    sync_nodes(pool, [replace(NODE, devices=(GPUS[0], replace(GPUS[0], index=2, uuid="new")))], later(world))
    assert [device(index).health for index in range(3)] == ["ok", "failed", "ok"]
    sync_nodes(pool, [NODE], later(world))
    assert [device(index).health for index in range(3)] == ["ok", "ok", "failed"]


def test_a_node_that_is_out_of_sight_is_down_until_it_is_seen(world, pool):
    sync_nodes(pool, [], later(world))
    assert node().state == Node.State.DOWN
    sync_nodes(pool, [NODE], later(world))
    assert node().state == Node.State.READY
    sync_nodes(pool, [replace(NODE, ready=False)], later(world))
    assert node().state == Node.State.DOWN
    sync_nodes(pool, [NODE], later(world))
    assert node().state == Node.State.READY


@pytest.mark.parametrize("state", [Node.State.CORDONED, Node.State.DRAINING, Node.State.DOWN])
def test_what_an_operator_decided_about_a_node_stays(world, pool, state):
    set_node_state(node(), state, world.now, reason="by an operator")
    sync_nodes(pool, [NODE], later(world))
    assert (node().state, node().state_reason) == (state, "by an operator")


def test_what_an_operator_decided_about_a_device_stays(world, pool):
    set_device_health(device(1), Device.Health.FAILED, world.now, reason="by an operator")
    sync_nodes(pool, [NODE], later(world))
    assert [device(index).health for index in range(2)] == ["ok", "failed"]


def test_a_machine_is_in_one_pool(world, pool):
    with pytest.raises(Invalid, match="in the pool 'here' already"):
        create_pool("again", pool.engine, world.now)
    assert not Pool.objects.filter(name="again").exists()
    simulated = world.pool.engine
    assert create_pool("another", simulated, world.now).engine == simulated
