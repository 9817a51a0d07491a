"""Chores of the event log."""

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from events import services


@shared_task
def prune() -> int:
    return services.prune_events(timezone.now() - timedelta(days=settings.EVENT_RETENTION_DAYS))
