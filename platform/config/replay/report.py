"""What a replay showed: figures for people, for programs, and as a page of charts."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, Q

from billing.meter import costs
from config.replay.estimates import as_line
from config.replay.figures import quantile
from config.replay.play import Stage
from scheduling.core.units import format_gpus
from scheduling.models import Allocation, Job

CENTS = Decimal("0.01")
PLOTLY = "vendor/plotly-basic-*/plotly-basic.min.js"


def report(stage: Stage) -> dict[str, Any]:
    """Everything that was seen, JSON-ready. GPUs and GPU-hours are numbers, money is a text, waits are in seconds."""
    clockwork = stage.clockwork
    jobs = Job.objects.filter(pool=stage.pool)
    states = dict(jobs.order_by().values_list("state").annotate(count=Count("id")))
    span = (clockwork.now - stage.start).total_seconds()
    teams = _teams(stage, clockwork.now)
    capacity = stage.trace.capacity_milli
    placed = Allocation.objects.filter(pool=stage.pool).count()
    return {
        "trace": stage.trace.name,
        "source": stage.trace.source,
        "notes": list(stage.trace.notes),
        "malformed": {
            "count": stage.trace.malformed_count,
            "first": [str(each) for each in stage.trace.malformed[:20]],
        },
        "pool": stage.pool.name,
        "nodes": len(stage.trace.nodes),
        "gpus": capacity // 1000,
        "jobs": {"submitted": stage.submitted, **{state: states.get(state, 0) for state in Job.State.values}},
        "virtual_seconds": span,
        "wall_seconds": round(stage.wall_s, 2),
        "jobs_per_second": round(stage.submitted / stage.wall_s, 1) if stage.wall_s else 0.0,
        "tasks_placed": placed,
        "cycles": clockwork.cycles,
        "decisions": clockwork.decisions,
        "decisions_per_second": round(clockwork.decisions / clockwork.deciding_s, 1) if clockwork.deciding_s else 0.0,
        "waits": _waits(stage),
        "estimates": stage.estimates.figures(stage.pool, stage.limits),
        "teams": teams,
        "totals": {
            "gpu_hours": float(sum(Decimal(str(each["gpu_hours"])) for each in teams.values())),
            "cost": str(sum((Decimal(each["cost"]) for each in teams.values()), Decimal(0))),
            "currency": settings.BILLING_CURRENCY,
        },
        "over_time": [
            {
                "at_s": sample.at_s,
                "allocated_gpus": sample.allocated_milli / 1000,
                "wanted_gpus": sample.wanted_milli / 1000,
                "fragmented_gpus": round(sample.fragmented_milli / 1000, 3),
                "running": sample.running,
                "pending": sample.pending,
            }
            for sample in stage.samples
        ],
    }


def _waits(stage: Stage) -> dict[str, dict[str, float]]:
    """Seconds from submission to the first binding, of jobs that started: by team and over ``all``."""
    waits: dict[str, list[float]] = defaultdict(list)
    names = {team.pk: slug for slug, team in stage.teams.items()}
    rows = (
        Allocation.objects.filter(pool=stage.pool)
        .order_by()
        .values_list("job__team_id", "job__submitted_at", "job_id")
        .annotate(first=Min("bound_at"))
    )
    for team_id, submitted, _, first in rows.iterator(chunk_size=5000):
        seconds = (first - submitted).total_seconds()
        waits[names[team_id]].append(seconds)
        waits["all"].append(seconds)
    found = {}
    for name, values in sorted(waits.items()):
        values.sort()
        found[name] = {
            "started": len(values),
            "median_s": quantile(values, 0.5),
            "p95_s": quantile(values, 0.95),
            "max_s": values[-1],
        }
    return found


def _teams(stage: Stage, now: datetime) -> dict[str, dict[str, Any]]:
    spent = costs(Q(pool=stage.pool), "team_id", now)
    found = {}
    for slug, team in sorted(stage.teams.items()):
        cost = spent.get(team.pk)
        hours = Decimal(0) if cost is None else cost.milli_seconds / 3_600_000
        found[slug] = {
            "gpu_hours": float(round(hours, 3)),
            "cost": str((Decimal(0) if cost is None else cost.amount).quantize(CENTS)),
        }
    return found


def as_text(found: dict[str, Any]) -> str:
    """The report for a terminal."""
    jobs = found["jobs"]
    lines = [
        f"{found['trace']}: {found['nodes']} nodes, {found['gpus']} GPUs, pool {found['pool']}",
        *(f"  note: {note}" for note in found["notes"]),
        f"Malformed lines: {found['malformed']['count']}",
        *(f"  {line}" for line in found["malformed"]["first"]),
        "Jobs: " + ", ".join(f"{jobs[key]} {key}" for key in jobs if jobs[key] or key == "submitted"),
        (
            f"Virtual time {duration(found['virtual_seconds'])}, real time {found['wall_seconds']} s, "
            f"{found['jobs_per_second']} jobs/s, {found['cycles']} cycles, {found['decisions_per_second']} decisions/s"
        ),
        "",
        f"{'team':24} {'started':>8} {'median wait':>12} {'p95':>10} {'max':>10} {'GPU-hours':>14} {'cost':>16}",
    ]
    for name, wait in found["waits"].items():
        used = found["teams"].get(name, found["totals"])
        lines.append(
            f"{name[:24]:24} {wait['started']:>8} {duration(wait['median_s']):>12} {duration(wait['p95_s']):>10} "
            f"{duration(wait['max_s']):>10} {used['gpu_hours']:>14,.1f} {Decimal(used['cost']):>16,.2f}"
        )
    lines.append(f"Money in {found['totals']['currency']} at demo rates; waits until the devices are held.")
    lines.append(as_line(found["estimates"]))
    peak = max((each["allocated_gpus"] for each in found["over_time"]), default=0)
    if found["gpus"]:
        lines.append(
            f"Most allocated at once: {format_gpus(round(peak * 1000))} GPUs, {100 * peak / found['gpus']:.1f} %"
        )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Seconds as people say them: ``42s``, ``3m10s``, ``2h05m``, ``3d04h``."""
    whole = round(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def as_page(found: dict[str, Any]) -> str:
    """The report as one HTML file that needs nothing else: Plotly is inside."""
    plotly = next(iter(sorted((settings.ROOT / "static").glob(PLOTLY)))).read_text()
    days = [each["at_s"] / 86400 for each in found["over_time"]]

    def line(key: str, name: str) -> dict[str, Any]:
        return {"x": days, "y": [each[key] for each in found["over_time"]], "name": name, "mode": "lines"}

    names = [name for name in found["waits"] if name != "all"]
    hours = [each["gpu_hours"] for each in found["teams"].values()]
    charts = [
        _chart(
            "GPUs over time",
            [line("allocated_gpus", "allocated"), line("wanted_gpus", "wanted"), line("fragmented_gpus", "fragments")],
            "GPUs",
            "days",
        ),
        _chart("Jobs over time", [line("running", "running"), line("pending", "waiting")], "jobs", "days"),
        _chart(
            "Waits by team",
            [
                {"type": "bar", "x": names, "y": [found["waits"][name][key] / 60 for name in names], "name": label}
                for key, label in (("median_s", "median"), ("p95_s", "95 %"))
            ],
            "minutes",
            "",
        ),
        _chart("GPU-hours by team", [{"type": "bar", "x": list(found["teams"]), "y": hours}], "GPU-hours", ""),
    ]
    figures = json.dumps(charts, allow_nan=False).replace("</", "<\\/")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Replay of {html.escape(found['trace'])}</title>"
        "<style>body{font:16px/1.5 system-ui;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "pre{overflow:auto;background:#f4f5f7;padding:1rem;border-radius:6px}</style>"
        f"<h1>Replay of {html.escape(found['trace'])}</h1><p>{html.escape(found['source'])}</p>"
        f"<pre>{html.escape(as_text(found))}</pre><div id=charts></div>"
        f"<script>{plotly}</script>"
        f"<script>for (const c of {figures}) {{ const d = document.createElement('div');"
        "document.getElementById('charts').append(d); Plotly.newPlot(d, c.data, c.layout, {responsive: true}); }"
        "</script>"
    )


def _chart(title: str, data: list[dict[str, Any]], y: str, x: str) -> dict[str, Any]:
    layout = {"title": {"text": title}, "yaxis": {"title": {"text": y}, "rangemode": "tozero"}, "height": 380}
    return {"data": data, "layout": {**layout, "xaxis": {"title": {"text": x}}}}


def write(found: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """``report.json`` and ``report.html`` in the folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "report.json", folder / "report.html"
    paths[0].write_text(json.dumps(found, indent=1, allow_nan=False))
    paths[1].write_text(as_page(found))
    return paths
