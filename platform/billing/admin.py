"""The console's view of money."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from billing import services
from billing.models import Rate, UsageRecord
from scheduling.core.units import format_gpus
from wire.console import ReadOnly, ThroughService


@admin.register(Rate)
class RateAdmin(ThroughService):
    """Rates are only ever added: what was in force stays what it was."""

    list_display = ("per_hour", "pool", "model", "priority_class", "band_start", "band_end", "effective_from")
    list_filter = ("pool", "model")
    list_select_related = ("pool", "model", "priority_class")
    form_fields = ("per_hour", "pool", "model", "priority_class", "band_start", "band_end", "effective_from")
    changes = False

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        if "effective_from" in form.base_fields:
            form.base_fields["effective_from"].required = False
            form.base_fields["effective_from"].help_text = "empty: from now on"
        return form

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Rate:
        start, end = values["band_start"], values["band_end"]
        return services.set_rate(
            values["per_hour"],
            now,
            effective_from=values["effective_from"],
            pool=values["pool"],
            model=values["model"],
            priority_class=values["priority_class"],
            band=(start, end) if start is not None and end is not None else None,
            actor_id=actor_id,
        )


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnly):
    list_display = (
        "id",
        "team",
        "user",
        "job",
        "pool",
        "model",
        "units",
        "per_hour",
        "started_at",
        "ended_at",
        "amount",
    )
    list_filter = ("pool", "model", "team", "waived")
    search_fields = ("=job__id", "job__name", "user__username")
    list_select_related = ("team", "user", "job", "pool", "model")
    date_hierarchy = "started_at"

    @admin.display(description="GPUs or cores", ordering="milli")
    def units(self, record: UsageRecord) -> str:
        return format_gpus(record.milli)
