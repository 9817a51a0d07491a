"""Taints of nodes: set by an operator, a file or an engine, and heeded from the next cycle on."""

from __future__ import annotations

import pytest

from events.errors import Invalid
from events.models import Event
from inventory.models import Node
from inventory.services import FoundNode, change_node, create_engine, create_pool, import_nodes, sync_nodes
from scheduling.models import Job


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def node(name: str = "n-0") -> Node:
    return Node.objects.get(name=name)


def taint_all(world, **taints: str) -> None:
    for found in Node.objects.filter(pool=world.pool):
        change_node(found, world.now, taints=taints)


def test_a_tainted_pool_takes_who_tolerates_it_and_tells_the_others_why(world):
    runs = world.submit(gpus=1)
    world.settle()
    taint_all(world, dedicated="vision")
    plain = world.submit(gpus=1)
    mine = world.submit(gpus=1, tolerations={"dedicated": "vision"})
    world.settle()
    assert [state(job) for job in (runs, plain, mine)] == ["running", "pending", "running"]
    plain.refresh_from_db()
    (reason,) = plain.reasons
    assert reason["code"] == "no_matching_accelerator"
    assert reason["message"] == (
        "no node of train takes it: the 2 nodes that match have taints that it does not tolerate (dedicated=vision)"
    )
    taint_all(world)
    world.settle()
    assert state(plain) == "running"


def test_some_tainted_nodes_are_told_beside_what_is_short(world):
    change_node(node(), world.now, taints={"dedicated": "vision"})
    world.submit(gpus=4)
    world.settle()
    waits = world.submit(gpus=4)
    world.settle()
    waits.refresh_from_db()
    assert waits.reasons[0]["message"].startswith(
        "train is full: no GPU is free; 1 more node has taints that it does not tolerate (dedicated=vision)"
    )


def test_setting_the_same_again_tells_nothing(world):
    change_node(node(), world.now, taints={"a": "b"}, labels={"rack": "r1"})
    before = Event.objects.count()
    change_node(node(), world.now, taints={"a": "b"})
    assert Event.objects.count() == before
    assert (node().taints, node().labels) == ({"a": "b"}, {"rack": "r1"})


@pytest.mark.parametrize("wrong", [["a"], {"a": 1}, {"": "b"}, {"a": "b" * 121}, "a=b"])
@pytest.mark.parametrize("field", ["taints", "labels"])
def test_what_is_no_map_of_texts_is_refused_and_changes_nothing(world, field, wrong):
    before = (Event.objects.count(), node().labels, node().taints)
    with pytest.raises(Invalid) as refused:
        change_node(node(), world.now, **{field: wrong})
    assert [fault.field for fault in refused.value.faults] == [field]
    assert (Event.objects.count(), node().labels, node().taints) == before


def test_a_file_sets_taints_and_one_without_the_column_keeps_them(world):
    head, row = "name,pool,cpu,labels", "x,train,64,rack=r1"
    import_nodes(f"{head},taints\n{row},dedicated=nlp;spot=yes\n", world.now)
    assert node("x").taints == {"dedicated": "nlp", "spot": "yes"}
    assert import_nodes(f"{head}\n{row}\n", world.now).unchanged == ("train/x",)
    assert node("x").taints == {"dedicated": "nlp", "spot": "yes"}
    assert import_nodes(f"{head},taints\n{row},\n", world.now).changed == ("train/x",)
    assert node("x").taints == {}
    with pytest.raises(Invalid) as refused:
        import_nodes(f"{head},taints\n{row},dedicated\n", world.now)
    assert refused.value.faults[0].field == "row 1: taints"


def test_an_engine_that_knows_no_taints_keeps_those_of_the_operator(world):
    pool = create_pool("here", create_engine("machine", "local"), world.now)
    seen = FoundNode("host", 8000, 65536, ())
    sync_nodes(pool, [seen], world.now)
    change_node(node("host"), world.now, taints={"a": "b"})
    sync_nodes(pool, [seen], world.now)
    assert node("host").taints == {"a": "b"}
    sync_nodes(pool, [FoundNode("host", 8000, 65536, (), taints={"c": "d"})], world.now)
    assert node("host").taints == {"c": "d"}
