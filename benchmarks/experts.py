"""
Effect of unequal expert loads on a plan's time and memory, and the imbalance at which memory runs out.

The plan is evaluated with equal loads, with experts in listed order, placed by load, and with copies of hot experts.
Copies follow FlexMoE (arXiv 2304.03946): an expert's tokens are dealt evenly among its copies. Their gradients are
all-reduced once per iteration, over the slowest pair of hosts and without overlap. The number of slots for copies on a
rank is chosen: the fastest number whose risk of running out of memory is accepted. No launcher places or copies experts
by load in training.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.command import INSTANCES
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import counted, gib, percent
from pipette_opt.cli import options as opt
from pipette_opt.cli.output import say, show, show_json
from pipette_opt.cli.program import run_command
from pipette_opt.costs.collectives import RingTraffic
from pipette_opt.costs.links import EachLink, NoLinks, RingShape
from pipette_opt.costs.messages import slowest_pair
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.library.plans import plan_and_instance
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
from pipette_opt.plans.plan import Plan, StageMemory
from pipette_opt.prepare import load_predictor
from pipette_opt.read.expert_loads import read_expert_loads
from pipette_opt.report.cells import columns_table, seconds_text, spaced
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.solver.expert_placement import ExpertPlacement, place_layers
from pipette_opt.specs import Instance
from pipette_opt.specs.expert_loads import RankImbalance, listed_imbalance

HALVINGS = 20
"""Number of bisection steps for the largest imbalance that fits: a precision of a millionth of the ranks. Chosen."""


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


def largest_imbalance(instance: Instance, plan: Plan, predictor: MemoryPredictor, max_oom_risk: float) -> float:
    """
    Return the largest imbalance with which every stage keeps to the accepted risk; 0 if even equal loads exceed it.

    As ``--moe-expert-capacity-factor``, this value drops the tokens beyond it: no expert, hence no rank, gets more.
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


def experts(
    plan: Annotated[Path, typer.Argument(help="A plan with expert parallelism.")],
    expert_loads: Annotated[
        str, typer.Option(help="A file with a number for each expert, or zipf:1.2.", rich_help_panel=INSTANCES)
    ],
    spare_slots: Annotated[
        int,
        typer.Option(
            help="Maximum number of slots for copies of hot experts on a rank; 0 for none.", rich_help_panel=INSTANCES
        ),
    ] = 1,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    cluster: opt.Cluster = None,
    json: opt.Json = False,
) -> None:
    """
    Print the effect of unequal expert loads on a plan: experts as listed, placed by load, and with copies of hot ones.

    Also print the capacity factor with which the risk of running out of memory stays accepted.

    Example: [bold]python -m benchmarks.experts plan.json --expert-loads zipf:1.0[/]
    """
    if not 0 <= spare_slots <= 8:
        raise InputError("--spare-slots", f"must be from 0 to 8, got {spare_slots}.")
    found, instance = plan_and_instance(plan, cluster)
    loads = read_expert_loads(expert_loads, instance.model)
    predictor = load_predictor(max_oom_risk, instance)
    rows = load_rows(instance, found, loads, predictor, max_oom_risk, spare_slots)
    largest = largest_imbalance(instance, found, predictor, max_oom_risk)
    if json:
        show_json({"rows": [asdict(row) for row in rows], "capacity_factor": largest})
        return
    table = columns_table("experts", "busiest rank >", "at least >", "time >", "slower >", "memory >", "risk >")
    for row in rows:
        table.add_row(
            *(row.placement, f"{row.imbalance:.3f}", f"{row.bound:.3f}", seconds_text(row.iteration_time_s)),
            percent(row.iteration_time_s / rows[0].iteration_time_s - 1),
            f"{gib(row.predicted_bytes):.1f} GiB",
            percent(row.oom_probability),
        )
    table.caption = f"{found.config.label()}; busiest rank: tokens over the mean; memory of the fullest stage"
    show(spaced(table))
    chosen = chosen_row(rows, max_oom_risk)
    if chosen is None:
        say("experts by load: no number of copies keeps to the accepted risk")
    else:
        say(f"experts by load: fastest within the accepted risk with {counted(chosen.spare_slots, 'slot')} for copies")
    if largest == found.config.expert_model_parallel_size:
        say("memory: fits even if one rank gets all tokens")
    elif largest:
        factor = int(100 * largest) / 100
        say(f"memory: fits up to {largest:.3f} times the mean; --moe-expert-capacity-factor {factor} keeps to it")
    else:
        say("memory: does not fit with equal loads either")


if __name__ == "__main__":
    run_command(experts)
