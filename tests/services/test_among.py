"""``among`` finds what ``in`` finds."""

import pytest

from scheduling.models import Job, Task


@pytest.fixture
def jobs(world):
    return [world.submit(name=f"job-{i}", gpus=1) for i in range(5)]


@pytest.mark.parametrize("wanted", [[], [0], [0, 2, 4], [4, 4, 1]])
def test_it_finds_what_in_finds(jobs, wanted):
    ids = [jobs[i].pk for i in wanted]
    assert set(Job.objects.filter(pk__among=ids)) == set(Job.objects.filter(pk__in=ids))
    assert set(Task.objects.filter(job_id__among=ids)) == set(Task.objects.filter(job_id__in=ids))


def test_any_iterable_and_more_than_a_statement_has_room_for(jobs):
    many = {job.pk for job in jobs} | set(range(10**9, 10**9 + 50_000))
    assert Job.objects.filter(pk__among=many).count() == 5
    assert Job.objects.filter(pk__among=dict.fromkeys(many), state="pending").count() == 5
    assert Job.objects.exclude(pk__among=[jobs[0].pk]).count() == 4


def test_it_may_be_locked_and_written_through(jobs):
    from django.db import transaction

    ids = [job.pk for job in jobs[:2]]
    with transaction.atomic():
        list(Job.objects.select_for_update(no_key=True).filter(pk__among=ids).order_by("pk"))
        assert Job.objects.filter(pk__among=ids).update(end_message="seen") == 2
