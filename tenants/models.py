"""Who: users, the tree of teams, memberships with roles, and tokens for automation."""

from __future__ import annotations

import unicodedata
from typing import ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.validators import MaxLengthValidator, MinLengthValidator, RegexValidator
from django.db import models
from django.db.models import F, Q

SLUG = RegexValidator(r"^[a-z0-9][a-z0-9._-]{0,62}$", "Use lower-case letters, digits, dots, dashes and underscores.")


def name_key(name: str) -> str:
    """Two names are the same name when their keys are equal: compatibility forms, case and spaces do not tell apart."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


class Users(UserManager["User"]):
    """Finds a user by any spelling of the name that means the same."""

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(username_key=name_key(username or ""))


class User(AbstractUser):
    """A person or a service account. ``is_operator`` may do everything, ``is_auditor`` may read everything."""

    username_key = models.CharField(max_length=300, unique=True, editable=False)
    is_operator = models.BooleanField(default=False)
    is_auditor = models.BooleanField(default=False)
    time_zone = models.CharField(max_length=64, blank=True)
    language = models.CharField(max_length=12, blank=True)

    objects: ClassVar[Users] = Users()

    class Meta:
        ordering: ClassVar = ["username"]

    def save(self, *args: object, **kwargs: object) -> None:
        self.username_key = name_key(self.username)
        super().save(*args, **kwargs)  # type: ignore[arg-type]


class Team(models.Model):
    """A node of the tree of teams. A deleted team stays, for its history; its slug is free for a later one.

    The database refuses a team as its own ancestor (trigger ``team_tree_has_no_cycle``).
    """

    class State(models.TextChoices):
        ACTIVE = "active", "Active"
        ARCHIVED = "archived", "Archived"
        DELETED = "deleted", "Deleted"

    slug = models.CharField(max_length=63, validators=[SLUG])
    name = models.CharField(max_length=200, validators=[MinLengthValidator(1), MaxLengthValidator(200)])
    name_key = models.CharField(max_length=600, editable=False)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    state = models.CharField(max_length=10, choices=State, default=State.ACTIVE)
    color = models.CharField(max_length=7, blank=True, help_text="#rrggbb; empty: chosen by the product")
    created_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["slug", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["slug"], condition=Q(deleted_at__isnull=True), name="team_slug_once"),
            models.UniqueConstraint(fields=["name_key"], condition=Q(deleted_at__isnull=True), name="team_name_once"),
            models.CheckConstraint(condition=~Q(parent=F("id")), name="team_is_not_its_own_parent"),
            models.CheckConstraint(
                condition=Q(state="deleted", deleted_at__isnull=False)
                | Q(~Q(state="deleted"), deleted_at__isnull=True),
                name="team_deleted_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A user's role in a team and everything below it."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer"
        MEMBER = "member", "Member"
        MANAGER = "manager", "Manager"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role, default=Role.MEMBER)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["team_id", "user_id"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "team"], name="one_role_in_a_team")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} of {self.team_id}"


class ApiToken(models.Model):
    """A secret for automation; only its digest is kept. It never may more than its owner may at that moment."""

    class Scope(models.TextChoices):
        READ = "read", "Read"
        SUBMIT = "submit", "Submit and stop jobs"
        MANAGE = "manage", "Manage teams and quotas"
        OPERATE = "operate", "Operate the fleet"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=120)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(max_length=12, editable=False, help_text="the first characters, to tell tokens apart")
    scopes = models.JSONField(default=list)
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.hint}…)"
