"""Jobs that look like those of a real cluster, endless and the same for the same seed.

From measured figures (``figures``) come: how many jobs are CPU-only, a slice or whole devices; the sizes of slices (all
of Alibaba) and of gangs (Philly: whole-device jobs are training there); how long each class runs; how many name their
models; arrivals by hour; CPU and host memory; how many fail (Helios). What no trace says is chosen, in ``mix``.

Everything is compressed by ``speed``: at 60 a minute of the page is an hour of the trace, of the durations and of the
day that the arrivals follow. Durations are cut at ``longest_s`` of the trace, as a pool's time limit would, and at
``shortest_s`` of the page, so that an eye can follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil

import numpy as np

from scheduling.core.units import MILLI_PER_DEVICE
from scheduling.workload import figures, mix
from scheduling.workload.demo_teams import TeamProfile
from scheduling.workload.distributions import Amounts, Choice, Durations
from scheduling.workload.mix import JobClass, Kind, Utilization
from scheduling.workload.platforms import ModelSupply, Platform, platforms_of
from scheduling.workload.records import Exit, TraceNode

DAY_S = 86_400
DEFAULT_LOAD = 1.05
DEFAULT_SPEED = 60
LONGEST_S = 3 * DAY_S  # of the trace
SHORTEST_S = 5  # of the page
ENOUGH_TRIED = 1000  # jobs that were too large for what is left before the rest is left idle
CPU_GRAIN_MILLI = 500
MEMORY_GRAIN_MIB = 512


@dataclass(frozen=True, slots=True)
class GeneratedJob:
    """One job to submit at ``at_s`` (page seconds, as the caller counts them).

    Each of ``tasks`` tasks asks ``gpus_milli`` (1..1000) of each of ``devices`` devices of one node; devices 0 is
    CPU-only. CPU and host memory are per task. It ends ``duration_s`` page seconds after it starts, as ``exit`` says.
    ``models`` are the accelerator models that it runs on, () where it needs none.
    """

    at_s: Decimal
    team: str
    name: str
    tasks: int
    min_tasks: int
    devices: int
    gpus_milli: int
    cpu_milli: int
    host_memory_mib: int
    duration_s: Decimal
    models: tuple[str, ...]
    priority_class: str
    kind: Kind
    framework: str
    exit: Exit
    preemptible: bool
    utilization: Utilization

    @property
    def total_milli(self) -> int:
        """Milli-GPU over all its tasks."""
        return self.tasks * self.devices * self.gpus_milli


@dataclass(frozen=True, slots=True)
class _Shape:
    """The part of a job that decides where it can run."""

    job_class: JobClass
    kind: Kind
    platform: Platform | None
    tasks: int
    devices: int
    gpus_milli: int
    duration_s: float
    models: tuple[ModelSupply, ...] = ()


class Workload:
    """An endless stream of jobs of ``teams`` for a fleet, at ``load`` × its capacity, ``speed`` times as fast.

    At a load above 1 the queue grows for ever: whoever plays it leaves jobs out while more wait than are to be seen.
    """

    def __init__(
        self,
        teams: Sequence[TeamProfile],
        nodes: Sequence[TraceNode],
        *,
        seed: int = 0,
        load: float = DEFAULT_LOAD,
        speed: float = DEFAULT_SPEED,
        longest_s: float = LONGEST_S,
        shortest_s: float = SHORTEST_S,
    ):
        self.platforms = platforms_of(nodes)
        if not teams or not self.platforms:
            raise ValueError("a workload needs at least one team and one accelerator")
        if load <= 0 or speed <= 0:
            raise ValueError(f"load {load} and speed {speed} must be above 0")
        self.seed = seed
        self.load = load
        self.speed = speed
        self.capacity_milli = sum(platform.devices for platform in self.platforms) * MILLI_PER_DEVICE
        self._largest_cpu_milli = max(node.cpu_milli for node in nodes)
        self._largest_memory_mib = max(node.host_memory_mib for node in nodes)
        self._make_distributions(shortest_s, longest_s / speed)
        self._teams = {team.name: team for team in teams}
        self._classes = {team.name: Choice(_inclined(team)) for team in teams}
        self._work = {team.name: self._mean_work(self._classes[team.name]) for team in teams}
        self._team = Choice({team.name: team.appetite / self._work[team.name] for team in teams})
        profile = figures.ALIBABA_HOURS
        self._hours = [count * len(profile) / sum(profile) for count in profile]

    def _make_distributions(self, least: float, most: float) -> None:
        speed = self.speed
        self._durations = {
            **{f"gang {name}": _compressed(points, speed, least, most) for name, points in _gang_durations()},
            "slice": _compressed(figures.ALIBABA_DURATIONS["slice"], speed, least, most),
            "cpu": _compressed(figures.ALIBABA_DURATIONS["cpu"], speed, least, most),
        }
        self._platform = Choice({index: platform.devices for index, platform in enumerate(self.platforms)})
        self._fractions = Choice(figures.ALIBABA_FRACTIONS)
        self._gangs = Choice({size: count for size, count in figures.PHILLY_GANG_SIZES.items() if self._holds(size)})
        self._slice_kind = Choice(mix.KINDS_OF_SLICE)
        self._replicas = Choice(mix.REPLICAS)
        self._priorities = {kind: Choice(weights) for kind, weights in mix.PRIORITIES.items()}
        self._frameworks = {vendor: Choice(weights) for vendor, weights in mix.FRAMEWORKS.items()}
        self._any_framework = Choice(mix.ANY_FRAMEWORK)
        self._cpu = {name: Amounts(points) for name, points in figures.ALIBABA_CPU.items()}
        self._memory = {name: Amounts(points) for name, points in figures.ALIBABA_MEMORY.items()}

    def mean_work(self) -> float:
        """Milli-GPU × page seconds that a job asks for on average, over all teams."""
        return sum(part * self._work[name] for name, part in self._team.parts.items())

    def arrival_rate(self, capacity_milli: int, load: float) -> float:
        """Jobs a page second that ask for ``load`` × ``capacity_milli``, averaged over a day of the trace."""
        return load * capacity_milli / self.mean_work()

    @property
    def rate(self) -> float:
        """Jobs a page second of this workload, averaged over a day of the trace."""
        return self.arrival_rate(self.capacity_milli, self.load)

    def jobs(
        self, start_s: float | Decimal, *, first_number: int = 1, until_s: float | Decimal | None = None
    ) -> Iterator[GeneratedJob]:
        """The jobs after ``start_s`` in order of time, until ``until_s`` (endless if None).

        Names end in consecutive numbers from ``first_number``, which with the seed also decides the sequence: after a
        restart one goes on with the next number, and no name comes twice.
        """
        random = self._random(first_number, 0)
        highest = self.rate * max(self._hours)
        now = float(start_s)
        number = first_number
        while True:
            now += random.exponential(1 / highest)
            if until_s is not None and now >= until_s:
                return
            if random.random() * max(self._hours) < self._hours[self._hour(now)]:
                yield self._job(random, _milliseconds(now), number)
                number += 1

    def already_running(
        self, start_s: float | Decimal, *, fill: float = 0.9, first_number: int = 1
    ) -> list[GeneratedJob]:
        """Jobs as one would find them running at ``start_s`` in a cluster long in use, ``fill`` of the capacity.

        Which jobs are found is in proportion to how long they run; of each only the rest is still to come, uniform in
        its duration. All have ``at_s`` = start_s.
        """
        if not 0 <= fill <= 1:
            raise ValueError(f"fill {fill} is not between 0 and 1")
        random = self._random(first_number, 1)
        longest = max(durations.most for durations in self._durations.values())
        wanted = fill * self.capacity_milli
        found: list[GeneratedJob] = []
        milli = too_large = 0
        while milli < wanted and too_large < ENOUGH_TRIED:
            shape, team = self._shape(random)
            if random.random() * longest >= shape.duration_s:
                continue
            if milli + _milli(shape) > self.capacity_milli:
                too_large += 1
                continue
            rest = max(shape.duration_s * random.random(), self._durations["cpu"].least)
            found.append(
                self._dressed(random, shape, team, _milliseconds(float(start_s)), rest, first_number + len(found))
            )
            milli += _milli(shape)
        return found

    def _random(self, first_number: int, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, first_number, stream])

    def _hour(self, page_s: float) -> int:
        """Hour of the trace's day at this moment of the page."""
        return int(page_s * self.speed % DAY_S // 3600)

    def _job(self, random: np.random.Generator, at_s: Decimal, number: int) -> GeneratedJob:
        shape, team = self._shape(random)
        return self._dressed(random, shape, team, at_s, shape.duration_s, number)

    def _shape(self, random: np.random.Generator) -> tuple[_Shape, TeamProfile]:
        team = self._teams[self._team.at(random.random())]
        job_class = self._classes[team.name].at(random.random())
        if job_class == "cpu":
            duration_s = self._durations["cpu"].at(random.random())
            return _Shape("cpu", "batch", None, 1, 0, 0, duration_s), team
        shape = self._slice(random) if job_class == "slice" else self._gang(random)
        return shape, team

    def _slice(self, random: np.random.Generator) -> _Shape:
        kind = self._slice_kind.at(random.random())
        tasks = self._replicas.at(random.random()) if kind == "service" else 1
        platform = self.platforms[self._platform.at(random.random())]
        milli = platform.fitting(self._fractions.at(random.random()))
        duration_s = self._durations["slice"].at(random.random())
        models = self._models(random, platform, 1, 1)  # one replica is enough to start
        return _Shape("slice", kind, platform, tasks, 1, milli, duration_s, models)

    def _gang(self, random: np.random.Generator) -> _Shape:
        gpus = self._gangs.at(random.random())
        platform = self.platforms[self._platform.at(random.random())]
        if not platform.holds(gpus):
            platform = max((each for each in self.platforms if each.holds(gpus)), key=lambda each: each.devices)
        tasks, devices = platform.gang(gpus)
        duration_s = self._durations[f"gang {_gang_class(gpus)}"].at(random.random())
        models = self._models(random, platform, tasks, devices)
        return _Shape("whole", "batch", platform, tasks, devices, MILLI_PER_DEVICE, duration_s, models)

    def _models(
        self, random: np.random.Generator, platform: Platform, tasks: int, devices: int
    ) -> tuple[ModelSupply, ...]:
        """The models that the job may use: one that holds it alone if it names its model, else all wide enough."""
        wide = platform.models_for(tasks, devices)
        alone = {model: float(model.devices) for model in wide if model.tasks_of(devices) >= tasks}
        u, v = random.random(), random.random()
        return (Choice(alone).at(v),) if alone and u < mix.NAMES_ITS_MODEL else wide

    def _dressed(
        self,
        random: np.random.Generator,
        shape: _Shape,
        team: TeamProfile,
        at_s: Decimal,
        duration_s: float,
        number: int,
    ) -> GeneratedJob:
        cpu_milli, memory_mib = self._host_request(random.random(), shape)
        failed = mix.FAILED_OF_GPU_JOBS if shape.devices else mix.FAILED_OF_CPU_JOBS
        return GeneratedJob(
            at_s=at_s,
            team=team.name,
            name=f"{_stem(team, shape, random.random())}-{number:04d}",
            tasks=shape.tasks,
            min_tasks=_min_tasks(shape, random.random()),
            devices=shape.devices,
            gpus_milli=shape.gpus_milli,
            cpu_milli=cpu_milli,
            host_memory_mib=memory_mib,
            duration_s=_milliseconds(duration_s),
            models=tuple(sorted(model.name for model in shape.models)),
            priority_class=self._priorities[shape.kind].at(random.random()),
            kind=shape.kind,
            framework=self._framework(shape, random.random()),
            exit="failed" if random.random() < failed else "succeeded",
            preemptible=random.random() >= mix.NOT_PREEMPTIBLE[shape.kind],
            utilization=_utilization(random, shape),
        )

    def _host_request(self, u: float, shape: _Shape) -> tuple[int, int]:
        """CPU and host memory of one task, both from the same quantile: who wants many cores wants much memory.

        Never more per device than the node of the narrowest allowed model has: eight devices fit on a node of eight.
        """
        if shape.platform is None:
            cpu, memory = self._cpu["cpu"].at(u), self._memory["cpu"].at(u)
            return _grains(cpu, self._largest_cpu_milli, memory, self._largest_memory_mib)
        job_class = "slice" if shape.job_class == "slice" else "one" if shape.devices == 1 else "several"
        most_cpu = min(model.cpu_milli for model in shape.models)
        most_memory = min(model.host_memory_mib for model in shape.models)
        cpu_milli, memory_mib = _grains(
            self._cpu[job_class].at(u), most_cpu, self._memory[job_class].at(u), most_memory
        )
        return cpu_milli * shape.devices, memory_mib * shape.devices

    def _framework(self, shape: _Shape, u: float) -> str:
        if shape.platform is None:
            return ""
        return self._frameworks.get(shape.platform.vendor, self._any_framework).at(u)

    def _holds(self, gpus: int) -> bool:
        return any(platform.holds(gpus) for platform in self.platforms)

    def _mean_work(self, classes: Choice[JobClass]) -> float:
        """Milli-GPU × page seconds of a job on average. Raises ValueError where no class of them uses a GPU."""
        parts = classes.parts
        work = parts.get("slice", 0) * self._mean_slice_work() + parts.get("whole", 0) * self._mean_gang_work()
        if work <= 0:
            raise ValueError("a team that only asks for CPUs puts no load on accelerators")
        return work

    def _mean_slice_work(self) -> float:
        replicas = sum(part * count for count, part in self._replicas.parts.items())
        kinds = self._slice_kind.parts
        tasks = sum(part * (replicas if kind == "service" else 1) for kind, part in kinds.items())
        milli = sum(
            platform_part * part * self.platforms[index].fitting(fraction)
            for index, platform_part in self._platform.parts.items()
            for fraction, part in self._fractions.parts.items()
        )
        return tasks * milli * self._durations["slice"].mean()

    def _mean_gang_work(self) -> float:
        return sum(
            part * gpus * MILLI_PER_DEVICE * self._durations[f"gang {_gang_class(gpus)}"].mean()
            for gpus, part in self._gangs.parts.items()
        )


def _inclined(team: TeamProfile) -> dict[JobClass, float]:
    return {name: weight * team.inclination.get(name, 1) for name, weight in mix.CLASS_WEIGHTS.items()}


def _gang_durations() -> Iterator[tuple[str, tuple[int, ...]]]:
    return iter(figures.PHILLY_DURATIONS.items())


def _gang_class(gpus: int) -> str:
    """The class of ``figures.PHILLY_DURATIONS`` that a job of so many GPUs belongs to."""
    if gpus == 1:
        return "1"
    if gpus <= 4:
        return "2-4"
    return "5-8" if gpus <= 8 else "9+"


def _compressed(points: Sequence[int], speed: float, least: float, most: float) -> Durations:
    return Durations([value / speed for value in points], least, max(least, most))


def _milliseconds(seconds: float) -> Decimal:
    """Seconds to the nearest millisecond, exactly."""
    return Decimal(round(seconds * 1000)).scaleb(-3)


def _milli(shape: _Shape) -> int:
    return shape.tasks * shape.devices * shape.gpus_milli


def _min_tasks(shape: _Shape, u: float) -> int:
    if shape.kind == "service":
        return 1
    return ceil(shape.tasks / 2) if shape.tasks > 1 and u < mix.ELASTIC_GANGS else shape.tasks


def _stem(team: TeamProfile, shape: _Shape, u: float) -> str:
    stems = team.stems.get("cpu" if shape.job_class == "cpu" else shape.kind, ())
    return stems[int(u * len(stems))] if stems else f"{team.name}-{shape.kind}"


def _grains(cpu: float, most_cpu: int, memory: float, most_memory: int) -> tuple[int, int]:
    """Both rounded down to their grain, at least one grain and at most what there is."""
    return _grain(cpu, most_cpu, CPU_GRAIN_MILLI), _grain(memory, most_memory, MEMORY_GRAIN_MIB)


def _grain(amount: float, most: int, grain: int) -> int:
    return min(max(int(min(amount, most)) // grain * grain, grain), most)


def _utilization(random: np.random.Generator, shape: _Shape) -> Utilization:
    if not shape.devices:
        return mix.CPU_ONLY_USE
    mean, spread, deviation, memory = mix.USE[shape.kind]
    drawn, memory_drawn, u = random.normal(mean, spread), random.normal(memory, 0.15), random.random()
    if u < mix.FORGOTTEN:
        return mix.FORGOTTEN_USE
    return Utilization(_between(drawn, 0.03, 0.98), deviation, _between(memory_drawn, 0.05, 0.95), 0.02)


def _between(value: float, least: float, most: float) -> float:
    return round(min(max(value, least), most), 3)
