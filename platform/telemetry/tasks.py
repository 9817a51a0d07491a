"""Chores of telemetry. Each is idempotent: a second copy finds nothing to do."""

from celery import shared_task
from django.utils import timezone

from telemetry import services


@shared_task
def roll_up() -> int:
    return services.roll_up(timezone.now())


@shared_task
def find_idle() -> list[int]:
    return list(services.find_idle(timezone.now()))


@shared_task
def end_idle() -> list[int]:
    return list(services.end_idle(timezone.now()))


@shared_task
def prune() -> int:
    return services.prune(timezone.now())
