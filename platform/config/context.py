"""What every template may use."""

from django.conf import settings
from django.http import HttpRequest


def product(request: HttpRequest) -> dict[str, object]:
    return {"currency": settings.BILLING_CURRENCY, "languages": settings.LANGUAGES}
