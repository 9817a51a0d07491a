"""What can be asked of jobs. The body of a submission is read by ``scheduling.services.requests``, for forms and
scenario files alike; ``JobRequest`` only describes it."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from events.errors import Invalid
from inventory.models import AcceleratorModel
from inventory.selectors import pool_named
from scheduling.models import Job
from scheduling.services.place_rules import WIDEST_FIRST
from scheduling.services.requests import (
    MAX_DEVICES,
    MAX_EVICTIONS,
    MAX_MEMORY_MIB,
    MAX_PREDECESSORS,
    MAX_RETRIES,
    MAX_TASKS,
)
from tenants.models import name_key
from tenants.policy import team_tree
from tenants.selectors import team_named
from wire.fields import NAME_PATTERN, Choices, Flag, Moment, Text, Whole, identifier
from wire.pages import Listing, PageQuery
from wire.strict import Strict

JOBS = Listing[Job](
    {"submitted_at": "submitted_at", "name": "name", "gpus": "milli_wanted", "id": "id"}, default="-submitted_at"
)
MOST_IDS = 10_000
SLUG = r"^[a-z0-9][a-z0-9._-]{0,62}$"
POOL = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
NO_NUL = r"^[^\x00]*$"
DURATION = r"^([0-9]{1,7}(\.[0-9]{1,3})?(ms|s|m|h|d|w)){1,4}$"


class JobFilter(Strict):
    """Which jobs; what is given must all be true of a job."""

    state = Choices(Job.State.choices, required=False)
    team = Text(required=False, max_length=63, help_text="a team and all below it")
    user = Text(required=False, max_length=150, help_text="the name of who submitted it")
    pool = Text(required=False, max_length=63)
    name = Text(required=False, max_length=200, help_text="a part of the name, in capital letters or small ones")
    submitted_after = Moment(required=False, help_text="then or later")
    submitted_before = Moment(required=False, help_text="before then")


class JobQuery(JobFilter, PageQuery):
    ordering = serializers.ChoiceField(JOBS.choices, required=False)


def filtered(jobs: QuerySet[Job], user: Any, wanted: dict[str, Any], path: str = "") -> QuerySet[Job]:
    """The jobs that ``wanted`` (of a JobFilter) leaves. Raises NotThere for a team or pool that is not to be seen;
    ``path`` goes before the names of fields in it."""
    where = Q()
    if "state" in wanted:
        where &= Q(state__in=wanted["state"])
    if "team" in wanted:
        where &= Q(team_id__in=team_tree().below(team_named(user, wanted["team"], f"{path}team").pk))
    if "user" in wanted:
        where &= Q(user__username_key=name_key(wanted["user"]))
    if "pool" in wanted:
        where &= Q(pool=pool_named(wanted["pool"], f"{path}pool"))
    if "name" in wanted:
        where &= Q(name__icontains=wanted["name"])
    if "submitted_after" in wanted:
        where &= Q(submitted_at__gte=wanted["submitted_after"])
    if "submitted_before" in wanted:
        where &= Q(submitted_at__lt=wanted["submitted_before"])
    return jobs.filter(where)


class CancelRequest(Strict):
    """Either ids, or a filter with at least one field: then every unfinished job that it leaves and one may stop."""

    ids = serializers.ListField(child=identifier(), required=False, min_length=1, max_length=MOST_IDS)
    filter = JobFilter(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("ids" in attrs) == ("filter" in attrs):
            raise Invalid.at("ids", "give ids or filter, one of them", allowed=["ids", "filter"])
        if "filter" in attrs and not attrs["filter"]:
            allowed = sorted(JobFilter().fields)
            raise Invalid.at("filter", "is empty: it would mean every job; name what you mean", allowed=allowed)
        return attrs


class CancelledSerializer(serializers.Serializer):
    """Ids by what became of them. ``cancelled`` waited; ``stopping`` run and are being stopped."""

    cancelled = serializers.ListField(child=serializers.IntegerField())
    stopping = serializers.ListField(child=serializers.IntegerField())
    ended_before = serializers.ListField(child=serializers.IntegerField())
    not_found = serializers.ListField(child=serializers.IntegerField())


class SubmitQuery(Strict):
    dry_run = Flag(required=False, help_text="true: nothing is submitted; the answer says what would become of it")


class LogQuery(Strict):
    task = Whole(required=False, min_value=0, max_value=MAX_TASKS, help_text="which task, from 0")
    offset = Whole(required=False, min_value=0, max_value=2**62, help_text="from which byte")
    limit = Whole(required=False, min_value=4, max_value=1_000_000, help_text="how many bytes at most")


class EventQuery(Strict):
    after = Whole(required=False, min_value=0, max_value=2**62, help_text="the number that you know already")
    limit = Whole(required=False, min_value=1, max_value=1000, help_text="how many at most (100)")


class FeedQuery(EventQuery):
    wait = Whole(required=False, min_value=0, max_value=25, help_text="seconds to wait where there is none yet")
    team = Text(required=False, max_length=63, trim_whitespace=False, help_text="a team and all below it")
    pool = Text(required=False, max_length=63, trim_whitespace=False)
    kind = Text(required=False, max_length=40, trim_whitespace=False, help_text="like job.state")


@extend_schema_field({"type": ["number", "string"], "minimum": 0, "pattern": r"^[0-9]{1,9}(\.[0-9]{1,3})?$"})
class Amount(serializers.Field):
    """A number, or its text."""


@extend_schema_field({"type": ["number", "string"], "minimum": 0.001, "maximum": 316_224_000, "pattern": DURATION})
class Duration(serializers.Field):
    """90s, 10m, 2h, 3d, 1h30m, or seconds."""


@extend_schema_field({"type": ["string", "array"], "pattern": NO_NUL, "items": {"type": "string", "pattern": NO_NUL}})
class Words(serializers.Field):
    """A list of words, or one text that is split as a shell would."""


@extend_schema_field(
    {
        "type": ["string", "array"],
        "pattern": NO_NUL,
        "items": {"type": "string", "minLength": 1, "maxLength": 120, "pattern": NO_NUL},
    }
)
class Names(serializers.Field):
    """One or several."""


@extend_schema_field(
    {
        "type": "object",
        "propertyNames": {"pattern": NO_NUL},
        "additionalProperties": {"type": "string", "pattern": NO_NUL},
    }
)
class TextMap(serializers.Field):
    """Texts by name."""


@extend_schema_field({"type": ["string", "integer"], "minimum": 0, "maximum": 1_000_000, "pattern": NO_NUL})
class Priority(serializers.Field):
    """The name of a priority class, or a value of its own."""


@extend_schema_field(
    {
        "type": "array",
        "maxItems": MAX_PREDECESSORS,
        "uniqueItems": True,
        "items": {"type": ["integer", "string"], "minimum": 1, "minLength": 1, "maxLength": 200, "pattern": NO_NUL},
    }
)
class References(serializers.Field):
    """Jobs."""


class AskedSerializer(serializers.Serializer):
    """What each task asks for. Without ``gpus``, ``devices`` and ``gpu_memory_mib`` it is CPU only."""

    tasks = Whole(required=False, min_value=1, max_value=MAX_TASKS)
    min_tasks = Whole(required=False, min_value=1, max_value=MAX_TASKS, help_text="all, where nothing is said")
    gpus = Amount(
        required=False,
        help_text="a fraction of one device (a multiple of the pool's step) or whole devices; with devices, of each",
    )
    devices = Whole(required=False, min_value=1, max_value=MAX_DEVICES, help_text="different devices of one node")
    gpu_memory_mib = Whole(required=False, min_value=1, max_value=MAX_MEMORY_MIB, help_text="of each device")
    cpu = Amount(required=False, help_text="cores")
    memory_gib = Amount(required=False)
    model = Names(required=False, help_text="allowed accelerator models")
    vendor = Names(required=False, help_text=f"allowed vendors: {', '.join(AcceleratorModel.Vendor.values)}")
    node_selector = TextMap(required=False)
    tolerations = TextMap(required=False, help_text="taints of nodes that it bears; the value * bears any value")
    min_device_memory_mib = Whole(required=False, min_value=0, max_value=MAX_MEMORY_MIB)
    command = Words(required=False)


class TopologyRequest(serializers.Serializer):
    """All tasks of the job, of whatever group, in one domain: nodes whose label of this name has the same value, or one
    host. A node without the label is in no domain of the level. Not required: the closest level at which it fits."""

    level = serializers.ChoiceField(WIDEST_FIRST)
    required = Flag(  # type: ignore[assignment]
        required=False, help_text="true where nothing is said: it waits until one domain has room"
    )


class TaskGroupRequest(AskedSerializer):
    """Tasks of one kind; all groups of a job start together."""

    name = serializers.RegexField(NAME_PATTERN, required=False, max_length=63)


class JobRequest(AskedSerializer):
    """A job to be submitted."""

    team = serializers.RegexField(SLUG, help_text="the slug of a team in which you may submit")
    pool = serializers.RegexField(POOL, required=False, help_text="may be left out where there is one")
    pools = serializers.ListField(
        child=serializers.RegexField(POOL),
        required=False,
        min_length=1,
        max_length=20,
        help_text="instead of pool: first choice first",
    )
    name = serializers.RegexField(NAME_PATTERN, required=False, max_length=200)
    groups = serializers.ListField(
        child=TaskGroupRequest(),
        required=False,
        min_length=1,
        max_length=32,
        help_text="instead of the fields of one kind of task",
    )
    environment = TextMap(required=False)
    image = serializers.RegexField(NAME_PATTERN, required=False, max_length=500)
    framework = serializers.RegexField(NAME_PATTERN, required=False, max_length=32)
    kind = serializers.ChoiceField(Job.Kind.choices, required=False)
    priority = Priority(required=False)
    preemptible = Flag(required=False)
    time_limit = Duration(required=False)
    retries = Whole(required=False, min_value=0, max_value=MAX_RETRIES)
    topology = TopologyRequest(required=False, help_text="all tasks close together")
    apart = serializers.ChoiceField(
        WIDEST_FIRST, required=False, help_text="no two of its tasks share a domain of this level; host: a node"
    )
    min_runtime = Duration(required=False)
    max_evictions = Whole(
        required=False, min_value=0, max_value=MAX_EVICTIONS, help_text="how often it is made to give way; 0: never"
    )
    after = References(
        required=False,
        help_text="jobs that must succeed before it starts: ids, or names of earlier jobs of the same list",
    )
    duration = Duration(
        required=False, help_text="what a simulated engine plays: how long a task runs; of a service, each replica"
    )
    exit = serializers.ChoiceField(["succeeded", "failed"], required=False, help_text="how a simulated job ends")
