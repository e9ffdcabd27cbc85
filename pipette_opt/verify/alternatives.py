"""Rules on the other plans recorded beside the plan; each is simulated again on its hosts."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.units import gib
from pipette_opt.candidates import check_legal
from pipette_opt.parallel import Placement, gpus_of_a_host, host_tiles, tile_placement
from pipette_opt.plans.plan import Alternative, IterationTime, Plan, why_slower
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify.common import CLOSED_GAP, REPRODUCED, ROUNDING, close, on_cluster, same
from pipette_opt.verify.memory import accepted_risk, stages_memory

UNSEARCHED = ("overlapped", "usual.plan")
"""Recorded plans that may lie outside the searched space, and may then be faster than the plan."""


def named_alternatives(plan: Plan) -> list[tuple[str, Alternative]]:
    """Return all other plans that a plan records, each with its place in ``plan.json``."""
    found = [(f"alternatives[{number}]", alternative) for number, alternative in enumerate(plan.alternatives)]
    found += [("fastest", plan.fastest)] if plan.fastest is not None else []
    return found + [(f"risks[{number}].plan", trade.plan) for number, trade in enumerate(plan.risks)]


def compared_plans(plan: Plan) -> list[tuple[str, Alternative]]:
    """Return the recorded plans that a plan is compared with, searched or not, each with its place in ``plan.json``."""
    usual = None if plan.usual is None else plan.usual.plan
    found = (("listed", plan.listed), ("overlapped", plan.overlapped), ("usual.plan", usual))
    return [(place, other) for place, other in found if other is not None]


def alternatives_are_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: each alternative is legal, fits, has its recorded time and risk, and is slower for its reason."""
    seen = {plan.config}
    try:
        best = estimate(instance, plan.config, on_cluster(instance, plan))
    except (InputError, ValueError):
        return  # estimate_is_reproduced says why
    for place, alternative in (*named_alternatives(plan), *compared_plans(plan)):
        name = f"{place} ({alternative.config.label()})"
        if place.startswith("alternatives"):
            if alternative.config in seen:
                yield f"{name} is the plan's configuration, or listed twice"
            seen.add(alternative.config)
        yield from (f"{name} {problem}" for problem in _alternative_problems(instance, plan, best, alternative))
        seconds, fastest_s = alternative.iteration_time_s, plan.certificate.best_s
        is_searched = place not in UNSEARCHED
        if is_searched and seconds is not None and seconds < fastest_s * (1 - CLOSED_GAP):
            yield f"{name} takes {seconds} s and is faster than the fastest plan, {fastest_s} s"


def _alternative_problems(
    instance: Instance, plan: Plan, best: IterationTime, alternative: Alternative
) -> Iterator[str]:
    illegal = list(check_legal(instance.model, instance.training, alternative.config))
    if illegal:
        yield f"is not legal: {illegal[0]}"
        return
    unknown = sorted(set(alternative.hosts) - set(instance.cluster.hosts))
    if unknown or len(set(alternative.hosts)) < len(alternative.hosts):
        yield f"is on {', '.join(unknown) or 'a host twice'}, cluster {instance.cluster.name} has no such hosts"
        return
    if alternative.slots is not None and (
        problem := _slots_problem(instance, alternative.slots, len(alternative.hosts))
    ):
        yield problem
        return
    if next(alternative_placements(instance, alternative), None) is None:
        yield f"does not fill {len(alternative.hosts)} hosts"
        return
    if alternative.iteration_time_s is None:
        if alternative.oom_probability is not None:
            yield "has figures, and was not simulated"
        return
    try:
        placement, again = nearest_placement(instance, alternative)
    except InputError as error:
        yield f"cannot be simulated: {error}"
        return
    if not close(alternative.iteration_time_s, again.iteration_time_s, REPRODUCED):
        yield f"has iteration_time_s {alternative.iteration_time_s}, but the simulator gives {again.iteration_time_s}"
    time_s, bound_s = alternative.iteration_time_s, alternative.lower_bound_s
    if bound_s is not None and not 0 <= bound_s <= time_s * (1 + ROUNDING):
        yield f"takes {time_s} s, and the recorded bound on plans of its kind is {bound_s} s"
    if alternative.reason != (reason := why_slower(best, again)):
        yield f"lost because {alternative.reason!r}, but the times give {reason!r}"
    for cause in {**again.breakdown, **alternative.breakdown} if alternative.breakdown else ():
        if not same(recorded := alternative.breakdown.get(cause), right := again.breakdown.get(cause)):
            yield f"spends {recorded} s on {cause}, but the simulator gives {right}"
    yield from _risk_problems(instance, plan, alternative, placement)


def nearest_placement(instance: Instance, alternative: Alternative) -> tuple[Placement, IterationTime]:
    """
    Return the placement of an alternative whose simulated time is nearest to the recorded time, and its simulation.

    Only the hosts are recorded. Placements of other tiles (parts of the model on one host) that use unmeasured links
    are passed over. Raises ``InputError`` if no placement can be simulated.
    """
    simulated, failed = list[tuple[Placement, IterationTime]](), list[InputError]()
    for placement in alternative_placements(instance, alternative):
        try:
            simulated.append((placement, estimate(instance, alternative.config, placement)))
        except InputError as error:
            failed.append(error)
    if not simulated:
        raise failed[0]
    recorded_s = alternative.iteration_time_s or 0.0
    return min(simulated, key=lambda pair: abs(pair[1].iteration_time_s - recorded_s))


def alternative_placements(instance: Instance, alternative: Alternative) -> Iterator[Placement]:
    """Yield every placement of an alternative that fills its hosts, which are listed in grid order."""
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    nodes = np.array([index[host] for host in alternative.hosts], dtype=np.int64)
    slots = None if alternative.slots is None else np.array(alternative.slots, dtype=np.int64)
    for tile in host_tiles(alternative.config, instance.cluster.gpus_per_node, instance.launcher):
        grid = tile.node_grid(alternative.config)
        if math.prod(grid) == len(nodes):
            if slots is not None and slots.shape[1] != gpus_of_a_host(alternative.config, tile):
                continue
            of_hosts = None if slots is None else slots.reshape(*grid, -1)
            yield tile_placement(alternative.config, tile, nodes.reshape(grid), of_hosts)


def _slots_problem(instance: Instance, slots: Sequence[Sequence[int]], num_hosts: int) -> str | None:
    """Return the problem with the recorded GPUs of hosts; ``None`` if each host has equally many different GPUs."""
    per_node = instance.cluster.gpus_per_node
    if len(slots) != num_hosts or len({len(gpus) for gpus in slots}) > 1:
        return f"has GPUs for {len(slots)} hosts, or not equally many of each, on {num_hosts} hosts"
    for gpus in slots:
        if len(set(gpus)) < len(gpus) or not set(gpus) <= set(range(per_node)):
            return f"has GPUs {list(gpus)} of a host, which must be different ones of 0 to {per_node - 1}"
    return None


def _risk_problems(instance: Instance, plan: Plan, alternative: Alternative, placement: Placement) -> Iterator[str]:
    """Yield problems with the recorded memory and OOM risk of an alternative's fullest stage."""
    try:
        stages = stages_memory(instance, alternative.config, placement, accepted_risk(plan.inputs))
    except InputError:
        return  # memory_is_reproduced says why
    recorded, right = alternative.oom_probability, max(stage.oom_probability for stage in stages)
    if not same(recorded, right):
        yield f"has oom_probability {recorded}, but a new prediction gives {right}"
    for stage in stages:
        if stage.upper_bytes > stage.capacity_bytes and accepted_risk(plan.inputs) < IGNORED_RISK:
            yield (
                f"needs up to {gib(stage.upper_bytes):.1f} GiB on stage {stage.stage} of "
                f"{gib(stage.capacity_bytes):.1f}"
            )
            return
