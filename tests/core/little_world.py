"""Little worlds for tests of decisions: a few nodes, teams and jobs with names, in GPUs as people write them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    Plan,
    Policy,
    PoolState,
    Quota,
    Request,
    RunningJob,
    RunningTask,
    Snapshot,
    Team,
)
from scheduling.core.reasons import message
from scheduling.core.units import milli_from_gpus

ALICE, BOB = 1, 2


def request(gpus=1, *, devices=None, memory_mib=None, cpu=0, host_memory_mib=0, **wishes):
    """``gpus``: 0 for CPU only, below 1 a slice, k whole devices, or the slice of each of ``devices``; None: memory."""
    milli = None if gpus is None else milli_from_gpus(gpus)
    if milli == 0:
        devices, milli = 0, None
    elif devices is None:
        devices, milli = (1, milli) if milli is None or milli <= 1000 else (milli // 1000, 1000)
    return Request(devices, milli, memory_mib, milli_from_gpus(cpu), host_memory_mib, **wishes)


def node(name="n", gpus=8, *, memory_mib=80_000, cpu=64, host_memory_mib=512_000, model="A100", failed=(), **more):
    """A node that still lacks its id; ``memory_mib``: of every device, or a list with that of each."""
    memories = memory_mib if isinstance(memory_mib, list) else [memory_mib] * gpus
    devices = tuple(DeviceState(i, i, model, "nvidia", mib, healthy=i not in failed) for i, mib in enumerate(memories))
    return NodeState(0, name, 0, milli_from_gpus(cpu), host_memory_mib, devices, **more)


@dataclass
class Pool:
    id: int
    name: str
    fleet: Fleet
    unit: str
    available: bool
    quotas: dict = field(default_factory=dict)
    usage: dict = field(default_factory=dict)
    class_usage: dict = field(default_factory=dict)


class World:
    """Built line by line; ids are given in the order in which things are named, so who comes first is older."""

    def __init__(self):
        self.teams, self.pools, self.jobs, self.running = {}, {}, {}, {}
        self._node_count = 0
        self.now = 0

    def pool(self, name, *nodes, unit="gpu", available=True, **options):
        placed = []
        for state in nodes or (node(),):
            self._node_count += 1
            number = self._node_count
            devices = tuple(replace(device, id=number * 100 + device.index) for device in state.devices)
            placed.append(replace(state, id=number, rank=number, devices=devices))
        self.pools[name] = Pool(len(self.pools) + 1, name, Fleet(placed, **options), unit, available)
        return self

    def team(self, path, **quota):
        """``path``: ``name``, or ``parent/name``. A quota given here holds in every pool that is there already."""
        *above, name = path.split("/")
        parent = self.teams[above[-1]].id if above else None
        self.teams[name] = Team(len(self.teams) + 1, name, parent)
        if quota:
            for pool in self.pools:
                self.quota(name, pool, **quota)
        return self

    def quota(self, team, pool, **quota):
        milli = {k: v if k == "weight" or v is None else milli_from_gpus(v) for k, v in quota.items()}
        self.pools[pool].quotas[self.teams[team].id] = Quota(**milli)
        return self

    def runs(self, team, gpus=1, *, times=1, pool=None, user=ALICE, priority_class=None, **asks):
        """Something runs already: it holds devices and counts."""
        at = self._pool(pool)
        for _ in range(times):
            placement = at.fleet.place(request(gpus, **asks))
            assert placement is not None, "the world is too small for what runs in it"
            at.fleet.take(placement, asks.get("team_id", 0))
            self._last = placement
            key = (self.teams[team].id, user)
            held = placement.milli if at.unit == "gpu" else placement.cpu_milli
            at.usage[key] = at.usage.get(key, 0) + held
            if priority_class:
                rank = (self.teams[team].id, priority_class)
                at.class_usage[rank] = at.class_usage.get(rank, 0) + 1
        return self

    def works(
        self, name, team, gpus=1, *, tasks=1, least=None, at=None, pool=None, user=ALICE, priority=500,
        preemptible=True, releasing=0, for_job=None, protected_until=0, ends_at=None, holder=0, **asks,
    ):  # fmt: skip
        """A job that runs and may be told to give way; its last ``releasing`` tasks are being stopped already."""
        where, number = self._pool(pool), 1000 + len(self.running)
        made = []
        for i in range(tasks):
            self.runs(team, gpus, pool=pool, user=user, **asks)
            placement = self._last
            leaving = i >= tasks - releasing
            made.append(RunningTask(number * 100 + i, 0, placement, leaving, for_job if leaving else None, holder))
        self.running[name] = RunningJob(
            id=number,
            team_id=self.teams[team].id,
            user_id=user,
            pool_id=where.id,
            priority=priority,
            preemptible=preemptible,
            started_at=number if at is None else at,
            tasks=tuple(made),
            least=(tasks if least is None else least,),
            protected_until=protected_until,
            ends_at=ends_at,
        )
        return self

    def works_of(self, team, count, gpus=1, *, prefix=None, **more):
        for i in range(1, count + 1):
            self.works(f"{prefix or team}-r{i}", team, gpus, **more)
        return self

    def job(
        self, name, team, gpus=1, *, tasks=1, min_tasks=None, groups=None, at=None, pool=None, pools=None,
        user=ALICE, placed=0, priority=500, cluster_wide=False, preemptible=True, held=None, held_numbers=None,
        max_running_of_class=None, priority_class="normal", growing=False, room_made_at=None, room_kept_since=None,
        limit=None, topology=None, apart=None, **asks,
    ):  # fmt: skip
        number = len(self.jobs) + 1
        if groups is None:
            least = tasks if min_tasks is None else min_tasks
            groups = (Group("main", tasks, least, request(gpus, **asks), placed),)
        self.jobs[name] = PendingJob(
            id=number,
            team_id=self.teams[team].id,
            user_id=user,
            pool_ids=tuple(self._pool(each).id for each in pools or [pool]),
            groups=groups,
            submitted_at=number if at is None else at,
            priority=priority,
            cluster_wide=cluster_wide,
            preemptible=preemptible,
            held=held,
            held_numbers=held_numbers or {},
            max_running_of_class=max_running_of_class,
            priority_class=priority_class,
            growing=growing,
            room_made_at=room_made_at,
            topology=topology,
            apart=apart,
            room_kept_since=room_kept_since,
            time_limit=limit,
        )
        return self

    def jobs_of(self, team, count, gpus=1, *, prefix=None, **more):
        """``count`` equal jobs, named team-1, team-2, …"""
        for i in range(1, count + 1):
            self.job(f"{prefix or team}-{i}", team, gpus, **more)
        return self

    def snapshot(self):
        pools = tuple(
            PoolState(
                pool.id,
                pool.name,
                pool.fleet,
                dict(pool.quotas),
                dict(pool.usage),
                unit=pool.unit,
                available=pool.available,
                class_usage=dict(pool.class_usage),
            )
            for pool in self.pools.values()
        )
        return Snapshot(
            self.now, tuple(self.teams.values()), pools, tuple(self.jobs.values()), tuple(self.running.values())
        )

    def decide(self, **policy):
        return Outcome(self, decide(self.snapshot(), Policy(**policy)))

    def _pool(self, name):
        return self.pools[name] if name else next(iter(self.pools.values()))


class Outcome:
    """A plan, asked by name."""

    def __init__(self, world, plan: Plan):
        self.world, self.plan = world, plan
        self._names = {job.id: name for name, job in world.jobs.items()}
        self._pools = {pool.id: pool for pool in world.pools.values()}

    @property
    def started(self):
        """Names of what starts, in order."""
        return [self._names[start.job_id] for start in self.plan.starts]

    @property
    def kept(self):
        """Name of who has a reservation → until when."""
        return {self._names[kept.job_id]: kept.at for kept in self.plan.reservations}

    @property
    def evicted(self):
        """Name of who gives way → how many tasks of it, "all" for a job as a whole."""
        names = {job.id: name for name, job in self.world.running.items()}
        return {names[e.job_id]: "all" if e.whole else len(e.allocation_ids) for e in self.plan.evictions}

    @property
    def tasks(self):
        """Name → how many tasks of it start."""
        return {self._names[start.job_id]: len(start.tasks) for start in self.plan.starts}

    @property
    def where(self):
        """Name → the pool where it starts."""
        return {self._names[start.job_id]: self._pools[start.pool_id].name for start in self.plan.starts}

    @property
    def waiting(self):
        """Name → the codes of its reasons."""
        return {self._names[key]: [reason.code for reason in reasons] for key, reasons in self.plan.reasons.items()}

    def start(self, name):
        return next(start for start in self.plan.starts if self._names[start.job_id] == name)

    def reasons(self, name):
        return self.plan.reasons[self.world.jobs[name].id]

    def reason(self, name):
        (only,) = self.reasons(name)
        return only

    def text(self, name):
        reason = self.reason(name)
        return message(reason, self._pools[reason.pool_id].unit if reason.pool_id in self._pools else "gpu")

    def share(self, team, pool=None):
        at = self.world._pool(pool)
        return self.plan.shares[at.id][self.world.teams[team].id]


def one_team(*nodes, **quota):
    """The pool ``train`` with these nodes, and one team ``a``."""
    return World().pool("train", *nodes).team("a", **quota)
