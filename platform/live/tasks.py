"""Chores of what is live. Idempotent: a second copy finds nothing to say."""

from celery import shared_task
from django.utils import timezone

from live import services


@shared_task
def send_notices() -> int:
    return services.send_notices(timezone.now())
