"""The operator's console: every list and row opens, only for operators; what it changes goes through services."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.contrib import admin
from django.urls import reverse

from billing.models import Budget, Invoice, Package, Plan, Rate, TeamPlan
from billing.services.invoices import issue_invoice
from events.models import Event
from inventory.models import Device, Node, Pool
from quotas.models import Quota
from scheduling.models import Job
from wire.console import ThroughService


@pytest.fixture
def operator(client, world):
    client.force_login(world.users["root"])
    return client


@pytest.fixture
def busy(world):
    world.submit(gpus=0.25, duration="1h")
    world.submit(gpus=8, name="waits")
    world.settle()
    return world


def address(model, what, *args):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{what}", args=args)


@pytest.mark.parametrize("model", list(admin.site._registry), ids=lambda model: model.__name__)
def test_every_list_and_row_opens_for_an_operator_and_for_nobody_else(model, client, busy):
    for name, status in (("root", 200), ("alice", 302), ("mallory", 302)):
        client.force_login(busy.users[name])
        assert client.get(address(model, "changelist")).status_code == status
        row = model._default_manager.first()
        if row is not None:
            assert client.get(address(model, "change", row.pk)).status_code == status


def test_every_model_of_ours_is_in_the_console():
    from django.apps import apps

    ours = {"events", "inventory", "tenants", "quotas", "scheduling", "billing", "telemetry"}
    shown_inside_others = {"TaskGroup", "AllocationDevice"}
    missing = {
        model.__name__
        for model in apps.get_models()
        if model._meta.app_label in ours and model not in admin.site._registry
    }
    assert missing == shown_inside_others


def test_every_form_of_the_console_has_its_service():
    forms = [each for each in admin.site._registry.values() if isinstance(each, ThroughService)]
    assert len(forms) >= 5
    assert [type(each).__name__ for each in forms if type(each).service is ThroughService.service] == []


def test_cordon_and_uncordon_are_told(operator, world):
    node = Node.objects.first()
    for action, state in (("cordon", "cordoned"), ("uncordon", "ready")):
        operator.post(address(Node, "changelist"), {"action": action, "_selected_action": [node.pk]})
        node.refresh_from_db()
        assert node.state == state
        event = Event.objects.filter(kind="node.state").last()
        assert (event.data["after"], event.actor_id) == (state, world.users["root"].pk)


def test_labels_and_taints_of_a_node_are_edited_and_nothing_else_of_it(operator, world):
    node = Node.objects.first()
    form = {"labels": '{"rack": "r1"}', "taints": '{"dedicated": "nlp"}', "cpu_milli": "1", "state": "down"}
    operator.post(address(Node, "change", node.pk), form)
    before = (node.cpu_milli, node.state)
    node.refresh_from_db()
    assert (node.labels, node.taints) == ({"rack": "r1"}, {"dedicated": "nlp"})
    assert (node.cpu_milli, node.state) == before
    event = Event.objects.filter(kind="nodes.changed").last()
    assert (event.data["names"], event.actor_id) == ([node.name], world.users["root"].pk)
    answer = operator.post(address(Node, "change", node.pk), {"labels": "{}", "taints": '{"dedicated": 1}'})
    assert "must map texts to texts" in answer.content.decode()
    node.refresh_from_db()
    assert node.labels == {"rack": "r1"}


def test_jobs_are_held_released_and_cancelled(operator, busy):
    waiting = Job.objects.get(name="waits")
    for action, hold, state in (
        ("hold_jobs", "operator", "pending"),
        ("release_jobs", "", "pending"),
        ("cancel", "", "cancelled"),
    ):
        operator.post(address(Job, "changelist"), {"action": action, "_selected_action": [waiting.pk]})
        waiting.refresh_from_db()
        assert (waiting.hold, waiting.state) == (hold, state)


def test_a_job_that_runs_cannot_be_held_and_the_console_says_why(operator, busy):
    running = Job.objects.get(state="running")
    answer = operator.post(
        address(Job, "changelist"), {"action": "hold_jobs", "_selected_action": [running.pk]}, follow=True
    )
    assert "Only a job that waits" in answer.content.decode()
    running.refresh_from_db()
    assert running.hold == ""


def test_a_new_rate_counts_from_now_and_one_in_the_past_is_refused_at_its_field(operator, world):
    empty = {"pool": "", "model": "", "priority_class": "", "band_start": "", "band_end": ""}
    operator.post(address(Rate, "add"), {**empty, "per_hour": "3.5", "effective_from_0": "", "effective_from_1": ""})
    assert Rate.objects.first().per_hour == Decimal("3.5")
    before = Rate.objects.count()
    answer = operator.post(
        address(Rate, "add"),
        {**empty, "per_hour": "1", "effective_from_0": "2001-01-01", "effective_from_1": "00:00:00"},
    )
    assert "cannot begin in the past" in answer.content.decode()
    assert Rate.objects.count() == before


def test_a_quota_beyond_the_pool_is_refused_with_the_sum(operator, world):
    form = {
        "team": world.teams["nlp"].pk,
        "pool": world.pool.pk,
        "guaranteed": "9000",
        "limit": "",
        "weight": "1",
        "reserved": "0",
        "per_user_limit": "",
        **{f"valid_{end}_{part}": "" for end in ("from", "until") for part in (0, 1)},
    }
    answer = operator.post(address(Quota, "add"), form)
    assert "capacity 8" in answer.content.decode()
    assert not Quota.objects.exists()
    operator.post(address(Quota, "add"), {**form, "guaranteed": "4000"})
    assert Quota.objects.get().guaranteed == 4000


def test_a_pool_is_renamed_and_keeps_what_refers_to_it(operator, busy):
    shown = operator.get(address(Pool, "change", busy.pool.pk)).context["adminform"].form.initial
    form = {
        name: shown[name] for name in ("description", "sharing", "placement", "step_milli", "grace_s", "min_runtime_s")
    }
    form |= {"state": "active", "share_across_teams": "on", "billing_start": "bound", "name": "train-east"}
    operator.post(address(Pool, "change", busy.pool.pk), form)
    busy.pool.refresh_from_db()
    assert busy.pool.name == "train-east"
    assert Job.objects.filter(pool=busy.pool).count() == 2


def test_a_device_marked_failed_gets_no_new_work(operator, world):
    device = Device.objects.first()
    operator.post(address(Device, "changelist"), {"action": "mark_failed", "_selected_action": [device.pk]})
    device.refresh_from_db()
    assert device.health == "failed"
    for _ in range(8):
        world.submit(gpus=1)
    world.settle()
    device.refresh_from_db()
    assert device.compute_allocated_milli == 0
    assert Job.objects.filter(state="running").count() == 7


def test_a_budget_is_set_by_its_form_and_removed_by_its_action(operator, world):
    form = {"team": world.teams["nlp"].pk, "amount": "0", "period": "month", "action": "hold", "thresholds": "[50]"}
    form |= {"active": "on", **{f"{end}_at_{part}": "" for end in ("starts", "ends") for part in (0, 1)}}
    answer = operator.post(address(Budget, "add"), {**form, "thresholds": "[0]"})
    assert "whole percents" in answer.content.decode()
    assert not Budget.objects.exists()
    operator.post(address(Budget, "add"), form)
    budget = Budget.objects.get()
    assert world.submit(gpus=1).hold == "budget"
    operator.post(address(Budget, "change", budget.pk), {**form, "amount": "5"})
    budget.refresh_from_db()
    assert budget.amount == 5
    assert budget.team == world.teams["nlp"]
    assert Job.objects.get().hold == ""
    operator.post(address(Budget, "changelist"), {"action": "remove", "_selected_action": [budget.pk]})
    assert not Budget.objects.exists()


def test_a_package_is_ordered_in_hours_and_confirmed_by_its_action(operator, world):
    form = {"team": world.teams["nlp"].pk, "work": "100", "pool": "", "model": "", "price": "5"}
    form |= {f"{end}_at_{part}": "" for end in ("starts", "expires") for part in (0, 1)}
    form["expires_at"] = ""
    operator.post(address(Package, "add"), form)
    package = Package.objects.get()
    assert (package.work, package.state) == (100 * 3_600_000_000_000, "pending")
    operator.post(address(Package, "changelist"), {"action": "confirm", "_selected_action": [package.pk]})
    package.refresh_from_db()
    assert package.state == "confirmed"


def test_plans_invoices_and_their_lines_open(operator, world):
    from datetime import date, timedelta

    operator.post(address(Plan, "add"), {"name": "v1", "monthly_fee": "30"})
    plan = Plan.objects.get()
    month = date(2026, 1, 1)
    form = {"team": world.teams["nlp"].pk, "plan": plan.pk, "starts_on": "2026-01-01"}
    operator.post(address(TeamPlan, "add"), form)
    invoice = issue_invoice(world.teams["nlp"], month, world.now + timedelta(days=60))
    assert "30.00" in operator.get(address(Invoice, "change", invoice.pk)).content.decode()
    operator.post(address(Invoice, "changelist"), {"action": "credit", "_selected_action": [invoice.pk]})
    assert Invoice.objects.get(kind="credit").total == -30
