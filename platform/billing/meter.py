"""Metering: opens and closes usage records in the transaction that binds and frees devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.db.models import F, Max, Q

from billing.card import rate_card
from billing.exact import ExactSum
from billing.rates import MICROSECOND, RateCard, amount_of, seconds_between
from billing.tills import Part, drawn, work_of
from events.rows import insert_rows, set_rows
from scheduling.ports import Cost

if TYPE_CHECKING:
    from billing.models import UsageRecord
    from billing.services.packages import OpenPurse
    from scheduling.models import Allocation


CLOSING = ("ended_at", "per_hour", "microseconds", "amount", "waived")
FEW = 10  # up to so many rows a statement each is less work than one statement for all


class LedgerMeter:
    """The meter that writes ``UsageRecord`` rows."""

    def opened(self, allocations: Sequence[Allocation], at: datetime) -> None:
        from billing.models import UsageRecord

        insert_rows(
            UsageRecord(
                allocation_id=allocation.pk,
                team_id=allocation.team_id,
                user_id=allocation.user_id,
                job_id=allocation.job_id,
                pool_id=allocation.pool_id,
                model_id=allocation.model_id,
                milli=allocation.cpu_milli if allocation.pool.unit == "cpu" else allocation.milli,
                started_at=at,
            )
            for allocation in allocations
        )

    def closed(self, allocations: Sequence[Allocation], at: datetime, *, waived: str = "") -> None:
        from billing.models import UsageRecord

        records = UsageRecord.objects.filter(
            allocation_id__among=[allocation.pk for allocation in allocations], ended_at__isnull=True
        ).annotate(class_id=F("job__priority_class_id"), unit=F("pool__unit"))
        self._close(list(records.order_by("id")), at, waived=waived)

    def cut(self, at: datetime, where: Q | None = None) -> int:
        """Every record open at ``at`` (of those that ``where`` leaves) is closed there and goes on in a new one;
        returns how many. For month ends, and where a package runs out."""
        from billing.models import UsageRecord
        from scheduling.models import Allocation

        due = UsageRecord.objects.filter(where or Q(), ended_at__isnull=True, started_at__lt=at)
        # Whoever frees an allocation locks its row first: what is read after it is neither closed nor cut meanwhile.
        holders = Allocation.objects.filter(pk__in=due.values("allocation_id"))
        list(holders.select_for_update(no_key=True).order_by("pk").values_list("pk"))
        records = list(due.annotate(class_id=F("job__priority_class_id"), unit=F("pool__unit")).order_by("id"))
        self._close(records, at)
        insert_rows(_copy(record, at) for record in records)
        return len(records)

    def _close(self, records: Sequence[Any], at: datetime, *, waived: str = "") -> None:
        from billing.models import UsageRecord

        if not records:
            return
        # Clocks differ between machines: an end before the start is an empty span, never a negative one.
        ends = [max(at, record.started_at) for record in records]
        card = rate_card()
        purse = None if waived else open_purse(records, max(ends))
        closing: list[UsageRecord] = []
        further: list[UsageRecord] = []
        paid: list[tuple[UsageRecord, Part]] = []
        for record, end in zip(records, ends, strict=True):
            segments = card.segments(record.pool_id, record.model_id, record.class_id, record.started_at, end)
            tills = purse.serving(record) if purse else ()
            parts = drawn(segments, record.milli, tills)
            for part in parts:
                own = record if part is parts[0] else _copy(record, part.start)
                _fill(own, part.end, part.per_hour, waived)
                (closing if own is record else further).append(own)
                if part.till_id is not None:
                    paid.append((own, part))
        set_rows(UsageRecord, CLOSING, {record.pk: [getattr(record, name) for name in CLOSING] for record in closing})
        insert_rows(further)
        if purse is not None and paid:
            purse.charge([(own, part.till_id or 0, work_of(own.milli, part.start, part.end)) for own, part in paid], at)

    def settled_until(self, allocation_ids: Iterable[int]) -> Mapping[int, datetime]:
        from billing.models import UsageRecord

        closed = UsageRecord.objects.filter(allocation_id__among=allocation_ids, ended_at__isnull=False)
        return dict(closed.order_by().values_list("allocation_id").annotate(last=Max("ended_at")))

    def job_costs(self, job_ids: Iterable[int], now: datetime) -> Mapping[int, Cost]:
        return costs(Q(job_id__in=list(job_ids)), "job_id", now)

    def price_per_hour(self, pool_id: int, model_id: int | None, class_id: int, milli: int, now: datetime) -> Decimal:
        price = rate_card().at(pool_id, model_id, class_id, now)
        return Decimal(0) if price is None else price * milli / 1000


def open_purse(records: Sequence[Any], until: datetime) -> OpenPurse | None:
    """The packages that may pay these records up to ``until``, locked; None where there are none."""
    from billing.services.packages import open_purse as opened

    return opened([record for record in records if record.unit != "cpu"], until)


def _fill(record: UsageRecord, end: datetime, per_hour: Decimal | None, waived: str) -> None:
    record.ended_at = end
    record.per_hour = per_hour
    record.waived = waived
    record.microseconds = (end - record.started_at) // MICROSECOND
    record.amount = Decimal(0) if waived else amount_of(record.milli, record.started_at, end, per_hour)


def _copy(record: UsageRecord, started_at: datetime) -> UsageRecord:
    from billing.models import UsageRecord

    return UsageRecord(
        allocation_id=record.allocation_id,
        team_id=record.team_id,
        user_id=record.user_id,
        job_id=record.job_id,
        pool_id=record.pool_id,
        model_id=record.model_id,
        milli=record.milli,
        started_at=started_at,
    )


def costs(where: Q, key: str, now: datetime) -> dict[int, Cost]:
    """By ``key`` (a field of UsageRecord): what was used and what it costs up to ``now``, open records included."""
    from billing.models import UsageRecord

    found: dict[int, Cost] = {}
    closed = UsageRecord.objects.filter(where, ended_at__isnull=False)
    sums = (
        closed.order_by().values(key).annotate(total=ExactSum("amount"), work=ExactSum(F("milli") * F("microseconds")))
    )
    for row in sums:
        _add(found, row[key], row["total"], row["work"] / 1_000_000, running=False)
    card: RateCard | None = None
    for record in UsageRecord.objects.filter(where, ended_at__isnull=True).annotate(
        class_id=F("job__priority_class_id")
    ):
        card = card or rate_card()
        end = max(now, record.started_at)
        amount = sum(
            (
                amount_of(record.milli, segment.start, segment.end, segment.per_hour)
                for segment in card.segments(record.pool_id, record.model_id, record.class_id, record.started_at, end)
            ),
            Decimal(0),
        )
        _add(found, getattr(record, key), amount, record.milli * seconds_between(record.started_at, end), running=True)
    return found


def _add(found: dict[int, Cost], owner: int, amount: Decimal, milli_seconds: Decimal, *, running: bool) -> None:
    before = found.get(owner, Cost(Decimal(0), Decimal(0), False))
    found[owner] = Cost(before.amount + amount, before.milli_seconds + milli_seconds, before.running or running)
