"""``read_trace``: a folder or file of a recorded workload becomes a Trace; the format is recognised by its header."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

from scheduling.workload import alibaba, philly
from scheduling.workload.faults import Columns, Faults, read_header
from scheduling.workload.records import Malformed, Trace, TraceError, TraceJob, TraceNode, TraceTeam

__all__ = ["Malformed", "Trace", "TraceError", "TraceJob", "TraceNode", "TraceTeam", "read_trace"]

SUFFIXES = (".csv", ".csv.gz")
VC_NODES_FOLDER = "helios-summary"  # where the list of nodes per vc lies, beside the folder of the Philly rows


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of job list: how its header looks, how its files are called, which one is meant if nobody says."""

    title: str
    columns: Columns
    prefix: str
    default: str
    read: Callable[[Path, list[Path], int | None, Faults], Trace]


def read_trace(folder: Path, *, strict: bool = False, limit: int | None = None, workload: str | None = None) -> Trace:
    """The trace at ``folder``: the dataset's folder, or its ``csv`` folder, or one job list (plain or gzip).

    ``limit``: only the first so many jobs by (submit_s, name). ``workload``: which of several job lists, by the end of
    its name (``gpuspec33``, ``longer``). What is malformed is left out and reported in the trace; with ``strict`` the
    first such place raises TraceError. Raises TraceError too where nothing there is a trace that is known.
    """
    folder = Path(folder)
    if limit is not None and limit < 1:
        raise TraceError(f"a limit of {limit} jobs: it must be 1 or more")
    kind, path = _job_list(folder, workload)
    return kind.read(path, _files(path.parent), limit, Faults(strict=strict))


def _job_list(place: Path, workload: str | None) -> tuple[Format, Path]:
    """The job list that is meant, and its format."""
    if place.is_file():
        return _format_of(place), place
    if not place.is_dir():
        raise TraceError(f"{place}: no such file or folder")
    files = _files(place) + _files(place / "csv")
    found = [(kind, path) for path in files if (kind := _recognised(path))]
    if not found:
        raise TraceError(_not_found(place, files))
    kinds = sorted({kind.title for kind, _ in found})
    if len(kinds) > 1:
        raise TraceError(f"{place} holds job lists of several kinds ({', '.join(kinds)}): name one file")
    kind = found[0][0]
    return kind, _chosen(kind, [path for _, path in found], workload)


def _chosen(kind: Format, paths: list[Path], workload: str | None) -> Path:
    """The path of the workload that is asked for, or of the default one, or the only one."""
    by_name = {_stem(path).removeprefix(kind.prefix): path for path in paths}
    if workload is None and len(paths) == 1:
        return paths[0]
    wanted = workload or kind.default
    if wanted not in by_name:
        raise TraceError(f"no job list {wanted!r} in {paths[0].parent}; there are: {', '.join(sorted(by_name))}")
    return by_name[wanted]


def _files(folder: Path) -> list[Path]:
    """The files of ``folder`` that may be lists, by name; none where there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())
    except OSError:
        return []


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")


def _recognised(path: Path) -> Format | None:
    try:
        header = read_header(path)
    except TraceError:
        return None
    return next((kind for kind in FORMATS if not kind.columns.missing(header)), None)


def _format_of(path: Path) -> Format:
    """The format of this file; else TraceError, which names the missing column where the file nearly is one."""
    header = read_header(path)
    for kind in FORMATS:
        if not kind.columns.missing(header):
            return kind
    nearest = max(FORMATS, key=lambda kind: kind.columns.matched(header))
    if nearest.columns.matched(header) * 2 > len(nearest.columns.needed):
        missing = nearest.columns.missing(header)
        fault = Malformed(str(path), 1, missing[0], ",".join(header), f"column missing from a {nearest.title}")
        raise TraceError(str(fault), fault)
    raise TraceError(f"{path}: its first line is the header of no job list that is known. {_known()}")


def _not_found(place: Path, files: list[Path]) -> str:
    """Why no job list was found: what is wrong with the file that comes nearest, or what would have been one."""
    for path in files:
        try:
            _format_of(path)
        except TraceError as error:
            if error.malformed:
                return error.message
    return f"{place}: no job list in it or in its folder csv. {_known()}"


def _known() -> str:
    return "Known: " + "; ".join(f"{kind.title} ({','.join(kind.columns.needed)})" for kind in FORMATS)


def _first(jobs: Iterable[TraceJob], limit: int | None) -> tuple[TraceJob, ...]:
    """The jobs by (submit_s, name); with ``limit`` the first so many of them, and no more than those in memory."""
    if limit is None:
        return tuple(sorted(jobs, key=_moment))
    return tuple(nsmallest(limit, jobs, key=_moment))


def _moment(job: TraceJob) -> tuple[object, str]:
    return job.submit_s, job.name


def _read_alibaba(path: Path, beside: list[Path], limit: int | None, faults: Faults) -> Trace:
    nodes = alibaba.read_nodes(_node_list(path, beside), faults)
    jobs = _first(alibaba.read_jobs(path, faults), limit)
    return Trace(
        name=_stem(path),
        source=alibaba.SOURCE,
        nodes=nodes,
        teams=alibaba.teams_of(jobs),
        jobs=jobs,
        malformed=tuple(faults.kept),
        malformed_count=faults.count,
        notes=alibaba.NOTES,
    )


def _node_list(path: Path, beside: list[Path]) -> Path:
    """The node list that goes with the pods at ``path``: the GPU nodes if there, else the first list by name."""
    lists = [file for file in beside if file != path and _has(file, alibaba.NODE_COLUMNS)]
    if not lists:
        raise TraceError(f"{path}: no node list ({','.join(alibaba.NODE_COLUMNS.needed)}) in the same folder")
    by_stem = {_stem(file): file for file in lists}
    return next((by_stem[name] for name in alibaba.NODE_LISTS if name in by_stem), lists[0])


def _has(path: Path, columns: Columns) -> bool:
    try:
        return not columns.missing(read_header(path))
    except TraceError:
        return False


def _read_vc(path: Path, beside: list[Path], limit: int | None, faults: Faults) -> Trace:
    notes = (*philly.NOTES, philly.VC_NOTE)
    return _read_philly(path, beside, limit, faults, philly.read_vc_jobs, philly.SOURCE, notes)


def _read_chronus(path: Path, beside: list[Path], limit: int | None, faults: Faults) -> Trace:
    notes = (*philly.NOTES, philly.CHRONUS_NOTE)
    return _read_philly(path, beside, limit, faults, philly.read_chronus_jobs, philly.CHRONUS_SOURCE, notes)


def _read_philly(
    path: Path,
    beside: list[Path],
    limit: int | None,
    faults: Faults,
    read_jobs: Callable[[Path, Faults], Iterator[TraceJob]],
    source: str,
    notes: tuple[str, ...],
) -> Trace:
    node_list = _vc_node_list(path, beside)
    given = philly.read_vc_nodes(node_list, faults) if node_list else {}
    work: dict[str, philly.VcWork] = {}
    jobs = _first(_counted(read_jobs(path, faults), work), limit)
    derived = sorted(set(work) - set(given))
    return Trace(
        name=_stem(path),
        source=source,
        nodes=philly.fleet_of(work, given),
        teams=philly.teams_of(work, given),
        jobs=jobs,
        malformed=tuple(faults.kept),
        malformed_count=faults.count,
        notes=(*notes, *_derived_note(derived)),
    )


def _counted(jobs: Iterator[TraceJob], work: dict[str, philly.VcWork]) -> Iterator[TraceJob]:
    """``jobs``, each counted into its team's entry of ``work`` on the way."""
    for job in jobs:
        work.setdefault(job.team, philly.VcWork()).add(job)
        yield job


def _derived_note(teams: list[str]) -> tuple[str, ...]:
    if not teams:
        return ()
    return (f"How many nodes these had is not recorded, they get what their own jobs need: {', '.join(teams)}.",)


def _vc_node_list(path: Path, beside: list[Path]) -> Path | None:
    """The list of nodes per vc in the same folder, or in ``helios-summary`` next to that folder; None if neither."""
    places = beside + _files(path.resolve().parent.parent / VC_NODES_FOLDER)
    return next((file for file in places if _has(file, philly.VC_NODE_COLUMNS)), None)


FORMATS = (
    Format("Alibaba 2023 pod list", alibaba.POD_COLUMNS, alibaba.POD_LIST, alibaba.DEFAULT_WORKLOAD, _read_alibaba),
    Format("Philly list per virtual cluster", philly.VC_COLUMNS, philly.VC_LIST, philly.DEFAULT_WORKLOAD, _read_vc),
    Format("Chronus Philly list", philly.CHRONUS_COLUMNS, "trace_job_", "Philly_MIX1", _read_chronus),
)
