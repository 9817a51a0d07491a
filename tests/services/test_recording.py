"""Cycles are kept as far as that is cheap; every decision says its cycle, and comes out the same when asked again."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inventory.models import Device
from quotas.services import set_quota
from scheduling.core.codec import Encoder, decode
from scheduling.core.decide import decide
from scheduling.core.model import Policy
from scheduling.models import CycleRecord, Decision, Job
from scheduling.services.cycle import Scheduler
from scheduling.services.recording import BURST_BYTES, NOTHING, Keeping, Recorder
from scheduling.services.stop import cancel_jobs

ROOT = Path(__file__).resolve().parents[2]


def two_teams(world: Any) -> None:
    for team in ("nlp", "vision"):
        set_quota(world.teams[team], world.pool, world.now, guaranteed=4000)


def full(world: Any, **more: Any) -> None:
    """nlp holds all eight GPUs, four of them lent by vision."""
    two_teams(world)
    for number in range(8):
        world.submit(user="root", team="nlp", name=f"n{number}", gpus=1, **more)
    world.settle()


def told(*arguments: str) -> tuple[int, Any]:
    """(exit status, the JSON that it prints) of ``explain``."""
    out = StringIO()
    try:
        call_command("explain", *arguments, "--json", stdout=out)
    except SystemExit as end:
        return int(end.code or 0), json.loads(out.getvalue())
    return 0, json.loads(out.getvalue())


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_every_deciding_cycle_of_a_small_fleet_is_kept_and_comes_out_the_same(world):
    full(world)
    world.submit(user="root", team="vision", gpus=2)
    world.settle()
    cancel_jobs([Job.objects.order_by("pk").first().pk], world.now)
    world.settle()
    cycles = set(Decision.objects.values_list("cycle", flat=True))
    assert len(cycles) >= 3
    assert set(CycleRecord.objects.values_list("cycle", flat=True)) == cycles
    for row in CycleRecord.objects.all():
        recorded = decode(bytes(row.body))
        assert recorded.cycle == row.cycle
        assert len(row.body) == row.size
        assert decide(recorded.snapshot, recorded.policy) == recorded.plan


def test_a_cycle_that_decides_nothing_is_not_kept(world):
    full(world)
    kept = CycleRecord.objects.count()
    world.submit(gpus=8, name="nobody gives way: nlp holds more than it deserves")
    world.settle()
    assert not Decision.objects.filter(kind="refuse").exists()
    assert CycleRecord.objects.count() == kept


def with_keeping(world: Any, keeping: Keeping) -> Recorder:
    recorder = world.clockwork.scheduler.recorder = Recorder(keeping)
    return recorder


@pytest.mark.parametrize("keeping", [NOTHING, Keeping(0, 10**6, 1), Keeping(5, 0, 1), Keeping(5, 10**6, 0)])
def test_nothing_is_kept_where_that_is_wished(world, keeping):
    with_keeping(world, keeping)
    job = world.submit()
    world.settle()
    assert not CycleRecord.objects.exists()
    code, found = told(str(job.pk))
    assert (code, [each["again"] for each in found["decisions"]]) == (0, ["not kept"])


def start_one(world: Any) -> int:
    """A job that starts and goes; returns the cycle that started it."""
    job = world.submit(gpus=1)
    world.settle()
    cancel_jobs([job.pk], world.now)
    world.settle()
    return Decision.objects.get(job=job).cycle


def test_the_oldest_go_when_there_are_too_many(world):
    with_keeping(world, Keeping(3, 10**9, 10**9))
    cycles = [start_one(world) for _ in range(5)]
    assert sorted(CycleRecord.objects.values_list("cycle", flat=True)) == cycles[-3:]
    # A scheduler that starts anew counts those that are there.
    world.clockwork.scheduler.stand_down()
    world.clockwork.scheduler = Scheduler("another")
    assert world.clockwork.scheduler.lead(world.now)
    with_keeping(world, Keeping(3, 10**9, 10**9))
    cycles += [start_one(world)]
    assert sorted(CycleRecord.objects.values_list("cycle", flat=True)) == cycles[-3:]


def test_the_oldest_go_when_they_are_too_large(world):
    start_one(world)
    size = CycleRecord.objects.get().size
    with_keeping(world, Keeping(100, int(size * 2.5), 10**9))
    cycles = [start_one(world) for _ in range(4)]
    assert sorted(CycleRecord.objects.values_list("cycle", flat=True)) == cycles[-2:]
    assert sum(CycleRecord.objects.values_list("size", flat=True)) <= size * 2.5
    with_keeping(world, Keeping(100, size // 2, 10**9))
    start_one(world)
    assert sorted(CycleRecord.objects.values_list("cycle", flat=True)) == cycles[-2:]


def test_records_are_paid_for_with_time(world):
    """What a burst is good for is used up; then one is kept as often as its bytes come together again."""
    recorder = with_keeping(world, Keeping(10**6, 10**9, 100))
    start_one(world)
    size = CycleRecord.objects.get().size
    recorder._allowance = 1.0
    kept = [start_one(world), start_one(world)]
    assert set(CycleRecord.objects.values_list("cycle", flat=True)) & set(kept) == {kept[0]}
    world.now += timedelta(seconds=size / 100 / 2)
    assert not CycleRecord.objects.filter(cycle=start_one(world)).exists()
    world.now += timedelta(seconds=size / 100)
    assert CycleRecord.objects.filter(cycle=start_one(world)).exists()
    world.now += timedelta(days=1000)
    start_one(world)
    assert recorder._allowance <= BURST_BYTES


def test_a_clock_that_goes_back_earns_nothing(world):
    recorder = with_keeping(world, Keeping(10**6, 10**9, 100))
    start_one(world)
    recorder._allowance = -50.0
    for seconds in (-3600, 3600 - 3600):
        world.now += timedelta(seconds=seconds)
        assert not CycleRecord.objects.filter(cycle=start_one(world)).exists()


def test_what_cannot_be_recorded_is_carried_out_all_the_same(world, caplog):
    world.clockwork.scheduler.policy = Policy(max_rescues=Fraction(25))  # type: ignore[arg-type]
    job = world.submit()
    world.settle()
    job.refresh_from_db()
    assert job.state == Job.State.RUNNING
    assert not CycleRecord.objects.exists()
    assert "could not be recorded" in caplog.text


def test_a_commit_that_fails_keeps_no_record(world):
    """Something held the devices behind the picture's back: the database refuses the plan, and all of it is gone."""
    world.submit(gpus=4, name="first")
    world.settle()
    kept = list(CycleRecord.objects.values_list("cycle", flat=True))
    others = list(Device.objects.filter(compute_allocated_milli=0).values_list("pk", flat=True))
    Device.objects.filter(pk__in=others).update(compute_allocated_milli=1000)
    world.submit(gpus=4, name="second")
    assert world.clockwork.scheduler.cycle(world.now).conflicts == 1
    assert list(CycleRecord.objects.values_list("cycle", flat=True)) == kept
    Device.objects.filter(pk__in=others).update(compute_allocated_milli=0)
    world.settle()
    assert CycleRecord.objects.count() == len(kept) + 1


# ---- refusals --------------------------------------------------------------------------------------------------------


def refusals(job: Job) -> list[Decision]:
    return list(Decision.objects.filter(job=job, kind="refuse").order_by("id"))


def test_who_is_entitled_and_gets_nothing_is_told_why_once(world):
    full(world, preemptible=False)  # inside its guarantee only, so four run
    world.submit(user="root", team="ads", gpus=4, name="lent", preemptible=True, min_runtime="1h")
    world.settle()
    wants = world.submit(user="root", team="vision", gpus=4)
    for _ in range(5):
        world.settle()
        world.clockwork.scheduler.cycle(world.now, force=True)
    (refusal,) = refusals(wants)
    assert (refusal.rule, refusal.team_id) == ("out_of_reach", world.teams["vision"].pk)
    assert {name: refusal.numbers[name] for name in ("requested", "freeable", "lent", "protected")} == {
        "requested": 4000,
        "freeable": 0,
        "lent": 4000,
        "protected": 4000,
    }
    # Another scheduler finds it in the ledger and does not say it again.
    world.clockwork.scheduler.stand_down()
    world.clockwork.scheduler = Scheduler("another")
    assert world.clockwork.scheduler.lead(world.now)
    world.settle()
    assert len(refusals(wants)) == 1
    # Figures alone are told again once a minute, another rule at once.
    world.pass_time(hours=1)
    wants.refresh_from_db()
    assert wants.state == Job.State.RUNNING


def test_figures_of_a_refusal_are_told_again_after_a_while_and_another_rule_at_once(world):
    two_teams(world)
    for number in range(4):
        world.submit(user="root", team="nlp", gpus=1, name=f"n{number}", preemptible=False)
    world.submit(user="root", team="ads", gpus=4, min_runtime="10h")
    world.settle()
    wants = world.submit(user="root", team="vision", gpus=2)
    world.settle()
    set_quota(world.teams["vision"], world.pool, world.now, guaranteed=3000)
    world.settle()
    assert [each.numbers["guaranteed"] for each in refusals(wants)] == [4000]
    world.now += timedelta(minutes=2)
    for _ in range(2):
        world.clockwork.scheduler.cycle(world.now, force=True)
    assert [each.numbers["guaranteed"] for each in refusals(wants)] == [4000, 3000]
    set_quota(world.teams["vision"], world.pool, world.now, guaranteed=3000, per_user_limit=1000)
    world.settle()
    last = refusals(wants)[2]
    assert (last.rule, last.numbers["blocked_by"], last.numbers["limit"]) == ("own_quota", "over_user_limit", 1000)


# ---- explain and replay ----------------------------------------------------------------------------------------------


def test_a_job_that_waits_is_explained(world):
    full(world)
    waits = world.submit(gpus=8, name="waits")
    world.settle()
    code, found = told(str(waits.pk))
    assert code == 0
    assert (found["state"], found["queue"]) == ("pending", {"place": 1, "of": 1, "pool": "train"})
    assert [each["code"] for each in found["reasons"]] == ["no_fit"]
    out = StringIO()
    call_command("explain", str(waits.pk), stdout=out)
    assert "why it waits:" in out.getvalue()
    assert "place 1 of 1" in out.getvalue()


def test_starts_evictions_and_growth_are_explained_and_come_out_the_same(world):
    full(world)
    wants = world.submit(user="root", team="vision", gpus=2)
    world.settle()
    evicted = Job.objects.filter(preemptions=1).order_by("pk").first()
    code, found = told(str(evicted.pk))
    assert code == 0
    assert [(each["kind"], each["again"]) for each in found["decisions"]] == [
        ("start", "the same"),
        ("evict", "the same"),
    ]
    assert found["decisions"][1]["numbers"]["for_job"] == wants.pk
    assert f"to job {wants.pk}, which needs 2 GPUs" in found["decisions"][1]["message"]
    code, found = told(f"#{wants.pk}")
    assert (code, found["decisions"][0]["rule"]) == (0, "guarantee")


def test_a_ledger_that_was_changed_is_found_out(world):
    job = world.submit()
    world.settle()
    row = Decision.objects.get(job=job)
    Decision.objects.filter(pk=row.pk).update(numbers={**row.numbers, "deserved": 1})
    code, found = told(str(job.pk))
    assert (code, found["decisions"][0]["again"]) == (1, "different")
    assert found["decisions"][0]["differences"] == ["this decision is not made again"]


def tampered(record: bytes) -> bytes:
    """The record of a cycle that decided something else over the same snapshot."""
    from dataclasses import replace

    recorded = decode(record)
    start = recorded.plan.starts[0]
    plan = replace(recorded.plan, starts=(replace(start, rule="growth"), *recorded.plan.starts[1:]))
    return Encoder().encode(replace(recorded, plan=plan))


def test_a_cycle_that_comes_out_different_is_shown_with_what_differs(world):
    job = world.submit()
    world.settle()
    row = CycleRecord.objects.get()
    CycleRecord.objects.filter(pk=row.pk).update(body=tampered(bytes(row.body)))
    code, found = told(str(job.pk))
    assert code == 1
    (difference,) = found["decisions"][0]["differences"]
    assert difference.startswith(f"starts: job {job.pk}: was ")
    CycleRecord.objects.filter(pk=row.pk).update(body=b"something else")
    code, found = told(str(job.pk))
    assert (code, found["decisions"][0]["again"]) == (0, "unreadable")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "must be the number of a job"),
        (["987654"], "There is no job 987654"),
        (["9" * 30], "must be the number of a job"),
        (["1", "--most", "0"], "at least 1"),
        (["1", "--cycle", "3"], "give --save"),
    ],
)
def test_what_cannot_be_explained_is_refused(world, arguments, message):
    with pytest.raises(CommandError, match=message) as refused:
        call_command("explain", *arguments)
    assert refused.value.returncode == 2


def replay(file: Path, *arguments: str) -> Any:
    """``manage.py replay-cycle`` in a process that has no database."""
    return subprocess.run(
        [sys.executable, "manage.py", "replay-cycle", str(file), *arguments],
        cwd=ROOT,
        env={
            "PATH": "",
            "HOME": str(file.parent),
            "ALLOTMENT_DATA": str(file.parent),
            "DATABASE_URL": "postgres://no.where/x",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_saved_cycle_is_replayed_without_a_database(world, tmp_path):
    full(world)
    wants = world.submit(user="root", team="vision", gpus=2)
    world.settle()
    file = tmp_path / "cycle"
    victim = Job.objects.filter(preemptions=1).order_by("pk").first()
    code, found = told(str(victim.pk), "--save", str(file))
    assert code == 0
    assert found["saved"]["bytes"] == file.stat().st_size
    done = replay(file)
    assert done.returncode == 0, done.stderr
    assert "this is what was decided" in done.stdout
    assert f"job {victim.pk} in train: told to give back 1 GPU to job {wants.pk}" in done.stdout
    as_json = json.loads(replay(file, "--json").stdout)
    assert as_json["same"]
    assert [each["for_job"] for each in as_json["plan"]["evictions"]] == [wants.pk] * 2
    row = CycleRecord.objects.order_by("id").first()
    file.write_bytes(tampered(bytes(row.body)))
    done = replay(file)
    assert (done.returncode, "DIFFERENT from what was decided" in done.stdout) == (1, True)


def test_a_file_that_is_no_cycle_is_refused(tmp_path):
    for content, message in ((b"something", "not the record of a cycle"), (b"ALLOTMENT CYCLE\n\x01", "damaged")):
        (tmp_path / "file").write_bytes(content)
        done = replay(tmp_path / "file")
        assert (done.returncode, message in done.stderr, done.stdout) == (2, True, "")
    done = replay(tmp_path / "absent")
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)


def test_a_cycle_that_was_not_kept_is_not_saved(world, tmp_path):
    job = world.submit()
    world.settle()
    CycleRecord.objects.all().delete()
    with pytest.raises(CommandError, match="nothing was written"):
        call_command("explain", str(job.pk), "--save", str(tmp_path / "cycle"), stdout=StringIO())
    assert not (tmp_path / "cycle").exists()
