"""``manage.py explain JOB``: why it waits, what was decided about it, and whether that is decided again today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from scheduling.explaining import DIFFERS, explanation, record_of
from scheduling.models import Decision, Job
from scheduling.selectors import LARGEST_ID

EXIT_DIFFERS = 1
EXIT_INVALID = 2
AGAIN = {
    "the same": "decided again now: the same",
    "different": "decided again now: DIFFERENT",
    "not kept": "what this cycle decided over was not kept",
    "unreadable": "what was kept of this cycle cannot be read",
}


class Command(BaseCommand):
    help = (
        "Tell of a job why it waits, its place in the queue, and every decision with its rule and numbers, decided "
        "again where the cycle was recorded. Ends with 1 if one comes out different, with 2 if there is no such job."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job", metavar="JOB", help="the number of the job")
        parser.add_argument("--most", type=int, default=20, metavar="N", help="the latest N decisions (default: 20)")
        parser.add_argument("--save", type=Path, metavar="FILE", help="write the record of the cycle to a file")
        parser.add_argument("--cycle", type=int, help="which cycle to save (default: the latest that was kept)")
        parser.add_argument("--json", action="store_true", help="tell it as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["most"] < 1:
            raise CommandError("--most must be at least 1.", returncode=EXIT_INVALID)
        if options["cycle"] is not None and options["save"] is None:
            raise CommandError("--cycle says what to save: give --save FILE with it.", returncode=EXIT_INVALID)
        job = _job(options["job"])
        found = explanation(job, timezone.now(), options["most"])
        if options["save"] is not None:
            found["saved"] = _save(job, options["cycle"], options["save"])
        self.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) if options["json"] else _text(found))
        if any(each["again"] == DIFFERS for each in found["decisions"]):
            raise SystemExit(EXIT_DIFFERS)


def _job(text: str) -> Job:
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit()) or int(number) > LARGEST_ID:
        raise CommandError(f"JOB must be the number of a job, not {text!r}.", returncode=EXIT_INVALID)
    try:
        job = Job.objects.select_related("team", "user", "pool").filter(pk=int(number)).first()
    except DatabaseError as error:
        raise CommandError(f"This database cannot be read: {error}", returncode=EXIT_INVALID) from None
    if job is None:
        raise CommandError(f"There is no job {number}.", returncode=EXIT_INVALID)
    return job


def _save(job: Job, cycle: int | None, path: Path) -> dict[str, Any]:
    own = Decision.objects.filter(job=job).order_by("-id").values_list("cycle", flat=True)
    if cycle is not None and cycle not in own:
        raise CommandError(f"Cycle {cycle} decided nothing about job {job.pk}.", returncode=EXIT_INVALID)
    for each in dict.fromkeys(own if cycle is None else [cycle]):
        record = record_of(each)
        if record is not None:
            try:
                path.write_bytes(record)
            except OSError as error:
                raise CommandError(f"{path} cannot be written: {error.strerror}", returncode=EXIT_INVALID) from None
            return {"cycle": each, "file": str(path), "bytes": len(record)}
    raise CommandError(
        f"Nothing was kept of the cycles that decided about job {job.pk}; nothing was written.",
        returncode=EXIT_INVALID,
    )


def _text(found: dict[str, Any]) -> str:
    held = f", held: {found['hold']}" if found["hold"] else ""
    whose = f"{found['name']!r} of {found['user']} in {found['team']}, pool {found['pool']}"
    lines = [
        f"job {found['job']} {whose}: {found['state']}{held}",
        f"submitted {found['submitted_at']}",
    ]
    if found["estimated_start"]:
        lines.append(f"expected to start {found['estimated_start']}")
    if found["queue"]:
        lines.append(
            f"in the queue of {found['queue']['pool']}: place {found['queue']['place']} of {found['queue']['of']}"
        )
    if found["state"] == Job.State.PENDING:
        lines.append("why it waits:" if found["reasons"] else "why it waits: the scheduler has not looked at it yet")
        for each in found["reasons"]:
            lines.append(f"  {each['code']}: {each['message']}")
            if each["helps"]:
                lines.append(f"    would help: {json.dumps(each['helps'], ensure_ascii=False)}")
    lines.append("decisions:" if found["decisions"] else "decisions: none yet")
    for each in found["decisions"]:
        lines.append(f"  {each['at']} cycle {each['cycle']}: {each['kind']} by {each['rule']} in {each['pool']}")
        lines.append(f"    {each['message']}")
        lines.append(f"    {AGAIN[each['again']]}")
        lines += [f"      {difference}" for difference in each["differences"]]
    if "saved" in found:
        lines.append(
            f"cycle {found['saved']['cycle']} is in {found['saved']['file']} ({found['saved']['bytes']} bytes)"
        )
    return "\n".join(lines)
