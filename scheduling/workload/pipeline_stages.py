"""The stages of the pipeline from a request to a bill, as functions to be timed; see ``stages``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scheduling.workload.stages import Stages

Places = tuple[tuple[str, str], ...]  # module, or module:Class; a name in it

# A name is wrapped where it is looked up: a module that has imported a function calls it by its own name.
WEB: dict[str, Places] = {
    "read the body": (("config.rest:ExactJSONParser", "parse"),),
    "check the jobs": (("scheduling.services.submit", "read_payload"),),
    "rights and classes": (("scheduling.services.submit", "_teams_and_classes"),),
    "rows": (("scheduling.services.submit", "insert_rows"),),
    "events": (("events.services", "_write"),),
    "jobs as rows": (("scheduling.services.submit", "submit"),),
    "commit": (("django.db.backends.base.base:BaseDatabaseWrapper", "commit"),),
    "the answer": (("scheduling.api.jobs", "jobs_told"), ("config.rest:ExactJSONRenderer", "render")),
    "the rest of a submission": (("scheduling.api.jobs", "submit_payload"),),
    "the rest of a request": (("scheduling.api.jobs:Jobs", "dispatch"),),
}
SCHEDULER: dict[str, Places] = {
    "picture": (("scheduling.services.picture:Picture", "refresh"),),
    "learning": (("scheduling.services.picture:Picture", "relearn"),),
    "snapshot": (("scheduling.services.picture:Picture", "snapshot"),),
    "decide": (("scheduling.services.cycle", "decide"),),
    "commit: accounts": (("scheduling.services.cycle", "change_accounts"),),
    "commit: rows": (("scheduling.services.cycle", "insert_rows"), ("scheduling.services.cycle", "update_rows")),
    "commit: usage": (("scheduling.services.cycle", "_open_usage"),),
    "commit: ledger": (("scheduling.services.cycle", "_record"),),
    "commit: checks": (("scheduling.services.cycle", "_still_good"), ("scheduling.services.cycle", "_lock_jobs")),
    "commit: reasons": (
        ("scheduling.services.cycle", "_tell"),
        ("scheduling.services.cycle:Scheduler", "_reasons_to_tell"),
    ),
    "commit: binding": (("scheduling.services.cycle", "_bind"),),
    "the rest of a cycle": (("scheduling.services.cycle:Scheduler", "_cycle"),),
    "events": (("events.services", "_write"),),
    "commit": (("django.db.backends.base.base:BaseDatabaseWrapper", "commit"),),
    "launch: orders": (("scheduling.services.reconcile", "orders"),),
    "launch: look": (("scheduling.services.reconcile:Reconciler", "_look"),),
    "reports: rows": (("scheduling.services.reports", "update_rows"), ("scheduling.services.reports", "set_rows")),
    "reports: accounts": (("scheduling.services.reports", "change_accounts"),),
    "reports: usage": (("billing.meter:LedgerMeter", "closed"),),
    "reports: the rest": (("scheduling.services.reconcile", "record_reports"),),
    "engines: the rest": (("scheduling.services.reconcile:Reconciler", "step"),),
    "sampler": (("telemetry.sampler:Sampler", "step"),),
}


def web_stages() -> Stages:
    return _wrapped(WEB)


def scheduler_stages() -> Stages:
    return _wrapped(SCHEDULER)


def _wrapped(places: dict[str, Places]) -> Stages:
    stages = Stages()
    for stage, names in places.items():
        for where, name in names:
            module, _, owner = where.partition(":")
            found: Any = import_module(module)
            stages.wrap(getattr(found, owner) if owner else found, [name], stage)
    return stages
