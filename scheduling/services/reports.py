"""What engines report becomes states, freed devices and closed usage: in one transaction, each report once.

A report about an allocation that is already released changes nothing, whatever the order in which reports arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F

from events.rows import set_rows, update_rows
from events.services import Journal, unit_of_work
from inventory.models import Pool
from scheduling import ports
from scheduling.engines.base import Report
from scheduling.models import Allocation, AllocationDevice, Job, Task
from scheduling.services.budget_holds import hold_of_budgets
from scheduling.services.cycle import change_accounts
from scheduling.services.deciding import collector_resting
from scheduling.services.dependencies import followers_of, predecessors_ended
from scheduling.services.mend import missing_tasks
from scheduling.services.restarts import PLATFORM_ENDS, ended_by_itself
from scheduling.services.row_writes import RowWrites
from scheduling.states import ALLOCATION_MOVES, JOB_MOVES, check_move

UNREAD = ("command", "environment", "image", "reasons", "pool_ids")  # columns of a job that no report is about


@collector_resting()
def record_reports(reports: Sequence[Report], now: datetime) -> int:
    """Every report is true in the database; returns how many changed something. ``now`` is when they are recorded."""
    if not reports:
        return 0
    with unit_of_work() as journal:
        ids = [report.allocation_id for report in reports]
        _lock_jobs(ids)
        rows = Allocation.objects.select_for_update(no_key=True).filter(pk__among=ids, released_at__isnull=True)
        allocations = {row.pk: row for row in rows.order_by("pk")}
        job_ids = {row.job_id for row in allocations.values()}
        jobs = {job.pk: job for job in Job.objects.filter(pk__among=job_ids).defer(*UNREAD)}
        pools = Pool.objects.in_bulk({row.pool_id for row in allocations.values()})
        for row in allocations.values():
            row.job, row.pool = jobs[row.job_id], pools[row.pool_id]
        return _Recording(jobs, allocations, now, journal).record(reports)


def _lock_jobs(allocation_ids: Sequence[int]) -> None:
    """The jobs of these allocations, and those that come after them, are locked in order of id, always before
    allocations. (SQLite has one writer.)"""
    if connection.vendor == "postgresql":
        job_ids = set(Allocation.objects.filter(pk__among=allocation_ids).values_list("job_id", flat=True))
        job_ids = job_ids.union(*followers_of(job_ids).values())
        list(Job.objects.select_for_update(no_key=True).filter(pk__among=job_ids).order_by("pk").values_list("pk"))


def _update(allocations: Sequence[Allocation], names: Sequence[str]) -> None:
    """The rows carry these values of the objects."""
    set_rows(Allocation, names, {each.pk: [getattr(each, name) for name in names] for each in allocations})


class _Recording:
    """One transaction's worth of reports, gathered first and written in bulk."""

    def __init__(self, jobs: dict[int, Job], allocations: dict[int, Allocation], now: datetime, journal: Journal):
        self.jobs = jobs
        self.allocations = allocations
        self.now = now
        self.journal = journal
        self.started: list[Allocation] = []
        self.ended: list[tuple[Allocation, Report]] = []
        self.ended_of: dict[int, list[tuple[Allocation, Report]]] = defaultdict(list)
        self.writes = RowWrites()  # to the rows of jobs
        self.touched: dict[int, None] = {}
        self.finished: dict[int, str] = {}  # job → the end that it came to

    def record(self, reports: Sequence[Report]) -> int:
        late = [report.allocation_id for report in reports if report.kind == "ended" and report.at < self.now]
        self.settled = ports.meter.settled_until(late) if late else {}
        for report in reports:
            allocation = self.allocations.get(report.allocation_id)
            if allocation is None or allocation.state == Allocation.State.RELEASED:
                continue
            self.touched[allocation.job_id] = None
            if report.kind == "started":
                self._start(allocation, report)
            else:
                self._end(allocation, report)
        self._write_started()
        self._write_ended()
        self._count_live()
        for job_id in self.touched:
            self._settle(self.jobs[job_id])
        self.writes.write()
        predecessors_ended(self.finished, self.now, self.journal)
        return len(self.started) + len(self.ended)

    def _moment(self, allocation: Allocation, report: Report) -> datetime:
        """When it was true, by our clock: an engine's may be ahead or behind, never before the binding or after now."""
        earliest = allocation.running_at or allocation.bound_at
        return max(earliest, min(report.at, self.now))

    def _start(self, allocation: Allocation, report: Report) -> None:
        if allocation.running_at is not None:
            return
        allocation.running_at = self._moment(allocation, report)
        if allocation.state == Allocation.State.BOUND:
            check_move(ALLOCATION_MOVES, allocation.state, Allocation.State.RUNNING)
            allocation.state = Allocation.State.RUNNING
        self.started.append(allocation)

    def _end(self, allocation: Allocation, report: Report) -> None:
        # A month that was closed meanwhile stays as it was: what was held is what was billed.
        moment = self._moment(allocation, report)
        allocation.released_at = max(moment, self.settled.get(allocation.pk, moment))
        check_move(ALLOCATION_MOVES, allocation.state, Allocation.State.RELEASED)
        allocation.state = Allocation.State.RELEASED
        allocation.exit_code = report.exit_code
        allocation.end_reason = (report.reason or ("exited" if report.exit_code is not None else "ended"))[:40]
        self.ended.append((allocation, report))
        self.ended_of[allocation.job_id].append((allocation, report))

    def _write_started(self) -> None:
        if not self.started:
            return
        # What started and ended in one batch is written once, as ended.
        _update([each for each in self.started if each.released_at is None], ("state", "running_at"))
        update_rows(
            Task,
            [each.task_id for each in self.started],
            only={"state": Task.State.STARTING},
            state=Task.State.RUNNING,
        )
        billed: dict[datetime, list[Allocation]] = defaultdict(list)
        for each in self.started:
            if each.pool.billing_start == Pool.BillingStart.RUNNING:
                assert each.running_at is not None
                billed[each.running_at].append(each)
        for moment, own in sorted(billed.items()):
            ports.meter.opened(own, moment)

    def _write_ended(self) -> None:
        if not self.ended:
            return
        gone = [allocation for allocation, _ in self.ended]
        _update(gone, ("state", "running_at", "released_at", "exit_code", "end_reason"))
        self._free(gone)
        by_moment: dict[tuple[datetime, str], list[Allocation]] = defaultdict(list)
        for allocation in gone:
            assert allocation.released_at is not None
            by_moment[(allocation.released_at, _waiver(allocation))].append(allocation)
        for (moment, waived), own in sorted(by_moment.items()):
            ports.meter.closed(own, moment, waived=waived)
        self._end_tasks()
        by_pool: dict[int, list[int]] = defaultdict(list)
        for allocation in gone:
            by_pool[allocation.pool_id].append(allocation.pk)
        for pool_id, ids in sorted(by_pool.items()):
            self.journal.record("allocations.released", self.now, pool_id=pool_id, ids=sorted(ids))

    def _free(self, gone: Iterable[Allocation]) -> None:
        devices: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        nodes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        pools: dict[int, set[int]] = defaultdict(set)
        pool_of = {allocation.pk: allocation.pool_id for allocation in gone}
        for allocation in gone:
            nodes[allocation.node_id][0] -= allocation.cpu_milli
            nodes[allocation.node_id][1] -= allocation.host_memory_mib
        for row in AllocationDevice.objects.filter(allocation_id__among=pool_of):
            devices[row.device_id][0] -= row.compute_milli
            devices[row.device_id][1] -= row.memory_mib
            pools[pool_of[row.allocation_id]].add(row.device_id)
        change_accounts(devices, nodes)
        for pool_id, ids in sorted(pools.items()):
            self.journal.record("fleet.changed", self.now, pool_id=pool_id, devices=sorted(ids))

    def _end_tasks(self) -> None:
        by_state: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        for allocation, report in self.ended:
            by_state[(self._task_state(allocation, report), report.exit_code)].append(allocation.task_id)
        for (state, exit_code), ids in by_state.items():
            update_rows(Task, ids, state=state, exit_code=exit_code)
        again = [
            allocation.task_id
            for allocation, report in self.ended
            if self.jobs[allocation.job_id].kind == Job.Kind.SERVICE and ended_by_itself(allocation)
        ]
        if again:
            Task.objects.filter(pk__in=again, state=Task.State.PENDING).update(restarts=F("restarts") + 1)

    def _task_state(self, allocation: Allocation, report: Report) -> str:
        job = self.jobs[allocation.job_id]
        if job.kind == Job.Kind.SERVICE:
            return _replica_state(job, report)
        if report.exit_code != 0 and (_gave_way(allocation, job) or _lost_with_its_node(report, job)):
            return Task.State.PENDING
        if report.exit_code == 0 and job.ending in (Job.Ending.NONE, Job.Ending.SUCCEEDED, Job.Ending.REQUEUE):
            return Task.State.SUCCEEDED
        if job.ending == Job.Ending.CANCELLED or (report.reason == "stopped" and job.ending == Job.Ending.FAILED):
            return Task.State.CANCELLED
        if job.ending == Job.Ending.REQUEUE:
            return Task.State.PENDING
        if report.reason == "time_limit" and job.kind == Job.Kind.INTERACTIVE:
            return Task.State.SUCCEEDED
        return Task.State.FAILED

    # -- what it means for the job ----------------------------------------------------------------------------------

    def _settle(self, job: Job) -> None:
        ended = self.ended_of.get(job.pk, [])
        if job.ending == Job.Ending.NONE and job.kind == Job.Kind.SERVICE:
            self._judge_service(job, ended)
        elif job.ending == Job.Ending.NONE:
            gave_way = [allocation for allocation, _ in ended if _gave_way(allocation, job)]
            if gave_way:
                self._record(job, "job.shrunk", state=job.state, tasks=len(gave_way))
            ended = [each for each in ended if each[0] not in gave_way or each[1].exit_code == 0]
            lost = [each for each in ended if _lost_with_its_node(each[1], job)] if self.live[job.pk] else []
            if lost:
                # The next cycle replaces them, or sends the whole gang back to the queue: see scheduling.core.mend.
                self._record(job, "job.lost_tasks", state=job.state, tasks=len(lost))
            self._judge(job, [each for each in ended if each not in lost])
        if self.live[job.pk]:
            self._note_running(job)
        elif job.ending != Job.Ending.NONE:
            self._finish(job)

    def _count_live(self) -> None:
        """How many allocations of each job live now, how many do not run yet, and when the last one began to."""
        self.live: dict[int, int] = defaultdict(int)
        self.not_running: dict[int, int] = defaultdict(int)
        self.began: dict[int, datetime] = {}
        rows = Allocation.objects.filter(job_id__among=self.touched, released_at__isnull=True).order_by()
        for job_id, running_at in rows.values_list("job_id", "running_at"):
            self.live[job_id] += 1
            self.not_running[job_id] += running_at is None
            if running_at is not None:
                self.began[job_id] = max(running_at, self.began.get(job_id, running_at))

    def _judge(self, job: Job, ended: Sequence[tuple[Allocation, Report]]) -> None:
        """Decides how the job ends, if what ended ends it; its other tasks are then stopped."""
        platform = next((report for _, report in ended if report.reason in PLATFORM_ENDS), None)
        bad = next((report for _, report in ended if self._is_failure(job, report)), None)
        if platform is not None:
            self._set_ending(job, Job.Ending.REQUEUE, platform.reason)
        elif bad is not None:
            # What takes longer than it may would take as long again.
            retry = job.retries_used < job.retries and bad.reason != "time_limit"
            job.end_message = (bad.message or _describe(bad))[:500]
            job.exit_code = bad.exit_code
            reason = bad.reason or f"exit_{bad.exit_code}"
            self._set_ending(job, Job.Ending.REQUEUE if retry else Job.Ending.FAILED, reason, retry=retry)
        elif ended and not self.live[job.pk] and job.tasks_wanted > 1 and missing_tasks(job.pk):
            self._set_ending(job, Job.Ending.REQUEUE, "node_lost")  # the others ended before one could be replaced
        elif ended and not self.live[job.pk]:
            job.exit_code = 0
            self._set_ending(job, Job.Ending.SUCCEEDED, "all_tasks_ended")

    def _judge_service(self, job: Job, ended: Sequence[tuple[Allocation, Report]]) -> None:
        """Its replicas are started again, whatever they ended by; without any left it goes back to the queue, and only
        its time limit brings it to an end."""
        if any(report.reason == "time_limit" for _, report in ended):
            self._set_ending(job, Job.Ending.SUCCEEDED, "time_limit")
            return
        own = [(allocation, report) for allocation, report in ended if ended_by_itself(allocation)]
        if own:
            _, first = own[0]
            told = {"exit_code": first.exit_code, "reason": first.reason, "message": first.message[:200]}
            self._record(job, "job.replica", state=job.state, replicas=len(own), **told)
        if len(own) < len(ended):
            self._record(job, "job.shrunk", state=job.state, tasks=len(ended) - len(own))
        if ended and not self.live[job.pk]:
            self._set_ending(job, Job.Ending.REQUEUE, "no_replica_left")

    def _is_failure(self, job: Job, report: Report) -> bool:
        if report.reason == "time_limit" and job.kind == Job.Kind.INTERACTIVE:
            return False
        return report.exit_code != 0

    def _set_ending(self, job: Job, ending: str, reason: str, *, retry: bool = False) -> None:
        job.ending = ending
        job.ending_reason = reason[:40]
        job.retries_used += retry
        if not self.live[job.pk]:
            return  # it ends with this very report: ``_finish`` writes it all
        self.writes.change(
            job,
            ending=ending,
            ending_reason=job.ending_reason,
            retries_used=job.retries_used,
            exit_code=job.exit_code,
            end_message=job.end_message,
        )
        self._record(job, "job.stopping", state=job.state, ending=ending, reason=reason)

    def _note_running(self, job: Job) -> None:
        """The job runs once all that it holds does: its last task started, or one ended that was not told to start."""
        if job.state != Job.State.STARTING or self.not_running[job.pk] or (job.ending and not self.started):
            return
        self._move(job, Job.State.RUNNING, started_at=self.began[job.pk])

    def _finish(self, job: Job) -> None:
        """The last allocation is gone: the job is where its ending says."""
        if job.state == Job.State.STARTING and job.started_at is None:
            first = Allocation.objects.filter(job=job, running_at__isnull=False).order_by("running_at").first()
            if first is not None and job.ending != Job.Ending.REQUEUE:
                Job.objects.filter(pk=job.pk).update(started_at=first.running_at)
        if job.ending == Job.Ending.REQUEUE and self._has_done_its_work(job):
            # It was told to stop, and ended well before it did: nothing of it is to be done again.
            job.ending, job.ending_reason, job.exit_code = Job.Ending.SUCCEEDED, "all_tasks_ended", 0
        if job.ending == Job.Ending.REQUEUE:
            Task.objects.filter(job=job).exclude(state=Task.State.PENDING).update(
                state=Task.State.PENDING, exit_code=None
            )
            self._move(
                job,
                Job.State.PENDING,
                hold=hold_of_budgets(job.team_id),
                ending="",
                ending_reason="",
                started_at=None,
                exit_code=None,
                end_message=job.end_message,
                retries_used=job.retries_used,
            )
            return
        if job.tasks_wanted > 1 or job.ending == Job.Ending.CANCELLED:
            unfinished = [Task.State.PENDING, Task.State.STARTING, Task.State.RUNNING]
            Task.objects.filter(job=job, state__in=unfinished).update(state=Task.State.CANCELLED)
        last = max((a.released_at for a, _ in self.ended_of[job.pk] if a.released_at), default=self.now)
        self._move(
            job,
            job.ending,
            ended_at=last,
            ending=job.ending,
            ending_reason=job.ending_reason,
            exit_code=job.exit_code,
            end_message=job.end_message,
            reasons=[],
        )
        self.finished[job.pk] = job.state

    def _has_done_its_work(self, job: Job) -> bool:
        """Whether all of its tasks that were ever at work ended well, and some were."""
        tasks = Task.objects.filter(job=job)
        undone = tasks.exclude(state=Task.State.SUCCEEDED).exclude(state=Task.State.PENDING, allocations__isnull=True)
        return tasks.filter(state=Task.State.SUCCEEDED).exists() and not undone.exists()

    def _move(self, job: Job, state: str, **changes: Any) -> None:
        check_move(JOB_MOVES, job.state, state)
        before = job.state
        self.writes.change(job, {"state": before}, state=state, **changes)
        job.state = state
        self._record(job, "job.state", before=before, state=state, exit_code=job.exit_code)

    def _record(self, job: Job, kind: str, **data: Any) -> None:
        self.journal.record(kind, self.now, team_id=job.team_id, pool_id=job.pool_id, job_id=job.pk, **data)


def _gave_way(allocation: Allocation, job: Job) -> bool:
    """Whether it was stopped so that another job has room, while its own job goes on without it."""
    return allocation.stop_requested_at is not None and job.ending == Job.Ending.NONE


def _lost_with_its_node(report: Report, job: Job) -> bool:
    """Whether the task did not end by itself or its job's will, but with the node under it."""
    return report.reason == "node_lost" and job.ending == Job.Ending.NONE


def _replica_state(job: Job, report: Report) -> str:
    """Of a service's replica whose allocation is gone: it waits for its next start, unless the service ends."""
    if job.ending in (Job.Ending.CANCELLED, Job.Ending.FAILED):
        return Task.State.CANCELLED
    if job.ending == Job.Ending.SUCCEEDED or (report.reason == "time_limit" and job.ending == Job.Ending.NONE):
        return Task.State.SUCCEEDED
    return Task.State.PENDING


def _waiver(allocation: Allocation) -> str:
    """Why the time is not billed, if it is not: a start that failed because of the platform."""
    if allocation.running_at is None and allocation.end_reason in PLATFORM_ENDS:
        return allocation.end_reason
    return ""


def _describe(report: Report) -> str:
    if report.reason == "time_limit":
        return "The time limit was reached."
    if report.exit_code is not None:
        return f"A task ended with exit code {report.exit_code}."
    return {
        "lost": "The workload disappeared.",
        "stopped": "The workload was stopped from outside.",
        "failed_to_start": "A task could not be started.",
    }.get(report.reason, "A task ended without an exit code.")
