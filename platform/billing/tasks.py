"""Chores of billing."""

from celery import shared_task
from django.utils import timezone

from billing import services


@shared_task
def close_month() -> int:
    return services.close_month(timezone.now())
