"""
Effect of unequal expert loads on a plan's time and memory.

The plan is evaluated with equal loads, with experts in listed order, placed by load, and with copies of hot experts.
Copies follow FlexMoE (arXiv 2304.03946): an expert's tokens are dealt evenly among its copies. Their gradients are
all-reduced once per iteration, over the slowest pair of hosts and without overlap. The number of slots for copies on a
rank is chosen: the fastest number whose risk of running out of memory is accepted. No launcher places or copies experts
by load in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import table
from benchmarks.slowest import slowest_pair
from benchmarks.systems.expert_placement import ExpertPlacement, place_layers
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import gib, percent, seconds_text
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.collectives import RingTraffic
from pipette_opt.costs.links import EachLink, NoLinks, RingShape
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.job.read import read_job
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
from pipette_opt.optimize import optimize
from pipette_opt.options.description import JobOptions
from pipette_opt.plans.plan import Plan, StageMemory
from pipette_opt.prepare import load_predictor
from pipette_opt.read.expert_loads import read_expert_loads
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.specs import Instance
from pipette_opt.specs.expert_loads import RankImbalance, listed_imbalance

JOB = JobOptions(model="qwen3-30b-a3b", nodes="2", gpu="h100", global_batch_size=128, seq_length=4096)
"""Job of the page's table: two hosts of eight H100."""

LOADS = "zipf:0.8"
"""Loads of the page's table: shares of ``1 / rank ** 0.8``, in a random order."""

RISK = 0.01
"""Accepted risk of running out of memory."""

SECONDS = 20.0
"""Time limit for the plan, which has equal loads. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """
    Plan with its experts placed in one way.

    Parameters
    ----------
    imbalance, bound
        Tokens of the busiest rank over the mean, and a lower bound on that ratio for this kind of placement.
    iteration_time_s
        Simulated time of an iteration, seconds.
    predicted_bytes, oom_probability
        Predicted peak of the fullest stage, and the largest risk of any stage.
    spare_slots
        Slots for copies of experts on each rank.
    """

    placement: str
    imbalance: float
    bound: float
    iteration_time_s: float
    predicted_bytes: int
    oom_probability: float
    spare_slots: int = 0


def load_rows(
    instance: Instance, plan: Plan, loads: FloatArray, predictor: MemoryPredictor, max_oom_risk: float, spare_slots: int
) -> list[LoadRow]:
    """
    Return a row for equal loads, for experts in listed order, and for experts placed by load.

    The last kind has a row for each number of slots for copies, from 0 to ``spare_slots``.
    """
    ranks = plan.config.expert_model_parallel_size
    if ranks == 1:
        raise InputError("plan", "has no expert parallelism, so every rank holds all experts: loads do not matter.")
    listed = listed_imbalance(loads, ranks)
    cases: list[tuple[str, float, float, int, float]] = [
        ("equal loads", 1.0, 1.0, 0, 0.0),
        ("as listed", listed, listed, 0, 0.0),
    ]
    for spare in range(spare_slots + 1):
        placed = place_layers(loads, ranks, spare)
        imbalance, bound = (
            float(np.mean(values)) for values in zip(*((p.imbalance, p.bound) for p in placed), strict=True)
        )
        name = f"by load, {spare} more on each rank (planned only)" if spare else "by load (planned only)"
        cases.append((name, imbalance, bound, spare, float(np.mean([reduced_experts(layer) for layer in placed]))))
    rows = []
    for name, imbalance, bound, spare, reduced in cases:
        given = with_imbalance(instance, ranks, imbalance)
        memory = _memory_with_copies(given, plan, predictor, max_oom_risk, spare)
        fullest = max(memory, key=lambda stage: stage.predicted_bytes)
        seconds = estimate(given, plan.config, plan.placement).iteration_time_s
        rows.append(
            LoadRow(
                placement=name,
                imbalance=imbalance,
                bound=bound,
                iteration_time_s=seconds + (_reduction_s(given, plan, reduced) if reduced else 0.0),
                predicted_bytes=fullest.predicted_bytes,
                oom_probability=max(stage.oom_probability for stage in memory),
                spare_slots=spare,
            )
        )
    return rows


def chosen_row(rows: Sequence[LoadRow], max_oom_risk: float) -> LoadRow | None:
    """Return the fastest row with experts placed by load whose risk is accepted; ``None`` if there is none."""
    placed = [row for row in rows[2:] if row.oom_probability <= max_oom_risk]
    return min(placed, key=lambda row: (row.iteration_time_s, row.spare_slots), default=None)


def with_imbalance(instance: Instance, ranks: int, imbalance: float) -> Instance:
    """Return the instance with this imbalance of the tokens among ``ranks`` expert-parallel ranks."""
    found = (RankImbalance(ranks=ranks, imbalance=imbalance),)
    training = replace(instance.training, expert_imbalance=1.0, rank_imbalances=found)
    return replace(instance, training=training)


def _expert_parameters(instance: Instance, plan: Plan) -> FloatArray:
    """Return a rank's parameters of one expert per layer, summed over the layers of a stage; shape ``(pp,)``."""
    model, config = instance.model, plan.config
    local = (model.num_experts or 1) // config.expert_model_parallel_size
    found: FloatArray = np.asarray(stage_parameters(model, config).experts, dtype=np.float64) / local
    return found


def reduced_experts(placement: ExpertPlacement) -> float:
    """
    Return the largest volume that a rank sends to reduce the gradients of copies, in units of one expert's gradients.

    Each expert with ``c`` copies adds ``2 (c - 1) / c`` (a ring all-reduce).
    """
    copies = np.bincount([expert for experts in placement.experts_of_rank for expert in experts])
    return float(max(sum(2 - 2 / copies[expert] for expert in experts) for experts in placement.experts_of_rank))


def _reduction_s(instance: Instance, plan: Plan, reduced_experts: float) -> float:
    """
    Return the seconds of the all-reduces of copied experts' gradients, over the slowest pair of hosts.

    The stage with most expert parameters counts.
    """
    cluster, flows = instance.cluster, instance.cluster.gpus_per_node
    moved = reduced_experts * float(_expert_parameters(instance, plan).max()) * instance.training.gradient_bytes
    traffic = RingTraffic(hop_bytes=moved, num_steps=2)
    if cluster.num_nodes == 1:
        return float(NoLinks(cluster, instance.stack).ring_s(RingShape(flows), traffic)[0])
    return slowest_pair(EachLink(cluster, instance.stack).ring_s(RingShape(1, 2, flows), traffic))


def _memory_with_copies(
    instance: Instance, plan: Plan, predictor: MemoryPredictor, max_oom_risk: float, spare_slots: int
) -> tuple[StageMemory, ...]:
    """
    Return the memory of the stages with weights, gradients and optimizer states of copies, which are not sharded.

    The relative error of the prediction is assumed to be as large as without copies.
    """
    memory = stage_memory(instance, plan.config, plan.placement, predictor, max_oom_risk)
    if not spare_slots:
        return memory
    training = instance.training
    each = training.parameter_bytes + training.gradient_bytes + training.optimizer_bytes
    more = spare_slots * each * _expert_parameters(instance, plan)
    (prediction,) = predicted_memory(instance, predictor, [plan.config], max_oom_risk)
    predicted = np.array([stage.predicted_bytes for stage in memory]) + more
    capacity = np.array([stage.capacity_bytes for stage in memory])
    risk = oom_probability(prediction, capacity)
    return tuple(
        replace(stage, predicted_bytes=int(size), oom_probability=float(chance))
        for stage, size, chance in zip(memory, predicted, risk, strict=True)
    )


def section() -> str:
    """Return the section of the page: the plan of a job with equal loads, and what loads by a law make of it."""
    instance = read_job(JOB).instance
    space = SearchSpace(tensor_parallel=(1,), pipeline_parallel=(2,), expert_parallel=(8,))
    plan = optimize(instance, space, OptimizeParams(time_limit_s=SECONDS, workers=1, max_oom_risk=RISK))
    loads = read_expert_loads(LOADS, instance.model)
    found = load_rows(instance, plan, loads, load_predictor(RISK, instance), RISK, 1)
    chosen = chosen_row(found, RISK)
    rows = [
        (
            *(row.placement, f"{row.imbalance:.3f}", f"{row.bound:.3f}", seconds_text(row.iteration_time_s)),
            percent(row.iteration_time_s / found[0].iteration_time_s - 1),
            *(f"{gib(row.predicted_bytes):.1f} GiB", percent(row.oom_probability), "yes" if row == chosen else ""),
        )
        for row in found
    ]
    head = ("experts", "busiest rank", "at least, proven", "time", "slower", "memory", "risk", "chosen")
    return (
        f"## FlexMoE and MoESys: loads of single experts\n\nqwen3-30b-a3b on 2 hosts of 8 H100, {LOADS}: "
        f"{plan.config.label()}. Busiest rank: tokens over the mean. Chosen: the fastest placement by load whose risk "
        f"of running out of memory is at most {RISK:.0%}.\n\n{table(head, rows)}"
    )
