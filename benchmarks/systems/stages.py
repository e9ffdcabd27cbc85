"""
Stages with unequal numbers of replicas (PipeDream): layers and replicas of each stage by CP-SAT, with weight versions.

D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019). Workers are hosts, each
a tensor group. A stage of work ``C`` for one micro-batch on ``r`` workers finishes a micro-batch every ``C / r``
seconds; each worker takes every ``r``-th. Two ways to train:

- *asynchronous*: weights are updated after every micro-batch of a worker, so the pipeline never drains. The period is
  the longest of ``max(C, reduction) / r`` over the stages, and of a border's sends in both directions. A worker keeps
  the weights of every micro-batch in flight: ``ceil(R / r)`` versions, with ``R`` the workers of this and all later
  stages.
- *flush*: one version of the weights. ``m`` micro-batches take ``sum C`` plus the maximum over the stages of
  ``(m / r - 1) C`` and the reduction. That is the work of one of the stage's workers, and the first and the last
  micro-batch on their way through the other stages. It is a lower bound: a stage may wait for one with other replicas.

``m`` is a multiple of the replicas of every stage. No launcher runs stages with unequal replicas: *planned only*.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.page import table
from benchmarks.slowest import slowest_pair
from benchmarks.whole_hosts import whole_host_config
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import ceil_div, percent, seconds_text
from pipette_opt.costs.collectives import all_reduce_traffic
from pipette_opt.costs.compute import head_times_s, layer_times_s, look_up_s
from pipette_opt.costs.links import EachLink, RingShape
from pipette_opt.costs.messages import inter_node_message_s, p2p_bytes
from pipette_opt.job.read import read_job
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.options.description import JobOptions
from pipette_opt.specs import Instance

Way = Literal["async", "flush"]

RESOLUTION = 1_000_000
"""Number of integer units of the work of all layers, and of a worker's memory; costs are rounded down. Chosen."""

MAX_STAGES = 16
"""Maximum number of stages that is tried. Chosen."""


JOB = JobOptions(model="llama-3-8b", nodes="7", gpu="a100-80gb", global_batch_size=60, seq_length=4096)
"""Job of the page's table: seven hosts of eight A100."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCosts:
    """
    Costs of layers and of borders between stages; arrays have shape ``(layers,)``.

    Parameters
    ----------
    work_s
        Seconds of forward and backward of a micro-batch.
    reduction_s
        Seconds of the all-reduce of a layer's gradients between ``r`` workers at ``[r]``, shape ``(workers + 1,
        layers)``.
    border_s
        Seconds of sending activations over a border and receiving their gradients.
    weight_bytes, activation_bytes, fixed_bytes
        Bytes of one version of the weights; of one micro-batch in flight; of gradients and optimizer states.
    """

    work_s: FloatArray
    reduction_s: FloatArray
    border_s: float
    weight_bytes: FloatArray
    activation_bytes: FloatArray
    fixed_bytes: FloatArray
    capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """
    Pipeline with a number of replicas for each stage.

    Parameters
    ----------
    seconds
        Time of an iteration of ``m`` micro-batches.
    bound_s
        Lower bound on that time over all pipelines of this kind.
    versions
        Versions of the weights that a worker of each stage keeps.
    """

    layers: tuple[int, ...]
    replicas: tuple[int, ...]
    seconds: float
    bound_s: float
    versions: tuple[int, ...]


def versions_of(replicas: tuple[int, ...]) -> tuple[int, ...]:
    """Return the micro-batches in flight on a worker of each stage: workers of this and later stages over its own."""
    behind = np.cumsum(replicas[::-1])[::-1].tolist()
    return tuple(ceil_div(total, own) for total, own in zip(behind, replicas, strict=True))


def seconds_of(costs: StageCosts, layers: tuple[int, ...], replicas: tuple[int, ...], m: int, way: Way) -> float:
    """Return the seconds of an iteration of ``m`` micro-batches."""
    ends = np.cumsum([0, *layers])
    parts = [slice(begin, end) for begin, end in pairwise(ends)]
    work = [float(costs.work_s[part].sum()) for part in parts]
    reduction = [float(costs.reduction_s[r, part].sum()) for r, part in zip(replicas, parts, strict=True)]
    borders = costs.border_s * (len(layers) - 1)
    each = list(zip(work, reduction, replicas, strict=True))
    if way == "async":
        period = max(max(own, reduced) / r for own, reduced, r in each)
        return m * max(period, costs.border_s if borders else 0.0)
    return sum(work) + borders + max((m // r - 1) * own + reduced for own, reduced, r in each)


def fits(costs: StageCosts, layers: tuple[int, ...], replicas: tuple[int, ...], m: int, way: Way) -> bool:
    """Return whether every worker has memory for its weight versions, its activations in flight, and its states."""
    ends = np.cumsum([0, *layers])
    for begin, end, flying, r in zip(ends[:-1], ends[1:], versions_of(replicas), replicas, strict=True):
        held = min(flying, m // r)
        kept = held if way == "async" else 1
        need = kept * costs.weight_bytes[begin:end].sum() + held * costs.activation_bytes[begin:end].sum()
        if need + costs.fixed_bytes[begin:end].sum() > costs.capacity_bytes:
            return False
    return True


def best_stages(
    costs: StageCosts,
    workers: int,
    m: int,
    way: Way,
    *,
    equal: bool = False,
    work: float = 10.0,
) -> Staged | None:
    """
    Return the fastest pipeline over every number of stages, by CP-SAT; ``None`` if nothing fits.

    Parameters
    ----------
    equal
        Whether all stages must have equally many replicas.
    work
        Deterministic time limit of CP-SAT for each number of stages, about seconds. At the limit, the bound may stay
        below the time.
    """
    best, bound_s = None, np.inf
    most = min(workers, len(costs.work_s), MAX_STAGES)
    for stages in range(1, most + 1):
        found, least_s = _solve(costs, workers, m, way, stages, equal, work, best)
        bound_s = min(bound_s, least_s)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    return None if best is None else replace(best, bound_s=min(bound_s, best.seconds))


def _solve(
    costs: StageCosts, workers: int, m: int, way: Way, stages: int, equal: bool, work: float, known: Staged | None
) -> tuple[Staged | None, float]:
    """
    Return the best pipeline with this number of stages, and its bound in seconds.

    The pipeline is ``None`` if it is no faster than ``known``.
    """
    layers, model = len(costs.work_s), cp_model.CpModel()
    unit_s, unit_bytes = float(costs.work_s.sum()) / RESOLUTION, costs.capacity_bytes / RESOLUTION
    divisors = [r for r in range(1, workers + 1) if m % r == 0]

    def prefix(values: FloatArray, unit: float) -> list[int]:
        return [0, *np.floor(np.cumsum(values) / unit).astype(np.int64).tolist()]

    def of_stage(table: list[int], stage: int) -> cp_model.LinearExpr:
        at = []
        for place in (stage, stage + 1):
            value = model.new_int_var(0, max(table), "")
            model.add_element(ends[place], table, value)
            at.append(value)
        return at[1] - at[0]

    inside = [model.new_int_var(1, layers - 1, f"end_{s}") for s in range(stages - 1)]
    ends = [model.new_constant(0), *inside, model.new_constant(layers)]
    for before, after in pairwise(ends):
        model.add(after >= before + 1)
    replicas = [
        model.new_int_var_from_domain(cp_model.Domain.from_values(divisors), f"replicas_{s}") for s in range(stages)
    ]
    model.add(sum(replicas) <= workers)
    if equal:
        for replica in replicas[1:]:
            model.add(replica == replicas[0])
    # Rounded down twice, a stage may have one unit less than its layers have in sum; the bound gets it back.
    longest = model.new_int_var(0, 2 * m * RESOLUTION, "longest")
    is_async = way == "async"
    if is_async and stages > 1:
        model.add(longest >= m * int(costs.border_s / unit_s))
    for s in range(stages):
        own = of_stage(prefix(costs.work_s, unit_s), s)
        weights, acts, fixed = (
            of_stage(prefix(values, unit_bytes), s)
            for values in (costs.weight_bytes, costs.activation_bytes, costs.fixed_bytes)
        )
        reduced = {r: of_stage(prefix(costs.reduction_s[r], unit_s), s) for r in divisors if r > 1}
        behind = sum(replicas[s:])
        held, memory = model.new_int_var(1, workers, ""), model.new_int_var(0, RESOLUTION + 3, "")
        model.add_multiplication_equality(memory, [held, weights + acts if is_async else acts])
        model.add(memory + fixed + (0 if is_async else weights) <= RESOLUTION + 2)
        for r in divisors:
            chosen = model.new_bool_var(f"has_{s}_{r}")
            model.add(replicas[s] == r).only_enforce_if(chosen)
            model.add(replicas[s] != r).only_enforce_if(~chosen)
            if m // r < ceil_div(workers, r):
                few = model.new_bool_var("")  # fewer micro-batches than may be in flight
                model.add(held == m // r).only_enforce_if(chosen, few)
                model.add(r * held >= behind).only_enforce_if(chosen, ~few)
            else:
                model.add(r * held >= behind).only_enforce_if(chosen)
            sync = reduced.get(r, 0)
            if is_async:
                model.add(r * longest >= m * own).only_enforce_if(chosen)
                model.add(r * longest >= m * sync).only_enforce_if(chosen)
            else:
                model.add(longest >= (m // r - 1) * own + sync).only_enforce_if(chosen)
    constant_s = 0.0 if is_async else float(costs.work_s.sum()) + (stages - 1) * costs.border_s
    if known is not None:
        model.add(longest <= int((known.seconds - constant_s) / unit_s) + 1)
    model.minimize(longest)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time, solver.parameters.num_workers = work, 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, np.inf
    bound_s = constant_s + unit_s * (solver.best_objective_bound - 1 - m)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound_s
    found = tuple(np.diff([solver.value(end) for end in ends]).tolist())
    dealt = tuple(solver.value(replica) for replica in replicas)
    if not fits(costs, found, dealt, m, way):
        return None, bound_s  # by less than the units of memory
    seconds = seconds_of(costs, found, dealt, m, way)
    return Staged(layers=found, replicas=dealt, seconds=seconds, bound_s=bound_s, versions=versions_of(dealt)), bound_s


def stage_costs(instance: Instance) -> StageCosts:
    """
    Return the costs over the slowest pair of hosts, one worker each; embeddings and head count with the end layers.

    Raises ``InputError`` for unequal hosts, heads that a host's GPUs do not divide, and models with experts.
    """
    model, training, cluster = instance.model, instance.training, instance.cluster
    if model.num_experts is not None:
        problem = f"has {model.num_experts} experts; unequal replicas are priced for models without experts only."
        raise InputError("--model", problem)
    gpu, hosts = cluster.gpu_kinds[0], cluster.num_nodes
    config = whole_host_config(instance)
    tp = config.tensor_model_parallel_size
    work = np.full(model.num_layers, sum(layer_times_s(instance, config, gpu)))
    work[0] += 2 * look_up_s(model, training, config, gpu, instance.stack)
    work[-1] += sum(head_times_s(model, training, config, gpu, instance.stack))
    parameters = np.array([layer_parameters(model, kind).total for kind in model.layers], dtype=np.float64) / tp
    table_size = model.padded_vocab_size(tp) * model.hidden_size / tp
    parameters[0] += table_size
    parameters[-1] += table_size
    reduction = np.zeros((hosts + 1, model.num_layers))
    for r in range(2, hosts + 1):
        rings = [
            slowest_pair(
                EachLink(cluster, instance.stack).ring_s(
                    RingShape(1, r, tp), all_reduce_traffic(training.gradient_bytes * size, r)
                )
            )
            for size in np.unique(parameters)
        ]
        reduction[r] = np.array(rings)[np.searchsorted(np.unique(parameters), parameters)]
    message = p2p_bytes(model, training, config)
    saved = float(np.asarray(formula_bytes(stage_table(model, training, [config])).saved)[0]) / model.num_layers
    return StageCosts(
        work_s=work,
        reduction_s=reduction,
        border_s=2 * slowest_pair(inter_node_message_s(cluster, message, tp)) if hosts > 1 else 0.0,
        weight_bytes=training.parameter_bytes * parameters,
        activation_bytes=np.full(model.num_layers, saved),
        fixed_bytes=(training.gradient_bytes + training.optimizer_bytes) * parameters,
        capacity_bytes=float(gpu.memory_bytes),
    )


def compare_stages(instance: Instance) -> Iterator[tuple[Way, bool, Staged | None]]:
    """Yield the way to train, whether replicas are equal, and the best pipeline (``None`` if nothing fits)."""
    costs, m = stage_costs(instance), instance.training.global_batch_size
    for way in ("async", "flush"):
        for equal in (True, False):
            yield way, equal, best_stages(costs, instance.cluster.num_nodes, m, way, equal=equal)


def section() -> str:
    """Return the section of the page: equal and any replicas, asynchronous and with flushes, on seven hosts."""
    rows = []
    for way, equal, plan in compare_stages(read_job(JOB).instance):
        assert plan is not None, "the job of the page fits"
        split = ", ".join(f"{count} x {own}" for count, own in zip(plan.layers, plan.replicas, strict=True))
        versions = ", ".join(map(str, plan.versions)) if way == "async" else "1"
        gap = percent(1 - plan.bound_s / plan.seconds)
        rows.append((way, "equal" if equal else "any", seconds_text(plan.seconds), gap, split, versions))
    head = ("training", "replicas", "time", "gap", "layers x replicas", "versions")
    return (
        "## PipeDream: stages with unequal numbers of replicas\n\nllama-3-8b on 7 hosts of 8 A100, 60 sequences of "
        "4,096 tokens; a host is a worker. Gap: to the bound proven by CP-SAT over all stages and replicas.\n\n"
        + table(head, rows)
    )
