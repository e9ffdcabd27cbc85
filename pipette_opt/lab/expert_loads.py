"""
What loads of single experts do to a plan: its time and memory with equal loads, with experts as listed, placed by
load, and with copies of hot experts; and how unequal loads may be before memory runs out.

Copies follow FlexMoE (arXiv 2304.03946): an expert's tokens are dealt evenly among its copies. What keeps copies equal,
a reduction of their gradients, is not priced. No launcher places or copies experts by load in training.
"""

from dataclasses import dataclass, replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.costs.experts import stage_expert_parameters
from pipette_opt.judge.estimate import estimate
from pipette_opt.judge.fullness import with_edge_loss
from pipette_opt.judge.solutions import stage_memory
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.plans.plan import Plan
from pipette_opt.solver.expert_placement import balanced_imbalance
from pipette_opt.specs import Instance
from pipette_opt.specs.expert_loads import RankImbalance, listed_imbalance

HALVINGS = 20
"""Halvings of the interval in which the largest imbalance that fits lies: to a millionth of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """
    A plan with its experts placed in one way.

    Parameters
    ----------
    imbalance, bound
        Tokens of the busiest rank over the mean, and no placement of this kind has less.
    iteration_time_s
        By the judge.
    predicted_bytes, oom_probability
        Of the fullest stage.
    """

    placement: str
    imbalance: float
    bound: float
    iteration_time_s: float
    predicted_bytes: int
    oom_probability: float


def load_rows(
    instance: Instance, plan: Plan, loads: FloatArray, predictor: MemoryPredictor, max_oom_risk: float, spare_slots: int
) -> list[LoadRow]:
    """Equal loads first, then the loads as listed, balanced, and with so many copies more on each rank."""
    ranks = plan.config.expert_model_parallel_size
    if ranks == 1:
        raise InputError("plan", "has no expert parallelism, so every rank holds all experts: loads do not matter.")
    listed = listed_imbalance(loads, ranks)
    cases = [("equal loads", (1.0, 1.0), 0), ("as listed", (listed, listed), 0)]
    cases.append(("by load (planned only)", balanced_imbalance(loads, ranks), 0))
    if spare_slots:
        said = f"by load, {spare_slots} more on each rank (planned only)"
        cases.append((said, balanced_imbalance(loads, ranks, spare_slots), spare_slots))
    rows = []
    for name, (imbalance, bound), spare in cases:
        given = with_imbalance(instance, ranks, imbalance)
        memory = stage_memory(given, plan.config, plan.placement, predictor, max_oom_risk)
        more = [_copied_bytes(given, plan, spare, stage.stage) for stage in memory]
        fullest = max(zip(memory, more, strict=True), key=lambda pair: pair[0].predicted_bytes + pair[1])
        rows.append(
            LoadRow(
                placement=name,
                imbalance=imbalance,
                bound=bound,
                iteration_time_s=estimate(given, plan.config, plan.placement).iteration_time_s,
                predicted_bytes=fullest[0].predicted_bytes + fullest[1],
                oom_probability=max(stage.oom_probability for stage in memory) if not spare else float("nan"),
            )
        )
    return rows


def with_imbalance(instance: Instance, ranks: int, imbalance: float) -> Instance:
    """The job with this imbalance of so many expert-parallel ranks."""
    found = (RankImbalance(ranks=ranks, imbalance=imbalance),)
    training = replace(instance.training, expert_imbalance=1.0, rank_imbalances=found)
    return with_edge_loss(replace(instance, training=training))


def largest_imbalance(instance: Instance, plan: Plan, predictor: MemoryPredictor, max_oom_risk: float) -> float:
    """
    The largest imbalance with which every stage keeps to the accepted risk of running out of memory; 0 if none does.

    As ``--moe-expert-capacity-factor`` it drops the tokens beyond: no expert, hence no rank, gets more.
    """
    ranks = plan.config.expert_model_parallel_size

    def fits(imbalance: float) -> bool:
        given = with_imbalance(instance, ranks, imbalance)
        memory = stage_memory(given, plan.config, plan.placement, predictor, max_oom_risk)
        return all(stage.oom_probability <= max_oom_risk for stage in memory)

    if not fits(1.0):
        return 0.0
    low, high = 1.0, float(ranks)
    if fits(high):
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _copied_bytes(instance: Instance, plan: Plan, spare_slots: int, stage: int) -> int:
    """Weights, gradients and optimizer states of copies on a rank; states are not sharded among copies."""
    model, training, config = instance.model, instance.training, plan.config
    if not spare_slots or model.num_experts is None:
        return 0
    held = stage_expert_parameters(model, config)[stage]
    local = model.num_experts // config.expert_model_parallel_size
    each = training.parameter_bytes + training.gradient_bytes + training.optimizer_bytes
    return int(held / local * spare_slots * each)
