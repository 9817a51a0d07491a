"""What the database itself refuses, past every service: what would be wrong is never there to be read."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F

from billing.models import UsageRecord
from inventory.models import Device, Node
from quotas.models import Quota
from scheduling.models import Allocation, AllocationDevice, Job, Task
from tenants.models import Team


def refused(act) -> None:
    """``act`` is refused by the database, and the transaction around it goes on."""
    with pytest.raises(DatabaseError), transaction.atomic():
        act()


def sql(statement: str, *parameters) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


@pytest.mark.parametrize(
    "change",
    [
        {"compute_allocated_milli": 1001},
        {"compute_allocated_milli": -1},
        {"memory_allocated_mib": 81921},
        {"memory_allocated_mib": -1},
    ],
    ids=str,
)
def test_no_device_is_bound_beyond_what_it_has(world, change):
    refused(lambda: Device.objects.filter(index=0).update(**change))
    column, value = next(iter(change.items()))
    refused(lambda: sql(f"UPDATE inventory_device SET {column} = %s", value))


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_allocated_milli": 64_001},
        {"cpu_allocated_milli": -1},
        {"host_memory_allocated_mib": 524_289},
        {"host_memory_allocated_mib": -1},
        {"cpu_milli": 0, "cpu_allocated_milli": 1},
    ],
    ids=str,
)
def test_no_node_is_bound_beyond_what_it_has(world, change):
    refused(lambda: Node.objects.update(**change))


def test_two_increments_that_fit_alone_do_not_fit_together(world):
    device = Device.objects.filter(index=0)
    device.update(compute_allocated_milli=F("compute_allocated_milli") + 600)
    refused(lambda: device.update(compute_allocated_milli=F("compute_allocated_milli") + 600))
    assert device.first().compute_allocated_milli == 600


def running(world):
    job = world.submit(gpus=1, duration="1h")
    world.settle()
    return Allocation.objects.get(job=job), UsageRecord.objects.get(job=job)


def copy(record: UsageRecord, started_at, ended_at=None) -> UsageRecord:
    fields = ("allocation_id", "team_id", "user_id", "job_id", "pool_id", "model_id", "milli")
    closed = {"amount": Decimal(1), "microseconds": 1, "per_hour": Decimal(1)} if ended_at else {}
    return UsageRecord(
        **{name: getattr(record, name) for name in fields}, started_at=started_at, ended_at=ended_at, **closed
    )


def test_spans_of_one_allocation_never_overlap(world):
    allocation, record = running(world)
    start, second = record.started_at, timedelta(seconds=1)
    refused(lambda: copy(record, start + second).save())  # a second open one
    refused(lambda: copy(record, start + second, start + 2 * second).save())  # inside the open one
    refused(lambda: copy(record, start - second, start + second).save())  # over its start
    copy(record, start - 2 * second, start).save()  # up to it: half open, so they only touch
    refused(lambda: UsageRecord.objects.filter(pk=record.pk).update(started_at=start - second))
    world.pass_time(hours=1)
    refused(lambda: copy(record, start + second, start + 2 * second).save())
    refused(lambda: copy(record, start, start + 7200 * second).save())
    assert UsageRecord.objects.filter(allocation=allocation).count() == 2


@pytest.mark.parametrize("change", [{"amount": 0}, {"milli": 1}, {"ended_at": None}, {"waived": "a favour"}], ids=str)
def test_a_closed_record_never_changes(world, change):
    _, record = running(world)
    world.pass_time(hours=1)
    refused(lambda: UsageRecord.objects.filter(pk=record.pk).update(**change))
    refused(lambda: sql("UPDATE billing_usagerecord SET milli = 1 WHERE id = %s", record.pk))


def test_a_record_does_not_end_before_it_begins(world):
    _, record = running(world)
    ended = {"ended_at": record.started_at - timedelta(seconds=1), "amount": 0, "microseconds": 0}
    refused(lambda: UsageRecord.objects.filter(pk=record.pk).update(**ended))
    refused(lambda: UsageRecord.objects.filter(pk=record.pk).update(ended_at=record.started_at))  # without an amount


def test_no_team_is_its_own_ancestor(world):
    research, nlp = world.teams["research"], world.teams["nlp"]
    refused(lambda: Team.objects.filter(pk=research.pk).update(parent=research))
    refused(lambda: Team.objects.filter(pk=research.pk).update(parent=nlp))
    refused(lambda: sql("UPDATE tenants_team SET parent_id = %s WHERE id = %s", nlp.pk, research.pk))
    deep = Team.objects.create(slug="deep", name="Deep", name_key="deep", parent=nlp, created_at=world.now)
    refused(lambda: sql("UPDATE tenants_team SET parent_id = %s WHERE id = %s", deep.pk, research.pk))
    assert Team.objects.get(pk=research.pk).parent_id is None


def test_two_living_teams_never_share_a_slug_or_a_name(world):
    refused(lambda: Team.objects.create(slug="nlp", name="Other", name_key="other", created_at=world.now))
    refused(lambda: Team.objects.create(slug="other", name="NLP", name_key="nlp", created_at=world.now))


def test_a_task_has_one_live_allocation_and_a_slice_of_a_device_once(world):
    allocation, _ = running(world)
    columns = [field.attname for field in Allocation._meta.concrete_fields if field.name != "id"]
    refused(lambda: Allocation(**{name: getattr(allocation, name) for name in columns}).save())
    held = AllocationDevice.objects.get(allocation=allocation)
    again = {"allocation": allocation, "device": held.device, "compute_milli": 1, "memory_mib": 0}
    refused(lambda: AllocationDevice(**again).save())


def test_what_ended_has_a_time_and_what_has_not_has_none(world):
    allocation, _ = running(world)
    refused(lambda: Allocation.objects.filter(pk=allocation.pk).update(state="released"))
    refused(lambda: Allocation.objects.filter(pk=allocation.pk).update(released_at=world.now))
    refused(lambda: Job.objects.filter(pk=allocation.job_id).update(state="succeeded"))
    refused(lambda: Job.objects.filter(pk=allocation.job_id).update(ended_at=world.now))


def test_what_is_in_use_is_not_deleted(world):
    """History hangs on it: a node, a device, a team, a user that something names stays."""
    allocation, _ = running(world)
    for table, key in (
        ("inventory_node", allocation.node_id),
        ("tenants_team", allocation.team_id),
        ("tenants_user", allocation.user_id),
        ("inventory_pool", allocation.pool_id),
    ):

        def delete(table: str = table, key: int = key) -> None:
            sql(f"DELETE FROM {table} WHERE id = %s", key)
            connection.check_constraints()

        refused(delete)


@pytest.mark.parametrize(
    "values",
    [
        {"guaranteed": -1},
        {"limit": -1},
        {"weight": -1},
        {"guaranteed": 2, "limit": 1},
        {"guaranteed": 1, "reserved": 2},
        {"reserved": 1},
    ],
    ids=str,
)
def test_no_quota_says_what_cannot_be(world, values):
    row = {"team": world.teams["nlp"], "pool": world.pool, "updated_at": world.now, **values}
    refused(lambda: Quota.objects.create(**row))


def test_one_standing_quota_of_a_team_in_a_pool(world):
    row = {"team": world.teams["nlp"], "pool": world.pool, "updated_at": world.now}
    Quota.objects.create(**row)
    refused(lambda: Quota.objects.create(**row))


def test_a_task_index_is_there_once(world):
    allocation, _ = running(world)
    task = Task.objects.get(pk=allocation.task_id)
    refused(lambda: Task.objects.create(job=task.job, group=task.group, index=task.index))
