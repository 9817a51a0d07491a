"""The demo's fleet and the table of accelerators."""

from __future__ import annotations

import re
from collections import Counter

from scheduling.workload.accelerators import ACCELERATOR_MODELS, BY_NAME
from scheduling.workload.fleets import demo_fleet

VENDORS = {"nvidia", "amd", "ascend", "kunlun", "cambricon", "hygon", "intel", "pretend", "other"}


def test_the_fleet_has_a_thousand_mixed_devices_and_some_cpu_nodes():
    fleet = demo_fleet()
    assert sum(node.devices for node in fleet) == 1000
    assert len({node.model for node in fleet if node.devices}) == 8
    assert {node.vendor for node in fleet} == {"nvidia", "amd", "ascend", "kunlun", "hygon", ""}
    assert sum(1 for node in fleet if not node.devices) == 12


def test_the_fleet_is_the_same_every_time_and_in_order():
    fleet = demo_fleet()
    assert fleet == demo_fleet()
    names = [node.name for node in fleet]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


def test_every_node_is_labelled_and_its_devices_are_of_the_table():
    for node in demo_fleet():
        assert [key for key, _ in node.labels] == ["arch", "rack", "zone"]
        if node.devices:
            model = BY_NAME[node.model]
            assert (node.vendor, node.device_memory_mib) == (model.vendor, model.memory_mib)
            assert node.cpu_milli // node.devices >= 12_000
            assert node.host_memory_mib // node.devices >= 96 * 1024
        else:
            assert (node.model, node.vendor, node.device_memory_mib) == ("", "", 0)


def test_a_rack_stands_in_one_zone_and_holds_one_model():
    racks: dict[str, set[tuple[str, str]]] = {}
    for node in demo_fleet():
        labels = dict(node.labels)
        racks.setdefault(labels["rack"], set()).add((labels["zone"], node.model))
    assert all(len(kinds) == 1 for kinds in racks.values())
    assert len(racks) > 20


def test_the_table_of_accelerators():
    assert len(ACCELERATOR_MODELS) >= 20
    assert len(BY_NAME) == len(ACCELERATOR_MODELS)
    assert {model.vendor for model in ACCELERATOR_MODELS} == VENDORS - {"pretend", "other"}
    for model in ACCELERATOR_MODELS:
        assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}", model.name)
        assert re.fullmatch(r"[a-z0-9.]+/[A-Za-z0-9]+", model.resource)
        assert model.memory_mib % 1024 == 0
        assert f"{model.memory_mib // 1024}G" == model.name.rsplit("-", 1)[1]
        assert 0 < model.demo_rate < 10
        assert bool(model.templates) == (model.slice_rule == "templates")


def test_templates_are_ascending_parts_of_their_device():
    for model in ACCELERATOR_MODELS:
        sizes = [template.compute_milli for template in model.templates]
        assert sizes == sorted(set(sizes))
        for template in model.templates:
            assert 0 < template.compute_milli < 1000
            assert template.memory_mib * 1000 == model.memory_mib * template.compute_milli


def test_the_least_slice_that_fits():
    cases = [
        ("A100-80G", 50, 50),
        ("A100-80G", 1000, 1000),
        ("Kunlun-P800-96G", 50, 250),
        ("Kunlun-P800-96G", 251, 500),
        ("Kunlun-P800-96G", 501, 1000),
        ("MI300X-192G", 50, 1000),
    ]
    assert Counter((name, milli, BY_NAME[name].fitting(milli)) for name, milli, _ in cases) == Counter(cases)
