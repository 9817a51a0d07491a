"""How the operator's console shows and writes: read-only where services own the writes, changes through services.

Only operators enter it. A refusal by a service becomes an error at its field, or a message, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.contrib import messages
from django.db.models import Model, QuerySet
from django.forms import BaseModelForm, ModelForm
from django.http import HttpRequest
from django.utils import timezone
from unfold.admin import ModelAdmin, TabularInline

from events.errors import Refusal

Service = Callable[[Any, dict[str, Any], datetime, int], Model]


class ReadOnly(ModelAdmin):
    """Lists and shows; whatever can be done to a row is an action that calls a service."""

    list_per_page = 50
    show_full_result_count = False
    compressed_fields = True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_action_permission(self, request: HttpRequest) -> bool:
        return bool(getattr(request.user, "is_operator", False))

    def get_actions(self, request: HttpRequest) -> Any:
        return super().get_actions(request) if self.has_action_permission(request) else {}


class ReadOnlyRows(TabularInline):
    """Rows that belong to the shown one, for reading only."""

    extra = 0
    can_delete = False
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ThroughService(ReadOnly):
    """Rows that may be added or changed by a form, whose values go to ``service`` and never to ``save``.

    ``service(instance, values, now, actor_id)`` returns the row as it is then.
    """

    form_fields: ClassVar[tuple[str, ...]] = ()
    fixed_fields: ClassVar[tuple[str, ...]] = ()  # chosen when the row is made, then never changed
    adds = True
    changes = True

    def service(self, instance: Any, values: dict[str, Any], now: datetime, actor_id: int) -> Model:
        raise NotImplementedError(f"{type(self).__name__} says which service writes")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.adds and self.has_action_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.changes and self.has_action_permission(request)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            self.form_fields
            if self.has_change_permission(request, obj) or obj is None
            else super().get_fields(request, obj)
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fixed_fields if obj is not None and self.changes else ()

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> type[ModelForm]:
        console = self
        base = super().get_form(request, obj, change, **kwargs)

        class ServiceForm(base):  # type: ignore[misc, valid-type]
            instance: Any
            """Its last check is the service itself, inside the transaction that the console opens around a change."""

            def validate_unique(self) -> None:
                return  # the service says it better, by name and with what is there already

            def validate_constraints(self) -> None:
                return

            def _post_clean(self) -> None:
                if self.errors or not console.has_action_permission(request):
                    return
                values = {name: self.cleaned_data.get(name) for name in self.cleaned_data}
                try:
                    self.instance = console.service(self.instance, values, timezone.now(), request.user.pk or 0)
                except Refusal as refusal:
                    _show(self, refusal)

        return ServiceForm

    def save_model(self, request: HttpRequest, obj: Any, form: BaseModelForm, change: bool) -> None:
        """The service has written it already, in the form's check."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Iterable[Any], change: bool) -> None:
        """Nothing hangs on these rows that a form could change."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        return super().log_change(request, obj, message)


def _show(form: Any, refusal: Refusal) -> None:
    for fault in refusal.faults:
        form.add_error(fault.field if fault.field in form.fields else None, f"{fault.field}: {fault.message}")
    if not refusal.faults:
        form.add_error(None, refusal.message)


def do_each(request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any, datetime, int], Any], done: str) -> None:
    """Calls ``act(row, now, actor_id)`` for each row; says how many were ``done`` and why others were not."""
    count = 0
    for row in rows.order_by("pk"):
        try:
            act(row, timezone.now(), request.user.pk or 0)
        except Refusal as refusal:
            messages.error(request, f"{row}: {refusal.message}")
        else:
            count += 1
    if count:
        messages.success(request, f"{count} {done}.")
