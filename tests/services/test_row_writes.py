"""Rows that are changed one by one and written together have what the last change said, and only where they may."""

from datetime import timedelta

import pytest

from events.rows import set_rows
from scheduling.models import Job
from scheduling.services.row_writes import RowWrites


@pytest.fixture
def jobs(world):
    return [world.submit(name=f"job-{i}", gpus=1) for i in range(4)]


def test_each_row_has_its_own_values(jobs, world):
    moments = [world.now + timedelta(seconds=i) for i in range(4)]
    reasons = [[{"code": f"c{i}", "message": "ünï'\"\\ {}"}] for i in range(4)]
    rows = {
        job.pk: [moment, i, reason] for i, (job, moment, reason) in enumerate(zip(jobs, moments, reasons, strict=True))
    }
    assert set_rows(Job, ["started_at", "exit_code", "reasons"], rows) == 4
    found = list(Job.objects.order_by("id").values_list("started_at", "exit_code", "reasons", "version"))
    assert found == [(moments[i], i, reasons[i], 1) for i in range(4)]


def test_none_is_a_value_like_others(jobs):
    set_rows(Job, ["exit_code", "priority_value"], {jobs[0].pk: [None, None], jobs[1].pk: [3, -7]})
    found = list(Job.objects.order_by("id").values_list("exit_code", "priority_value")[:2])
    assert found == [(None, None), (3, -7)]


def test_only_rows_that_are_so_are_changed(jobs):
    Job.objects.filter(pk=jobs[1].pk).update(hold="owner")
    assert set_rows(Job, ["exit_code"], {job.pk: [1] for job in jobs}, only={"hold": ""}) == 3
    untouched = Job.objects.get(pk=jobs[1].pk)
    assert (untouched.exit_code, untouched.version) == (None, 0)


def test_the_version_stays_where_it_is_not_to_count(jobs):
    set_rows(Job, ["exit_code"], {jobs[0].pk: [1]}, counts_up=False)
    assert Job.objects.get(pk=jobs[0].pk).version == 0
    assert set_rows(Job, ["exit_code"], {}) == 0


def test_what_is_too_long_is_refused_and_not_cut(jobs):
    from django.db import DataError, connection, transaction

    if connection.vendor != "postgresql":
        pytest.skip("SQLite takes any length")
    with pytest.raises(DataError), transaction.atomic():
        set_rows(Job, ["ending_reason"], {jobs[0].pk: ["x" * 41], jobs[1].pk: ["y"]})
    assert set(Job.objects.values_list("ending_reason", flat=True)) == {""}


def test_changes_of_one_row_add_up(jobs):
    writes = RowWrites()
    writes.change(jobs[0], ending="succeeded", exit_code=1)
    writes.change(jobs[0], {"state": "pending"}, exit_code=0, ending_reason="all_tasks_ended")
    writes.change(jobs[1], exit_code=5)
    writes.write()
    first, second = Job.objects.order_by("id")[:2]
    assert (first.ending, first.exit_code, first.ending_reason, first.version) == ("succeeded", 0, "all_tasks_ended", 1)
    assert (second.exit_code, second.version) == (5, 1)
    writes.write()
    assert Job.objects.get(pk=second.pk).version == 1


def test_what_a_row_must_have_been_counts_for_all_of_its_changes(jobs):
    Job.objects.filter(pk=jobs[0].pk).update(hold="owner")
    writes = RowWrites()
    writes.change(jobs[0], exit_code=1)
    writes.change(jobs[0], {"hold": ""}, ending_reason="x")
    writes.change(jobs[1], {"hold": ""}, hold="operator")
    writes.change(jobs[1], {"hold": "operator"}, exit_code=2)  # which it is by the change before
    writes.write()
    first, second = Job.objects.order_by("id")[:2]
    assert (first.exit_code, first.ending_reason, first.version) == (None, "", 0)
    assert (second.hold, second.exit_code) == ("operator", 2)
