"""What happens in a scenario: each action through the service that production calls for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inventory.models import Device, Node
from inventory.services import change_pool, set_device_health, set_node_state
from quotas.services import move_team, remove_quota
from scheduling.models import Job, PriorityClass
from scheduling.services.holding import hold_job, release_job
from scheduling.services.reconcile import lose_node
from scheduling.services.stop import cancel_jobs, set_priority
from scheduling.services.submit import submit_payload
from scheduling.services.teams import delete_team
from scheduling.simulation.scenario_money import MONEY_ACTIONS
from scheduling.simulation.scenario_names import job_names
from scheduling.simulation.scenario_world import World, add_priority_class, add_team, give_quota, give_rate
from tenants.models import Team

Values = Mapping[str, Any]


def act(world: World, kind: str, values: Values) -> None:
    """The action happens at the world's present moment. Raises Refusal where the product refuses it."""
    _ACTIONS[kind](world, values)


def _submit(world: World, values: Values) -> None:
    user = world.member(values)
    names = job_names(values)
    payload = [world.payload(values, name) for name in names]
    jobs, _ = submit_payload(user, payload if "repeat" in values else payload[0], world.now)
    for name, job in zip(names, jobs, strict=True):
        world.jobs[name] = [job.pk]
    world.jobs[values["job"]] = [job.pk for job in jobs]


def _jobs(world: World, values: Values) -> list[Job]:
    return list(Job.objects.filter(pk__in=world.jobs[values["job"]]).order_by("pk"))


def _cancel(world: World, values: Values) -> None:
    cancel_jobs(world.jobs[values["job"]], world.now)


def _hold(world: World, values: Values) -> None:
    for job in _jobs(world, values):
        hold_job(job, world.now)


def _release(world: World, values: Values) -> None:
    for job in _jobs(world, values):
        release_job(job, world.now)


def _priority(world: World, values: Values) -> None:
    chosen = PriorityClass.objects.get(name=values["class"]) if "class" in values else None
    for job in _jobs(world, values):
        by = world.member({**values, "team": job.team.slug}) if "user" in values else job.user
        set_priority(job, world.now, priority_class=chosen, value=values.get("value"), by=by)


def _priority_class(world: World, values: Values) -> None:
    add_priority_class(values, world.now)


def _quota(world: World, values: Values) -> None:
    if values.get("remove"):
        remove_quota(world.teams[values["team"]], world.pool_of(values), world.now)
    else:
        give_quota(world, values)


def _team(world: World, values: Values) -> None:
    team = world.teams.get(values["name"])
    lives = team is not None and Team.objects.filter(pk=team.pk, deleted_at=None).exists()
    if values.get("delete"):
        assert team is not None
        delete_team(team, world.now)
    elif team is not None and lives and "parent" in values:
        move_team(team, world.teams[values["parent"]] if values["parent"] else None, world.now)
    else:
        add_team(world, values)


def _pool(world: World, values: Values) -> None:
    pool = world.pools[values["name"]]
    renamed = {"name": values["rename"]} if values["rename"] else {}
    change_pool(pool, world.now, **renamed, **values["options"])
    if renamed:
        world.pools = {values["rename"] if key == values["name"] else key: each for key, each in world.pools.items()}


def _model(world: World, values: Values) -> None:
    name = values["name"]
    world.models[name] = world.scenario.models[name].recut(values).enter(world.now)


def _rate(world: World, values: Values) -> None:
    give_rate(world, values)


def _node(world: World, values: Values) -> None:
    node = world.nodes[values["name"]]
    if values["state"] == Node.State.DOWN:
        lose_node(node, world.engine, world.now)
    else:
        set_node_state(node, values["state"], world.now)


def _device(world: World, values: Values) -> None:
    device = Device.objects.get(node=world.nodes[values["node"]], index=values["index"])
    set_device_health(device, values["health"], world.now)


def _restart(world: World, values: Values) -> None:
    world.restart()


def _utilization(world: World, values: Values) -> None:
    for job_id in world.jobs[values["job"]]:
        world.engine.play(job_id, float(values["compute"]), float(values["memory"]))
    if world.clockwork.watcher is not None:
        world.clockwork.watcher.next_look = None  # at once, so that the file's moments are those that count


_ACTIONS: Mapping[str, Callable[[World, Values], None]] = {
    "submit": _submit,
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "priority": _priority,
    "priority_class": _priority_class,
    "quota": _quota,
    "team": _team,
    "pool": _pool,
    "model": _model,
    "rate": _rate,
    "node": _node,
    "device": _device,
    "restart": _restart,
    "utilization": _utilization,
    **MONEY_ACTIONS,
}
