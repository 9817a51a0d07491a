"""Every file of this folder is a test: what it says must be seen, in the test database."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.books import LedgerBooks
from billing.services import set_rate
from scheduling.simulation.scenario import run_scenario

FILES = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.mark.django_db
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    outcome = run_scenario(path, set_rate, books=LedgerBooks())
    assert outcome.checks, "a scenario that expects nothing proves nothing"
    assert outcome.passed, "\n".join(f"{path.name}:{failure}" for failure in outcome.failures)
