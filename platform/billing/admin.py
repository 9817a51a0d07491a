"""The console's view of money."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from billing import services
from billing.burn import PER_UNIT
from billing.models import (
    Budget,
    BudgetCrossing,
    CapacityChange,
    Invoice,
    InvoicedRecord,
    InvoiceLine,
    InvoiceSequence,
    Package,
    PackageDraw,
    Plan,
    Rate,
    TeamPlan,
    UsageRecord,
)
from billing.services import budgets, invoices, packages, plans
from scheduling.core.units import format_gpus
from wire.console import ReadOnly, ReadOnlyRows, ThroughService, do_each


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


def _hours(work: Decimal | int) -> str:
    return f"{Decimal(work) / PER_UNIT:.6f}"


@admin.register(Budget)
class BudgetAdmin(ThroughService):
    list_display = ("team", "amount", "period", "action", "spent", "spent_since", "active", "starts_at", "ends_at")
    list_filter = ("period", "action", "active", "team")
    search_fields = ("team__slug",)
    list_select_related = ("team",)
    form_fields = ("team", *budgets.FIELDS)
    fixed_fields = ("team",)
    actions: ClassVar = ["remove"]

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Budget:
        chosen = {name: values[name] for name in budgets.FIELDS}
        if instance.pk is not None:
            return budgets.change_budget(instance, now, actor_id=actor_id, **chosen)
        return budgets.create_budget(values["team"], chosen.pop("amount"), now, actor_id=actor_id, **chosen)

    @admin.action(description="Remove: whom it alone held is released")
    def remove(self, request: HttpRequest, rows: QuerySet[Budget]) -> None:
        do_each(request, rows, lambda row, now, actor: budgets.remove_budget(row, now, actor_id=actor), "removed")


@admin.register(BudgetCrossing)
class BudgetCrossingAdmin(ReadOnly):
    list_display = ("budget", "percent", "amount", "spent", "period_start", "at")
    list_select_related = ("budget",)


@admin.register(Package)
class PackageAdmin(ThroughService):
    list_display = ("id", "team", "pool", "model", "state", "hours", "hours_left", "price", "starts_at", "expires_at")
    list_filter = ("state", "team", "pool", "model")
    list_select_related = ("team", "pool", "model")
    form_fields = ("team", "work", "pool", "model", "price", "starts_at", "expires_at")
    changes = False
    actions: ClassVar = ["confirm"]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        if "work" in form.base_fields:
            form.base_fields["work"].label = "GPU-hours"
            form.base_fields["work"].help_text = "whole hours; it can be drawn from once it is confirmed"
            form.base_fields["starts_at"].required = False
            form.base_fields["starts_at"].help_text = "empty: from now on"
        return form

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Package:
        rest = {name: values[name] for name in ("pool", "model", "price", "starts_at", "expires_at")}
        return packages.add_package(values["team"], Decimal(values["work"]), now, actor_id=actor_id, **rest)

    @admin.display(description="GPU-hours", ordering="work")
    def hours(self, package: Package) -> str:
        return _hours(package.work)

    @admin.display(description="left", ordering="left")
    def hours_left(self, package: Package) -> str:
        return _hours(package.left)

    @admin.action(description="Confirm: it is paid")
    def confirm(self, request: HttpRequest, rows: QuerySet[Package]) -> None:
        do_each(request, rows, lambda row, now, actor: packages.confirm_package(row, now, actor_id=actor), "confirmed")


@admin.register(PackageDraw)
class PackageDrawAdmin(ReadOnly):
    list_display = ("package", "record", "hours", "amount", "at")
    list_filter = ("package",)
    list_select_related = ("package", "record")

    @admin.display(description="GPU-hours", ordering="work")
    def hours(self, draw: PackageDraw) -> str:
        return _hours(draw.work)


@admin.register(Plan)
class PlanAdmin(ThroughService):
    list_display = ("name", "monthly_fee", "created_at")
    form_fields = ("name", "monthly_fee")
    changes = False

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Plan:
        return plans.create_plan(values["name"], values["monthly_fee"], now, actor_id=actor_id)


@admin.register(TeamPlan)
class TeamPlanAdmin(ThroughService):
    list_display = ("team", "plan", "starts_on")
    list_filter = ("plan", "team")
    list_select_related = ("team", "plan")
    form_fields = ("team", "plan", "starts_on")
    changes = False

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> TeamPlan:
        return plans.assign_plan(values["team"], values["plan"], values["starts_on"], now, actor_id=actor_id)


class InvoiceLineRows(ReadOnlyRows):
    model = InvoiceLine
    fk_name = "invoice"
    fields = ("position", "kind", "description", "per_hour", "exact", "amount")
    show_change_link = False


@admin.register(Invoice)
class InvoiceAdmin(ReadOnly):
    list_display = ("number", "kind", "team_slug", "month", "net", "tax", "total", "prepaid", "due", "issued_at")
    list_filter = ("kind", "month", "team")
    search_fields = ("number", "team_slug", "team_name")
    inlines: ClassVar = [InvoiceLineRows]
    actions: ClassVar = ["credit"]

    @admin.action(description="Take back by a credit note")
    def credit(self, request: HttpRequest, rows: QuerySet[Invoice]) -> None:
        do_each(request, rows, lambda row, now, actor: invoices.credit_invoice(row, now, actor_id=actor), "taken back")


@admin.register(InvoiceLine)
class InvoiceLineAdmin(ReadOnly):
    list_display = ("invoice", "position", "kind", "description", "exact", "amount")
    list_filter = ("kind",)
    list_select_related = ("invoice",)


@admin.register(InvoicedRecord)
class InvoicedRecordAdmin(ReadOnly):
    list_display = ("record", "invoice", "line")
    list_select_related = ("record", "invoice", "line")


@admin.register(InvoiceSequence)
class InvoiceSequenceAdmin(ReadOnly):
    list_display = ("year", "last")


@admin.register(CapacityChange)
class CapacityChangeAdmin(ReadOnly):
    list_display = ("pool", "model", "at", "milli")
    list_filter = ("pool", "model")
    list_select_related = ("pool", "model")
