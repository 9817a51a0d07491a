"""``manage.py replay DIR --pool NAME``: plays a public trace through the product."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from tqdm import tqdm

from config.replay import play, report
from config.replay.estimates import LIMITS
from events.errors import Refusal
from inventory.models import Pool
from scheduling.workload.records import TraceError
from scheduling.workload.traces import read_trace


class Command(BaseCommand):
    help = (
        "Play a recorded workload (the Alibaba 2023 node and pod lists, the Philly job lists) through the same "
        "services, scheduler and database as production, on a virtual clock. Uses a database of its own unless "
        "--data or DATABASE_URL names one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR", help="the trace's folder, or one of its files")
        parser.add_argument("--pool", required=True, metavar="NAME", help="name of the pool that is made for it")
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument("--speed", type=float, metavar="N", help="N seconds of the trace in one of ours")
        pace.add_argument("--fast", action="store_true", help="as fast as it goes (the default)")
        parser.add_argument("--limit", type=int, metavar="N", help="only the first N jobs")
        parser.add_argument("--workload", metavar="W", help="which of the trace's lists, by the end of its name")
        parser.add_argument("--placement", default="fragmentation", choices=Pool.Placement.values)
        parser.add_argument(
            "--limits",
            default="none",
            choices=LIMITS,
            help="time limits for the jobs, of which traces tell none: their durations, twice these, or none (the "
            "default); with them starts are estimated and smaller jobs may go ahead of a large one",
        )
        parser.add_argument("--strict", action="store_true", help="stop at the first malformed line")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument("--report", type=Path, metavar="DIR", help="where report.json and report.html go")
        parser.add_argument("--data", metavar="DIR", help="where the database is or goes")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["speed"] is not None and not 0 < options["speed"] < 1e9:
            raise CommandError("--speed must be a number above 0")
        if options["limit"] is not None and options["limit"] < 1:
            raise CommandError("--limit must be 1 or more")
        try:
            trace = read_trace(
                options["folder"], strict=options["strict"], limit=options["limit"], workload=options["workload"]
            )
        except TraceError as error:
            raise CommandError(error.message if error.malformed is None else str(error.malformed)) from None
        if not trace.jobs:
            raise CommandError(f"{options['folder']} holds no job that could be read.")
        call_command("migrate", verbosity=0, interactive=False)
        span = timedelta(seconds=float(trace.jobs[-1].submit_s))
        try:
            # The trace ends about now, so that what it leaves behind lies in the past and not ahead.
            stage = play.set_stage(
                trace,
                options["pool"],
                timezone.now() - span,
                placement=options["placement"],
                limits=options["limits"],
            )
        except Refusal as error:
            raise CommandError(error.message) from None
        self._play(stage, options["speed"])
        found = report.report(stage)
        folder = options["report"] or settings.DATA_DIR / "replays" / options["pool"]
        _, page = report.write(found, folder)
        stage.clockwork.scheduler.stand_down()
        if options["json"]:
            self.stdout.write(json.dumps(found, allow_nan=False))
        else:
            self.stdout.write(report.as_text(found))
            self.stdout.write(f"Charts: {page}")

    def _play(self, stage: play.Stage, speed: float | None) -> None:
        stop: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
        try:
            with tqdm(total=len(stage.trace.jobs), unit="job", file=self.stderr, mininterval=0.5) as bar:
                play.play(stage, speed=speed, progress=bar.update, stopped=lambda: bool(stop))
        finally:
            signal.signal(signal.SIGINT, before)
