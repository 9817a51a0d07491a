"""What a subscription is about, whether it may be heard, and what was missed of it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from django.db.models import Q

from inventory.models import Pool
from live import selectors
from live.access import Access
from live.protocol import Misunderstood, Subscription
from scheduling.models import Job
from tenants.models import Team
from tenants.policy import Tree

# ("team", id), ("pool", id) or ("job", id)
Topic = tuple[str, int]

# More than this is not told step by step; the reader reads the page anew.
MOST_SPAN = 50_000
MOST_MISSED = 5_000


@dataclass(frozen=True, slots=True)
class Place:
    """A subscription's topic, and the team that one must see to hear it (None: the fleet's, for everyone)."""

    topic: Topic
    team_id: int | None


def place_of(subscription: Subscription, access: Access) -> Place:
    """Where the subscription belongs. Raises Misunderstood where there is no such thing or it may not be seen: the
    two look the same."""
    nothing = Misunderstood("not_found", f"There is no such {subscription.subject}, or you may not see it.")
    if subscription.subject == "pool":
        pool_id = Pool.objects.filter(name=subscription.name).values_list("id", flat=True).first()
        if pool_id is None:
            raise nothing
        return Place(("pool", pool_id), None)
    if subscription.subject == "team":
        living = Team.objects.exclude(state=Team.State.DELETED)
        team_id = living.filter(slug=subscription.name).values_list("id", flat=True).first()
        place = None if team_id is None else Place(("team", team_id), team_id)
    else:
        job_id = int(subscription.name)
        team_id = Job.objects.filter(pk=job_id).values_list("team_id", flat=True).first()
        place = None if team_id is None else Place(("job", job_id), team_id)
    if place is None or not access.sees(place.team_id):
        raise nothing
    return place


def topics_of(team_id: int | None, job_id: int | None, topics: Container[Topic], tree: Tree) -> Iterator[Topic]:
    """Those of ``topics`` that a thing of this team (and job) belongs to: its own and those of the teams above."""
    if job_id is not None and ("job", job_id) in topics:
        yield ("job", job_id)
    if team_id is not None:
        for above in tree.line(team_id):
            if ("team", above) in topics:
                yield ("team", above)


def still_visible(place: Place, access: Access) -> bool:
    return access.sees(place.team_id)


def missed(place: Place, after: int, until: int, tree: Tree) -> list[selectors.Told] | None:
    """What happened to it with after < seq ≤ until; None where that is too much, or no longer known."""
    if after >= until:
        # A page may have been made from events that the relay is about to deliver; beyond the newest there are none.
        return [] if after <= selectors.position() else None
    if until - after > MOST_SPAN or after + 1 < selectors.oldest_position():
        return None
    kind, key = place.topic
    about = {
        "team": lambda: Q(team_id__in=tree.below(key)),
        "pool": lambda: Q(pool_id=key, kind__in=selectors.FLEET_KINDS),
        "job": lambda: Q(job_id=key),
    }[kind]()
    return selectors.events_between(after, until, about, MOST_MISSED)
