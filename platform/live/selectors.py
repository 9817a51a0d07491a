"""What sockets are told, read from the database and encoded once. Only reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Case, Count, F, Max, Min, Q, Sum, Value, When

from events.models import Event
from inventory.models import Device, Node, Pool
from live.mailbox import Item
from live.protocol import encode, moment
from scheduling import ports
from scheduling.models import Allocation, AllocationDevice, Job
from scheduling.telling import reason_told
from telemetry.models import TaskReading
from telemetry.readings import FULL_MILLI, STALE_AFTER, total_known
from telemetry.selectors import device_readings, fresh_device_use
from tenants.models import Team

# Events about the fleet, and those about a team that are told as they are; of both nothing but that they happened.
FLEET_KINDS = frozenset(
    {
        "fleet.changed",
        "nodes.added",
        "nodes.changed",
        "node.state",
        "device.health",
        "pool.created",
        "pool.changed",
        "engine.state",
    }
)
TEAM_KINDS = ("quota.", "team.", "member.", "budget.")
# After any of these somebody may see more or less than before.
RIGHTS_KINDS = ("member.", "team.", "user.", "session.", "token.")
TEAM_SHAPE_KINDS = ("team.",)
CHUNK = 500


def position() -> int:
    """The newest sequence number that is committed; 0 where nothing ever happened."""
    return Event.objects.aggregate(last=Max("seq"))["last"] or 0


def oldest_position() -> int:
    """The oldest sequence number that is kept."""
    return Event.objects.aggregate(first=Min("seq"))["first"] or 0


@dataclass(frozen=True, slots=True)
class Told:
    """An event as the relay needs it."""

    seq: int
    at: datetime
    kind: str
    team_id: int | None
    pool_id: int | None
    job_id: int | None
    node_id: int | None
    data: dict


def _told(rows: Iterable[tuple]) -> list[Told]:
    return [Told(*row) for row in rows]


EVENT_FIELDS = ("seq", "at", "kind", "team_id", "pool_id", "job_id", "node_id", "data")


def events_after(seq: int, most: int) -> list[Told]:
    """The events that follow ``seq``, in order, at most so many."""
    return _told(Event.objects.filter(seq__gt=seq).order_by("seq").values_list(*EVENT_FIELDS)[:most])


def events_between(after: int, until: int, about: Q, most: int) -> list[Told] | None:
    """Those ``about`` something with after < seq ≤ until, in order; None where there are more than ``most``."""
    rows = Event.objects.filter(about, seq__gt=after, seq__lte=until).order_by("seq")
    found = _told(rows.values_list(*EVENT_FIELDS)[: most + 1])
    return None if len(found) > most else found


def _chunks(ids: Iterable[int]) -> Iterator[list[int]]:
    listed = sorted(set(ids))
    return (listed[start : start + CHUNK] for start in range(0, len(listed), CHUNK))


def slugs_of(team_ids: Iterable[int]) -> dict[int, str]:
    return {
        key: slug
        for chunk in _chunks(team_ids)
        for key, slug in Team.objects.filter(pk__in=chunk).values_list("id", "slug")
    }


def pool_names() -> dict[int, str]:
    return dict(Pool.objects.values_list("id", "name"))


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_items(events: Sequence[Told]) -> list[Item]:
    """For each job in ``events`` (all have one) its row as it is now, with the kinds that happened to it."""
    kinds: dict[int, list[str]] = defaultdict(list)
    last: dict[int, Told] = {}
    for event in events:
        assert event.job_id is not None
        if event.kind not in kinds[event.job_id]:
            kinds[event.job_id].append(event.kind)
        last[event.job_id] = event
    items = []
    for chunk in _chunks(kinds):
        rows = Job.objects.filter(pk__in=chunk).select_related("team", "user", "pool").defer("command", "environment")
        for job in rows.order_by("id"):
            event = last[job.pk]
            text = f'"at":{encode(moment(event.at))},"team":{encode(job.team.slug)},"job":{encode(job_body(job))}'
            items.append(
                Item(("job", job.pk), "events", job.team_id, text, event.seq, tuple(kinds[job.pk]), job_id=job.pk)
            )
    return items


def job_body(job: Job) -> dict[str, object]:
    return {
        "id": job.pk,
        "version": job.version,
        "name": job.name,
        "state": job.state,
        "pool": job.pool.name,
        "user": job.user.username,
        "hold": job.hold,
        "ending": job.ending,
        "reasons": _reasons(job),
        "submitted_at": moment(job.submitted_at),
        "started_at": moment(job.started_at),
        "ended_at": moment(job.ended_at),
        "estimated_start": moment(job.estimated_start),
        "exit_code": job.exit_code,
        "preemptions": job.preemptions,
        "tasks": job.tasks_wanted,
        "gpus_milli": job.milli_wanted,
    }


def _reasons(job: Job) -> list[dict[str, object]]:
    """Why it waits, in words that everyone may hear who may see the job: no other team is named."""
    told = (reason_told(each, job.pool.unit, frozenset({job.team.slug})) for each in job.reasons)
    return [{"code": each["code"], "message": each["message"]} for each in told]


def team_event_items(events: Sequence[Told], pools: dict[int, str]) -> list[Item]:
    """That something happened to a team: which kind, and in which pool. Notices carry what they say."""
    slugs = slugs_of(event.team_id for event in events if event.team_id is not None)
    items = []
    for event in events:
        if event.team_id not in slugs:
            continue
        text = f'"at":{encode(moment(event.at))},"team":{encode(slugs[event.team_id])}'
        if event.pool_id in pools:
            text += f',"pool":{encode(pools[event.pool_id])}'
        key: tuple[object, ...] = (event.kind, event.team_id, event.pool_id)
        if event.kind == "notice":
            key = ("notice", event.seq)
            text += f',"notice":{encode({**event.data, "job": event.job_id})}'
        items.append(Item(key, "events", event.team_id, text, event.seq, (event.kind,)))
    return items


# -- fleet ------------------------------------------------------------------------------------------------------------


def fleet_event_items(events: Sequence[Told], pools: dict[int, str]) -> dict[int, Item]:
    """By pool: that something about it changed, and which kinds of events told so."""
    kinds: dict[int, dict[str, None]] = defaultdict(dict)
    last: dict[int, Told] = {}
    for event in events:
        for pool_id in [event.pool_id] if event.pool_id is not None else list(pools):
            if pool_id in pools:
                kinds[pool_id][event.kind] = None
                last[pool_id] = event
    return {
        pool_id: Item(
            ("pool-event", pool_id),
            "events",
            None,
            f'"at":{encode(moment(last[pool_id].at))},"pool":{encode(pools[pool_id])}',
            last[pool_id].seq,
            tuple(own),
        )
        for pool_id, own in kinds.items()
    }


def changed_devices(events: Iterable[Told]) -> dict[int, set[int]]:
    """By pool: the devices that these events speak of."""
    found: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.pool_id is None:
            continue
        if event.kind == "fleet.changed":
            found[event.pool_id].update(event.data.get("devices", ()))
        elif event.kind == "device.health" and "device_id" in event.data:
            found[event.pool_id].add(event.data["device_id"])
    return found


def device_items(device_ids: Collection[int], now: datetime) -> dict[int, list[Item]]:
    """By pool: these devices as they are now, with what is known of their use and the slices that live on them."""
    slices = _slices(device_ids)
    readings = device_readings(now, sorted(set(device_ids)))
    items: dict[int, list[Item]] = defaultdict(list)
    for chunk in _chunks(device_ids):
        rows = Device.objects.filter(pk__in=chunk).order_by("id")
        for device_id, pool_id, compute, memory, health in rows.values_list(
            "id", "node__pool_id", "compute_allocated_milli", "memory_allocated_mib", "health"
        ):
            reading = readings.get(device_id)
            used = None if reading is None else reading.compute_milli
            used_memory = None if reading is None else reading.memory_mib
            text = encode([device_id, compute, memory, health, used, used_memory])[:-1] + ","
            items[pool_id].append(
                Item(("device", device_id), "devices", None, text, slices=tuple(slices.get(device_id, ())))
            )
    return items


def _slices(device_ids: Iterable[int]) -> dict[int, list[tuple[int, str]]]:
    """By device: (team, JSON) of each slice that is held on it."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for chunk in _chunks(device_ids):
        rows = AllocationDevice.objects.filter(device_id__in=chunk, allocation__released_at__isnull=True)
        for device_id, job_id, team_id, slug, compute, memory in rows.order_by("id").values_list(
            "device_id",
            "allocation__job_id",
            "allocation__team_id",
            "allocation__team__slug",
            "compute_milli",
            "memory_mib",
        ):
            found[device_id].append((team_id, encode([job_id, slug, compute, memory])))
    return found


def nodes_by_id(node_ids: Collection[int]) -> dict[int, list[Item]]:
    """By pool: these nodes as they are now."""
    items: dict[int, list[Item]] = defaultdict(list)
    for chunk in _chunks(node_ids):
        rows = Node.objects.filter(pk__in=chunk).order_by("id")
        for node_id, pool_id, state in rows.values_list("id", "pool_id", "state"):
            items[pool_id].append(Item(("node", node_id), "nodes", None, encode([node_id, state])))
    return items


def pool_nodes(pool_id: int) -> list[Item]:
    """All nodes of the pool as they are now."""
    return nodes_by_id(list(Node.objects.filter(pool_id=pool_id).values_list("id", flat=True))).get(pool_id, [])


def device_ids_of(pool_id: int) -> list[int]:
    return list(Device.objects.filter(node__pool_id=pool_id).order_by("id").values_list("id", flat=True))


def pool_items(pool_ids: Collection[int], pools: dict[int, str], now: datetime) -> dict[int, Item]:
    """By pool: its totals now. Sums over everybody: they tell of no one."""
    given = Case(
        When(health=Device.Health.OK, node__state=Node.State.READY, then=Value(FULL_MILLI)),
        default=F("compute_allocated_milli"),
    )
    rows = Device.objects.filter(node__pool_id__in=pool_ids).order_by().values_list("node__pool_id")
    use = fresh_device_use(now)
    found = {}
    # A pool of CPUs has no devices to sum over; what it counts are its nodes' cores, in the same thousandths.
    cores = Node.objects.filter(pool_id__in=pool_ids, pool__unit=Pool.Unit.CPU).order_by().values_list("pool_id")
    for pool_id, allocated, capacity in cores.annotate(held=Sum("cpu_allocated_milli"), all=Sum("cpu_milli")):
        body = {"capacity_milli": capacity, "allocated_milli": allocated, "used_milli": None, "devices": 0, "failed": 0}
        found[pool_id] = Item(("pool", pool_id), "pools", None, f"{encode(pools[pool_id])}:{encode(body)}")
    for pool_id, devices, failed, allocated, capacity in rows.annotate(
        devices=Count("id"),
        failed=Count("id", filter=Q(health=Device.Health.FAILED)),
        allocated=Sum("compute_allocated_milli"),
        capacity=Sum(given),
    ):
        body = {
            "capacity_milli": capacity,
            "allocated_milli": allocated,
            "used_milli": total_known(use.get(pool_id, ())),
            "devices": devices,
            "failed": failed,
        }
        if pool_id not in found:
            found[pool_id] = Item(("pool", pool_id), "pools", None, f"{encode(pools[pool_id])}:{encode(body)}")
    return found


# -- readings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobReading:
    """What a job holds and uses now; ``used_milli`` and ``memory_mib`` sum what is known, None where nothing is."""

    job_id: int
    team_id: int
    allocated_milli: int
    used_milli: int | None
    memory_mib: int | None

    def item(self, cost: str | None) -> Item:
        body = [self.job_id, self.allocated_milli, self.used_milli, self.memory_mib, cost]
        return Item(("reading", self.job_id), "readings", self.team_id, encode(body))


def job_readings(about: Q, now: datetime) -> list[JobReading]:
    """Of every job that holds something, where ``about`` holds of its allocations."""
    live = Allocation.objects.filter(about, released_at__isnull=True)
    held: dict[int, tuple[int, list[int], int]] = {}
    for allocation_id, job_id, team_id, milli in live.order_by("job_id", "id").values_list(
        "id", "job_id", "team_id", "milli"
    ):
        _, ids, total = held.get(job_id, (team_id, [], 0))
        held[job_id] = (team_id, [*ids, allocation_id], total + milli)
    told: dict[int, tuple[int | None, int | None]] = {}
    for chunk in _chunks(key for _, ids, _ in held.values() for key in ids):
        rows = TaskReading.objects.filter(allocation_id__in=chunk, at__gte=now - STALE_AFTER)
        told.update(
            {key: (compute, memory) for key, compute, memory in rows.values_list("pk", "compute_milli", "memory_mib")}
        )
    return [
        JobReading(
            job_id,
            team_id,
            total,
            total_known(told[key][0] for key in ids if key in told),
            total_known(told[key][1] for key in ids if key in told),
        )
        for job_id, (team_id, ids, total) in held.items()
    ]


def costs_of(job_ids: Collection[int], now: datetime) -> dict[int, str]:
    """By job: its cost so far as text, to the sixth decimal."""
    return {job_id: f"{cost.amount:.6f}" for job_id, cost in ports.meter.job_costs(job_ids, now).items()}
