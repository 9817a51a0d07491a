"""Chores of quotas."""

from celery import shared_task
from django.utils import timezone

from quotas import services


@shared_task
def expire_quotas() -> int:
    return services.expire_quotas(timezone.now())
