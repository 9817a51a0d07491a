"""Evictions for gangs with a rule of place, on random worlds: nobody gives way unless the gang then lies as it must."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.model import Topology
from tests.core.test_gang_rules_properties import check_rule, domain
from tests.core.test_reclaim_properties import Later, Maker

seeds = st.integers(0, 2**32 - 1)


class Ruled(Maker):
    """Nodes in two racks, some in none, and jobs that must lie together or apart."""

    def __init__(self, seed, **options):
        super().__init__(seed, **options)
        racks = [(("rack", "r1"),), (("rack", "r1"),), (("rack", "r2"),), (("rack", "r2"),), ()]
        self.nodes = [replace(node, labels=self.one_of(racks)) for node in self.nodes]
        self.fleet = Fleet(self.nodes)
        for job in self.running:
            for task in job.tasks:
                self.fleet.take(task.placement)
        self.pending = tuple(self.under_a_rule(job) for job in self.pending)

    def under_a_rule(self, job):
        topology = self.one_of([None, Topology("rack"), Topology("rack"), Topology("host"), Topology("rack", False)])
        return replace(job, topology=topology, apart=self.one_of([None, None, "host"]))


@settings(max_examples=400, deadline=None)
@given(seeds)
def test_who_others_give_way_to_starts_where_it_must_once_they_are_gone(seed):
    made = Ruled(seed)
    jobs = {job.id: job for job in made.pending}
    plan = decide(made.snapshot())
    event(f"{len({each.for_job for each in plan.evictions})} rescued")
    for start in plan.starts:
        check_rule(made.fleet, jobs[start.job_id], [task.placement.node for task in start.tasks])
    later = Later(made, plan)
    after = {start.job_id: start for start in decide(later.snapshot()).starts}
    for job_id in {each.for_job for each in plan.evictions}:
        check_rule(later.fleet, jobs[job_id], [task.placement.node for task in after[job_id].tasks])


@settings(max_examples=400, deadline=None)
@given(seeds)
def test_who_gives_way_held_something_where_the_gang_then_lies(seed):
    made = Ruled(seed, whole=True, flat=True)
    made.quotas = {team_id: replace(quota, limit=None) for team_id, quota in made.quotas.items()}
    jobs = {job.id: job for job in made.pending}
    plan = decide(made.snapshot())
    rescued = {each.for_job for each in plan.evictions}
    if len(rescued) != 1:
        return
    (job_id,) = rescued
    topology = jobs[job_id].topology
    if topology is None or not topology.required:
        return
    event(topology.level)
    later = Later(made, plan)
    start = next(start for start in decide(later.snapshot()).starts if start.job_id == job_id)
    there = domain(later.fleet, topology.level, start.tasks[0].placement.node)
    held = {task.allocation_id: task.placement.node for job in made.running for task in job.tasks}
    for each in plan.evictions:
        assert any(domain(later.fleet, topology.level, held[pk]) == there for pk in each.allocation_ids)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_the_picture_stays_as_it_was(seed):
    made = Ruled(seed)
    snapshot = made.snapshot()
    before = (made.fleet.free_milli(), made.fleet.free_cpu_milli())
    plan = decide(snapshot)
    assert (made.fleet.free_milli(), made.fleet.free_cpu_milli()) == before
    assert decide(snapshot) == plan
