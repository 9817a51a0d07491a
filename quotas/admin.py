"""The console's view of quotas. Amounts are in milli of the pool's unit, as they are stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest

from quotas import services
from quotas.models import Quota
from scheduling.core.units import format_gpus
from wire.console import ThroughService


def _amount(milli: int | None) -> str:
    return "not set" if milli is None else format_gpus(milli)


@admin.register(Quota)
class QuotaAdmin(ThroughService):
    list_display = (
        "team",
        "pool",
        "guaranteed_units",
        "limit_units",
        "weight",
        "per_user",
        "memory",
        "valid_from",
        "valid_until",
    )
    list_filter = ("pool", "team")
    search_fields = ("team__slug", "pool__name")
    list_select_related = ("team", "pool")
    form_fields = (
        "team",
        "pool",
        "guaranteed",
        "limit",
        "weight",
        "reserved",
        "per_user_limit",
        "memory_limit_mib",
        "valid_from",
        "valid_until",
    )
    fixed_fields = ("team", "pool", "valid_from", "valid_until")

    @admin.display(description="guaranteed", ordering="guaranteed")
    def guaranteed_units(self, quota: Quota) -> str:
        return _amount(quota.guaranteed)

    @admin.display(description="limit", ordering="limit")
    def limit_units(self, quota: Quota) -> str:
        return _amount(quota.limit)

    @admin.display(description="limit of a user", ordering="per_user_limit")
    def per_user(self, quota: Quota) -> str:
        return _amount(quota.per_user_limit)

    @admin.display(description="limit of GPU memory", ordering="memory_limit_mib")
    def memory(self, quota: Quota) -> str:
        return "not set" if quota.memory_limit_mib is None else f"{quota.memory_limit_mib} MiB"

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Quota:
        row = Quota.objects.select_related("team", "pool").get(pk=instance.pk) if instance.pk else None
        amounts = {name: values[name] for name in services.FIELDS}
        change = services.set_quota(
            row.team if row else values["team"],
            row.pool if row else values["pool"],
            now,
            valid_from=row.valid_from if row else values["valid_from"],
            valid_until=row.valid_until if row else values["valid_until"],
            actor_id=actor_id,
            **amounts,
        )
        change.quota.console_warnings = change.warnings  # type: ignore[attr-defined]
        return change.quota

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        for warning in getattr(form.instance, "console_warnings", ()):
            messages.warning(request, warning)
