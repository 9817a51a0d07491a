"""The one door for writes to the fleet. What is bound on it is written by the scheduler's services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError
from django.db.models import Max

from events.errors import Conflict, Fault, Invalid
from events.services import require_aware, unit_of_work
from inventory.models import SLUG, AcceleratorModel, Device, EngineConnection, Node, Pool
from inventory.node_csv import read_nodes
from inventory.node_import import Imported, NodeImport
from inventory.slicing import checked_templates


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node to be entered. ``devices``: (model, MiB, uuid) of each, by index."""

    name: str
    cpu_milli: int
    host_memory_mib: int
    devices: tuple[tuple[AcceleratorModel, int, str], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)


def _checked_slug(name: object, field_name: str = "name") -> str:
    if not isinstance(name, str) or not re.match(SLUG.regex, name):
        raise Invalid.at(field_name, f"{SLUG.message} 1 to 63 characters.", value=name)
    return name


def _checked_choice(value: str, choices: Sequence[str], field_name: str) -> str:
    if value not in choices:
        raise Invalid.at(field_name, "is not one of the allowed values", value=value, allowed=list(choices))
    return value


def set_accelerator_model(
    name: str,
    vendor: str,
    memory_mib: int,
    *,
    family: str = "",
    resource_name: str = "",
    slicing: str = AcceleratorModel.Slicing.ANY,
    slice_templates: Sequence[Mapping[str, Any]] = (),
    now: datetime | None = None,
    actor_id: int | None = None,
) -> AcceleratorModel:
    """The model with this name exists and is so. Devices keep the memory that they were entered with.

    Slices that live stay as they were cut, what starts from now on is cut by the new rule: schedulers hear of it by an
    event. ``now`` may only be left out for a model that is not there yet, or is so already; else ValueError.
    """
    _checked_slug(name)
    _checked_choice(vendor, AcceleratorModel.Vendor.values, "vendor")
    _checked_choice(slicing, AcceleratorModel.Slicing.values, "slicing")
    if not 0 < memory_mib < 2**31:
        raise Invalid.at("memory_mib", "must be 1 or more", value=memory_mib)
    values = {
        "vendor": vendor,
        "memory_mib": memory_mib,
        "family": family,
        "resource_name": resource_name,
        "slicing": slicing,
        "slice_templates": checked_templates(slice_templates, slicing, memory_mib),
    }
    with unit_of_work() as journal:
        before = AcceleratorModel.objects.filter(name=name).first()
        changed = {key: [getattr(before, key), value] for key, value in values.items() if before is not None}
        changed = {key: pair for key, pair in changed.items() if pair[0] != pair[1]}
        if before is not None and not changed:
            return before
        model, _ = AcceleratorModel.objects.update_or_create(name=name, defaults=values)
        if before is not None:
            if now is None:
                raise ValueError(f"the model {name} is there and is to be changed: say when")
            journal.record("model.changed", now, actor_id=actor_id, name=name, changed=changed)
        elif now is not None:
            journal.record("model.created", now, actor_id=actor_id, name=name)
    return model


def create_engine(name: str, kind: str, *, settings: Mapping[str, Any] | None = None) -> EngineConnection:
    """A connection of this kind. Conflict if the name is taken."""
    _checked_slug(name)
    _checked_choice(kind, EngineConnection.Kind.values, "kind")
    if EngineConnection.objects.filter(name=name).exists():
        raise Conflict(f"There is already an engine '{name}'.", code="name_taken")
    return EngineConnection.objects.create(name=name, kind=kind, settings=dict(settings or {}))


def set_engine_state(engine: EngineConnection, state: str, now: datetime, message: str = "") -> None:
    """What is known of the engine; an event only where it changed."""
    with unit_of_work() as journal:
        EngineConnection.objects.filter(pk=engine.pk).update(
            state=state, state_message=message[:500], last_seen_at=now if state == "ok" else engine.last_seen_at
        )
        if engine.state != state:
            journal.record("engine.state", now, engine=engine.name, before=engine.state, after=state, message=message)
    engine.state = state


LONGEST_HALF_LIFE_S = 10 * 365 * 24 * 3600
POOL_OPTIONS = (
    "sharing",
    "share_across_teams",
    "placement",
    "step_milli",
    "half_life_s",
    "grace_s",
    "min_runtime_s",
    "max_evictions",
    "idle_limit_s",
)
# What may be None, which is off, and from what to what it may be else.
BOUNDS = {
    "half_life_s": (1, LONGEST_HALF_LIFE_S),
    "max_evictions": (0, 32_767),
    "idle_limit_s": (60, 10 * 366 * 86_400),
}


def create_pool(
    name: str,
    engine: EngineConnection,
    now: datetime,
    *,
    unit: str = "gpu",
    actor_id: int | None = None,
    **options: Any,
) -> Pool:
    """An empty pool. Invalid for an unknown option or value, and for a machine that is in a pool already; Conflict if
    the name is taken."""
    _checked_slug(name)
    _checked_choice(unit, Pool.Unit.values, "unit")
    _check_options(options)
    pool = Pool(name=name, engine=engine, unit=unit, created_at=require_aware(now), **options)
    try:
        with unit_of_work() as journal:
            EngineConnection.objects.select_for_update(no_key=True).get(pk=engine.pk)
            _check_engine_is_free(engine)
            pool.save()
            journal.record("pool.created", now, pool_id=pool.pk, actor_id=actor_id, name=name)
    except IntegrityError:
        raise Conflict(f"There is already a pool '{name}'.", code="name_taken") from None
    return pool


def _check_engine_is_free(engine: EngineConnection) -> None:
    """All of this machine comes into the pool of its engine: in two pools each device would be given away twice."""
    if engine.kind == EngineConnection.Kind.LOCAL:
        taken = Pool.objects.filter(engine=engine).order_by("id").first()
        if taken is not None:
            raise Invalid.at("engine", f"its machine is in the pool '{taken.name}' already", value=engine.name)


def _check_options(options: Mapping[str, Any]) -> None:
    allowed = (*POOL_OPTIONS, "state", "description", "billing_start")
    faults = [Fault(key, "is not an option of a pool", allowed=allowed) for key in options if key not in allowed]
    choices = {
        "sharing": Pool.Sharing.values,
        "placement": Pool.Placement.values,
        "state": Pool.State.values,
        "billing_start": Pool.BillingStart.values,
    }
    for key, values in choices.items():
        if key in options and options[key] not in values:
            faults.append(Fault(key, "is not one of the allowed values", value=options[key], allowed=values))
    if "step_milli" in options and not 1 <= options["step_milli"] <= 1000:
        faults.append(Fault("step_milli", "must be 1 to 1000 milli", value=options["step_milli"]))
    for key, (low, high) in BOUNDS.items():
        value = options.get(key)
        if value is not None and not (type(value) is int and low <= value <= high):
            faults.append(Fault(key, f"must be a whole number from {low} to {high}, or not set", value=value))
    if faults:
        raise Invalid(faults)


def change_pool(pool: Pool, now: datetime, *, actor_id: int | None = None, **options: Any) -> Pool:
    """The pool has these options (``name`` too: everything refers to it by id, so a rename breaks nothing)."""
    if "name" in options:
        _checked_slug(options["name"])
    _check_options({key: value for key, value in options.items() if key != "name"})
    try:
        with unit_of_work() as journal:
            # What it was is asked of the row: the caller's copy may be older than another's change.
            row = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
            changed = {k: [getattr(row, k), value] for k, value in options.items() if getattr(row, k) != value}
            Pool.objects.filter(pk=pool.pk).update(**options)
            if changed:
                journal.record("pool.changed", now, pool_id=pool.pk, actor_id=actor_id, changed=changed)
    except IntegrityError:
        raise Conflict(f"There is already a pool '{options.get('name')}'.", code="name_taken") from None
    pool.refresh_from_db()
    return pool


def add_nodes(pool: Pool, entries: Sequence[NodeEntry], now: datetime, *, actor_id: int | None = None) -> list[Node]:
    """All entries are nodes of the pool, after those that it has, with their devices; or none is and an error tells."""
    with unit_of_work() as journal:
        # Ranks and names are unique in a pool: who adds at the same moment waits here.
        Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
        _check_entries(pool, entries)
        nodes = _enter(pool, entries, now)
        journal.record(
            "nodes.added",
            now,
            pool_id=pool.pk,
            actor_id=actor_id,
            names=[n.name for n in nodes[:100]],
            count=len(nodes),
        )
    return nodes


def _check_entries(pool: Pool, entries: Sequence[NodeEntry]) -> None:
    faults = []
    names = [entry.name for entry in entries]
    taken = set(Node.objects.filter(pool=pool, name__in=names).values_list("name", flat=True))
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        where = f"nodes[{position}]"
        if not entry.name or len(entry.name) > 120:
            faults.append(Fault(f"{where}.name", "must have 1 to 120 characters", value=entry.name))
        if entry.name in taken or entry.name in seen:
            faults.append(Fault(f"{where}.name", "there is already a node of this name in the pool", value=entry.name))
        seen.add(entry.name)
        if entry.cpu_milli < 0 or entry.host_memory_mib < 0:
            faults.append(Fault(where, "CPU and memory are 0 or more"))
        if any(memory <= 0 for _, memory, _ in entry.devices):
            faults.append(Fault(f"{where}.devices", "a device has at least 1 MiB"))
    if faults:
        raise Invalid(faults)


def _enter(pool: Pool, entries: Sequence[NodeEntry], now: datetime) -> list[Node]:
    first = (Node.objects.filter(pool=pool).aggregate(last=Max("rank"))["last"] or 0) + 1
    nodes = Node.objects.bulk_create(
        Node(
            pool=pool,
            name=entry.name,
            rank=first + position,
            cpu_milli=entry.cpu_milli,
            host_memory_mib=entry.host_memory_mib,
            labels=dict(entry.labels),
            taints=dict(entry.taints),
            created_at=require_aware(now),
        )
        for position, entry in enumerate(entries)
    )
    Device.objects.bulk_create(
        Device(node=node, index=index, model=model, memory_mib=memory, uuid=uuid)
        for node, entry in zip(nodes, entries, strict=True)
        for index, (model, memory, uuid) in enumerate(entry.devices)
    )
    return nodes


def import_nodes(text: str, now: datetime, *, actor_id: int | None = None) -> Imported:
    """The nodes of a CSV file (see ``inventory.node_csv``) are in their pools and as it says: all of them, or none.

    A node that is there already is brought up to its row; the same file again changes nothing. Invalid, with rows and
    columns, for what cannot be meant, for unknown pools and models, and where devices that are there would have to go.
    """
    rows = read_nodes(text)
    with unit_of_work() as journal:
        found = NodeImport(rows)
        for pool, fresh in found.new().items():
            entries = [
                NodeEntry(
                    row.name, row.cpu_milli, row.host_memory_mib, found.devices_of(row), row.labels, row.taints or {}
                )
                for row in fresh
            ]
            add_nodes(pool, entries, now, actor_id=actor_id)
        try:
            for node in found.changed:
                Node.objects.filter(pk=node.pk).update(
                    cpu_milli=node.cpu_milli,
                    host_memory_mib=node.host_memory_mib,
                    labels=node.labels,
                    taints=node.taints,
                )
        except IntegrityError:
            raise Conflict("A node holds more CPU or memory than its row would leave it.", code="node_in_use") from None
        Device.objects.bulk_create(found.devices)
        for pool_id, names in found.names_changed().items():
            journal.record(
                "nodes.changed", now, pool_id=pool_id, actor_id=actor_id, names=names[:100], count=len(names)
            )
    return found.outcome()


def change_node(
    node: Node,
    now: datetime,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Mapping[str, str] | None = None,
    actor_id: int | None = None,
) -> Node:
    """The node carries these labels and taints; None leaves them as they are. What runs there runs on. Invalid, with
    nothing changed, where they are not texts by name."""
    given = {"labels": labels, "taints": taints}
    wanted = {key: _checked_texts(value, key) for key, value in given.items() if value is not None}
    with unit_of_work() as journal:
        before = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        changed = {key: [getattr(before, key), value] for key, value in wanted.items() if getattr(before, key) != value}
        if changed:
            Node.objects.filter(pk=node.pk).update(**{key: after for key, (_, after) in changed.items()})
            journal.record(
                "nodes.changed",
                now,
                pool_id=node.pool_id,
                node_id=node.pk,
                actor_id=actor_id,
                names=[node.name],
                count=1,
                changed=changed,
            )
    node.refresh_from_db()
    return node


def _checked_texts(value: object, field_name: str) -> dict[str, str]:
    good = isinstance(value, Mapping) and all(
        isinstance(key, str) and 0 < len(key) <= 120 and isinstance(item, str) and len(item) <= 120
        for key, item in value.items()
    )
    if not good:
        raise Invalid.at(field_name, "must map texts to texts of at most 120 characters", value=value)
    return dict(value)  # type: ignore[call-overload]


def set_node_state(node: Node, state: str, now: datetime, *, reason: str = "", actor_id: int | None = None) -> None:
    """The node is in this state; what runs on a cordoned one goes on. Setting it again changes nothing."""
    _checked_choice(state, Node.State.values, "state")
    with unit_of_work() as journal:
        before = Node.objects.values_list("state", flat=True).get(pk=node.pk)
        if before != state:
            Node.objects.filter(pk=node.pk).update(state=state, state_reason=reason[:200])
            journal.record(
                "node.state",
                now,
                pool_id=node.pool_id,
                node_id=node.pk,
                actor_id=actor_id,
                node=node.name,
                before=before,
                after=state,
                reason=reason,
            )
    node.state = state


def cordon(node: Node, now: datetime, *, reason: str = "", actor_id: int | None = None) -> None:
    """Nothing new starts on the node; what runs there runs on."""
    set_node_state(node, Node.State.CORDONED, now, reason=reason, actor_id=actor_id)


def uncordon(node: Node, now: datetime, *, actor_id: int | None = None) -> None:
    """The node takes work again."""
    set_node_state(node, Node.State.READY, now, actor_id=actor_id)


def set_device_health(
    device: Device, health: str, now: datetime, *, reason: str = "", actor_id: int | None = None
) -> None:
    """The device is healthy or failed; a failed one gets no new work, what runs on it is left alone."""
    _checked_choice(health, Device.Health.values, "health")
    with unit_of_work() as journal:
        before = Device.objects.values_list("health", flat=True).get(pk=device.pk)
        if before != health:
            Device.objects.filter(pk=device.pk).update(health=health, health_reason=reason[:200])
            journal.record(
                "device.health",
                now,
                pool_id=device.node.pool_id,
                node_id=device.node_id,
                actor_id=actor_id,
                device_id=device.pk,
                before=before,
                after=health,
                reason=reason,
            )
    device.health = health


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device that an engine sees. Field meanings as in ``Device``."""

    index: int
    uuid: str
    model: str
    vendor: str
    memory_mib: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node that an engine sees. Field meanings as in ``Node``."""

    name: str
    cpu_milli: int
    host_memory_mib: int
    devices: tuple[FoundDevice, ...]
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] | None = None  # None: the engine knows of none, and those an operator set stay


def sync_nodes(pool: Pool, found: Sequence[FoundNode], now: datetime) -> None:
    """The pool's nodes are those that its engine sees, with their devices: new ones are added, changed ones follow,
    missing nodes are down and missing devices failed, until they are seen again.

    What an operator cordoned (unless it goes down meanwhile), took down or marked failed stays so. A node never
    shrinks below what is bound on it: it follows once that ended.
    """
    known = {node.name: node for node in Node.objects.filter(pool=pool)}
    new = [node for node in found if node.name not in known]
    with unit_of_work() as journal:
        if new:
            add_nodes(pool, [_entry(node) for node in new], now)
        # In order of id, like whoever binds and frees on them.
        seen = {known[node.name].pk: node for node in found if node.name in known}
        here = {node.pk: node for node in Node.objects.select_for_update(no_key=True).filter(pool=pool).order_by("pk")}
        changed = [here[pk].name for pk in sorted(seen) if _follow(here[pk], seen[pk], now)]
        for pk, node in here.items():
            if pk not in seen and node.name in known:
                set_node_state(node, Node.State.DOWN, now, reason=UNSEEN)
        if changed:
            journal.record("nodes.changed", now, pool_id=pool.pk, names=changed[:100], count=len(changed))


UNSEEN = "its engine does not see it"
NOT_READY = "its engine says that it is not ready"
NOT_HEALTHY = "reported by its engine"


def _model_of(device: FoundDevice) -> AcceleratorModel:
    model = AcceleratorModel.objects.filter(name=device.model).first()
    return model or set_accelerator_model(device.model, device.vendor, device.memory_mib)


def _entry(node: FoundNode) -> NodeEntry:
    devices = tuple((_model_of(device), device.memory_mib, device.uuid) for device in node.devices)
    return NodeEntry(node.name, node.cpu_milli, node.host_memory_mib, devices, node.labels, node.taints or {})


def _follow(node: Node, seen: FoundNode, now: datetime) -> bool:
    """The node, whose row is locked, is as it is seen; returns whether what it offers differs from before."""
    offered = {
        "cpu_milli": max(seen.cpu_milli, node.cpu_allocated_milli),
        "host_memory_mib": max(seen.host_memory_mib, node.host_memory_allocated_mib),
        "labels": dict(seen.labels),
        "taints": node.taints if seen.taints is None else dict(seen.taints),
    }
    Node.objects.filter(pk=node.pk).update(**offered, last_seen_at=now)
    if not seen.ready:
        set_node_state(node, Node.State.DOWN, now, reason=NOT_READY)
    elif node.state == Node.State.DOWN and node.state_reason in (UNSEEN, NOT_READY):
        set_node_state(node, Node.State.READY, now)
    return any(getattr(node, name) != value for name, value in offered.items()) | _follow_devices(node, seen, now)


def _follow_devices(node: Node, seen: FoundNode, now: datetime) -> bool:
    own = {device.index: device for device in Device.objects.filter(node=node).select_related("node").order_by("pk")}
    healthy = {device.index: device.healthy for device in seen.devices}
    for index, device in own.items():
        reason = UNSEEN if index not in healthy else "" if healthy[index] else NOT_HEALTHY
        if reason:
            if device.health != Device.Health.FAILED:
                set_device_health(device, Device.Health.FAILED, now, reason=reason)
        elif device.health == Device.Health.FAILED and device.health_reason in (UNSEEN, NOT_HEALTHY):
            set_device_health(device, Device.Health.OK, now)
    new = [
        Device(node=node, index=device.index, model=_model_of(device), memory_mib=device.memory_mib, uuid=device.uuid)
        for device in seen.devices
        if device.index not in own
    ]
    Device.objects.bulk_create(new)
    return bool(new)
