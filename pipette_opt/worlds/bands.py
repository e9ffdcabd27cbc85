"""Error bands of predicted times: what worlds leave possible, from public runs and from the user's own."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.plans.plan import MEASURED_RUNS, Band, IterationTime
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import Anchor, StackSpec
from pipette_opt.worlds.jobs import job_kind
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.terms import TERMS, terms_of_plan
from pipette_opt.worlds.worlds import Observation, Worlds

SHARE = 0.9
"""Share of measured runs that lie inside a band. Chosen."""


def with_band(
    estimate: IterationTime, instance: Instance, config: ParallelConfig, placement: Placement
) -> IterationTime:
    """Return the estimate with its error band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s, placement))


def job_band(
    instance: Instance, config: ParallelConfig, iteration_time_s: float, placement: Placement | None = None
) -> Band:
    """
    Return the error band of a predicted time, from the worlds that the stack's anchors leave.

    Parameters
    ----------
    placement
        Placement that was timed; ``None`` for ranks in order on the first hosts.
    """
    cluster, anchors = instance.cluster, instance.stack.anchors
    usual = placement or identity_placement(
        config, cluster.gpus_per_node, np.arange(cluster.num_nodes), "tp-cp-ep-dp-pp"
    )
    terms = terms_of_plan(instance, config, usual)
    low, middle, high = anchored(instance.stack).bands(terms[None], SHARE)[0].tolist()
    runs, source = (len(anchors), f"{counted(len(anchors), 'run')} {MEASURED_RUNS}") if anchors else _public(instance)
    return Band(
        low_s=low * iteration_time_s,
        middle_s=middle * iteration_time_s,
        high_s=high * iteration_time_s,
        share=SHARE,
        source=source,
        runs=runs,
    )


def _public(instance: Instance) -> tuple[int, str]:
    """Return the number of public runs of this kind of job, and a text for people on all public runs."""
    kind, counts = job_kind(instance), shipped_priors().runs
    runs, every = counts.get(kind, 0), counted(sum(counts.values()), "public run")
    return runs, f"{every}, {runs or 'none'} of them like this ({kind})"


def anchored(stack: StackSpec) -> Worlds:
    """Return the worlds after the measured runs of a stack; ``InputError`` for runs of another version."""
    return _anchored(stack.anchors, is_fitted=stack.is_fitted)


@lru_cache(maxsize=8)
def _anchored(anchors: tuple[Anchor, ...], *, is_fitted: bool) -> Worlds:
    for anchor in anchors:
        if len(anchor.terms) != len(TERMS):
            raise InputError(
                f"measured run {anchor.run}",
                f"has {len(anchor.terms)} terms, and this version of pipette-opt has {len(TERMS)}; solve again with "
                "--measured.",
            )
    return Worlds.load(is_fitted=is_fitted).given(observations_of(anchors))


def observations_of(anchors: Iterable[Anchor]) -> list[Observation]:
    """Return the measured runs of a stack."""
    return [Observation(factors=np.array(anchor.terms), log_ratio=anchor.log_ratio) for anchor in anchors]
