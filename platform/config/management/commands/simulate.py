"""``manage.py simulate FILE…``: scenarios on a virtual clock, each in a database of its own that is thrown away."""

from __future__ import annotations

import json
import time
from argparse import ArgumentTypeError
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing.books import LedgerBooks
from billing.services import set_rate
from scheduling.simulation.database import throw_away_database
from scheduling.simulation.scenario import Outcome, Pace, run_scenario
from scheduling.simulation.scenario_yaml import ScenarioError

EXIT_FAILED = 1
EXIT_INVALID = 2


class Command(BaseCommand):
    help = (
        "Run scenario files. Prints every expectation that failed, with what was wanted and what was seen. "
        "Ends with 1 if any failed, with 2 if a file is not a valid scenario."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
        parser.add_argument("--json", action="store_true", help="tell the outcome as JSON")
        parser.add_argument(
            "--speed",
            type=_positive,
            metavar="N",
            help="let N seconds of the scenario take a second, to watch it; default: as fast as it goes",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        results = [_result(path, options["speed"]) for path in options["files"]]
        if options["json"]:
            passed = all(each["passed"] for each in results)
            self.stdout.write(json.dumps({"passed": passed, "files": results}, indent=2, ensure_ascii=False))
        else:
            for each in results:
                self.stdout.write(_told(each))
        if any(each["error"] for each in results):
            raise SystemExit(EXIT_INVALID)
        if not all(each["passed"] for each in results):
            raise SystemExit(EXIT_FAILED)


def _positive(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ArgumentTypeError(f"must be a number above 0, is {text}")
    return speed


def _result(path: Path, speed: float | None) -> dict[str, Any]:
    """The file's outcome as it is told: ``error`` where it is not a valid scenario, else its failures."""
    begun = time.perf_counter()
    try:
        with throw_away_database():
            outcome = run_scenario(path, set_rate, books=LedgerBooks(), pace=_pace(speed) if speed else None)
    except ScenarioError as error:
        fault = {"line": error.line, "field": error.field, "message": error.message, "allowed": error.allowed}
        return {"file": str(path), "passed": False, "error": fault, "failures": [], "text": f"{path}: {error}"}
    return {**_counted(path, outcome), "seconds": round(time.perf_counter() - begun, 3)}


def _counted(path: Path, outcome: Outcome) -> dict[str, Any]:
    return {
        "file": str(path),
        "title": outcome.title,
        "passed": outcome.passed,
        "error": None,
        "expectations": outcome.checks,
        "failures": [
            {"line": each.line, "at": each.at, "field": each.field, "wanted": each.wanted, "seen": each.seen}
            for each in outcome.failures
        ],
    }


def _pace(speed: float) -> Pace:
    """Waits before every moment, so that ``speed`` seconds of the scenario take a second."""

    def wait(now: datetime, moment: datetime) -> None:
        time.sleep((moment - now).total_seconds() / speed)

    return wait


def _told(result: dict[str, Any]) -> str:
    if result["error"]:
        return str(result["text"])
    lines = [
        "{file}:{line}: at {at}: {field}: wanted {wanted}, seen {seen}".format(file=result["file"], **each)
        for each in result["failures"]
    ]
    expectations = f"{result['expectations']} expectation{'' if result['expectations'] == 1 else 's'}"
    word = "ok" if result["passed"] else f"FAILED {len(result['failures'])} of"
    return "\n".join([*lines, f"{word} {result['file']}: {result['title']} ({expectations}, {result['seconds']} s)"])
