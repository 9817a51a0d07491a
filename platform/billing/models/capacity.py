"""How much there was to use, so that what nobody used can be told."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q


class CapacityChange(models.Model):
    """From ``at`` on, until the next such row, ``milli`` of devices of the model are in service in the pool."""

    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="capacity_changes")
    model = models.ForeignKey("inventory.AcceleratorModel", on_delete=models.PROTECT, related_name="capacity_changes")
    at = models.DateTimeField()
    milli = models.BigIntegerField()

    class Meta:
        ordering: ClassVar = ["pool_id", "model_id", "at", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "model", "at"], name="capacity_once_at_a_moment"),
            models.CheckConstraint(condition=Q(milli__gte=0), name="capacity_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.milli} of {self.model_id} in {self.pool_id} from {self.at}"
