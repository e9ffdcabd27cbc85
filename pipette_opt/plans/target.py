"""What a plan is worth by an objective other than its time."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.plans.failures import FailureRate, best_progress
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.objective import Objective
from pipette_opt.specs.recorded import recorded_spec

HOUR_S = 3600.0

UNITS = {
    Objective.TOKENS_PER_GPU: "tokens/s/GPU",
    Objective.COST: "per million tokens, in the currency of the prices",
    Objective.PROGRESS: "tokens/s, losses of hosts counted",
}
"""What each objective is told in."""


def people_value(objective: Objective, value: float, tokens: int) -> float:
    """From what is minimised to what is told: tokens per second, or the price of a million tokens."""
    return tokens / value if objective.is_rate else value * 1e6 / tokens


def value_of(plan: Plan, cluster: ClusterSpec, objective: Objective) -> float:
    """What is minimised: GPU-seconds of an iteration, its price, or its seconds with what losses of hosts cost."""
    seconds = plan.estimate.iteration_time_s
    if objective is Objective.TOKENS_PER_GPU:
        return seconds * plan.config.world_size
    if objective is Objective.PROGRESS:
        return seconds / best_progress(recorded_rate(plan.inputs), len(plan.placement.nodes_used)).share
    per_host = plan.config.world_size / len(plan.placement.nodes_used)
    return seconds * sum(price_of(cluster, node) for node in plan.placement.nodes_used) * per_host / HOUR_S


def recorded_rate(inputs: Mapping[str, Any]) -> FailureRate:
    """How hosts fail, as the inputs of a plan say under ``failures``. ``InputError`` if they do not."""
    if inputs.get("failures") is None:
        raise InputError("--host-mean-days", "is needed for --objective progress: mean days until a host is lost.")
    return recorded_spec(FailureRate, inputs["failures"], "inputs.failures")


def price_of(cluster: ClusterSpec, node: int) -> float:
    """Price of an hour of a GPU of a host. ``InputError`` if nobody says."""
    price = cluster.nodes[node].price_per_gpu_hour
    if price is None:
        host = cluster.hosts[node]
        raise InputError(
            "--objective",
            f"cost needs the price of a GPU-hour of every host, and {host} has none; give --gpu-price, e.g. 2.5, or "
            "price_per_gpu_hour in the cluster file.",
        )
    return price
