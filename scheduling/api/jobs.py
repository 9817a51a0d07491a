"""Jobs: submitted, listed, read, stopped."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from events.errors import Fault, Forbidden, Invalid, NotThere
from events.services import unit_of_work
from scheduling.api.answers import (
    AllocationSerializer,
    DecisionSerializer,
    EventsSerializer,
    JobDetailSerializer,
    JobSerializer,
    decisions_told,
    jobs_told,
)
from scheduling.api.asked import (
    JOBS,
    CancelledSerializer,
    CancelRequest,
    EventQuery,
    JobQuery,
    JobRequest,
    LogQuery,
    SubmitQuery,
    filtered,
)
from scheduling.api.dry_run import DryRunSerializer, outcomes_told
from scheduling.feed import follow
from scheduling.models import Allocation, Decision, Job
from scheduling.selectors import visible_job, visible_jobs
from scheduling.services.dry_run import dry_run
from scheduling.services.holding import hold_for, release_for
from scheduling.services.logs import MAX_BYTES, read_log
from scheduling.services.stop import cancel_jobs
from scheduling.services.submit import submit_payload
from scheduling.states import JOB_ENDED
from tenants.policy import require, visible
from tenants.selectors import teams_where, visible_teams
from wire.pages import Listing, PageQuery, page_answer, paged
from wire.views import ApiView

ALLOCATIONS = Listing[Allocation]({"id": "id"}, default="-id")
DECISIONS = Listing[Decision]({"id": "id"}, default="-id")
AT_ONCE = 1000
KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="The same key and body again gets the same jobs, never new ones.",
)


def one_or_many(name: str, one: Any, many: Any) -> PolymorphicProxySerializer:
    return PolymorphicProxySerializer(name, [one, many(many=True)], resource_type_field_name=None, many=False)


class Jobs(ApiView):
    queries = {"GET": JobQuery, "POST": SubmitQuery}

    @extend_schema(operation_id="jobs", parameters=[JobQuery], responses=paged(JobSerializer))
    def get(self, request: Request) -> Response:
        """Jobs of the teams that one may see, the newest first where nothing else is asked."""
        jobs = filtered(visible_jobs(request.user), request.user, self.query)
        rows, following = JOBS.page(jobs, request, self.query)
        return page_answer(jobs_told(rows, request.user, self.now), following)

    @extend_schema(
        operation_id="submit_jobs",
        parameters=[KEY, SubmitQuery],
        request=one_or_many("JobOrJobsRequest", JobRequest, JobRequest),
        responses={
            200: PolymorphicProxySerializer(
                "SubmittedBeforeOrDryRun",
                [JobDetailSerializer, JobSerializer(many=True), DryRunSerializer, DryRunSerializer(many=True)],
                resource_type_field_name=None,
                many=False,
            ),
            201: one_or_many("Submitted", JobDetailSerializer, JobSerializer),
        },
    )
    def post(self, request: Request) -> Response:
        """Submits one job or a list of up to 1,000: all of them or none. 200: they were before, with this key.

        With ``dry_run=true`` nothing is submitted and no key is used up: 200 tells for each job whether it would start
        now, why not, where it would land, who would give way, when it is expected to start and what it would cost. What
        a real submission would refuse is refused in the same way.
        """
        payload = self.body()
        if self.query.get("dry_run"):
            return self._try_out(request, payload)
        try:
            jobs, new = submit_payload(
                request.user,  # type: ignore[arg-type]
                payload,
                self.now,
                idempotency_key=request.headers.get("Idempotency-Key"),
            )
        except Invalid as error:
            raise _not_there(error, payload, request.user) from None
        status = 201 if new else 200
        # Those of an earlier request may be out of sight by now. A token that may submit but not read sees its own.
        if not new:
            seen = set(
                Job.objects.filter(visible(request.user), pk__in=[job.pk for job in jobs]).values_list("pk", flat=True)
            )
            if len(seen) < len(jobs):
                raise NotThere("The jobs that were submitted with this key are not to be seen any more.")
        if not new:
            rows = Job.objects.select_related("team", "user", "pool", "priority_class")
            by_id = rows.in_bulk([job.pk for job in jobs])
            jobs = [by_id[job.pk] for job in jobs]
        many = isinstance(payload, list)
        told = jobs_told(
            jobs,
            request.user,
            self.now,
            detail=not many,
            may_stop=teams_where(request.user, "job.stop"),
        )
        return Response(told if many else told[0], status=status)

    def _try_out(self, request: Request, payload: Any) -> Response:
        try:
            outcomes = dry_run(request.user, payload, self.now)  # type: ignore[arg-type]
        except Invalid as error:
            raise _not_there(error, payload, request.user) from None
        told = outcomes_told(outcomes, request.user)
        return Response(told if isinstance(payload, list) else told[0])


def _not_there(error: Invalid, payload: Any, user: Any) -> Invalid | NotThere:
    """A request that names a team, pool, model or class that is not there is 404; its other faults are told with it."""
    unknown = [fault for fault in error.faults if fault.code == "unknown"]
    if not unknown:
        unknown = _unknown_teams(payload, user)
    if not unknown:
        return error
    faults = [*unknown, *(fault for fault in error.faults if fault.code != "unknown")]
    return NotThere("; ".join(f"{fault.field}: {fault.message}" for fault in faults), faults=faults)


def _unknown_teams(payload: Any, user: Any) -> list[Fault]:
    """A fault for each job whose team ``user`` may not see. (A submission looks for it when all else is right.)"""
    allowed = list(visible_teams(user).order_by("slug").values_list("slug", flat=True))
    many = isinstance(payload, list)
    faults = []
    for position, item in enumerate(payload if many else [payload]):
        team = item.get("team") if isinstance(item, dict) else None
        if isinstance(team, str) and team and team not in allowed:
            where = f"[{position}]." if many else ""
            faults.append(Fault(f"{where}team", "is not a team that you belong to", "unknown", team, allowed[:100]))
    return faults[:100]


class OneJob(ApiView):
    @extend_schema(operation_id="job", responses=JobDetailSerializer)
    def get(self, request: Request, job_id: int) -> Response:
        """One job."""
        return Response(told_in_full(request, self, job_id))


def told_in_full(request: Request, view: ApiView, job_id: int) -> dict[str, Any]:
    job = visible_job(request.user, job_id)
    may_stop = teams_where(request.user, "job.stop")
    return jobs_told([job], request.user, view.now, detail=True, may_stop=may_stop)[0]


class CancelJob(ApiView):
    @extend_schema(operation_id="cancel_job", request=None, responses=JobDetailSerializer)
    def post(self, request: Request, job_id: int) -> Response:
        """A waiting job is cancelled at once; a running one is told to stop. Again: nothing more."""
        job = visible_job(request.user, job_id)
        require(request.user, "job.stop", job.team_id, what="job")
        cancel_jobs([job.pk], self.now, actor_id=request.user.pk)
        return Response(told_in_full(request, self, job_id))


class HoldJob(ApiView):
    @extend_schema(operation_id="hold_job", request=None, responses=JobDetailSerializer)
    def post(self, request: Request, job_id: int) -> Response:
        """The waiting job is passed over until it is released."""
        hold_for(request.user, visible_job(request.user, job_id), self.now)  # type: ignore[arg-type]
        return Response(told_in_full(request, self, job_id))


class ReleaseJob(ApiView):
    @extend_schema(operation_id="release_job", request=None, responses=JobDetailSerializer)
    def post(self, request: Request, job_id: int) -> Response:
        """The job takes its old place in the queue again."""
        release_for(request.user, visible_job(request.user, job_id), self.now)  # type: ignore[arg-type]
        return Response(told_in_full(request, self, job_id))


class CancelJobs(ApiView):
    @extend_schema(operation_id="cancel_jobs", request=CancelRequest, responses=CancelledSerializer)
    def post(self, request: Request) -> Response:
        """Cancels many jobs in one transaction. Ids of jobs that one may not see are ``not_found`` and left alone;
        one that may be seen but not stopped refuses the whole."""
        asked = CancelRequest.read_body(self.body())
        may_stop = teams_where(request.user, "job.stop")
        if not may_stop and may_stop is not None:
            require(request.user, "job.stop")
        not_found: list[int] = []
        if "ids" in asked:
            ids, not_found = _named(request, asked["ids"], may_stop)
        else:
            jobs = Job.objects.filter(visible(request.user)).exclude(state__in=sorted(JOB_ENDED))
            if may_stop is not None:
                jobs = jobs.filter(team_id__in=may_stop)
            ids = sorted(filtered(jobs, request.user, asked["filter"], "filter.").values_list("pk", flat=True))
        answer: dict[str, list[int]] = {"cancelled": [], "stopping": [], "ended_before": [], "not_found": not_found}
        with unit_of_work():
            for start in range(0, len(ids), AT_ONCE):
                done = cancel_jobs(ids[start : start + AT_ONCE], self.now, actor_id=request.user.pk)
                answer["cancelled"] += done.at_once
                answer["stopping"] += done.stopping
                answer["ended_before"] += done.ended_before
        return Response(answer)


def _named(request: Request, asked: list[int], may_stop: set[int] | None) -> tuple[list[int], list[int]]:
    """(ids that may be stopped, ids of nothing that may be seen). Raises Forbidden where one is only to be seen."""
    ids = sorted(set(asked))
    found: dict[int, int] = {}
    for start in range(0, len(ids), AT_ONCE):
        seen: QuerySet[Job] = Job.objects.filter(visible(request.user), pk__in=ids[start : start + AT_ONCE])
        found.update(seen.order_by().values_list("pk", "team_id"))
    barred = sorted(job_id for job_id, team_id in found.items() if may_stop is not None and team_id not in may_stop)
    if barred:
        listed = ", ".join(map(str, barred[:10]))
        raise Forbidden(f"You may see, but not stop, the jobs {listed}; nothing was stopped.")
    return sorted(found), [job_id for job_id in ids if job_id not in found]


class JobLogs(ApiView):
    queries = {"GET": LogQuery}

    @extend_schema(
        operation_id="job_logs",
        parameters=[
            LogQuery,
            OpenApiParameter("Log-Next-Offset", int, OpenApiParameter.HEADER, response=[200], required=True),
        ],
        responses={(200, "text/plain"): OpenApiTypes.STR},
    )
    def get(self, request: Request, job_id: int) -> HttpResponse:
        """What a task wrote, as text. ``Log-Next-Offset`` is where to go on from, to follow a log that grows."""
        job = visible_job(request.user, job_id)
        query = self.query
        piece = read_log(job, query.get("task", 0), query.get("offset", 0), query.get("limit", MAX_BYTES))
        response = HttpResponse(piece.text, content_type="text/plain; charset=utf-8")
        response["Log-Next-Offset"] = str(piece.next_offset)
        return response


class JobAllocations(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="job_allocations", parameters=[PageQuery], responses=paged(AllocationSerializer))
    def get(self, request: Request, job_id: int) -> Response:
        """Where the job's tasks run and ran, the latest first."""
        allocations = Allocation.objects.filter(job=visible_job(request.user, job_id))
        allocations = allocations.select_related("task__group", "pool", "node", "model")
        rows, following = ALLOCATIONS.page(allocations.prefetch_related("slices__device__model"), request, self.query)
        return page_answer(AllocationSerializer(rows, many=True).data, following)


class JobDecisions(ApiView):
    queries = {"GET": PageQuery}

    @extend_schema(operation_id="job_decisions", parameters=[PageQuery], responses=paged(DecisionSerializer))
    def get(self, request: Request, job_id: int) -> Response:
        """What the scheduler decided about the job, the latest first."""
        decisions = Decision.objects.filter(job=visible_job(request.user, job_id)).select_related("pool")
        rows, following = DECISIONS.page(decisions, request, self.query)
        return page_answer(decisions_told(rows, request.user), following)


class JobEvents(ApiView):
    queries = {"GET": EventQuery}

    @extend_schema(operation_id="job_events", parameters=[EventQuery], responses=EventsSerializer)
    def get(self, request: Request, job_id: int) -> Response:
        """What happened to the job, the first event first."""
        job = visible_job(request.user, job_id)
        query = self.query
        piece = follow(request.user, query.get("after", 0), query.get("limit", 100), {"job_id": job.pk})
        return Response(EventsSerializer({"results": piece.events, "last": piece.last}).data)
