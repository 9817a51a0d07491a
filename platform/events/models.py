"""The event log: one row per change that anyone may want to hear of, written in the transaction of the change."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Event(models.Model):
    """Something that happened. ``seq`` orders all events; a reader that has seen n never later meets one below n.

    Whose it is: ``team_id`` (None: about the fleet itself, which everyone who may sign in may see). Ids, not keys:
    events outlive what they speak of and live below the apps that own it.
    """

    seq = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    kind = models.CharField(max_length=40)
    team_id = models.BigIntegerField(null=True, blank=True)
    pool_id = models.BigIntegerField(null=True, blank=True)
    job_id = models.BigIntegerField(null=True, blank=True)
    node_id = models.BigIntegerField(null=True, blank=True)
    actor_id = models.BigIntegerField(
        null=True, blank=True, help_text="The user who caused it; empty for the scheduler."
    )
    data = models.JSONField(default=dict)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["job_id", "seq"], name="event_by_job"),
            models.Index(fields=["team_id", "seq"], name="event_by_team"),
        ]

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"
