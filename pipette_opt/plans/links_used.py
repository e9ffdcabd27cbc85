"""
Directed pairs of hosts between which a plan sends, with the group of ranks that sends; used by ``verify``.

The module is independent of the solver.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance

Coordinates = tuple[int, int, int, int]
"""Pipeline, data, context and tensor coordinate of a rank."""


def coordinates_of(plan: Plan) -> Iterator[Coordinates]:
    """Yield the coordinates of each rank: tensor changes fastest, then context, data and pipeline by rank order."""
    config = plan.config
    tp, cp = config.tensor_model_parallel_size, config.context_parallel_size
    dp, pp = config.data_parallel_size, config.pipeline_model_parallel_size
    for rank in range(tp * cp * dp * pp):
        slot, inner = divmod(rank, tp * cp)
        if plan.placement.order == "tp-cp-ep-dp-pp":
            stage, replica = divmod(slot, dp)
        else:
            replica, stage = divmod(slot, pp)
        yield stage, replica, inner // tp, inner % tp


def links_used(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the directed host pairs that pipeline, data and tensor parallelism use, each with the name of its user."""
    host = {where: plan.hosts[node] for where, node in zip(coordinates_of(plan), plan.placement.node, strict=True)}
    used: dict[tuple[str, str], str] = {}
    pp, interleaved = plan.config.pipeline_model_parallel_size, plan.config.num_chunks > 1
    for (stage, dp, cp, tp), here in host.items():
        if stage + 1 < pp or interleaved:
            following = host[(stage + 1) % pp, dp, cp, tp]
            for pair in ((here, following), (following, here)):
                used.setdefault(pair, f"the pipeline at stage {stage}")
    rings: dict[tuple[str, Coordinates], list[str]] = defaultdict(list)
    for (stage, dp, cp, tp), here in host.items():
        rings["the data-parallel ring", (stage, 0, 0, tp)].append(here)
        rings["the tensor-parallel ring", (stage, dp, cp, 0)].append(here)
    for (kind, (stage, *_)), members in rings.items():
        order = list(dict.fromkeys(members))
        for pair in zip(order, order[1:] + order[:1], strict=True):
            used.setdefault(pair, f"{kind} of stage {stage}")
    return {pair: user for pair, user in used.items() if pair[0] != pair[1]}


def _expert_hosts(instance: Instance, plan: Plan) -> list[tuple[int, list[list[str]]]]:
    """
    Return the groups of neighbouring ranks that together hold all experts of a layer, empty without experts.

    Each entry is the stage of the group and, for each expert-parallel rank in order, the hosts of its tensor ranks.
    """
    if instance.model.num_experts is None:
        return []
    etp, size = plan.config.expert_tensor_size, plan.config.expert_tensor_size * plan.config.expert_model_parallel_size
    of_stage: dict[int, list[str]] = defaultdict(list)
    for (stage, *_), node in zip(coordinates_of(plan), plan.placement.node, strict=True):
        of_stage[stage].append(plan.hosts[node])
    return [
        (stage, [hosts[first + part : first + part + etp] for part in range(0, size, etp)])
        for stage, hosts in of_stage.items()
        for first in range(0, len(hosts), size)
    ]


def expert_links(instance: Instance, plan: Plan) -> dict[tuple[str, str], str]:
    """
    Return the directed host pairs that experts use, each with the name of its user.

    Users are token exchanges, and rings of ranks that hold the same experts.
    """
    used: dict[tuple[str, str], str] = {}
    same: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    gathered = instance.training.moe_token_dispatcher_type == "allgather"
    for stage, parts in _expert_hosts(instance, plan):
        exchanges = [] if gathered else [list(hosts) for hosts in zip(*parts, strict=True)]
        for hosts in exchanges:
            used |= dict.fromkeys(product(hosts, repeat=2), f"an expert-parallel group of stage {stage}")
        for ring in [[host for part in parts for host in part]] if gathered else parts:
            used |= _hops(ring, f"a group that shares experts of stage {stage}")
        for number, part in enumerate(parts):
            for place, host in enumerate(part):
                same[stage, number, place].append(host)
    for (stage, *_), hosts in same.items():
        used |= _hops(hosts, f"an expert-data-parallel ring of stage {stage}")
    return {pair: user for pair, user in used.items() if pair[0] != pair[1]}


def _hops(members: list[str], user: str) -> dict[tuple[str, str], str]:
    """Return the directed host pairs of neighbours in a ring over the hosts of its members, each mapped to ``user``."""
    order = list(dict.fromkeys(members))
    return dict.fromkeys(zip(order, order[1:] + order[:1], strict=True), user)
