"""Nodes from a CSV file: every row or none, a fault by its row and column, the same file again without harm."""

from __future__ import annotations

import pytest

from events.errors import Conflict, Invalid
from events.models import Event
from inventory.models import Device, Node
from inventory.services import import_nodes
from scheduling.models import Job

HEADER = "name,pool,model,accelerators,cpu,host_memory_gib,labels\n"


def rows(*pools: str, accelerators: int = 8) -> str:
    return HEADER + "".join(
        f"imported-{index},{pool},A100-80G,{accelerators},64,512,rack=r{index}\n" for index, pool in enumerate(pools)
    )


def imported() -> tuple[int, int]:
    nodes = Node.objects.filter(name__startswith="imported-")
    return nodes.count(), Device.objects.filter(node__in=nodes).count()


def test_one_bad_row_enters_nothing_and_the_same_file_twice_enters_it_once(world):
    before = Event.objects.count()
    with pytest.raises(Invalid) as refused:
        import_nodes(rows("train", "train", "trian", "train"), world.now)
    (fault,) = refused.value.faults
    assert (fault.field, fault.value, fault.allowed) == ("row 3: pool", "trian", ["train"])
    assert imported() == (0, 0)
    assert Event.objects.count() == before
    good = rows("train", "train", "train", "train")
    assert len(import_nodes(good, world.now).created) == 4
    assert imported() == (4, 32)
    before = Event.objects.count()
    again = import_nodes(good, world.now)
    assert (len(again.created), len(again.changed), len(again.unchanged)) == (0, 0, 4)
    assert imported() == (4, 32)
    assert Event.objects.count() == before


def test_imported_nodes_take_work_at_once(world):
    wide = world.submit(gpus=8)
    world.settle()
    wide.refresh_from_db()
    assert wide.state == Job.State.PENDING
    import_nodes(rows("train"), world.now)
    world.settle()
    wide.refresh_from_db()
    assert wide.state == Job.State.RUNNING


def test_a_row_that_differs_brings_its_node_up(world):
    import_nodes(rows("train", accelerators=2), world.now)
    waiting = world.submit(gpus=8)
    world.settle()
    outcome = import_nodes(rows("train", accelerators=8).replace(",64,", ",96,"), world.now)
    assert outcome.changed == ("train/imported-0",)
    node = Node.objects.get(name="imported-0")
    assert (node.cpu_milli, node.devices.count()) == (96_000, 8)
    world.settle()
    waiting.refresh_from_db()
    assert waiting.state == Job.State.RUNNING


def test_devices_are_never_taken_away_by_a_file(world):
    import_nodes(rows("train"), world.now)
    for text in (
        rows("train", accelerators=4),
        rows("train").replace("A100-80G,8", ",0"),
    ):
        with pytest.raises(Invalid, match="devices can be added, not taken"):
            import_nodes(text, world.now)
    assert imported() == (1, 8)


def test_a_node_never_shrinks_below_what_it_holds(world):
    import_nodes(rows("train"), world.now)
    world.submit(gpus=8, cpu=40)
    world.settle()
    with pytest.raises(Conflict, match="holds more"):
        import_nodes(rows("train", "train").replace(",64,", ",32,"), world.now)
    assert Node.objects.get(name="imported-0").cpu_milli == 64_000
    assert imported() == (1, 8)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "row 0: columns"),
        ("name,pool\n", "file"),
        ("name,colour,pool\nx,red,train\n", "row 0: columns"),
        ("name,name,pool\nx,y,train\n", "row 0: columns"),
        ("model\nA100-80G\n", "row 0: columns"),
        ("name,pool\nx\n", "row 1: row"),
        ("name,pool\n,train\n", "row 1: name"),
        ("name,pool,accelerators\nx,train,2\n", "row 1: model"),
        ("name,pool,model\nx,train,H999\n", "row 1: model"),
        ("name,pool,model,accelerators\nx,train,A100-80G,-1\n", "row 1: accelerators"),
        ("name,pool,model,accelerators\nx,train,A100-80G,257\n", "row 1: accelerators"),
        ("name,pool,model,accelerators\nx,train,A100-80G,1.5\n", "row 1: accelerators"),
        ("name,pool,cpu\nx,train,much\n", "row 1: cpu"),
        ("name,pool,cpu\nx,train,-1\n", "row 1: cpu"),
        ("name,pool,cpu\nx,train,NaN\n", "row 1: cpu"),
        ("name,pool,memory_mib\nx,train,0\n", "row 1: memory_mib"),
        ("name,pool,labels\nx,train,rack\n", "row 1: labels"),
        ("name,pool\nx,train\ny,train\nx,train\n", "row 3: name"),
        ('name,pool\n"x,train\n', "file"),
    ],
)
def test_every_fault_names_its_row_and_column(world, text, field):
    with pytest.raises(Invalid) as refused:
        import_nodes(text, world.now)
    assert refused.value.faults[0].field == field
    assert Node.objects.count() == 2


def test_a_byte_order_mark_blank_lines_and_windows_ends_are_no_faults(world):
    text = "\ufeffname,pool\r\n\r\nx,train\r\n"
    assert import_nodes(text, world.now).created == ("train/x",)
