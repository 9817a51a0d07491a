"""Prints a token for automation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError
from django.utils import timezone

from events.errors import Refusal
from tenants.models import ApiToken, User, name_key
from tenants.services import issue_token


class Command(BaseCommand):
    help = "Makes a token for a user and prints it: only the token on stdout, everything for people on stderr."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", help="the name of the user whose token it is")
        parser.add_argument(
            "--scopes",
            nargs="+",
            choices=ApiToken.Scope.values,
            default=[ApiToken.Scope.READ.value, ApiToken.Scope.SUBMIT.value],
            help="what it may be used for (default: read submit)",
        )
        parser.add_argument("--name", default="issued by command", help="what it is called in lists")
        parser.add_argument("--days", type=int, help="how many days it is good for (default: until it is revoked)")

    def handle(self, *args: Any, user: str, scopes: list[str], name: str, days: int | None, **options: Any) -> None:
        now = timezone.now()
        try:
            owner = User.objects.filter(username_key=name_key(user)).first()
        except (OperationalError, ProgrammingError):
            raise CommandError("There is nobody in this database yet. Start `manage.py up` with it first.") from None
        if owner is None:
            raise CommandError(f"There is no user '{user}'.")
        if not owner.is_active:
            raise CommandError(f"The user '{user}' is deactivated.")
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--days must be from 1 to 36500.")
        ends = None if days is None else now + timedelta(days=days)
        try:
            token, secret = issue_token(owner, name, now, scopes=scopes, expires_at=ends)
        except Refusal as error:
            raise CommandError(error.message) from None
        until = "until it is revoked" if ends is None else f"until {ends:%Y-%m-%d %H:%M} UTC"
        self.stderr.write(
            f"A token of {owner.username} for {', '.join(token.scopes)}, good {until}. It is not shown again."
        )
        self.stdout.write(secret)
