"""``manage.py bench NAME``: measure a part of the product. Each module in ``scheduling.benchmarks`` is one NAME."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduling import benchmarks


class Command(BaseCommand):
    help = "Measure a part of the product. Numbers go to standard output, with --json as one JSON object."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
        for found in pkgutil.iter_modules(benchmarks.__path__):
            module = import_module(f"{benchmarks.__name__}.{found.name}")
            part = names.add_parser(found.name, help=(module.__doc__ or "").partition("\n")[0])
            part.add_argument("--json", action="store_true", help="print one JSON object")
            module.add_arguments(part)

    def handle(self, *args: Any, **options: Any) -> None:
        module = import_module(f"{benchmarks.__name__}.{options['name']}")
        try:
            result = module.run_options(options)
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(result, indent=2) if options["json"] else module.text(result))
