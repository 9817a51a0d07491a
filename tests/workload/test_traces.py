"""Reading traces: what the columns of each format become."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.workload.records import TraceJob, TraceNode, TraceTeam, equal_tasks
from scheduling.workload.traces import TraceError, read_trace
from tests.workload.trace_files import CHRONUS_HEADER, GOOD_POD, NODE_HEADER, NODES, VC_HEADER, alibaba, write


def test_alibaba_pods_become_jobs_of_one_task(tmp_path: Path):
    alibaba(
        tmp_path / "csv",
        [
            "late,12000,16384,1,460,,LS,Running,30,130,40",
            "cpu,8000,30517,0,0,,BE,Succeeded,10,25,10",
            "big,88000,327680,8,1000,V100M32|G2|V100M32,Burstable,Failed,10,70,20",
        ],
    )
    trace = read_trace(tmp_path, strict=True)
    assert trace.jobs == (
        TraceJob("big", "burstable", 10, 50, 1, 8, 1000, 88000, 327680, ("G2", "V100M32"), "normal", "failed"),
        TraceJob("cpu", "be", 10, 15, 1, 0, 0, 8000, 30517, (), "low", "succeeded"),
        TraceJob("late", "ls", 30, 90, 1, 1, 460, 12000, 16384, (), "high", "succeeded"),
    )
    assert trace.teams == (TraceTeam("be", "BE"), TraceTeam("burstable", "Burstable"), TraceTeam("ls", "LS"))
    assert trace.malformed == ()


def test_alibaba_nodes_know_their_devices(tmp_path: Path):
    alibaba(tmp_path, [GOOD_POD])
    trace = read_trace(tmp_path)
    assert trace.nodes == (
        TraceNode("n-0", 64000, 262144, 2, "P100", "nvidia", 16384),
        TraceNode("n-1", 96000, 393216, 8, "G2", "nvidia", 24576),
        TraceNode("n-2", 32000, 131072, 0),
    )
    assert trace.capacity_milli == 10_000
    assert trace.devices_by_model() == {"G2": 8, "P100": 2}


@pytest.mark.parametrize(
    ("times", "submit_s", "duration_s"),
    [
        ("10,110,20", 10, 90),
        ("10,110,", 10, 100),  # never scheduled: how long it was wanted
        ("10,,20", 10, None),  # not deleted within the trace
        ("10,,", 10, None),
        ("10.5,110,20.25", Decimal("10.5"), Decimal("89.75")),
        ("10,20,20", 10, 0),
        ("10.0,110.0,20.0", 10, 90),
    ],
)
def test_durations_of_pods(tmp_path: Path, times: str, submit_s: object, duration_s: object):
    alibaba(tmp_path, [f"pod,1000,1024,1,500,,BE,Pending,{times}"])
    (job,) = read_trace(tmp_path, strict=True).jobs
    assert (job.submit_s, job.duration_s) == (submit_s, duration_s)


def test_a_pod_list_without_classes_and_times(tmp_path: Path):
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
    alibaba(tmp_path, ["b,1000,1024,2,1000", "a,1000,1024,1,50"], header=header, name="multigpu20")
    trace = read_trace(tmp_path, strict=True)
    assert [(job.name, job.team, job.submit_s, job.duration_s) for job in trace.jobs] == [
        ("a", "pods", 0, None),
        ("b", "pods", 0, None),
    ]
    assert trace.teams == (TraceTeam("pods", "pods"),)


def test_philly_virtual_clusters_are_teams_with_their_nodes(tmp_path: Path):
    rows = ["ee9e8c,0,0,1,1500", "ee9e8c,1,7,16,4000", "51b7ef,0,0,12,1300", "51b7ef,1,9,0,1200"]
    write(tmp_path / "rows" / "philly_vc_first2000.csv", VC_HEADER, rows)
    write(tmp_path / "helios-summary" / "philly_vc_nodes.csv", "vc,node num", ["ee9e8c,64", "0e4a51,32"])
    trace = read_trace(tmp_path / "rows", strict=True)
    assert trace.teams == (TraceTeam("vc-51b7ef", "51b7ef", None), TraceTeam("vc-ee9e8c", "ee9e8c", 512_000))
    assert trace.capacity_milli == (64 + 2) * 8 * 1000  # 51b7ef is in no list: its job of 12 GPUs needs two nodes
    assert any("vc-51b7ef" in note and "vc-ee9e8c" not in note for note in trace.notes)
    assert [(job.name, job.submit_s, job.duration_s, job.tasks, job.devices, job.cpu_milli) for job in trace.jobs] == [
        ("vc-51b7ef-00000", 0, 1300, 2, 6, 0),
        ("vc-ee9e8c-00000", 0, 1500, 1, 1, 0),
        ("vc-ee9e8c-00001", 7, 4000, 2, 8, 0),
        ("vc-51b7ef-00001", 9, 1200, 1, 0, 1000),
    ]


def test_philly_without_a_node_list_gets_the_nodes_its_jobs_need(tmp_path: Path):
    rows = [f"aa,{number},0,8,1000" for number in range(3)] + ["bb,0,0,1,1000"]
    write(tmp_path / "some.csv", VC_HEADER, rows)
    trace = read_trace(tmp_path)
    assert len(trace.nodes) == 3 + 1  # aa: 24 devices at once for all the time; bb: one node
    assert [team.share_milli for team in trace.teams] == [None, None]


def test_chronus_counts_minutes(tmp_path: Path):
    rows = [
        "7,vc_6214e9,16,10,5049,vgg16,30,14,1105,10,0,strict",
        "3,vc_ed69ec,0,2,296,mobilenet_v2,98,8,128,10,1,best",
    ]
    write(tmp_path / "trace_job_Philly_MIX1.csv.gz", CHRONUS_HEADER, rows)
    trace = read_trace(tmp_path, strict=True)
    assert trace.jobs == (
        TraceJob("chronus-00003", "vc-ed69ec", 120, 5880, 1, 0, 0, 1000, 0, (), "low"),
        TraceJob("chronus-00007", "vc-6214e9", 600, 1800, 2, 8, 1000, 0, 0, (), "normal"),
    )


@pytest.mark.parametrize(
    ("gpus", "gang"),
    [(1, (1, 1)), (7, (1, 7)), (8, (1, 8)), (12, (2, 6)), (16, (2, 8)), (20, (4, 5)), (24, (3, 8)), (13, (13, 1))],
)
def test_gangs_are_split_evenly(gpus: int, gang: tuple[int, int]):
    assert equal_tasks(gpus) == gang


@given(gpus=st.integers(1, 5000), width=st.integers(1, 16))
def test_a_split_neither_invents_nor_loses_a_device(gpus: int, width: int):
    tasks, devices = equal_tasks(gpus, width)
    assert tasks * devices == gpus
    assert 1 <= devices <= width
    assert not any(gpus % wider == 0 for wider in range(devices + 1, width + 1))


def test_the_same_folder_is_found_from_above_within_and_by_file(tmp_path: Path):
    path = alibaba(tmp_path / "csv", [GOOD_POD])
    assert read_trace(tmp_path) == read_trace(tmp_path / "csv") == read_trace(path)


def test_the_workload_is_chosen_by_name(tmp_path: Path):
    alibaba(tmp_path, [GOOD_POD])
    alibaba(tmp_path, [GOOD_POD.replace("pod-0", "other")], name="gpuspec33")
    assert [job.name for job in read_trace(tmp_path).jobs] == ["pod-0"]
    assert [job.name for job in read_trace(tmp_path, workload="gpuspec33").jobs] == ["other"]
    with pytest.raises(TraceError, match=r"no job list 'nope'.*default, gpuspec33"):
        read_trace(tmp_path, workload="nope")


def test_the_content_tells_the_format_not_the_name(tmp_path: Path):
    write(tmp_path / "a.csv", NODE_HEADER, NODES)
    write(tmp_path / "b.csv", "gpu_milli,num_gpu,memory_mib,cpu_milli,name", ["500,1,1024,1000,job"])
    (job,) = read_trace(tmp_path, strict=True).jobs
    assert (job.name, job.gpu_milli) == ("job", 500)


def test_a_limit_takes_the_first_by_time(tmp_path: Path):
    rows = ["bb,0,5,1,10", "bb,1,6,1,10", "aa,0,0,1,10", "aa,1,5,1,10"]
    write(tmp_path / "philly_vc_x.csv", VC_HEADER, rows)
    assert [job.name for job in read_trace(tmp_path, limit=2).jobs] == ["vc-aa-00000", "vc-aa-00001"]
    assert len(read_trace(tmp_path, limit=99).jobs) == 4
    with pytest.raises(TraceError, match="limit of 0"):
        read_trace(tmp_path, limit=0)


def test_all_nodes_are_read_where_the_gpu_nodes_are_not_there(tmp_path: Path):
    pods = alibaba(tmp_path, [GOOD_POD])
    (tmp_path / "openb_node_list_gpu_node.csv").unlink()
    write(tmp_path / "openb_node_list_all_node.csv", NODE_HEADER, NODES[2:])
    assert [node.name for node in read_trace(pods).nodes] == ["n-2"]


def test_windows_line_ends_a_byte_order_mark_and_blank_lines_do_not_matter(tmp_path: Path):
    path = alibaba(tmp_path, [GOOD_POD])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n  \r\n")
    assert [job.name for job in read_trace(tmp_path, strict=True).jobs] == ["pod-0"]


POD_NAMES = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,30}", fullmatch=True)
SECONDS = st.integers(0, 10**9)


@st.composite
def pods(draw: st.DrawFn) -> list[TraceJob]:
    """Jobs as the reader gives them, names unique."""
    jobs = []
    for name in draw(st.lists(POD_NAMES, unique=True, max_size=8)):
        devices = draw(st.integers(0, 8))
        qos, priority = draw(st.sampled_from([("ls", "high"), ("be", "low"), ("burstable", "normal")]))
        jobs.append(
            TraceJob(
                name=name,
                team=qos,
                submit_s=draw(SECONDS),
                duration_s=draw(st.none() | SECONDS),
                tasks=1,
                devices=devices,
                gpu_milli=draw(st.integers(1, 1000)) if devices else 0,
                cpu_milli=draw(st.integers(0, 256_000)),
                memory_mib=draw(st.integers(0, 10**7)),
                models=tuple(sorted(draw(st.sets(st.sampled_from(["T4", "G2", "P100"]))))),
                priority_class=priority,
                exit=draw(st.sampled_from(["succeeded", "failed"])),
            )
        )
    return jobs


def pod_line(job: TraceJob) -> str:
    """The line that a pod list would hold for this job."""
    qos = {"ls": "LS", "be": "BE", "burstable": "Burstable"}[job.team]
    phase = "Failed" if job.exit == "failed" else "Running"
    deleted = "" if job.duration_s is None else str(job.submit_s + job.duration_s)
    fields = [job.name, job.cpu_milli, job.memory_mib, job.devices, job.gpu_milli, "|".join(job.models)]
    return ",".join(map(str, [*fields, qos, phase, job.submit_s, deleted, job.submit_s]))


@given(jobs=pods())
def test_what_is_written_is_read_back(jobs: list[TraceJob], tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("trace")
    alibaba(folder, [pod_line(job) for job in jobs])
    trace = read_trace(folder, strict=True)
    assert trace.jobs == tuple(sorted(jobs, key=lambda job: (job.submit_s, job.name)))


@given(
    rows=st.dictionaries(
        st.tuples(st.sampled_from(["aa", "bb", "0c"]), st.integers(0, 99)),
        st.tuples(SECONDS, st.integers(0, 200), SECONDS),
        max_size=12,
    )
)
def test_no_gpu_of_philly_is_lost(
    rows: dict[tuple[str, int], tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("trace")
    lines = [f"{vc},{seq},{at},{gpus},{lasts}" for (vc, seq), (at, gpus, lasts) in rows.items()]
    write(folder / "philly_vc_x.csv", VC_HEADER, lines)
    trace = read_trace(folder, strict=True)
    read = {job.name: (job.submit_s, job.total_milli, job.duration_s) for job in trace.jobs}
    assert read == {f"vc-{vc}-{seq:05d}": (at, gpus * 1000, lasts) for (vc, seq), (at, gpus, lasts) in rows.items()}
    assert trace.capacity_milli >= max((job.total_milli for job in trace.jobs), default=0)
