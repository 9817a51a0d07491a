"""``manage.py replay-cycle FILE``: decides a recorded cycle again, without any database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling.core import ledger
from scheduling.core import model as core
from scheduling.core.codec import BadRecord, Recorded, decode
from scheduling.core.recompute import decided_again, differences, plan_as_json

EXIT_DIFFERS = 1
EXIT_INVALID = 2


class Command(BaseCommand):
    help = (
        "Decide a cycle again that `explain JOB --save FILE` wrote, and say whether it comes to what was decided then. "
        "Needs no database. Ends with 1 if it does not, with 2 if the file is not the record of a cycle."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--json", action="store_true", help="tell all of the plan as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        recorded = _read(options["file"])
        plan = decided_again(recorded)
        different = differences(recorded.plan, plan)
        if options["json"]:
            told = {"cycle": recorded.cycle, "same": not different, "differences": different}
            self.stdout.write(json.dumps(told | {"plan": plan_as_json(plan)}, indent=2, ensure_ascii=False))
        else:
            self.stdout.write("\n".join(_lines(recorded, plan, different)))
        if different:
            raise SystemExit(EXIT_DIFFERS)


def _read(path: Path) -> Recorded:
    try:
        return decode(path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", returncode=EXIT_INVALID) from None
    except BadRecord as error:
        raise CommandError(f"{path}: {error}", returncode=EXIT_INVALID) from None


def _lines(recorded: Recorded, plan: core.Plan, different: list[str]) -> Iterator[str]:
    snapshot = recorded.snapshot
    nodes = sum(len(pool.fleet.states) for pool in snapshot.pools)
    yield (
        f"cycle {recorded.cycle}: {len(snapshot.pools)} pools with {nodes} nodes, "
        f"{len(snapshot.pending)} jobs that want something, {len(snapshot.running)} that hold something"
    )
    pools = {pool.id: pool for pool in snapshot.pools}
    growing = {job.id for job in snapshot.pending if job.growing}
    for start in plan.starts:
        kind = "grow" if start.job_id in growing else "start"
        yield _decision(kind, start, pools[start.pool_id])
        yield f"    on {_places(start, pools[start.pool_id])}"
    for eviction in plan.evictions:
        yield _decision("evict", eviction, pools[eviction.pool_id], for_job=eviction.for_job)
    for refusal in plan.refusals:
        yield _decision("refuse", refusal, pools[refusal.pool_id])
    yield f"{len(plan.reasons)} jobs wait"
    yield "this is what was decided" if not different else "DIFFERENT from what was decided:"
    yield from (f"  {each}" for each in different)


def _decision(
    kind: str, decided: core.Start | core.Eviction | core.EvictionRefusal, pool: core.PoolState, **more: object
) -> str:
    told = ledger.sentence(kind, decided.rule, {**decided.numbers, **more}, pool.unit)
    return f"  job {decided.job_id} in {pool.name}: {told}"


def _places(start: core.Start, pool: core.PoolState) -> str:
    found = []
    for task in start.tasks:
        name = pool.fleet.states[task.placement.node].name
        devices = ",".join(map(str, task.placement.device_indexes))
        found.append(f"{name}[{devices}]" if devices else name)
    return ", ".join(found)
