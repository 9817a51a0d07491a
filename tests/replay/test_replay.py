"""``manage.py replay`` on a little trace in the public formats, through the real services and database."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing.models import UsageRecord
from config.replay import play
from config.replay.estimates import time_limit_s
from config.replay.figures import quantile
from config.replay.report import as_page, as_text, duration
from inventory.models import Device, Node
from scheduling.models import Allocation, Job
from scheduling.workload.traces import read_trace

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-1,96000,393216,2,T4
node-2,96000,393216,1,V100M32
"""
HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
PODS = (
    HEADER
    + "pod-1,4000,8192,1,1000,,LS,Succeeded,0,3600,0\n"
    + "pod-2,4000,8192,1,500,,LS,Succeeded,0,7200,0\n"
    + "pod-3,4000,8192,1,1000,V100M32,BE,Failed,600,1200,600\n"
    + "pod-4,4000,8192,3,1000,,BE,Succeeded,900,1800,900\n"
    + "pod-5,4000,8192,0,0,,BE,Succeeded,900,1800,900\n"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    return tmp_path


def replay(folder: Path, **options) -> dict:
    out = io.StringIO()
    call_command("replay", str(folder), pool="played", json=True, report=folder / "report", stdout=out, **options)
    return json.loads(out.getvalue())


@pytest.mark.django_db
def test_every_job_is_played_billed_and_reported(trace):
    found = replay(trace)
    jobs = found["jobs"]
    # pod-4 wants three GPUs of one node, and there is none with three: it waits for ever and is not lost.
    assert (jobs["submitted"], jobs["succeeded"], jobs["failed"], jobs["pending"]) == (5, 3, 1, 1)
    assert (found["nodes"], found["gpus"]) == (2, 3)
    assert Node.objects.count() == 2
    assert found["waits"]["all"]["started"] == 4
    assert found["waits"]["all"]["max_s"] == 0
    # 1 h of a GPU, 2 h of half a one, 10 min of a third.
    assert found["totals"]["gpu_hours"] == pytest.approx(1 + 1 + 1 / 6, abs=0.001)
    billed = sum((record.amount or Decimal(0) for record in UsageRecord.objects.all()), Decimal(0))
    assert billed.quantize(Decimal("0.01")) == Decimal(found["totals"]["cost"])
    assert max(each["allocated_gpus"] for each in found["over_time"]) == 2.5
    assert found["decisions_per_second"] > 0
    assert not Device.objects.exclude(compute_allocated_milli=0).exists()
    page = (trace / "report" / "report.html").read_text()
    assert "Plotly.newPlot" in page
    assert json.loads((trace / "report" / "report.json").read_text()) == found


@pytest.mark.django_db
def test_jobs_run_where_and_as_long_as_the_trace_says(trace):
    replay(trace)
    third = Allocation.objects.get(job__name="pod-3")
    assert third.node.name == "node-2"
    assert third.running_at is not None
    assert third.released_at == third.running_at + timedelta(minutes=10)
    assert third.job.state == Job.State.FAILED


@pytest.mark.django_db
def test_one_that_is_stopped_waits_for_nothing_more(trace):
    start = timezone.now()
    stage = play.set_stage(read_trace(trace), "played", start, placement="binpack")
    submitted: list[int] = []
    play.play(stage, speed=1, progress=submitted.append, stopped=lambda: bool(submitted))
    # The third job is due in ten minutes.
    assert (submitted, Job.objects.count()) == ([2], 2)
    assert stage.clockwork.now == start


@pytest.mark.django_db
def test_limit_takes_the_first_jobs(trace):
    assert replay(trace, limit=2)["jobs"]["submitted"] == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("pod-x,4000,8192,1,1500,,LS,Succeeded,0,3600,0\n", "gpu_milli"),
        ("pod-x,4000,8192,1,soon,,LS,Succeeded,0,3600,0\n", "gpu_milli"),
        ("pod-x,-1,8192,1,500,,LS,Succeeded,0,3600,0\n", "cpu_milli"),
        ("pod-x,4000\n", ""),
    ],
)
def test_a_malformed_line_is_counted_or_stops_it(trace, line, field):
    pods = trace / "openb_pod_list_default.csv"
    pods.write_text(PODS + line)
    found = replay(trace)
    assert found["malformed"]["count"] == 1
    assert found["jobs"]["submitted"] == 5
    told = found["malformed"]["first"][0]
    assert "openb_pod_list_default.csv, line 7" in told
    assert field in told
    before = Job.objects.count()
    with pytest.raises(CommandError, match="line 7"):
        call_command("replay", str(trace), pool="strictly", strict=True)
    assert Job.objects.count() == before


@pytest.mark.django_db
def test_what_cannot_be_played_is_refused_in_one_line(trace, tmp_path_factory, world):
    empty = tmp_path_factory.mktemp("empty")
    for folder, options, message in (
        (empty, {}, "."),
        (trace / "nowhere", {}, "."),
        (trace, {"limit": 0}, "1 or more"),
        (trace, {"speed": -1.0}, "above 0"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("replay", str(folder), pool="played", **options)
    world.submit(gpus=1)
    with pytest.raises(CommandError, match="unfinished jobs"):
        call_command("replay", str(trace), pool="played")
    with pytest.raises(CommandError, match="already a pool"):
        call_command("replay", str(trace), pool="train")


@pytest.mark.django_db
def test_philly_job_lists_play_with_their_virtual_clusters_as_teams(tmp_path):
    (tmp_path / "philly_vc_first2000.csv").write_text(
        "vc,seq,submit_s,num_gpu,duration_s\n0e4a51,0,0,1,3600\n0e4a51,1,60,16,7200\n103959,0,0,8,1800\n"
    )
    found = replay(tmp_path)
    assert found["jobs"]["succeeded"] == 3
    assert found["teams"]["vc-0e4a51"]["gpu_hours"] == pytest.approx(1 + 32)
    assert found["teams"]["vc-103959"]["gpu_hours"] == pytest.approx(4)
    assert Allocation.objects.filter(job__milli_wanted=16000).count() == 2


def test_quantiles_are_values_that_were_seen():
    assert [quantile([1, 2, 3, 4], part) for part in (0.25, 0.5, 0.95)] == [1, 2, 4]
    assert quantile([7], 0.5) == 7
    assert quantile([], 0.5) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.6, "1m00s"), (3700, "1h01m"), (90000, "1d01h"), (75, "1m15s")]
)
def test_durations_read_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_a_name_cannot_break_out_of_the_page():
    found = {
        "trace": "<script>alert(1)</script>",
        "source": "</p>",
        "notes": [],
        "malformed": {"count": 0, "first": []},
        "pool": "p",
        "nodes": 1,
        "gpus": 0,
        "jobs": {"submitted": 0},
        "virtual_seconds": 0,
        "wall_seconds": 0,
        "jobs_per_second": 0,
        "cycles": 0,
        "decisions_per_second": 0,
        "waits": {"</script><b>": {"started": 1, "median_s": 0, "p95_s": 0, "max_s": 0}},
        "teams": {"</script><b>": {"gpu_hours": 0, "cost": "0"}},
        "totals": {"gpu_hours": 0, "cost": "0", "currency": "EUR"},
        "estimates": {"limits": "none", "estimated": 0, "without": 0, "median_s": 0, "p95_s": 0, "kept": None},
        "over_time": [],
    }
    page = as_page(found)
    assert "<script>alert" not in page
    assert "</script><b>" not in page


QUEUE = (
    HEADER
    + "pod-1,4000,8192,2,1000,,LS,Succeeded,0,3600,0\n"
    + "pod-2,4000,8192,2,1000,,LS,Succeeded,0,7200,0\n"
    + "pod-3,4000,8192,2,1000,,LS,Succeeded,0,1800,0\n"
)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("limits", "estimated", "median_s"),
    # pod-2 waits for the first hour, pod-3 for three: exactly so, half as long as feared, or for nobody knows how long.
    [("exact", 2, 0), ("double", 2, -10800), ("none", 0, 0)],
)
def test_a_replay_tells_how_good_its_estimates_were(trace, limits, estimated, median_s):
    (trace / "openb_pod_list_default.csv").write_text(QUEUE)
    found = replay(trace, limits=limits)
    told = found["estimates"]
    assert (told["limits"], told["estimated"], told["without"]) == (limits, estimated, 2 - estimated)
    assert found["waits"]["all"]["max_s"] == 10800
    assert told["kept"] == (1.0 if estimated else None)
    assert told["p95_s"] == {"exact": 0, "double": -3600, "none": 0}[limits]
    assert told["median_s"] == {"exact": 0, "double": median_s, "none": 0}[limits]
    line = next(each for each in as_text(found).splitlines() if each.startswith("Time limits"))
    assert ("no start was estimated; 2 waits had none" in line) == (limits == "none")


def test_limits_are_whole_seconds_and_never_below_the_duration():
    assert [time_limit_s(each, "exact") for each in (0, 0.2, 1, 1.5, 60)] == [1, 1, 1, 2, 60]
    assert [time_limit_s(each, "double") for each in (0, 0.2, 1.5)] == [1, 1, 3]
    assert time_limit_s(None, "exact") is None
    assert time_limit_s(60, "none") is None
