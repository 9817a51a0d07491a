"""A new job: from a framework's template, from a job that was, or from scratch; and the same request for the API."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from events.errors import Conflict, Fault, Invalid
from inventory.models import AcceleratorModel, Pool
from inventory.selectors import pool_totals
from scheduling import ports
from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.granted import Granted, device_kinds, offers
from scheduling.job_form import FIELDS, IF_POSSIBLE, as_curl, payload_of, values_from, values_of
from scheduling.job_templates import BY_KEY, TEMPLATES
from scheduling.models import Job, PriorityClass
from scheduling.prices import price_range
from scheduling.selectors import reasons_for, team_shares, visible_job
from scheduling.services.dry_run import dry_run
from scheduling.services.requests import JobSpec
from scheduling.services.submit import read_payload, submit_payload
from tenants.models import Membership, Team, User
from tenants.pages import SignedIn, page, show
from tenants.policy import RANK, roles

Faults = dict[str, list[dict[str, Any]]]
MOST_LANDINGS = 12  # tasks whose place the page tells


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said of a request before it is submitted. Prices per hour, for the cheapest and dearest model."""

    wanted: int
    unit: str
    free: int
    low: Decimal
    high: Decimal
    room: int | None  # what the team may still hold before it meets a limit on the way up; None: no limit
    deserved: int
    allocated: int
    grants: tuple[Granted, ...] = ()  # what its tasks would be given that differs from what they ask for


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new_job(request: SignedIn) -> HttpResponse:
    now = timezone.now()
    if request.method != "POST":
        return _form(request, _first_values(request), {}, now)
    values = values_of(request.POST)
    payload, unread = payload_of(values)
    if request.GET.get("part") == "preview":
        return _preview(request, payload, unread, now)
    if request.GET.get("part") == "check":
        return _check(request, values, payload, unread, now)
    try:
        if unread:
            raise Invalid(unread)
        job = _submit(request, payload, now)
    except Invalid as error:
        return _form(request, values, by_field(error.faults), now, status=422)
    messages.success(request, _("Submitted. This page follows the job."))
    return HttpResponseRedirect(reverse("job", args=[job.pk]))


def _submit(request: SignedIn, payload: dict[str, Any], now: datetime) -> Job:
    """The job that the form asks for, once: a form that is sent twice finds the job that it made before."""
    key = request.POST.get("form_key", "")[:64]
    try:
        jobs, _new = submit_payload(request.user, payload, now, idempotency_key=f"form-{key}" if key else None)
    except Conflict:
        # The same page was sent again with other values: another job is meant.
        jobs, _new = submit_payload(request.user, payload, now)
    return jobs[0]


def _check(
    request: SignedIn, values: dict[str, str], payload: dict[str, Any], unread: list[Fault], now: datetime
) -> HttpResponse:
    """What would become of it if it were submitted now: beside the form, or in it where there is no JavaScript."""
    verdict: dict[str, Any] = {"checked": True}
    faults: Faults = {}
    try:
        if unread:
            raise Invalid(unread)
        (outcome,) = dry_run(request.user, payload, now)
        reasons = reasons_for(request.user, outcome.reasons, outcome.pool.unit)
        verdict |= {"outcome": outcome, "reasons": reasons, "more": max(0, len(outcome.landings) - MOST_LANDINGS)}
    except Invalid as error:
        faults = by_field(error.faults)
        verdict["wrong"] = [fault["message"] for found in faults.values() for fault in found]
    if request.htmx:
        return show(request, "scheduling/new_job_verdict.html", verdict)
    return _form(request, values, faults, now, status=422 if faults else 200, verdict=verdict)


def by_field(faults: Any) -> Faults:
    """What is wrong, at the field of the form that it is about; what is about none of them comes under ``""``."""
    found: Faults = defaultdict(list)
    for fault in faults:
        name = fault.field if fault.field in FIELDS else "together" if fault.field.startswith("topology") else ""
        allowed = [str(value) for value in fault.allowed or ()][:8]
        message = fault.message if name else f"{fault.field}: {fault.message}"
        found[name].append({"message": message, "allowed": allowed})
    return dict(found)


def teams_to_submit_for(user: User) -> list[Team]:
    teams = Team.objects.filter(deleted_at__isnull=True, state=Team.State.ACTIVE).order_by("slug")
    if user.is_operator:
        return list(teams)
    own = [pk for pk, role in roles(user).items() if RANK[role] >= RANK[Membership.Role.MEMBER]]
    return list(teams.filter(pk__in=own))


def _first_values(request: SignedIn) -> dict[str, str]:
    values = dict.fromkeys(FIELDS, "") | {"priority": "normal", "kind": str(Job.Kind.BATCH)}
    template = BY_KEY.get(request.GET.get("template", ""), TEMPLATES[0])
    values.update(template.values)
    clone = request.GET.get("clone", "")
    if clone.isascii() and clone.isdigit() and len(clone) < 19:
        values = values_from(visible_job(request.user, int(clone)))
    for name in ("team", "pool"):
        if given := request.GET.get(name):
            values[name] = given[:120]
    return values


def _form(
    request: SignedIn,
    values: dict[str, str],
    faults: Faults,
    now: datetime,
    *,
    status: int = 200,
    verdict: Mapping[str, Any] | None = None,
) -> HttpResponse:
    teams = teams_to_submit_for(request.user)
    pools = list(Pool.objects.select_related("engine").order_by("name"))
    # What really runs comes before what is only played.
    pools.sort(key=lambda pool: pool.engine.kind == "simulated")
    values["team"] = values["team"] or (_usual_team(request.user, teams) if teams else "")
    values["pool"] = values["pool"] or (pools[0].name if pools else "")
    present = AcceleratorModel.objects.filter(devices__isnull=False).distinct()
    vendors = dict(AcceleratorModel.Vendor.choices)
    context = {
        "values": values,
        "faults": faults,
        "teams": [(team.slug, team.name) for team in teams],
        "pools": [(pool.name, pool.name) for pool in pools],
        "kinds": Job.Kind.choices,
        "classes": [(each.name, each.name) for each in PriorityClass.objects.order_by("-value", "name")],
        "models": [(model.name, model.name) for model in present],
        "vendors": [(key, vendors[key]) for key in sorted({model.vendor for model in present})],
        "levels": _level_names(),
        "together": [*_level_names(), ("host" + IF_POSSIBLE, _("as close as possible"))],
        "templates": TEMPLATES,
        "template": request.GET.get("template") or ("" if request.GET.get("clone") else TEMPLATES[0].key),
        "simulated": [pool.name for pool in pools if pool.engine.kind == "simulated"],
        "form_key": uuid.uuid4().hex,
        **(verdict or {}),
    }
    return show(request, "scheduling/new_job.html", context, status=status)


def _level_names() -> list[tuple[str, str]]:
    """Levels of topology for people, the closest first."""
    return [("host", _("node")), ("rack", _("rack")), ("block", _("block")), ("zone", _("zone"))]


def _usual_team(user: User, teams: list[Team]) -> str:
    """The team of the user's latest job, else one that it is itself a member of, else the first."""
    slugs = {team.pk: team.slug for team in teams}
    latest = (
        Job.objects.filter(user=user, team_id__in=slugs).order_by("-submitted_at").values_list("team_id", flat=True)
    )
    own = Membership.objects.filter(user=user, team_id__in=slugs).order_by("id").values_list("team_id", flat=True)
    return next((slugs[pk] for pk in (*latest[:1], *own[:1])), teams[0].slug)


def _preview(request: SignedIn, payload: dict[str, Any], unread: list[Fault], now: datetime) -> HttpResponse:
    outlook, faults = None, by_field(unread)
    try:
        (spec,) = read_payload(payload)
        outlook = outlook_for(request.user, spec, now)
    except Invalid as error:
        faults = faults or by_field(error.faults)
    context = {
        "curl": as_curl(payload, request.build_absolute_uri("/api/v1/jobs")),
        "outlook": outlook,
        "wrong": [fault["message"] for found in faults.values() for fault in found],
    }
    return show(request, "scheduling/new_job_preview.html", context)


def outlook_for(user: User, spec: JobSpec, now: datetime) -> Outlook | None:
    """What the request asks for, what is free, what it would cost; None where the team is not the user's."""
    team = next((team for team in teams_to_submit_for(user) if team.slug == spec.team), None)
    if team is None:
        return None
    pool = spec.pools[0]
    wanted, low, high, grants = _counted(pool, spec, now)
    own = team_shares(now, [pool.pk])[pool.pk][team.pk]
    return Outlook(
        wanted=wanted,
        unit=pool.unit,
        free=pool_totals([pool.pk])[pool.pk].free,
        low=low,
        high=high,
        room=own.headroom,
        deserved=own.deserved,
        allocated=own.allocated,
        grants=grants,
    )


def _counted(pool: Pool, spec: JobSpec, now: datetime) -> tuple[int, Decimal, Decimal, tuple[Granted, ...]]:
    """What the request would count at the least, its lowest and highest price, and where it is granted more than it
    asks for. It counts and costs what is granted, each group where it is cheapest or dearest."""
    class_id = _class_id(spec)
    kinds = device_kinds([pool.pk]).get(pool.pk, [])
    if pool.unit == Pool.Unit.CPU or not any(group.devices for group in spec.groups):
        cpu = pool.unit == Pool.Unit.CPU
        wanted = sum(group.cpu_milli * group.count for group in spec.groups) if cpu else spec.milli
        return wanted, *price_range(pool, spec, wanted, class_id, now), ()
    wanted, low, high = 0, Decimal(0), Decimal(0)
    grants: dict[Granted, None] = {}
    for group in spec.groups:
        found = offers(group, group.models, group.vendors, kinds, pool.step_milli) if group.devices else []
        if not found:
            asked = group.milli(pool.step_milli)
            cheap, dear = price_range(pool, spec, asked, class_id, now)
            wanted, low, high = wanted + asked, low + cheap, high + dear
            continue
        prices = [
            ports.meter.price_per_hour(pool.pk, offer.model_id, class_id, offer.granted.milli * group.count, now)
            for offer in found
        ]
        wanted += found[0].granted.milli * group.count
        low, high = low + min(prices), high + max(prices)
        for offer in found:
            given = offer.granted
            more = given.compute_milli != group.compute_milli or given.template is not None
            if more and group.compute_milli != MILLI_PER_DEVICE:
                grants[given] = None
    return wanted, low, high, tuple(grants)


def _class_id(spec: JobSpec) -> int:
    chosen = spec.priority if isinstance(spec.priority, str) else "normal"
    return PriorityClass.objects.filter(name=chosen).values_list("pk", flat=True).first() or 0
