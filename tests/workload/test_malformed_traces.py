"""Damaged files: each fault names its file, line and field; strict stops there; nothing ever is a traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.workload.faults import KEPT, LONGEST_LINE
from scheduling.workload.traces import TraceError, read_trace
from tests.workload.trace_files import (
    CHRONUS_HEADER,
    GOOD_POD,
    NODE_HEADER,
    NODES,
    POD_HEADER,
    VC_HEADER,
    alibaba,
    write,
)

BAD_PODS = [
    ("pod,12000,16384,1,460,,LS,Running,10,110", None, "10 columns where the header has 11"),
    ("pod,12000,16384,1,460,,LS,Running,10,110,20,x", None, "12 columns where the header has 11"),
    ("pod,many,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a number"),
    ("pod,-1,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "negative"),
    ("pod,1.5,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a whole number"),
    ("pod,1e3,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a number"),
    ("pod,nan,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a number"),
    ("pod,١٢,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a number"),
    ("pod,,16384,1,460,,LS,Running,10,110,20", "cpu_milli", "empty"),
    (f"pod,{'9' * 400},16384,1,460,,LS,Running,10,110,20", "cpu_milli", "not a number"),
    ("pod,12000,9999999999999,1,460,,LS,Running,10,110,20", "memory_mib", "not in 0 to 1000000000000"),
    ("pod,12000,16384,1,1001,,LS,Running,10,110,20", "gpu_milli", "not in 1 to 1000"),
    ("pod,12000,16384,1,0,,LS,Running,10,110,20", "gpu_milli", "not in 1 to 1000"),
    ("pod,12000,16384,1,-5,,LS,Running,10,110,20", "gpu_milli", "negative"),
    ("pod,12000,16384,0,500,,LS,Running,10,110,20", "gpu_milli", "not in 0 to 0"),
    ("pod,12000,16384,1000000000,1000,,LS,Running,10,110,20", "num_gpu", "not in 0 to 64"),
    ("pod,12000,16384,1,460,,Gold,Running,10,110,20", "qos", "not one of LS, Guaranteed, Burstable, BE"),
    ("pod,12000,16384,1,460,,,Running,10,110,20", "qos", "not one of"),
    ("pod,12000,16384,1,460,,LS,Dancing,10,110,20", "pod_phase", "not one of"),
    ("pod,12000,16384,1,460,,LS,Running,-1,110,20", "creation_time", "negative"),
    ("pod,12000,16384,1,460,,LS,Running,10,15,20", "deletion_time", "before the start"),
    ("pod,12000,16384,1,460,,LS,Running,10,5,", "deletion_time", "before the start"),
    ("pod,12000,16384,1,460,,LS,Running,10,110,9", "scheduled_time", "before the creation"),
    ("pod,12000,16384,1,460,a b|c,LS,Running,10,110,20", "gpu_spec", "not names of models"),
    (",12000,16384,1,460,,LS,Running,10,110,20", "name", "empty"),
    ("p\x00d,12000,16384,1,460,,LS,Running,10,110,20", "name", "not a name"),
    (f"{'p' * 64},12000,16384,1,460,,LS,Running,10,110,20", "name", "not a name of at most 63"),
    ("pod-0,12000,16384,1,460,,LS,Running,10,110,20", "name", "named twice"),
    ('"pod,12000,16384,1,460,,LS,Running,10,110,20', None, "not comma-separated values"),
]


@pytest.mark.parametrize(("line", "field", "message"), BAD_PODS)
def test_a_bad_pod_is_reported_and_the_others_are_read(tmp_path: Path, line: str, field: str | None, message: str):
    path = alibaba(tmp_path, [GOOD_POD, line, GOOD_POD.replace("pod-0", "pod-9")])
    trace = read_trace(tmp_path)
    assert [job.name for job in trace.jobs] == ["pod-0", "pod-9"]
    (fault,) = trace.malformed
    assert (fault.file, fault.line, fault.field) == (str(path), 3, field)
    assert message in fault.message
    assert trace.malformed_count == 1

    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path, strict=True)
    assert caught.value.malformed == fault
    assert f"{path}, line 3" in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("n-9,64000,262144,2,", "model"),
        ("n-9,0,262144,2,P100", "cpu_milli"),
        ("n-9,64000,0,2,P100", "memory_mib"),
        ("n-9,64000,262144,65,P100", "gpu"),
        ("n-0,64000,262144,2,P100", "sn"),
        ("n-9,64000,262144,2,P 100", "model"),
    ],
)
def test_a_bad_node_is_reported(tmp_path: Path, line: str, field: str):
    alibaba(tmp_path, [GOOD_POD])
    path = write(tmp_path / "openb_node_list_gpu_node.csv", NODE_HEADER, [*NODES, line])
    trace = read_trace(tmp_path)
    assert len(trace.nodes) == len(NODES)
    assert [(fault.file, fault.line, fault.field) for fault in trace.malformed] == [(str(path), 5, field)]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("a b,1,5,1,10", "vc"),
        ("aa,-1,5,1,10", "seq"),
        ("aa,0,5,1,10", "seq"),  # there already
        ("aa,1,soon,1,10", "submit_s"),
        ("aa,1,5,4097,10", "num_gpu"),
        ("aa,1,5,0.5,10", "num_gpu"),
        ("aa,1,5,1,", "duration_s"),
    ],
)
def test_a_bad_philly_row_is_reported(tmp_path: Path, line: str, field: str):
    write(tmp_path / "philly_vc_x.csv", VC_HEADER, ["aa,0,5,1,10", line])
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.field) for fault in trace.malformed] == [(3, field)]
    assert len(trace.jobs) == 1


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("1,vc_a/b,1,10,1,m,30,1,1,1,0,strict", "user"),
        ("1,vc_aa,1,10,1,m,30,1,1,1,0,maybe", "job_type"),
        ("1,vc_aa,1,-10,1,m,30,1,1,1,0,best", "submit_time"),
        ("0,vc_aa,1,10,1,m,30,1,1,1,0,best", "job_id"),
    ],
)
def test_a_bad_chronus_row_is_reported(tmp_path: Path, line: str, field: str):
    write(tmp_path / "t.csv", CHRONUS_HEADER, ["0,vc_aa,1,10,1,m,30,1,1,1,0,best", line])
    assert [(fault.line, fault.field) for fault in read_trace(tmp_path).malformed] == [(3, field)]


@pytest.mark.parametrize(
    ("line", "field"), [("ee,many", "node num"), ("ee,0", "node num"), ("aa,3", "vc"), ("a-a,3", "vc")]
)
def test_a_bad_list_of_nodes_per_vc_is_reported(tmp_path: Path, line: str, field: str):
    write(tmp_path / "philly_vc_x.csv", VC_HEADER, ["aa,0,5,1,10"])
    write(tmp_path / "philly_vc_nodes.csv", "vc,node num", ["aa,2", line])
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.field) for fault in trace.malformed] == [(3, field)]
    assert trace.capacity_milli == 16_000


def test_an_unknown_column_is_a_fault_and_its_values_are_ignored(tmp_path: Path):
    path = alibaba(tmp_path, [GOOD_POD + ",7"], header=POD_HEADER + ",colour")
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.field) for fault in trace.malformed] == [(1, "colour")]
    assert len(trace.jobs) == 1
    with pytest.raises(TraceError, match="line 1, colour: unknown column"):
        read_trace(path, strict=True)


def test_a_column_named_twice_is_a_fault(tmp_path: Path):
    alibaba(tmp_path, [GOOD_POD + ",BE"], header=POD_HEADER + ",qos")
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.field) for fault in trace.malformed] == [(1, "qos")]
    assert trace.jobs[0].team == "ls"


@pytest.mark.parametrize("column", ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])
def test_a_missing_column_stops_the_reading(tmp_path: Path, column: str):
    header = ",".join(name for name in POD_HEADER.split(",") if name != column)
    path = alibaba(tmp_path, [], header=header)
    for place in (path, tmp_path):
        with pytest.raises(TraceError) as caught:
            read_trace(place)
        assert caught.value.malformed is None or caught.value.malformed.field == column
        assert column in caught.value.message
        assert "line 1" in caught.value.message


def test_bad_encoding_spoils_its_line_only(tmp_path: Path):
    path = alibaba(tmp_path, [GOOD_POD])
    path.write_bytes(path.read_bytes() + b"p\xff\xfe,1,1,0,0,,LS,Running,1,2,1\n" + GOOD_POD.encode()[:-2] + b"99\n")
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.field, fault.message) for fault in trace.malformed] == [
        (3, None, "not UTF-8 at byte 1"),
        (4, "name", "named twice"),
    ]


def test_a_compressed_file_that_breaks_off_gives_what_came_before(tmp_path: Path):
    rows = [f"aa,{number},{number * 37 % 1009},1,{number * 7919 % 10007}" for number in range(20_000)]
    path = write(tmp_path / "philly_vc_x.csv.gz", VC_HEADER, rows)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    trace = read_trace(tmp_path)
    assert 1000 < len(trace.jobs) < 20_000
    assert trace.malformed_count in (1, 2)  # the end, and the line that it cuts in two
    assert "breaks off" in trace.malformed[-1].message
    assert trace.malformed[-1].line >= len(trace.jobs) + 1
    with pytest.raises(TraceError):
        read_trace(tmp_path, strict=True)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:12], lambda data: data[:30] + b"garbage" * 9, lambda data: data[:2]]
)
def test_compressed_data_that_is_no_file_at_all(tmp_path: Path, damage):
    path = tmp_path / "philly_vc_x.csv.gz"
    path.write_bytes(damage(gzip.compress(VC_HEADER.encode() + b"\naa,0,5,1,10\n")))
    with pytest.raises(TraceError):
        read_trace(path, strict=True)
    with pytest.raises(TraceError):
        read_trace(path)


def test_a_line_without_end_is_one_fault_and_little_memory(tmp_path: Path):
    path = alibaba(tmp_path, [GOOD_POD])
    path.write_bytes(path.read_bytes() + b"x" * (5 * LONGEST_LINE) + b"\n" + GOOD_POD.replace("0,", "1,", 1).encode())
    trace = read_trace(tmp_path)
    assert [(fault.line, fault.message) for fault in trace.malformed] == [(3, f"longer than {LONGEST_LINE} bytes")]
    assert len(trace.jobs) == 2


def test_faults_beyond_what_is_kept_are_counted(tmp_path: Path):
    alibaba(tmp_path, [GOOD_POD, *["nothing"] * (KEPT + 50)])
    trace = read_trace(tmp_path)
    assert (len(trace.malformed), trace.malformed_count) == (KEPT, KEPT + 50)
    assert len(trace.jobs) == 1


def test_places_that_hold_no_trace(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for place, message in [
        (tmp_path / "nowhere", "no such file or folder"),
        (empty, "no job list"),
        (write(tmp_path / "other.csv", "a,b,c", ["1,2,3"]), "no job list that is known"),
        (write(tmp_path / "nodes.csv", NODE_HEADER, NODES), "no job list that is known"),
    ]:
        with pytest.raises(TraceError, match=message):
            read_trace(place)
    (tmp_path / "void.csv").write_bytes(b"")
    with pytest.raises(TraceError, match="no job list that is known"):
        read_trace(tmp_path / "void.csv")


def test_pods_without_a_node_list(tmp_path: Path):
    path = write(tmp_path / "pods.csv", POD_HEADER, [GOOD_POD])
    with pytest.raises(TraceError, match="no node list"):
        read_trace(path)


def test_two_kinds_in_one_folder(tmp_path: Path):
    alibaba(tmp_path, [GOOD_POD])
    write(tmp_path / "philly_vc_x.csv", VC_HEADER, ["aa,0,5,1,10"])
    with pytest.raises(TraceError, match="several kinds"):
        read_trace(tmp_path)
    assert len(read_trace(tmp_path / "philly_vc_x.csv").jobs) == 1


@given(data=st.binary(max_size=400), header=st.sampled_from([POD_HEADER, VC_HEADER, CHRONUS_HEADER, ""]))
def test_no_content_makes_it_stumble(data: bytes, header: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("trace")
    path = alibaba(folder, [])
    path.write_bytes(header.encode() + b"\n" + data)
    try:
        trace = read_trace(path)
    except TraceError:
        return
    assert trace.malformed_count >= len(trace.malformed)
