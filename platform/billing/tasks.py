"""Chores of billing."""

from celery import shared_task
from django.utils import timezone

from billing import services
from billing.services import budgets, invoices


@shared_task
def close_month() -> int:
    return services.close_month(timezone.now())


@shared_task
def look_at_budgets() -> int:
    return budgets.look_at_budgets(timezone.now()).changed


@shared_task
def issue_invoices() -> int:
    return invoices.issue_last_month(timezone.now())
