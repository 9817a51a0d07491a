"""Quotas through REST: in GPUs, exact, by those who may, and in sums that hold."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from events.models import Event
from quotas.models import Quota
from tenants.services import set_membership


@pytest.fixture
def manager(api, world):
    """alice manages the department too."""
    set_membership(world.users["alice"], world.teams["research"], "manager", timezone.now())
    return api["alice"]


def test_a_quota_is_set_read_changed_and_removed(api, manager):
    made = manager.put("/quotas/train/nlp", {"guaranteed": 2.5, "limit": 6, "weight": 3})
    assert (made["guaranteed"], made["limit"], made["weight"], made["reserved"]) == (2.5, 6, 3, 0)
    assert Quota.objects.get().guaranteed == 2500
    assert api["bob"].get("/quotas/train/nlp")["limit"] == 6
    assert manager.patch("/quotas/train/nlp", {"limit": None})["guaranteed"] == 2.5
    assert manager.put("/quotas/train/nlp", {"limit": 0})["guaranteed"] is None
    assert api["bob"].get("/quotas?team=nlp&pool=train")["results"][0]["limit"] == 0
    manager.delete("/quotas/train/nlp")
    manager.delete("/quotas/train/nlp", 404)
    api["bob"].get("/quotas/train/nlp", 404)
    actors = set(Event.objects.filter(kind__startswith="quota.").values_list("actor_id", flat=True))
    assert len(actors) == 1


def test_a_temporary_quota_stands_beside(manager):
    until = (timezone.now() + timedelta(days=1)).isoformat()
    manager.put("/quotas/train/nlp", {"limit": 2})
    made = manager.put("/quotas/train/nlp", {"limit": 6, "valid_until": until})
    assert made["valid_until"].endswith("Z")
    share = manager.get("/teams/nlp")["pools"][0]
    assert share["limit"] == 6
    assert manager.get("/quotas/train/nlp")["limit"] == 2


def test_nobody_sets_its_own_team_s_quota(api, world):
    for name, status in (("alice", 403), ("bob", 403), ("mallory", 404)):
        api[name].put("/quotas/train/nlp", {"limit": 8}, status)
        api[name].patch("/quotas/train/nlp", {"limit": 8}, status)
        api[name].delete("/quotas/train/nlp", status)
    assert not Quota.objects.exists()
    assert api["root"].put("/quotas/train/nlp", {"limit": 8})["limit"] == 8


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"guaranteed": -1}, "guaranteed"),
        ({"guaranteed": "4"}, "guaranteed"),
        ({"guaranteed": True}, "guaranteed"),
        ({"guaranteed": 0.0005}, "guaranteed"),
        ({"guaranteed": 10**12}, "guaranteed"),
        ({"guaranteed": 10**30}, "guaranteed"),
        ({"guaranteed": 5, "limit": 4}, "guaranteed"),
        ({"guaranteed": 9}, "guaranteed"),
        ({"reserved": 1}, "reserved"),
        ({"weight": 1.5}, "weight"),
        ({"weight": None}, "weight"),
        ({"weight": -1}, "weight"),
        ({"limits": 4}, "limits"),
        ({"limit": 4, "valid_until": "2020-01-01T00:00:00Z"}, "valid_until"),
        ({"limit": 4, "valid_until": "tomorrow"}, "valid_until"),
        ([], "body"),
    ],
)
def test_wrong_quotas_name_their_field_and_change_nothing(manager, body, field):
    manager.put("/quotas/train/nlp", {"limit": 7})
    before = Event.objects.count()
    assert manager.put("/quotas/train/nlp", body, 400)["field"] == field
    assert Quota.objects.get().limit == 7000
    assert Event.objects.count() == before


def test_more_than_the_pool_has_is_the_operator_s_to_override(api, manager, world):
    api["root"].put("/quotas/train/ads", {"guaranteed": 6})
    problem = manager.put("/quotas/train/nlp", {"guaranteed": 4}, 400)
    assert "10" in problem["detail"]
    assert "ads" not in str(problem), "what strangers are guaranteed is not told"
    assert "ads 6" in api["root"].put("/quotas/train/nlp", {"guaranteed": 4}, 400)["detail"]
    manager.put("/quotas/train/nlp", {"guaranteed": 4, "override_capacity": True}, 403)
    assert api["root"].put("/quotas/train/nlp", {"guaranteed": 4, "override_capacity": True})["guaranteed"] == 4


def test_a_limit_above_the_parent_s_is_kept_with_a_warning(api, manager):
    api["root"].put("/quotas/train/research", {"limit": 4})
    made = manager.put("/quotas/train/nlp", {"limit": 6})
    assert "the lower one binds" in made["warnings"][0]
    assert manager.get("/teams/nlp")["pools"][0]["headroom"] == 4
