"""The cast and their little world, the same in all tests: alice manages nlp, bob is a member, mallory is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
MIB = 81920


# Random worlds by the hundred, and benchmarks that are run for what they find: not with every change, but in CI.
SLOW_FOLDERS = ("properties", "benchmarks")
SLOW_ENDINGS = ("_properties.py", "test_helps.py", "against_fractions.py", "against_slow_fleet.py", "test_codec.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or item.path.name.endswith(SLOW_ENDINGS):
            item.add_marker(pytest.mark.slow)


@dataclass
class World:
    """A pool ``train`` of two nodes with four A100 each on a simulated engine, teams nlp and ads, the cast."""

    users: dict[str, Any]
    teams: dict[str, Any]
    pool: Any
    engine: Any
    clockwork: Any

    def submit(self, user: str = "bob", **payload: Any) -> Any:
        from scheduling.services.submit import submit_payload

        jobs, _ = submit_payload(self.users[user], {"team": "nlp", "pool": "train", **payload}, self.now)
        return jobs[0]

    @property
    def now(self) -> datetime:
        return self.clockwork.now

    @now.setter
    def now(self, moment: datetime) -> None:
        self.clockwork.now = moment

    def settle(self) -> None:
        """Everything that is due at the present moment has happened."""
        self.clockwork.settle()

    def pass_time(self, **delta: float) -> None:
        """Time goes on by ``delta`` and everything that is due meanwhile happens."""
        self.clockwork.run_until(self.now + timedelta(**delta))
        self.clockwork.settle()


@pytest.fixture
def world(db: None) -> World:
    from billing.services import set_rate
    from inventory.services import NodeEntry, add_nodes, create_engine, create_pool, set_accelerator_model
    from scheduling.engines.simulated import SimulatedEngine
    from scheduling.services.cycle import Scheduler
    from scheduling.services.reconcile import Reconciler
    from scheduling.services.submit import ensure_priority_classes
    from scheduling.simulation.clockwork import Clockwork
    from tenants.services import create_team, create_user, set_membership

    ensure_priority_classes()
    users = {
        name: create_user(name, NOW, password="correct horse battery", is_operator=name == "root")
        for name in ("root", "alice", "bob", "mallory")
    }
    research = create_team("Research", NOW)
    teams = {
        "research": research,
        "nlp": create_team("NLP", NOW, parent=research),
        "vision": create_team("Vision", NOW, parent=research),
        "ads": create_team("Ads", NOW),
    }
    set_membership(users["alice"], teams["nlp"], "manager", NOW)
    set_membership(users["bob"], teams["nlp"], "member", NOW)
    set_membership(users["mallory"], teams["ads"], "member", NOW)
    model = set_accelerator_model("A100-80G", "nvidia", MIB)
    connection = create_engine("simulation", "simulated")
    pool = create_pool("train", connection, NOW, grace_s=0)
    add_nodes(
        pool,
        [NodeEntry(f"n-{i}", 64_000, 524_288, tuple((model, MIB, f"u{i}{d}") for d in range(4))) for i in range(2)],
        NOW,
    )
    set_rate(Decimal("2.40"), NOW, model=model)
    engine = SimulatedEngine()
    scheduler = Scheduler("test")
    assert scheduler.lead(NOW)
    clockwork = Clockwork(NOW, scheduler, [Reconciler(connection, engine)])
    return World(users, teams, pool, engine, clockwork)
