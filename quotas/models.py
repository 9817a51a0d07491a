"""How much: what a team is guaranteed and may hold, pool by pool."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q


class Quota(models.Model):
    """A team's claim in a pool, in the pool's unit (milli-GPU or milli-cores).

    ``guaranteed`` None is "not set": nothing for a team without sub-teams, the sum of its children's for one with.
    ``limit`` None is no limit; 0 is 0; ``memory_limit_mib`` likewise, of device memory. A row with
    ``valid_from``/``valid_until`` is temporary, [from, until), and takes the place of the standing row while valid.
    """

    team = models.ForeignKey("tenants.Team", on_delete=models.PROTECT, related_name="quotas")
    pool = models.ForeignKey("inventory.Pool", on_delete=models.PROTECT, related_name="quotas")
    guaranteed = models.BigIntegerField(null=True, blank=True)
    limit = models.BigIntegerField(null=True, blank=True)
    weight = models.BigIntegerField(default=1)
    reserved = models.BigIntegerField(default=0)
    per_user_limit = models.BigIntegerField(null=True, blank=True)
    memory_limit_mib = models.BigIntegerField(null=True, blank=True, help_text="device memory, MiB")
    valid_from = models.DateTimeField(null=True, blank=True)
    valid_until = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["pool_id", "team_id", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["team", "pool"],
                condition=Q(valid_from__isnull=True, valid_until__isnull=True),
                name="one_standing_quota",
            ),
            models.CheckConstraint(
                condition=Q(guaranteed__isnull=True) | Q(guaranteed__gte=0), name="quota_guaranteed_not_negative"
            ),
            models.CheckConstraint(condition=Q(limit__isnull=True) | Q(limit__gte=0), name="quota_limit_not_negative"),
            models.CheckConstraint(condition=Q(weight__gte=0), name="quota_weight_not_negative"),
            models.CheckConstraint(
                condition=Q(per_user_limit__isnull=True) | Q(per_user_limit__gte=0), name="quota_per_user_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(memory_limit_mib__isnull=True) | Q(memory_limit_mib__gte=0),
                name="quota_memory_limit_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(reserved=0) | Q(reserved__gt=0, guaranteed__isnull=False, reserved__lte=F("guaranteed")),
                name="quota_reserved_within_guaranteed",
            ),
            models.CheckConstraint(
                condition=Q(limit__isnull=True) | Q(guaranteed__isnull=True) | Q(guaranteed__lte=F("limit")),
                name="quota_guaranteed_within_limit",
            ),
            models.CheckConstraint(
                condition=Q(valid_from__isnull=True) | Q(valid_until__isnull=True) | Q(valid_from__lt=F("valid_until")),
                name="quota_from_before_until",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.team_id} in {self.pool_id}"
