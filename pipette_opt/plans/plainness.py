"""Plainness: preference among plans whose times predictions cannot tell apart."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from pipette_opt.base.degrees import CHUNKS, DEGREES
from pipette_opt.base.risk import IGNORED_RISK, SMALLEST_RISK
from pipette_opt.base.types import IntArray
from pipette_opt.parallel import ParallelConfig

WITHIN = 0.01
"""
Relative distance from the best objective within which the plainest plan is shown. Chosen: far below the errors of
predicted times.
"""

RISK_SHARE = 0.5
"""Share of the accepted out-of-memory risk; a plan with at most this share of the risk counts as safe. Chosen."""

LEAST_SHARE = 0.1
"""Share of the accepted out-of-memory risk for which the safest plan is searched. Chosen."""


def risk_levels(max_oom_risk: float) -> tuple[float, ...]:
    """Return the out-of-memory risks for which the fastest plan is searched; empty if memory does not count."""
    if max_oom_risk >= IGNORED_RISK:
        return ()
    return tuple(max(share * max_oom_risk, SMALLEST_RISK) for share in (1.0, RISK_SHARE, LEAST_SHARE))


def plainness(
    config: ParallelConfig,
    oom_probability: float,
    max_oom_risk: float,
    *,
    in_order: bool = True,
    today: ParallelConfig | None = None,
) -> tuple[int, ...]:
    """
    Return a sort key of plainness: of equally fast plans, the plan with the smallest key is preferred.

    Criteria in order: more even layers; hosts as listed; fewer stages; fewer model chunks; risk of running out of
    memory at most :data:`RISK_SHARE` of the accepted risk; fewer differences from the launch that runs today.

    Parameters
    ----------
    oom_probability
        Risk that the fullest stage runs out of memory.
    max_oom_risk
        Accepted risk; from 1 on, memory does not count.
    in_order
        Whether consecutive ranks fill the hosts as listed (:func:`is_in_order`).
    today
        Configuration of the launch that runs today; ``None`` if unknown.
    """
    counts_memory = max_oom_risk < IGNORED_RISK
    return (
        unevenness(config),
        int(not in_order),
        config.pipeline_model_parallel_size,
        config.num_chunks,
        int(counts_memory and oom_probability > RISK_SHARE * max_oom_risk),
        num_changes(config, today),
    )


def is_in_order(hosts_of_ranks: IntArray, order: Sequence[int] = ()) -> bool:
    """
    Return whether consecutive ranks fill the hosts one after the other, in their usual order.

    Parameters
    ----------
    hosts_of_ranks
        Host index of each rank, or of the first rank of each host.
    order
        All hosts in the usual order; empty: as the cluster lists them.
    """
    place = np.argsort(order)[hosts_of_ranks] if len(order) else hosts_of_ranks
    return bool((np.diff(place) >= 0).all())


def unevenness(config: ParallelConfig) -> int:
    """
    Return 0 where all stages have equally many layers, 1 where only the first and the last differ, 2 otherwise.

    Megatron-Core has options for the first and the last stage; other splits need a layout that names every chunk.
    """
    layers = config.layers_per_stage
    if config.pipeline_model_parallel_layout is not None:
        return 2
    if len(set(layers)) == 1:
        return 0
    return 1 if len(set(layers[1:-1])) <= 1 else 2


def num_changes(config: ParallelConfig, today: ParallelConfig | None) -> int:
    """
    Return the number of fields in which a configuration differs from the configuration that runs today; 0 if
    unknown.
    """
    if today is None:
        return 0
    names = [field.name for field in fields(ParallelConfig)]
    return sum(getattr(config, name) != getattr(today, name) for name in names)


def kind_of(config: ParallelConfig) -> tuple[object, ...]:
    """
    Return degrees, micro-batch and kind of recomputation; the alternatives to a plan differ in at least one of
    them.
    """
    return *(getattr(config, degree.number) for degree in DEGREES if degree != CHUNKS), config.recomputation
