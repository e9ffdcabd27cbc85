"""The plans that lost, simulated again on the hosts that they are said to be on."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import gib
from pipette_opt.candidates import check_legal
from pipette_opt.memory.predictor import IGNORED_RISK
from pipette_opt.parallel import Placement, block_placement, gpus_of_a_host, node_blocks
from pipette_opt.plans.plan import Alternative, IterationTime, Plan, why_slower
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify.common import CLOSED_GAP, REPRODUCED, ROUNDING, close, on_cluster, same
from pipette_opt.verify.memory import accepted_risk, stages_memory


def named_alternatives(plan: Plan) -> list[tuple[str, Alternative]]:
    """All plans that are recorded beside the plan, by their place in its file."""
    found = [(f"alternatives[{number}]", one) for number, one in enumerate(plan.alternatives)]
    found += [("fastest", plan.fastest)] if plan.fastest is not None else []
    return found + [(f"risks[{number}].plan", one.plan) for number, one in enumerate(plan.risks)]


def alternatives_are_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Each plan beside the plan is legal, fits, has the simulated time and risk, and lost for the reason given."""
    seen = {plan.config}
    try:
        best = estimate(instance, plan.config, on_cluster(instance, plan))
    except (InputError, ValueError):
        return  # estimate_is_reproduced says why
    for place, one in named_alternatives(plan):
        name = f"{place} ({one.config.label()})"
        if place.startswith("alternatives"):
            if one.config in seen:
                yield f"{name} is the plan's configuration, or listed twice"
            seen.add(one.config)
        yield from (f"{name} {problem}" for problem in _alternative_problems(instance, plan, best, one))


def _alternative_problems(instance: Instance, plan: Plan, best: IterationTime, one: Alternative) -> Iterator[str]:
    illegal = list(check_legal(instance.model, instance.training, one.config))
    if illegal:
        yield f"is not legal: {illegal[0]}"
        return
    unknown = sorted(set(one.hosts) - set(instance.cluster.hosts))
    if unknown or len(set(one.hosts)) < len(one.hosts):
        yield f"is on {', '.join(unknown) or 'a host twice'}, cluster {instance.cluster.name} has no such hosts"
        return
    if one.slots is not None and (problem := _slots_problem(instance, one.slots, len(one.hosts))):
        yield problem
        return
    placements = list(alternative_placements(instance, one))
    if not placements:
        yield f"does not fill {len(one.hosts)} hosts"
        return
    if one.iteration_time_s is None:
        if one.oom_probability is not None:
            yield "has figures, and was not simulated"
        return
    try:
        simulated = [(placement, estimate(instance, one.config, placement)) for placement in placements]
    except InputError as error:
        yield f"cannot be simulated: {error}"
        return
    placement, again = min(simulated, key=lambda pair: abs(pair[1].iteration_time_s - one.iteration_time_s))  # type: ignore[operator]
    if not close(one.iteration_time_s, again.iteration_time_s, REPRODUCED):
        yield f"has iteration_time_s {one.iteration_time_s}, the simulator says {again.iteration_time_s}"
    if one.iteration_time_s < (fastest_s := plan.certificate.best_s) * (1 - CLOSED_GAP):
        yield f"takes {one.iteration_time_s} s and is faster than the fastest plan, {fastest_s} s"
    if one.lower_bound_s is not None and not 0 <= one.lower_bound_s <= one.iteration_time_s * (1 + ROUNDING):
        yield f"takes {one.iteration_time_s} s, and no plan of its kind is said to take less than {one.lower_bound_s} s"
    if one.reason != (reason := why_slower(best, again)):
        yield f"lost because {one.reason!r}, the times say {reason!r}"
    for cause in {**again.breakdown, **one.breakdown} if one.breakdown else ():
        if not same(said := one.breakdown.get(cause), right := again.breakdown.get(cause), REPRODUCED):
            yield f"spends {said} s on {cause}, the simulator says {right}"
    yield from _risk_problems(instance, plan, one, placement)


def alternative_placements(instance: Instance, one: Alternative) -> Iterator[Placement]:
    """Every packing that fills the hosts of an alternative, which lists them in grid order."""
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    nodes = np.array([index[host] for host in one.hosts], dtype=np.int64)
    slots = None if one.slots is None else np.array(one.slots, dtype=np.int64)
    for block in node_blocks(one.config, instance.cluster.gpus_per_node, instance.launcher):
        grid = block.node_grid(one.config)
        if math.prod(grid) == len(nodes):
            if slots is not None and slots.shape[1] != gpus_of_a_host(one.config, block):
                continue
            of_hosts = None if slots is None else slots.reshape(*grid, -1)
            yield block_placement(one.config, block, nodes.reshape(grid), of_hosts)


def _slots_problem(instance: Instance, slots: Sequence[Sequence[int]], num_hosts: int) -> str | None:
    """What is wrong with the GPUs of hosts; ``None`` if each has equally many GPUs of its own, each once."""
    per_node = instance.cluster.gpus_per_node
    if len(slots) != num_hosts or len({len(gpus) for gpus in slots}) > 1:
        return f"has GPUs for {len(slots)} hosts, or not equally many of each, on {num_hosts} hosts"
    for gpus in slots:
        if len(set(gpus)) < len(gpus) or not set(gpus) <= set(range(per_node)):
            return f"has GPUs {list(gpus)} of a host, which must be different ones of 0 to {per_node - 1}"
    return None


def _risk_problems(instance: Instance, plan: Plan, one: Alternative, placement: Placement) -> Iterator[str]:
    """Memory of its fullest stage."""
    try:
        stages = stages_memory(instance, one.config, placement, accepted_risk(plan.inputs))
    except InputError:
        return  # memory_is_reproduced says why
    worst = max(stages, key=lambda stage: stage.oom_probability)
    for name in ("oom_probability", "oom_probability_at_most"):
        said, right = getattr(one, name), getattr(worst, name)
        if not same(said, right, REPRODUCED):
            yield f"has {name} {said}, predicted again {right}"
    for stage in stages:
        if stage.upper_bytes > stage.capacity_bytes and accepted_risk(plan.inputs) < IGNORED_RISK:
            yield (
                f"needs up to {gib(stage.upper_bytes):.1f} GiB on stage {stage.stage} of "
                f"{gib(stage.capacity_bytes):.1f}"
            )
            return


def baselines_are_possible(instance: Instance, plan: Plan) -> Iterator[str]:
    """Each baseline is legal, and its times are positive."""
    for number, one in enumerate(plan.baselines):
        name = f"baselines[{number}] ({one.name})"
        yield from (f"{name} is not legal: {why}" for why in check_legal(instance.model, instance.training, one.config))
        if not (one.iteration_time_s > 0 and one.objective_s > 0 and one.wall_time_s >= 0):
            yield f"{name} takes {one.iteration_time_s} s, objective {one.objective_s} s, found in {one.wall_time_s} s"
