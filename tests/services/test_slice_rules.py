"""Slice rules from the operator's hand to the scheduler: what may be written, and what counts from when on."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.urls import reverse

from billing.services import set_rate
from events.errors import Invalid
from events.models import Event
from inventory.models import AcceleratorModel
from inventory.services import set_accelerator_model
from inventory.slicing import rule_of
from quotas.services import set_quota
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.selectors import team_shares
from scheduling.workload.accelerators import ACCELERATOR_MODELS

HALF = {"name": "half", "compute_milli": 500, "memory_mib": 40960}
FIFTH = {"name": "fifth", "compute_milli": 200, "memory_mib": 20480}


def cut(world, slicing, *templates):
    return set_accelerator_model(
        "A100-80G",
        "nvidia",
        81920,
        slicing=slicing,
        slice_templates=templates,
        now=world.now,
        actor_id=world.users["root"].pk,
    )


@pytest.mark.parametrize(
    ("slicing", "templates", "field", "says"),
    [
        ("templates", (), "slice_templates", "at least one template"),
        ("templates", (HALF, HALF), "slice_templates[1].name", "is there twice"),
        ("templates", (HALF, {**HALF, "name": "other"}), "slice_templates[1]", "the same size as half"),
        ("any", ({**HALF, "compute_milli": 0},), "slice_templates[0].compute_milli", "from 1 to 1000"),
        ("any", ({**HALF, "compute_milli": 1001},), "slice_templates[0].compute_milli", "from 1 to 1000"),
        ("any", ({**HALF, "compute_milli": True},), "slice_templates[0].compute_milli", "from 1 to 1000"),
        ("any", ({**HALF, "compute_milli": 0.5},), "slice_templates[0].compute_milli", "from 1 to 1000"),
        ("any", ({**HALF, "memory_mib": 81921},), "slice_templates[0].memory_mib", "from 1 to 81920"),
        ("any", ({**HALF, "memory_mib": 0},), "slice_templates[0].memory_mib", "from 1 to 81920"),
        ("any", ({**HALF, "name": " "},), "slice_templates[0].name", "1 to 63"),
        ("any", ({**HALF, "name": "x" * 64},), "slice_templates[0].name", "1 to 63"),
        ("any", ({**HALF, "gpus": 1},), "slice_templates[0].gpus", "is not a field"),
        ("any", ({"name": "half"},), "slice_templates[0].compute_milli", "from 1 to 1000"),
        ("any", ("half",), "slice_templates[0]", "a mapping"),
        (
            "any",
            tuple({**HALF, "name": str(i), "memory_mib": i + 1} for i in range(65)),
            "slice_templates",
            "at most 64",
        ),
        ("some", (), "slicing", "not one of the allowed"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_and_nothing_moves(world, slicing, templates, field, says):
    before = list(AcceleratorModel.objects.values())
    last = Event.objects.count()
    with pytest.raises(Invalid) as refused:
        cut(world, slicing, *templates)
    assert refused.value.faults[0].field == field
    assert says in refused.value.faults[0].message
    assert list(AcceleratorModel.objects.values()) == before
    assert Event.objects.count() == last


@pytest.mark.parametrize("given", ["half", {"name": "half"}, 7, None])
def test_templates_that_are_no_list_are_refused(world, given):
    with pytest.raises(Invalid, match="a list of at most 64"):
        set_accelerator_model("A100-80G", "nvidia", 81920, slice_templates=given, now=world.now)


def test_the_maker_s_rules_can_all_be_entered(db, world):
    for model in ACCELERATOR_MODELS:
        entered = set_accelerator_model(
            f"new-{model.name}",
            model.vendor,
            model.memory_mib,
            slicing=model.slice_rule,
            slice_templates=model.stored_templates,
        )
        rule = rule_of(entered)
        assert rule.kind == model.slice_rule
        assert [template.name for template in rule.templates] == [each.name for each in model.templates]
        assert all(each.compute_milli * (1000 // each.compute_milli) <= 1000 for each in rule.templates)


def test_what_changes_is_told_once_and_only_with_its_moment(world):
    cut(world, "templates", HALF, FIFTH)
    event = Event.objects.filter(kind="model.changed").get()
    assert event.data["name"] == "A100-80G"
    assert event.data["changed"]["slicing"] == ["any", "templates"]
    assert event.actor_id == world.users["root"].pk
    cut(world, "templates", FIFTH, HALF)
    assert Event.objects.filter(kind="model.changed").count() == 1, "the same rule again changes nothing"
    with pytest.raises(ValueError, match="say when"):
        set_accelerator_model("A100-80G", "nvidia", 81920)


def test_a_new_rule_counts_for_what_starts_from_now_on(world):
    first = world.submit(gpus=0.3, model="A100-80G")
    world.settle()
    cut(world, "templates", HALF, FIFTH)
    second, third = world.submit(gpus=0.3), world.submit(gpu_memory_mib=30000)
    world.settle()
    by_job = {job.pk: AllocationDevice.objects.get(allocation__job=job) for job in (first, second, third)}
    sizes = [(each.compute_milli, each.memory_mib) for each in by_job.values()]
    assert sizes == [(300, 24576), (500, 40960), (500, 40960)]
    assert [row.milli for row in Allocation.objects.order_by("id")] == [300, 500, 500]
    assert world.clockwork.scheduler.picture.check() == []
    cut(world, "whole")
    part, memory = world.submit(gpus=0.5), world.submit(gpu_memory_mib=1)
    world.settle()
    part.refresh_from_db()
    assert (part.state, part.reasons[0]["code"]) == ("pending", "no_matching_accelerator")
    assert "A100-80G is given whole only" in part.reasons[0]["message"]
    held = AllocationDevice.objects.get(allocation__job=memory)
    assert (held.compute_milli, held.memory_mib) == (1000, 81920)
    cut(world, "any")
    world.settle()
    part.refresh_from_db()
    assert part.state == "running"


def test_a_fraction_off_the_step_is_legal_only_where_every_device_rounds_it_up(world):
    with pytest.raises(Invalid, match="not a multiple of the sharing step"):
        world.submit(gpus=0.125)
    cut(world, "templates", HALF, {**FIFTH, "compute_milli": 125})
    job = world.submit(gpus=0.125)
    world.submit(gpus=0.1, devices=2)
    world.settle()
    assert Allocation.objects.get(job=job).milli == 125
    for wrong in ({"gpus": 1.5}, {"gpus": 0.1234}, {"gpus": 0.125, "vendor": "amd"}):
        with pytest.raises(Invalid):
            world.submit(**wrong)
    cut(world, "any", HALF)
    with pytest.raises(Invalid, match="not a multiple of the sharing step"):
        world.submit(gpus=0.125)


def test_what_is_granted_is_billed_and_counts_everywhere(world):
    set_rate(Decimal("2.00"), world.now, pool=world.pool)
    set_quota(world.teams["nlp"], world.pool, world.now, limit=1100)
    cut(world, "templates", HALF)
    jobs = [world.submit(gpus=0.2, duration="1h") for _ in range(3)]
    world.settle()
    shares = team_shares(world.now, [world.pool.pk])[world.pool.pk][world.teams["nlp"].pk]
    assert (shares.allocated, shares.pending, shares.limit) == (1000, 500, 1100)
    core = world.clockwork.scheduler.last_plan.shares[world.pool.pk][world.teams["nlp"].pk]
    assert (core.allocated, core.pending) == (1000, 500)
    jobs[2].refresh_from_db()
    assert jobs[2].reasons[0]["numbers"]["requested"] == 500
    world.pass_time(hours=1)
    from scheduling import ports

    costs = ports.meter.job_costs([job.pk for job in jobs], world.now)
    assert [str(costs[job.pk].amount.normalize()) for job in jobs[:2]] == ["1", "1"]


def test_the_console_edits_templates_through_the_service(client, world):
    client.force_login(world.users["root"])
    model = AcceleratorModel.objects.get(name="A100-80G")
    address = reverse("admin:inventory_acceleratormodel_change", args=[model.pk])
    form = {"vendor": "nvidia", "family": "", "memory_mib": 81920, "resource_name": "", "slicing": "templates"}
    answer = client.post(address, {**form, "slice_templates": "[]"})
    assert "at least one template" in answer.content.decode()
    answer = client.post(address, {**form, "slice_templates": '[{"name": "x", "compute_milli": 0, "memory_mib": 1}]'})
    assert "must be a whole number of milli from 1 to 1000" in answer.content.decode()
    model.refresh_from_db()
    assert (model.slicing, model.slice_templates) == ("any", [])
    client.post(address, {**form, "slice_templates": '[{"name": "x", "compute_milli": 500, "memory_mib": 1}]'})
    model.refresh_from_db()
    assert model.slice_templates == [{"name": "x", "compute_milli": 500, "memory_mib": 1}]
    assert Event.objects.filter(kind="model.changed", actor_id=world.users["root"].pk).exists()
    job = world.submit(gpus=0.1)
    world.settle()
    assert Job.objects.get(pk=job.pk).state == "running"
    assert Allocation.objects.get(job=job).milli == 1000, "what no template covers is given whole"
