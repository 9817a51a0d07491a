"""The installation's rate card, read from its rates and kept for as long as they stay the same."""

from __future__ import annotations

from django.db import connection

from billing.rates import Price, RateCard
from billing.terms import terms

_kept: tuple[tuple[object, ...], RateCard] | None = None


def rate_card() -> RateCard:
    """All rates as they stand now. A card is built again only where the rows differ from those it was built from."""
    global _kept
    with connection.cursor() as cursor:
        # The rows themselves, not how many or how new they are: what was rolled back may have looked the same.
        cursor.execute(
            "SELECT id, pool_id, model_id, priority_class_id, band_start, band_end, per_hour, effective_from "
            "FROM billing_rate ORDER BY id"
        )
        version = (terms().time_zone, *cursor.fetchall())
    if _kept is None or _kept[0] != version:
        _kept = (version, _read_rates())
    return _kept[1]


def _read_rates() -> RateCard:
    from billing.models import Rate

    return RateCard(
        (
            Price(
                rate.pk,
                rate.pool_id,
                rate.model_id,
                rate.priority_class_id,
                (rate.band_start, rate.band_end) if rate.band_start is not None and rate.band_end is not None else None,
                rate.per_hour,
                rate.effective_from,
            )
            for rate in Rate.objects.order_by("id")
        ),
        terms().time_zone,
    )
