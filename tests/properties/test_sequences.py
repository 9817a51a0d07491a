"""Random lives of an installation, through services, engine and scheduler; after every step all that always holds."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from django.db import transaction
from django.db.models import Max
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st

from scheduling.models import Allocation, Decision
from tests.properties import always
from tests.properties.sequences import Life, Maker

pytestmark = pytest.mark.django_db


class Undone(Exception):
    """Ends an example: nothing of it stays in the database."""


# How many lives are lived: here every day, in CI, and at night.
LIVES = {"everyday": 40, "ci": 200, "nightly": 2000}
RUN = os.environ.get("ALLOTMENT_LIVES") or ("ci" if os.environ.get("CI") else "everyday")
PARTS = 4


# A seed does not shrink into a shorter life: the failing one is told as it is.
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
@settings(
    max_examples=LIVES[RUN] // PARTS,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_the_books_are_right(world, part, seed):
    actions = Maker(seed * PARTS + part).sequence()
    note("\n".join(f"    {action!r}," for action in actions))
    with suppress(Undone), transaction.atomic():
        live_through(world, actions)
        raise Undone


def live_through(world, actions):
    life = Life(world.pool, world.clockwork.reconcilers[0].connection, world.users["root"])
    for action in actions:
        before = always.held_by_team(world.pool)
        decisions = Decision.objects.aggregate(last=Max("pk"))["last"] or 0
        allocations = Allocation.objects.aggregate(last=Max("pk"))["last"] or 0
        life.act(action)
        check(life, before, decisions, allocations)
    event(f"{len(life.jobs())} jobs")
    evicted = Decision.objects.filter(kind=Decision.Kind.EVICT).count()
    event(f"{min(evicted, 5)} evictions")


def check(life, before, decisions, allocations):
    always.no_device_and_no_node_holds_more_than_it_has()
    always.an_allocation_counts_what_its_slices_are()
    always.no_team_rises_above_its_limit(life.pool, life.now, before)
    always.gangs_are_whole()
    always.tasks_and_allocations_agree()
    always.every_second_is_on_record_once()
    always.who_waits_knows_why()
    always.what_people_see_is_what_is_held(life.pool, life.now)
    always.nobody_gave_way_for_nothing(decisions)
    always.the_picture_is_the_databases(life.scheduler, life.now)
