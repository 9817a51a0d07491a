"""Tags and filters of the pages: icons, statuses, quantities, money, times, share bars, form fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from config.share_bars import ShareBar, per_cent
from config.statuses import job_state_shown, status_of
from scheduling.core.units import MILLI_PER_DEVICE, format_gpus

register = template.Library()

SPRITE = "vendor/tabler-icons-3.52.0/sprite.svg"
SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "CNY": "¥", "JPY": "¥"}
CENT = Decimal("0.01")
FINE = Decimal("0.0001")


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """An icon of the one set. It says nothing to a screen reader: the words beside it do."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        extra,
        static(SPRITE),
        name,
    )


@register.inclusion_tag("components/status.html")
def status(state: str, kind: str = "job") -> dict[str, Any]:
    return {"status": status_of(kind, state), "state": state}


@register.filter
def shown_state(job: Any) -> str:
    return job_state_shown(job.state, job.hold, job.ending)


@register.filter
def gpus(milli: int | None) -> str:
    """Milli-GPU as GPUs, exactly, without trailing zeros; nothing for None."""
    return "" if milli is None else format_gpus(milli)


@register.filter
def quantity(milli: int | None, unit: str = "gpu") -> str:
    """Milli of the pool's unit with the unit's name."""
    if milli is None:
        return ""
    one = 0 < milli <= MILLI_PER_DEVICE
    if unit == "cpu":
        name = _("core") if one else _("cores")
    else:
        name = _("GPU") if one else _("GPUs")
    return f"{format_gpus(milli)} {name}"


@register.filter
def mib(value: int | None) -> str:
    """MiB as GiB where that is exact to a tenth, else as MiB."""
    if value is None:
        return ""
    tenths, rest = divmod(value * 10, 1024)
    if value >= 1024 and (rest == 0 or value >= 102_400):
        text = f"{Decimal(tenths) / 10:f}"
        return f"{text.removesuffix('.0')} GiB"
    return f"{value} MiB"


def money_text(amount: Decimal, places: Decimal) -> str:
    symbol = SYMBOLS.get(settings.BILLING_CURRENCY)
    number = f"{amount.quantize(places, rounding=ROUND_HALF_EVEN):,f}"
    return f"{symbol}{number}" if symbol else f"{settings.BILLING_CURRENCY} {number}"


@register.filter
def money(amount: Decimal | None) -> SafeString | str:
    """To the cent (finer below 1), with the exact amount on demand; a dash where nothing is known."""
    if amount is None:
        return "–"
    fine = 0 < abs(amount) < 1
    exact = f"{settings.BILLING_CURRENCY} {amount.normalize() if amount else Decimal(0):f}"
    return format_html('<span class="num" title="{}">{}</span>', exact, money_text(amount, FINE if fine else CENT))


@register.filter
def money_exact(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:f}"


@register.filter
def percent(part: int | None, whole: int | None) -> str:
    """``part`` of ``whole`` in whole per cent, rounded down: full is said only of what is full. A dash if unknown."""
    if part is None or not whole:
        return "–"
    return f"{part * 100 // whole} %"


def duration_text(seconds: float) -> str:
    """Two units at most: 42 s, 5 min 03 s, 2 h 05 min, 3 d 4 h."""
    total = max(0, int(seconds))
    minutes, second = divmod(total, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute:02d} min"
    if minutes:
        return f"{minutes} min {second:02d} s"
    return f"{second} s"


@register.filter
def duration(value: timedelta | float | None) -> str:
    if value is None:
        return "–"
    return duration_text(value.total_seconds() if isinstance(value, timedelta) else value)


@register.simple_tag
def moment(value: datetime | None, show: str = "ago") -> SafeString | str:
    """A moment in the viewer's zone. ``show``: ``ago``, ``elapsed`` (both kept fresh), ``clock`` or ``full``."""
    if value is None:
        return "–"
    local = timezone.localtime(value)
    full = date_format(local, "Y-m-d H:i:s")
    since = (timezone.now() - value).total_seconds()
    ago = _("%(duration)s ago")
    text = {
        "ago": ago % {"duration": duration_text(since)},
        "elapsed": duration_text(since),
        "clock": date_format(local, "H:i:s"),
        "full": full,
    }[show]
    return format_html(
        '<time class="num" datetime="{}" data-show="{}" data-words="{}" title="{} {}">{}</time>',
        value.isoformat(),
        show,
        ago if show == "ago" else "",
        full,
        local.tzname() or "",
        text,
    )


@register.inclusion_tag("components/share_bar.html")
def share_bar(share: Any, unit: str = "gpu", capacity: int | None = None, compact: bool = False) -> dict[str, Any]:
    return {"bar": ShareBar.of(share, capacity), "share": share, "unit": unit, "compact": compact}


@register.inclusion_tag("components/field.html", takes_context=True)
def field(
    context: Mapping[str, Any],
    name: str,
    label: str,
    kind: str = "text",
    help_text: str = "",
    options: Any = None,
    placeholder: str = "",
    suffix: str = "",
    required: bool = False,
) -> dict[str, Any]:
    """A labelled field that keeps what was typed and shows what is wrong with it, from ``values`` and ``faults``."""
    return {
        "name": name,
        "id": f"field-{name}",
        "label": label,
        "kind": kind,
        "help": help_text,
        "options": options,
        "placeholder": placeholder,
        "suffix": suffix,
        "required": required,
        "value": context.get("values", {}).get(name, ""),
        "faults": context.get("faults", {}).get(name, ()),
    }


@register.simple_tag(takes_context=True)
def address_with(context: Mapping[str, Any], **changes: Any) -> str:
    """This page's query with these parameters set, or left out where None; paging starts anew."""
    query = context["request"].GET.copy()
    for key in ("after", "before", "part"):
        query.pop(key, None)
    for key, value in changes.items():
        query.pop(key, None)
        if value not in (None, ""):
            query[key] = str(value)
    return f"?{query.urlencode()}"


@register.simple_tag
def htmx_config() -> str:
    """What htmx may do: evaluate nothing, add no styles, and swap answers that show a person what is wrong."""
    return json.dumps(
        {
            "includeIndicatorStyles": False,
            "allowEval": False,
            "allowScriptTags": False,
            "selfRequestsOnly": True,
            "historyCacheSize": 0,
            "refreshOnHistoryMiss": True,
            "responseHandling": [
                {"code": "204", "swap": False},
                {"code": "[23]..", "swap": True},
                {"code": "422", "swap": True},
                {"code": "[45]..", "swap": False, "error": True},
            ],
        }
    )


@register.filter
def item(mapping: Mapping[Any, Any], key: Any) -> Any:
    return mapping.get(key)


@register.filter
def help_sentence(helps: Mapping[str, Any], unit: str = "gpu") -> str:
    """What would let the job start, in words; empty for a kind of help that has none here."""
    request, quota = helps.get("request", {}), helps.get("quota", {})
    parts = []
    if "gpus" in request:
        parts.append(_("ask for %(gpus)s GPU instead") % {"gpus": request["gpus"]})
        if free := helps.get("free_milli"):
            parts.append(_("or wait until %(gpus)s more is free beside it") % {"gpus": format_gpus(free)})
    if request.get("preemptible"):
        parts.append(_("let the job be preempted"))
    if "by_mib" in quota:
        text = _("a limit of GPU memory of %(needed)s for %(team)s, %(more)s more than now")
        more = {"needed": f"{quota['memory_limit_mib']} MiB", "more": f"{quota['by_mib']} MiB"}
        parts.append(text % {**more, "team": quota["team"]})
    if request.get("topology"):
        parts.append(_("ask to be close together if possible, not at any price"))
    if "apart" in request and request["apart"] is None:
        parts.append(_("let two of its tasks share a place"))
    if "by_milli" in quota:
        names = {"limit": _("limit"), "per_user_limit": _("limit per person")}
        field_name = next((name for name in names if name in quota), "limit")
        text = _("a %(what)s of %(needed)s for %(team)s, %(more)s more than now")
        needed = quantity(quota.get(field_name, 0), unit)
        values = {
            "what": names[field_name],
            "needed": needed,
            "team": quota["team"],
            "more": format_gpus(quota["by_milli"]),
        }
        parts.append(text % values)
    return ", ".join(parts)


@register.filter
def status_for(state: str, kind: str) -> Any:
    return status_of(kind, state)


@register.filter
def svg_percent(part: int | None, whole: int | None) -> str:
    """``part`` of ``whole`` as an SVG length within 0 and 100 %."""
    return per_cent(part or 0, whole or 0)


@register.filter
def gpus_rounded(milli: int | None) -> str:
    """Measured milli-GPU to a tenth: a measurement, not an account."""
    return "" if milli is None else f"{(Decimal(milli) / MILLI_PER_DEVICE).quantize(Decimal('0.1')):f}"
