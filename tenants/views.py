"""Signing in and out."""

from __future__ import annotations

from django.contrib.auth import logout
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from tenants.services import record_sign_out


class SignIn(LoginView):
    """Asks for name and password; goes on to the page that was asked for, on this host only."""

    template_name = "tenants/sign_in.html"
    redirect_authenticated_user = True


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """The session ends here and on every socket that it opened."""
    if request.user.is_authenticated:
        record_sign_out(request.user, request.session.session_key, timezone.now())
        logout(request)
    return redirect("sign-in")
