"""Values of a plan by an objective other than its time."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.typed import typed
from pipette_opt.plans.failures import FailureRate, best_progress
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.objective import Objective

HOUR_S = 3600.0

UNITS = {
    Objective.TOKENS_PER_GPU: "tokens/s/GPU",
    Objective.COST: "per million tokens, in the currency of the prices",
    Objective.PROGRESS: "tokens/s, losses of hosts counted",
}
"""Unit of each objective in output for people."""


def people_value(objective: Objective, value: float, tokens: float) -> float:
    """Convert the minimised objective of an iteration to tokens per second, or to the price of a million tokens."""
    return tokens / value if objective.is_rate else value * 1e6 / tokens


def value_of(plan: Plan, cluster: ClusterSpec, objective: Objective) -> float:
    """
    Return the minimised objective of a plan, for one iteration.

    GPU-seconds, price, or seconds with the expected cost of host failures, by ``objective``.
    """
    factor = hosts_factor(objective, cluster, plan.inputs, plan.config.world_size, plan.placement.nodes_used.tolist())
    return factor * plan.estimate.iteration_time_s


def best_value_of(plan: Plan, cluster: ClusterSpec, objective: Objective) -> float:
    """Return the minimised objective of the fastest plan found: of ``plan``, unless a plainer one was preferred."""
    fastest = plan.fastest
    if fastest is None or fastest.iteration_time_s is None:
        return value_of(plan, cluster, objective)
    nodes = [cluster.hosts.index(host) for host in fastest.hosts]
    return hosts_factor(objective, cluster, plan.inputs, fastest.config.world_size, nodes) * fastest.iteration_time_s


def hosts_factor(
    objective: Objective, cluster: ClusterSpec, inputs: Mapping[str, Any], num_gpus: int, nodes: Sequence[int]
) -> float:
    """Return the minimised objective over the iteration time, for a plan that uses the hosts ``nodes``."""
    if objective is Objective.TOKENS_PER_GPU:
        return num_gpus
    if objective is Objective.PROGRESS:
        return 1.0 / best_progress(recorded_rate(inputs), len(nodes)).share
    return sum(price_of(cluster, node) for node in nodes) * (num_gpus / len(nodes)) / HOUR_S


def recorded_rate(inputs: Mapping[str, Any]) -> FailureRate:
    """Return the failure rate of hosts in a plan's ``inputs`` (``failures``). ``InputError`` if it is missing."""
    if inputs.get("failures") is None:
        raise InputError(
            "--host-mean-days", "is required for --objective progress: the mean days between failures of a host."
        )
    return typed(FailureRate, inputs["failures"], "inputs.failures", closed=True)


def price_of(cluster: ClusterSpec, node: int) -> float:
    """Return the price of a GPU-hour on a host. ``InputError`` if the price is unknown."""
    price = cluster.nodes[node].price_per_gpu_hour
    if price is None:
        host = cluster.hosts[node]
        raise InputError(
            "--objective",
            f"cost needs the price of a GPU-hour of every host, and {host} has none; give --gpu-price, e.g. 2.5, or "
            "price_per_gpu_hour in the cluster file.",
        )
    return price
