"""The console's view of the event log."""

from django.contrib import admin

from events.models import Event
from wire.console import ReadOnly


@admin.register(Event)
class EventAdmin(ReadOnly):
    list_display = ("seq", "at", "kind", "team_id", "pool_id", "job_id", "actor_id", "data")
    list_filter = ("kind",)
    search_fields = ("=job_id", "=team_id")
