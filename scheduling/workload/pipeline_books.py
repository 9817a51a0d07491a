"""Whether all that was submitted was bound, ended and billed, once each: read from the database alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import connection

WAITS = """
    SELECT percentile_cont(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY EXTRACT(EPOCH FROM a.bound_at - j.submitted_at))
    FROM scheduling_allocation a JOIN scheduling_job j ON j.id = a.job_id WHERE j.submitted_at >= %s
"""
# Each must be 0: what there is too much or too little of, in words.
# (A job that gave way to another one is bound again: then it has two allocations, and its last one came to its end.)
FAULTS = {
    "jobs whose last allocation did not come to its end": """
        SELECT count(*) FROM scheduling_job j LEFT JOIN (SELECT DISTINCT ON (job_id) job_id, exit_code
        FROM scheduling_allocation ORDER BY job_id, id DESC) a ON a.job_id = j.id
        WHERE a.exit_code IS DISTINCT FROM 0""",
    "jobs that did not succeed": "SELECT count(*) FROM scheduling_job WHERE state <> 'succeeded'",
    "allocations that are not released": "SELECT count(*) FROM scheduling_allocation WHERE released_at IS NULL",
    "allocations whose usage is not their time": """
        SELECT count(*) FROM scheduling_allocation a LEFT JOIN (SELECT allocation_id, sum(microseconds) AS used
        FROM billing_usagerecord GROUP BY allocation_id) u ON u.allocation_id = a.id
        WHERE u.used IS DISTINCT FROM (EXTRACT(EPOCH FROM a.released_at - a.bound_at) * 1000000)::bigint""",
    "jobs that were not told of once a step": """
        SELECT count(*) FROM scheduling_job j LEFT JOIN (SELECT job_id,
        count(*) FILTER (WHERE kind = 'job.submitted') AS submitted,
        count(*) FILTER (WHERE kind = 'job.state' AND data->>'state' = 'starting') AS bound,
        count(*) FILTER (WHERE kind = 'job.state' AND data->>'state' = 'succeeded') AS ended
        FROM events_event GROUP BY job_id) e ON e.job_id = j.id
        LEFT JOIN (SELECT job_id, count(*) AS bound FROM scheduling_allocation GROUP BY job_id) a ON a.job_id = j.id
        WHERE (e.submitted, e.bound, e.ended) IS DISTINCT FROM (1::bigint, a.bound, 1::bigint)""",
    "jobs whose starts are not in the ledger": """
        SELECT count(*) FROM (SELECT j.id FROM scheduling_job j
        LEFT JOIN (SELECT job_id, count(*) AS bound FROM scheduling_allocation GROUP BY job_id) a ON a.job_id = j.id
        LEFT JOIN (SELECT job_id, count(*) AS told FROM scheduling_decision WHERE kind = 'start' GROUP BY job_id) d
        ON d.job_id = j.id WHERE a.bound IS DISTINCT FROM d.told) AS other""",
    "devices that are not free": "SELECT count(*) FROM inventory_device WHERE compute_allocated_milli <> 0",
    "nodes that are not free": "SELECT count(*) FROM inventory_node WHERE cpu_allocated_milli <> 0",
}


def books(begun: float, ended: float) -> dict[str, Any]:
    """What there is, and every account that does not add up; ``begun`` and ``ended`` in seconds since the epoch."""
    first, last = (datetime.fromtimestamp(each, UTC) for each in (begun, ended))
    waits = _one(WAITS, [first]) or []
    return {
        "jobs": _one("SELECT count(*) FROM scheduling_job"),
        "ended": _one("SELECT count(*) FROM scheduling_job WHERE state = 'succeeded'"),
        "bound": _one("SELECT count(*) FROM scheduling_allocation WHERE bound_at >= %s", [first]),
        "bound_in_time": _one(
            "SELECT count(*) FROM scheduling_allocation WHERE bound_at >= %s AND bound_at < %s", [first, last]
        ),
        "evictions": _one("SELECT count(*) FROM scheduling_decision WHERE kind = 'evict'"),
        "events": _one("SELECT count(*) FROM events_event"),
        "usage_seconds": float(_one("SELECT coalesce(sum(microseconds), 0) FROM billing_usagerecord")) / 1e6,
        "allocation_seconds": float(
            _one("SELECT coalesce(sum(EXTRACT(EPOCH FROM released_at - bound_at)), 0) FROM scheduling_allocation")
        ),
        "wait_s": dict(zip(("median", "p95", "most"), (round(float(each), 2) for each in waits), strict=False)),
        "faults": [f"{number} {what}" for what, statement in FAULTS.items() if (number := _one(statement))],
    }


def _one(statement: str, parameters: list[Any] | None = None) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone()[0]
