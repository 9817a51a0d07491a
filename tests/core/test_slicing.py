"""What a request is granted of one device, rule by rule; fleets place, count and explain by what is granted."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.decide import decide
from scheduling.core.fleet import Fleet
from scheduling.core.fragmentation import typical_shapes
from scheduling.core.lookahead import lookahead_tables
from scheduling.core.model import (
    DeviceState,
    Group,
    NodeState,
    PendingJob,
    PoolState,
    Quota,
    Request,
    Snapshot,
    Team,
)
from scheduling.core.placement_shapes import DeviceClass, needs_of
from scheduling.core.reasons import message
from scheduling.core.slicing import (
    ANY,
    NOT_ALLOWED,
    TOO_SMALL,
    WHOLE,
    Template,
    granted,
    template_name,
    template_rule,
)
from tests.core.little_world import World

VNPU = template_rule(Template(500, 12288, "vir04"), Template(125, 3072, "vir01"), Template(250, 6144, "vir02"))
MIG = template_rule(
    Template(142, 5120, "1g.5gb"),
    Template(142, 10240, "1g.10gb"),
    Template(285, 10240, "2g.10gb"),
    Template(428, 20480, "3g.20gb"),
    Template(571, 20480, "4g.20gb"),
)
ODD = template_rule(Template(300, 5000, "thin"), Template(600, 2000, "flat"), Template(1000, 9, "all"))

CASES = [
    # rule, fraction, memory, memory of the device, wanted
    ("any: as it is asked", ANY, 300, None, 24576, (300, 7372)),
    ("any: memory alone in steps", ANY, None, 10240, 24576, (450, 10240)),
    ("any: both", ANY, 100, 20000, 24576, (100, 20000)),
    ("any: too little memory", ANY, 100, 24577, 24576, (TOO_SMALL, 0)),
    ("exactly a template", VNPU, 250, 6144, 24576, (250, 6144)),
    ("a fraction up to the next", VNPU, 200, None, 24576, (250, 6144)),
    ("a thousandth", VNPU, 1, None, 24576, (125, 3072)),
    ("just above a template", VNPU, 126, None, 24576, (250, 6144)),
    ("memory alone asks for no compute", VNPU, None, 10240, 24576, (500, 12288)),
    ("one MiB", VNPU, None, 1, 24576, (125, 3072)),
    ("one MiB above a template", VNPU, None, 6145, 24576, (500, 12288)),
    ("the memory decides", VNPU, 100, 6144, 24576, (250, 6144)),
    ("the compute decides", VNPU, 400, 1000, 24576, (500, 12288)),
    ("above all templates: the whole", VNPU, 550, None, 24576, (1000, 24576)),
    ("memory above all templates: the whole", VNPU, 100, 12289, 24576, (1000, 24576)),
    ("memory above the device", VNPU, None, 24577, 24576, (TOO_SMALL, 0)),
    ("a whole one with little memory beside", VNPU, 1000, 1, 24576, (1000, 24576)),
    ("a fraction asks for its share of memory", MIG, 140, None, 40960, (142, 10240)),
    ("equal compute: the least memory", MIG, None, 5120, 40960, (142, 5120)),
    ("equal memory: the least compute", MIG, None, 20480, 40960, (428, 20480)),
    ("compute beside memory", MIG, 500, 100, 40960, (571, 20480)),
    ("the least compute may have more memory", ODD, None, 1500, 8000, (300, 5000)),
    ("sizes that divide nothing", ODD, 500, 1500, 8000, (600, 2000)),
    ("covered in one dimension only", ODD, 500, 3000, 8000, (1000, 8000)),
    ("templates larger than a smaller device", VNPU, 200, None, 6000, (1000, 6000)),
    ("of a smaller device what fits into it", VNPU, None, 3000, 6000, (125, 3072)),
    ("a template of all compute is the whole", ODD, 700, 9, 8000, (1000, 8000)),
    ("whole: no fraction", WHOLE, 999, None, 24576, (NOT_ALLOWED, 0)),
    ("whole: no fraction with memory", WHOLE, 500, 100, 24576, (NOT_ALLOWED, 0)),
    ("whole: no fraction, whatever the memory", WHOLE, 500, 99999, 24576, (NOT_ALLOWED, 0)),
    ("whole: memory alone gets all", WHOLE, None, 1, 24576, (1000, 24576)),
    ("whole: more memory than there is", WHOLE, None, 24577, 24576, (TOO_SMALL, 0)),
    ("whole: a whole one", WHOLE, 1000, None, 24576, (1000, 24576)),
]


@pytest.mark.parametrize(("rule", "compute", "memory", "of", "want"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_granted(rule, compute, memory, of, want):
    assert granted(rule, compute, memory, of, 50) == want


def test_every_kind_of_device_has_its_own_needs():
    classes = [
        DeviceClass("A", "v", 24576),
        DeviceClass("N", "v", 24576, VNPU),
        DeviceClass("W", "v", 24576, WHOLE),
        DeviceClass("S", "v", 8192, VNPU),
    ]
    assert needs_of(Request(1, 200), classes, 50) == [(200, 4915), (250, 6144), (NOT_ALLOWED, 0), (250, 6144)]
    assert needs_of(Request(1, None, 10240), classes, 50) == [(450, 10240), (500, 12288), (1000, 24576), (TOO_SMALL, 0)]
    only = needs_of(Request(1, 200, models=("N", "W")), classes, 50)
    assert only == [(NOT_ALLOWED, 0), (250, 6144), (NOT_ALLOWED, 0), (NOT_ALLOWED, 0)]


def test_templates_are_told_by_their_size():
    assert template_name(VNPU, 500, 12288) == "vir04"
    assert template_name(VNPU, 500, 12287) is None
    assert template_name(ODD, 1000, 9) is None
    assert template_name(ANY, 500, 12288) is None


rules = st.builds(
    lambda sizes: template_rule(*(Template(c, m, f"t{i}") for i, (c, m) in enumerate(sorted(sizes)))),
    st.sets(st.tuples(st.integers(1, 1000), st.integers(1, 4000)), min_size=1, max_size=6),
) | st.sampled_from([ANY, WHOLE])
asks = st.tuples(st.none() | st.integers(1, 1000), st.none() | st.integers(1, 4000)).filter(
    lambda ask: ask != (None, None)
)


@given(rules, asks, st.integers(1, 4000))
def test_what_is_granted_covers_what_is_asked_and_no_smaller_template_would(rule, ask, of):
    compute, memory = ask
    got = granted(rule, compute, memory, of, 50)
    if got[0] == TOO_SMALL:
        assert (memory or 0) > of
        return
    if got[0] == NOT_ALLOWED:
        assert rule == WHOLE
        assert compute is not None
        assert compute < 1000
        return
    asked_memory = of * compute // 1000 if memory is None else memory
    assert compute is None or got[0] >= compute
    assert asked_memory <= got[1] <= of
    assert 1 <= got[0] <= 1000
    if rule.kind == "templates" and compute != 1000:
        covering = [
            t for t in rule.templates if t.compute_milli >= (compute or 0) and asked_memory <= t.memory_mib <= of
        ]
        covering = [t for t in covering if t.compute_milli < 1000]
        smallest = min(covering, default=None)
        assert got == ((1000, of) if smallest is None else (smallest.compute_milli, smallest.memory_mib))


# ---- fleets ----------------------------------------------------------------------------------------------------------


def fleet_of(seed, score="binpack", exclusive=False):
    """A small fleet of several models with different rules, drawn from ``seed``; and its nodes."""
    random = Random(seed)
    kinds = [("A", 24576, ANY), ("N", 24576, VNPU), ("M", 40960, MIG), ("W", 8192, WHOLE), ("O", 8000, ODD)]
    nodes = []
    for number in range(1, random.randint(2, 5)):
        mixed = random.random() < 0.4
        own = random.choice(kinds)
        devices = []
        for index in range(random.randint(1, 4)):
            model, memory, rule = random.choice(kinds) if mixed else own
            devices.append(DeviceState(number * 10 + index, index, model, "v", memory, rule=rule))
        nodes.append(NodeState(number, f"n{number}", number, 64000, 10**6, tuple(devices)))
    typical = (
        typical_shapes([(request(random), 3), (request(random), 2)]) if score in ("fragmentation", "lookahead") else ()
    )
    return Fleet(nodes, score=score, exclusive=exclusive, typical=typical), nodes, random


def request(random):
    memory = random.choice([None, None, 500, 3072, 7000, 12288])
    compute = random.choice([50, 125, 200, 300, 500, 700, 1000]) if memory is None or random.random() < 0.5 else None
    return Request(random.choice([1, 1, 1, 2, 3]), compute, memory, cpu_milli=100)


@pytest.mark.parametrize("score", ["binpack", "spread", "fragmentation", "lookahead"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_devices_are_never_over_full_and_every_slice_covers_what_was_asked(score, seed):
    fleet, nodes, random = fleet_of(seed, score)
    by_id = {device.id: device for node in nodes for device in node.devices}
    held: dict = {key: [0, 0] for key in by_id}
    taken: list = []
    for _ in range(40):
        asked = request(random)
        fits = fleet.headroom(asked)
        placement = fleet.place(asked)
        assert fits.fits == (placement is not None)
        assert (fleet.count_fitting(asked, 1) == 1) == (placement is not None)
        if placement is None:
            assert fits.short is not None or fits.matching_nodes == 0 or fits.possible_nodes == 0
            if taken:
                fleet.give_back(gone := taken.pop(random.randrange(len(taken))))
                for device_id, memory in zip(gone.device_ids, gone.memory_mib, strict=True):
                    held[device_id][0] -= gone.compute_milli
                    held[device_id][1] -= memory
            continue
        fleet.take(placement)
        taken.append(placement)
        for device_id, memory in zip(placement.device_ids, placement.memory_mib, strict=True):
            device = by_id[device_id]
            got = granted(device.rule, asked.compute_milli, asked.memory_mib, device.memory_mib, 50)
            assert got == (placement.compute_milli, memory)
            held[device_id][0] += placement.compute_milli
            held[device_id][1] += memory
            assert held[device_id][0] <= 1000
            assert held[device_id][1] <= device.memory_mib
        assert fleet.least_milli(asked) <= placement.milli
        assert fleet.least_memory(asked) <= placement.memory_counted
    assert fleet.allocated_milli() == sum(placement.milli for placement in taken)


def test_rules_are_part_of_what_look_ahead_expects():
    classes = [DeviceClass("N", "v", 24576, VNPU), DeviceClass("W", "v", 24576, WHOLE)]
    import numpy as np

    hosts = np.array([[2, 0], [0, 2]])
    rooms = np.array([[64000, 10**6]] * 2)
    tables = lookahead_tables([(Request(1, 200), 10), (Request(1, None, 7000), 5)], classes, 50, hosts, rooms)
    assert tables.ahead[:, 3:].tolist() == [[250, 0], [500, 1000]]


# ---- decisions -------------------------------------------------------------------------------------------------------


def npu_world(rule, **quota):
    world = World().pool("npu")
    device = DeviceState(1, 0, "N", "ascend", 24576, rule=rule)
    node = NodeState(1, "n", 1, 64000, 10**6, (device, replace(device, id=2, index=1)))
    world.pools["npu"].fleet = Fleet([node])
    return world.team("a", **quota)


def test_a_limit_counts_what_is_granted():
    world = npu_world(VNPU, limit=0.7).jobs_of("a", 2, 0.3)
    plan = world.decide()
    assert plan.started == ["a-1"]
    assert plan.start("a-1").tasks[0].placement.milli == 500
    assert plan.text("a-2") == "a would pass its limit in npu: 0.5 of 0.7 GPU in use, this job needs 0.5"
    assert plan.reason("a-2").helps == {"quota": {"team": "a", "limit": 1000, "by_milli": 300}}
    assert plan.share("a").allocated == 500
    assert plan.share("a").pending == 500
    assert npu_world(VNPU, limit=1).jobs_of("a", 2, 0.3).decide().started == ["a-1", "a-2"]


def test_what_is_rounded_up_says_so_where_it_does_not_fit():
    world = npu_world(VNPU).jobs_of("a", 3, 0.4).job("last", "a", 0.55).job("lesser", "a", 0.2, at=3)
    plan = world.decide()
    assert plan.started == ["a-1", "a-2", "a-3", "lesser"]
    assert plan.text("last") == (
        "no GPU is entirely free: 0.25 GPU is free in all, the largest free piece is 0.25 "
        "(0.55 is given as a whole GPU here)"
    )
    again = npu_world(VNPU).jobs_of("a", 3, 0.4).job("small", "a", 0.2).job("last", "a", 0.3).decide()
    assert again.text("last") == (
        "no single GPU has 0.5 free: 0.25 GPU is free in all, the largest free piece is 0.25 "
        "(0.3 is given as 0.5 and 12288 MiB here)"
    )


def test_a_fraction_of_what_is_given_whole_matches_nothing_and_says_which_model():
    plan = npu_world(WHOLE).job("part", "a", 0.5).job("all", "a", 1).decide()
    assert plan.started == ["all"]
    assert plan.waiting["part"] == ["no_matching_accelerator"]
    assert plan.text("part") == "no accelerator in npu can be cut as asked: N is given whole only"
    assert plan.reason("part").numbers["whole_only"] == ["N"]
    # Where the model is not what was asked for in the first place, its rule is not the reason.
    plan = npu_world(WHOLE).job("part", "a", 0.5, models=("H100",)).decide()
    assert plan.text("part") == "no accelerator in npu matches: model H100"


def test_several_templates_on_several_devices_of_one_task():
    world = npu_world(VNPU).job("pair", "a", 0.2, devices=2).job("second", "a", 0.7, devices=2)
    plan = world.decide()
    (task,) = plan.start("pair").tasks
    assert (task.placement.compute_milli, task.placement.memory_mib) == (250, (6144, 6144))
    assert task.placement.milli == 500
    assert plan.text("second") == (
        "no node has 2 entirely free GPUs: at most 0 in one node, 0 entirely free in all "
        "(0.7 is given as a whole GPU here)"
    )


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), exclusive=st.booleans())
def test_a_plan_charges_what_it_grants_and_keeps_every_limit(seed, exclusive):
    """Random teams, limits of GPUs and of memory, and requests, on fleets of mixed rules: sums are taken anew here."""
    fleet, nodes, random = fleet_of(seed, exclusive=exclusive)
    teams = tuple(Team(i, f"t{i}", random.choice([None, *range(1, i)])) for i in range(1, random.randint(2, 5)))
    ids = [team.id for team in teams]
    quotas = {
        key: Quota(
            limit=random.choice([None, None, 0, 700, 1000, 2500]),
            memory_limit_mib=random.choice([None, 0, 6144, 12288, 30000, 60000]),
        )
        for key in ids
    }
    caps = random.choice([None, 0, 500, 1250])
    jobs = tuple(
        PendingJob(
            id=number,
            team_id=random.choice(ids),
            user_id=1,
            pool_ids=(1,),
            groups=(Group("g", count := random.randint(1, 3), random.randint(1, count), request(random)),),
            submitted_at=number,
            max_milli_of_class=caps,
        )
        for number in range(1, 16)
    )
    before = {team_id: random.choice([0, 3000]) for team_id in ids}
    pool = PoolState(1, "p", fleet, quotas, {}, memory_usage=before)
    plan = decide(Snapshot(0, teams, (pool,), jobs))
    assert fleet.allocated_milli() == 0, "the picture is as it was found"
    by_job = {job.id: job for job in jobs}
    milli, memory, alone = dict.fromkeys(ids, 0), dict(before), dict.fromkeys(ids, 0)
    parents = {team.id: team.parent_id for team in teams}
    for team_id in ids:
        above = parents[team_id]
        while above is not None:
            memory[above] += before[team_id]
            above = parents[above]
    devices = {device.id: device for node in nodes for device in node.devices}
    held = {key: [0, 0] for key in devices}
    for start in plan.starts:
        job = by_job[start.job_id]
        asked = job.groups[0].request
        for task in start.tasks:
            placement = task.placement
            counted = asked.devices * asked.memory_mib if asked.compute_milli == 1000 and asked.memory_mib else None
            assert placement.memory_counted == (sum(placement.memory_mib) if counted is None else counted)
            for device_id, mib in zip(placement.device_ids, placement.memory_mib, strict=True):
                held[device_id][0] += placement.compute_milli
                held[device_id][1] += mib
            alone[job.team_id] += placement.milli
            team_id = job.team_id
            while team_id is not None:
                milli[team_id] += placement.milli
                memory[team_id] += placement.memory_counted
                team_id = parents[team_id]
    for key, (compute, mib) in held.items():
        assert compute <= 1000
        assert mib <= devices[key].memory_mib
    for team_id in ids:
        quota = quotas[team_id]
        assert quota.limit is None or milli[team_id] <= quota.limit
        assert quota.memory_limit_mib is None or memory[team_id] <= max(
            quota.memory_limit_mib, memory_before(before, parents, team_id)
        )
        assert caps is None or alone[team_id] <= caps
        assert plan.shares[1][team_id].allocated == milli[team_id]
    for job_id, reasons in plan.reasons.items():
        for reason in reasons:
            assert message(reason)
            helps = reason.helps or {}
            if reason.code == "over_memory_limit" and by_job[job_id].groups[0].count == 1 and helps:
                assert helps["quota"]["by_mib"] > 0


def memory_before(before, parents, team_id):
    """What the subtree held at the start: a limit below that lets nothing new in, and takes nothing away."""
    below = [key for key in before if team_id in chain(key, parents)]
    return sum(before[key] for key in below)


def chain(team_id, parents):
    while team_id is not None:
        yield team_id
        team_id = parents[team_id]


def mixed_world(**quota):
    """Fuller, so better by binpack: an NPU that gives half or all. Emptier: a smaller GPU that gives any size."""
    world = World().pool("mixed")
    npu = DeviceState(1, 0, "N", "ascend", 65536, compute_used=500, memory_used=32768, rule=NPU_HALF)
    gpu = DeviceState(2, 0, "G", "nvidia", 16384)
    nodes = [NodeState(number, f"n{number}", number, 64000, 10**6, (d,)) for number, d in enumerate((npu, gpu), 1)]
    world.pools["mixed"].fleet = Fleet(nodes)
    return world.team("a", **quota)


NPU_HALF = template_rule(Template(500, 32768, "half"))


@pytest.mark.parametrize(
    ("quota", "where", "milli", "memory"),
    [({}, 1, 500, 32768), ({"limit": 0.4}, 2, 300, 4915), ({"memory_limit_mib": 5000}, 2, 300, 4915)],
    ids=["no limit: the fullest", "a limit of GPUs", "a limit of memory"],
)
def test_what_is_too_much_where_it_lands_best_lands_where_it_counts_least(quota, where, milli, memory):
    quota = {key: value for key, value in quota.items() if key == "limit"}, quota.get("memory_limit_mib")
    world = mixed_world(**quota[0])
    if quota[1] is not None:
        world.pools["mixed"].quotas[1] = Quota(memory_limit_mib=quota[1])
    plan = world.job("part", "a", 0.3).decide()
    (task,) = plan.start("part").tasks
    assert (task.placement.node_id, task.placement.milli) == (where, milli)
    assert task.placement.memory_mib == (memory,)


def test_what_is_too_much_everywhere_says_the_least_that_would_do():
    world = mixed_world(limit=0.2)
    plan = world.job("part", "a", 0.3).decide()
    assert plan.text("part") == "a would pass its limit in mixed: 0 of 0.2 GPU in use, this job needs 0.3"
    assert plan.reason("part").helps == {"quota": {"team": "a", "limit": 300, "by_milli": 100}}
    world.quota("a", "mixed", limit=0.3)
    assert world.decide().started == ["part"]
