"""Money in scenarios: how budgets, packages, plans and invoices are written, done and seen, in the caller's books."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from events.models import Event
from scheduling.simulation import scenario_values as values
from scheduling.simulation.scenario_model import Check, Failure, Scenario
from scheduling.simulation.scenario_values import (
    Field,
    Wanted,
    as_given,
    choice,
    converted,
    may,
    need,
    read_fields,
    text,
    whole,
)
from scheduling.simulation.scenario_yaml import Items, ScenarioError, Section

if TYPE_CHECKING:
    from scheduling.simulation.scenario_world import Books, InvoiceSeen, World

WORK_PER_HOUR = 3_600_000_000_000  # milli-GPU × microseconds
STEPS = ("budget", "package", "plan", "invoice")
TERMS = {"time_zone": "UTC", "tax_percent": Decimal(0), "packages_pay": "net"}


# ---- reading ---------------------------------------------------------------------------------------------------------


def month(value: Any) -> str:
    """A calendar month as 2026-03."""
    try:
        found = date.fromisoformat(f"{text(value)}-01")
    except ValueError:
        raise ValueError(f"must be a month such as 2026-03, is {value!r}") from None
    return f"{found:%Y-%m}"


def day(value: Any) -> date:
    try:
        return date.fromisoformat(text(value))
    except ValueError:
        raise ValueError(f"must be a day such as 2026-03-15, is {value!r}") from None


def percents(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of percents, is {value!r}")
    return [whole(1, 1000)(each) for each in value]


def time_zone(value: Any) -> str:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(text(value)).key
    except (OSError, ValueError, KeyError):
        raise ValueError(f"must be a time zone such as Europe/Berlin, is {value!r}") from None


TERM_FIELDS: Mapping[str, Field] = {
    "time_zone": may(time_zone),
    "tax_percent": may(values.money),
    "packages_pay": may(choice("net", "gross")),
}
ACTIONS: Mapping[str, Mapping[str, Field]] = {
    "budget": {
        "team": need(text),
        "amount": may(values.money),
        "period": may(choice("month", "quarter", "year", "total")),
        "action": may(choice("warn", "hold")),
        "thresholds": may(percents),
        "starts": may(values.moment),
        "ends": may(values.moment),
        "remove": may(values.only_true),
    },
    "package": {
        "team": need(text),
        "gpu_hours": need(values.money),
        "pool": may(text),
        "model": may(text),
        "price": may(values.money),
        "starts": may(values.moment),
        "expires": may(values.moment),
    },
    "plan": {"team": need(text), "name": need(text), "monthly_fee": need(values.money), "day": need(day)},
    "invoice": {"team": need(text), "month": need(month)},
}
AMOUNTS: Mapping[str, values.Convert] = dict.fromkeys(
    ("total", "net", "tax", "prepaid", "due"), values.compared_decimal
)
LINE: Mapping[str, Field] = {
    **dict.fromkeys(("description", "model", "pool", "kind"), may(text)),
    **dict.fromkeys(("gpu_hours", "per_hour", "amount"), may(values.compared_decimal)),
}
INVOICE: Mapping[str, Field] = {
    "team": need(text),
    "month": need(month),
    "issued": may(values.flag),
    "lines": may(as_given),
    **{name: may(convert) for name, convert in AMOUNTS.items()},
}


def read_terms(top: Section) -> Mapping[str, Any] | None:
    """What ``billing`` says, with UTC, no tax and packages that pay net for what it leaves out; None without it."""
    if top.get("billing") is None:
        return None
    return {**TERMS, **read_fields(top["billing"], "billing", TERM_FIELDS, top.lines["billing"])}


def check_action(kind: str, given: Mapping[str, Any], refuse: Callable[..., None]) -> None:
    """What the fields of an action on money must be together."""
    if kind != "budget":
        return
    if "remove" in given and set(given) - {"team", "period", "remove"}:
        refuse("a budget that is removed has no other values", "remove")
    if "remove" not in given and "amount" not in given:
        refuse("needs amount")


def checks(given: Any, line: int, where: str) -> Iterator[Check]:
    """The expectations of one invoice, or of a list of them."""
    several = isinstance(given, Items)
    entries = zip(given, given.lines, strict=True) if isinstance(given, Items) else [(given, line)]
    for position, (section, own_line) in enumerate(entries):
        yield from _checks_of(section, own_line, f"{where}[{position}]" if several else where)


def _checks_of(section: Any, line: int, where: str) -> Iterator[Check]:
    fields = read_fields(section, where, INVOICE, line)
    name = f"{fields.pop('team')} {fields.pop('month')}"
    if not fields:
        raise ScenarioError("expects nothing of the invoice", line=line, field=where, allowed=sorted(INVOICE))
    for fact, wanted in fields.items():
        own = section.lines[fact]
        if fact == "issued":
            wanted = Wanted(str(wanted).lower(), "=", wanted)
        elif fact == "lines":
            wanted = _lines_wanted(wanted, own, f"{where}.lines")
        yield Check(own, "invoice", name, fact, wanted)


def _lines_wanted(given: Any, line: int, where: str) -> Wanted:
    if not isinstance(given, Items):
        return converted(given, values.NUMBER, where, line)
    places = zip(given, given.lines, strict=True)
    rows = tuple(read_fields(each, f"{where}[{index}]", LINE, own) for index, (each, own) in enumerate(places))
    written = ", ".join(_written(row) for row in rows)
    return Wanted(f"[{written}]", "=", rows)


def _written(row: Mapping[str, Any]) -> str:
    parts = (f"{key}: {value.written if isinstance(value, Wanted) else value}" for key, value in row.items())
    return f"{{{', '.join(parts)}}}"


# ---- doing -----------------------------------------------------------------------------------------------------------


def kept_on(scenario: Scenario, books: Books | None) -> AbstractContextManager[None]:
    """Inside, money is kept on the scenario's terms. Raises ScenarioError where it needs books and there are none."""
    if books is None:
        lines = [step.line for step in scenario.steps if step.kind in STEPS]
        lines += [check.line for step in scenario.steps for check in step.checks if check.subject == "invoice"]
        if lines or scenario.billing is not None:
            raise ScenarioError(
                "speaks of budgets or invoices, and nothing here keeps books", line=min(lines, default=1)
            )
        return nullcontext()
    return books.on_terms(scenario.billing) if scenario.billing is not None else nullcontext()


def _books(world: World) -> Books:
    assert world.books is not None, "kept_on has seen to it"
    return world.books


def _budget(world: World, given: Mapping[str, Any]) -> None:
    _books(world).set_budget(world.teams[given["team"]], given, world.now)


def _package(world: World, given: Mapping[str, Any]) -> None:
    pool = world.pools[given["pool"]] if "pool" in given else None
    model = world.models[given["model"]] if "model" in given else None
    _books(world).add_package(world.teams[given["team"]], given, world.now, pool=pool, model=model)


def _plan(world: World, given: Mapping[str, Any]) -> None:
    _books(world).set_plan(world.teams[given["team"]], given, world.now)


def _invoice(world: World, given: Mapping[str, Any]) -> None:
    _books(world).issue_invoice(world.teams[given["team"]], given["month"], world.now)


MONEY_ACTIONS: Mapping[str, Callable[[World, Mapping[str, Any]], None]] = {
    "budget": _budget,
    "package": _package,
    "plan": _plan,
    "invoice": _invoice,
}


# ---- seeing ----------------------------------------------------------------------------------------------------------


def budget_events(team_id: int) -> int:
    """How many thresholds of the team's own budgets were told."""
    return Event.objects.filter(kind="budget.threshold", team_id=team_id).count()


def invoice_failures(world: World, check: Check, at: str) -> list[Failure]:
    """Where the invoice is not what the check wants: none or one."""
    name, _, of_month = check.name.rpartition(" ")
    seen = _books(world).invoice_of(world.teams[name], of_month, world.now)
    if check.fact == "lines" and isinstance(check.wanted.value, tuple):
        met = _all_match(check.wanted.value, seen)
    else:
        met = check.wanted.met_by(_fact(seen, check.fact))
    if met:
        return []
    return [
        Failure(check.line, at, f"invoice.{name}.{of_month}.{check.fact}", check.wanted.written, _told(seen, check))
    ]


def _fact(seen: InvoiceSeen, fact: str) -> Any:
    if fact == "issued":
        return bool(seen.number)
    if fact == "lines":
        return len(seen.lines)
    return getattr(seen.sums, fact)


def _told(seen: InvoiceSeen, check: Check) -> str:
    if check.fact != "lines" or not isinstance(check.wanted.value, tuple):
        return str(_fact(seen, check.fact)).lower()
    return f"[{', '.join(f'{line.description}: {_hours(line):f} h, {line.amount}' for line in seen.lines)}]"


def _hours(line: Any) -> Decimal:
    hours = Decimal(line.work) / WORK_PER_HOUR
    return hours.normalize() if hours else Decimal(0)


def _all_match(rows: Iterable[Mapping[str, Any]], seen: InvoiceSeen) -> bool:
    """Whether the lines and the rows can be paired, each with one of its own that it describes."""
    wanted, lines = list(rows), list(seen.lines)
    if len(wanted) != len(lines):
        return False
    taken: dict[int, int] = {}  # line → row

    def place(row: int, tried: set[int]) -> bool:
        for position, line in enumerate(lines):
            if position in tried or not _describes(wanted[row], line):
                continue
            tried.add(position)
            if position not in taken or place(taken[position], tried):
                taken[position] = row
                return True
        return False

    return all(place(row, set()) for row in range(len(wanted)))


def _describes(row: Mapping[str, Any], line: Any) -> bool:
    exact = {"gpu_hours": _hours(line), "per_hour": line.per_hour, "amount": line.amount}
    for key, value in row.items():
        if key == "description":
            met = value in line.description
        elif key in exact:
            met = value.met_by(exact[key])
        else:
            met = value == getattr(line, key)
        if not met:
            return False
    return True
