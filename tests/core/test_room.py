"""What a room remembers of what did not fit never refuses what would."""

from random import Random

import pytest

from scheduling.core.fleet import Fleet
from scheduling.core.model import DeviceState, NodeState, Request
from scheduling.core.room import Room, Want


def fleet(random: Random) -> Fleet:
    return Fleet(
        NodeState(
            node,
            f"n{node}",
            node,
            random.choice([4000, 16_000]),
            random.choice([8192, 65_536]),
            tuple(
                DeviceState(node * 8 + i, i, random.choice(["A100", "T4"]), "nvidia", 80)
                for i in range(random.choice([1, 4]))
            ),
        )
        for node in range(1, 6)
    )


def request(random: Random) -> Request:
    return Request(
        devices=random.choice([0, 1, 1, 2]),
        compute_milli=None,
        memory_mib=None,
        cpu_milli=random.choice([500, 1000, 4000, 9000, 20_000]),
        host_memory_mib=random.choice([0, 1024, 9000, 70_000]),
        models=random.choice([(), (), ("A100",)]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_refused_without_a_look_does_not_fit(seed):
    random = Random(seed)
    room = Room(fleet(random))
    for _ in range(60):
        asked = request(random)
        if asked.devices:
            compute = random.choice([250, 500, 1000]) if asked.devices == 1 else 1000
            asked = Request(asked.devices, compute, None, asked.cpu_milli, asked.host_memory_mib, asked.models)
        wants = (Want(0, asked, random.choice([1, 1, 1, 2, 3])),)
        # A room of its own remembers nothing: what it takes is undone at once.
        fits = Room(room.fleet).fits(wants)
        counted = Room(room.fleet).count_fitting(wants)
        took = room.take(wants)
        assert (took is not None) is fits
        if took is None:
            assert room.count_fitting(wants) == counted
