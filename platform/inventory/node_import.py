"""What a file of nodes would change, worked out beside what is there; the writing is for ``services.import_nodes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from events.errors import Fault, Invalid
from inventory.models import AcceleratorModel, Device, Node, Pool
from inventory.node_csv import NodeRow


@dataclass(frozen=True, slots=True)
class Imported:
    """Names of nodes, as ``pool/node``, by what became of them."""

    created: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]


class NodeImport:
    """Rows beside what is there: which nodes are new, which differ, which devices are to be added."""

    def __init__(self, rows: Sequence[NodeRow]):
        self.rows = rows
        named = Pool.objects.select_for_update(no_key=True).filter(name__in={row.pool for row in rows}).order_by("pk")
        self.pools = {pool.name: pool for pool in named}
        self.models = {model.name: model for model in AcceleratorModel.objects.order_by("name")}
        self.faults: list[Fault] = []
        self.fresh: list[NodeRow] = []
        self.changed: list[Node] = []
        self.devices: list[Device] = []
        self.same: list[NodeRow] = []
        self.altered: dict[str, Node] = {}
        self._check_names()
        if not self.faults:
            self._compare()
        if self.faults:
            raise Invalid(self.faults[:100])

    def _check_names(self) -> None:
        seen: set[tuple[str, str]] = set()
        for row in self.rows:
            if row.pool not in self.pools:
                allowed = list(Pool.objects.order_by("name").values_list("name", flat=True)[:50])
                self.faults.append(row.fault("pool", "there is no such pool", row.pool, allowed))
            if row.model and row.model not in self.models:
                self.faults.append(row.fault("model", "there is no such model", row.model, list(self.models)[:50]))
            if (row.pool, row.name) in seen:
                self.faults.append(row.fault("name", "is there twice in this file", row.name))
            seen.add((row.pool, row.name))
            if len(row.name) > 120:
                self.faults.append(row.fault("name", "must have 1 to 120 characters", row.name))

    def _compare(self) -> None:
        there: dict[tuple[int, str], Node] = {}
        pools = list(self.pools.values())
        for node in Node.objects.select_for_update(no_key=True).filter(pool__in=pools).order_by("pk"):
            there[(node.pool_id, node.name)] = node
        devices: dict[int, list[Device]] = {}
        for device in Device.objects.filter(node__pool__in=pools).select_related("model").order_by("node_id", "index"):
            devices.setdefault(device.node_id, []).append(device)
        for row in self.rows:
            node = there.get((self.pools[row.pool].pk, row.name))
            if node is None:
                self.fresh.append(row)
            else:
                self._bring_up(node, devices.get(node.pk, []), row)

    def _bring_up(self, node: Node, own: Sequence[Device], row: NodeRow) -> None:
        wanted = (row.cpu_milli, row.host_memory_mib, row.labels, node.taints if row.taints is None else row.taints)
        memory = self._memory(row)
        if len(own) > row.accelerators or any(
            each.model.name != row.model or each.memory_mib != memory for each in own
        ):
            told = (
                f"the node has {len(own)} devices, other than this row says; devices can be added, not taken or changed"
            )
            self.faults.append(row.fault("accelerators", told, row.accelerators))
            return
        added = [
            Device(node=node, index=index, model=self.models[row.model], memory_mib=memory)
            for index in range(len(own), row.accelerators)
        ]
        self.devices += added
        differs = (node.cpu_milli, node.host_memory_mib, node.labels, node.taints) != wanted
        if differs:
            node.cpu_milli, node.host_memory_mib, node.labels, node.taints = wanted
            self.changed.append(node)
        if differs or added:
            self.altered[f"{row.pool}/{row.name}"] = node
        else:
            self.same.append(row)

    def _memory(self, row: NodeRow) -> int:
        return row.memory_mib or (self.models[row.model].memory_mib if row.model else 0)

    def new(self) -> dict[Pool, list[NodeRow]]:
        """The rows of nodes that are not there, by pool, in the order of the file."""
        by_pool: dict[Pool, list[NodeRow]] = {}
        for row in self.fresh:
            by_pool.setdefault(self.pools[row.pool], []).append(row)
        return by_pool

    def devices_of(self, row: NodeRow) -> tuple[tuple[AcceleratorModel, int, str], ...]:
        return tuple((self.models[row.model], self._memory(row), "") for _ in range(row.accelerators))

    def names_changed(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for node in self.altered.values():
            found.setdefault(node.pool_id, []).append(node.name)
        return found

    def outcome(self) -> Imported:
        return Imported(
            created=tuple(f"{row.pool}/{row.name}" for row in self.fresh),
            changed=tuple(self.altered),
            unchanged=tuple(f"{row.pool}/{row.name}" for row in self.same),
        )
