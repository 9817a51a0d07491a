"""The console's view of users, teams, memberships and tokens."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest

from tenants import services
from tenants.models import ApiToken, Membership, Team, User
from wire.console import ReadOnly, ReadOnlyRows, do_each

# Rights come from roles in teams and the operator flag: Django's groups would be a second, idle kind of right.
admin.site.unregister(Group)


class MembershipRows(ReadOnlyRows):
    model = Membership
    fields = ("user", "team", "role", "created_at")
    readonly_fields = fields


@admin.register(User)
class UserAdmin(ReadOnly):
    list_display = ("username", "email", "is_operator", "is_auditor", "is_active", "last_login", "date_joined")
    list_filter = ("is_active", "is_operator", "is_auditor")
    search_fields = ("username", "email")
    exclude = ("password", "groups", "user_permissions", "first_name", "last_name")
    inlines = (MembershipRows,)
    actions = ("deactivate",)

    @admin.action(description="Deactivate: sessions and tokens end at once")
    def deactivate(self, request: HttpRequest, rows: QuerySet[User]) -> None:
        others = rows.exclude(pk=request.user.pk or 0)
        do_each(
            request, others, lambda user, now, actor: services.deactivate_user(user, now, actor_id=actor), "deactivated"
        )


@admin.register(Team)
class TeamAdmin(ReadOnly):
    list_display = ("slug", "name", "parent", "state", "created_at", "deleted_at")
    list_filter = ("state",)
    search_fields = ("slug", "name")
    list_select_related = ("parent",)
    inlines = (MembershipRows,)


@admin.register(Membership)
class MembershipAdmin(ReadOnly):
    list_display = ("user", "team", "role", "created_at")
    list_filter = ("role", "team")
    search_fields = ("user__username", "team__slug")
    list_select_related = ("user", "team")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly):
    list_display = ("name", "hint", "user", "team", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_filter = ("revoked_at", "team")
    search_fields = ("name", "hint", "user__username")
    list_select_related = ("user", "team")
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Revoke: good for nothing from now on")
    def revoke(self, request: HttpRequest, rows: QuerySet[ApiToken]) -> None:
        do_each(request, rows, lambda token, now, actor: services.revoke_token(token, now, actor_id=actor), "revoked")
