"""Error bands of predicted times: what worlds leave possible, from public runs and from the user's own."""

from dataclasses import replace

import numpy as np

from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.plans.plan import MEASURED_RUNS, Band, IterationTime
from pipette_opt.plans.verdict import jobs_words
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.worlds.factor import anchored, job_factor, unmoved
from pipette_opt.worlds.jobs import job_kind
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.terms import described_plan

SHARE = 0.9
"""Share of measured runs that lie inside a band. Chosen."""


def with_band(
    estimate: IterationTime, instance: Instance, config: ParallelConfig, placement: Placement
) -> IterationTime:
    """Return the estimate with its expected time and error band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s, placement))


def job_band(
    instance: Instance, config: ParallelConfig, iteration_time_s: float, placement: Placement | None = None
) -> Band:
    """
    Return the expected time of a placed configuration, and its error band.

    The expected time is the simulated one times the job's factor. The band is that of the worlds that the stack's
    anchors leave for this layout, and always holds the expected time.

    Parameters
    ----------
    iteration_time_s
        Simulated time on the job's stack, seconds.
    placement
        Placement that was timed; ``None`` for ranks in order on the first hosts.
    """
    hosts = np.arange(instance.cluster.num_nodes)
    placement = placement or identity_placement(config, instance.cluster.gpus_per_node, hosts, "tp-cp-ep-dp-pp")
    middle_s = job_factor(instance) * iteration_time_s
    unmoved_s, terms = described_plan(unmoved(instance), config, placement)
    if instance.stack.moved_from:
        iteration_time_s *= unmoved_s / float(estimate_many(instance, [(config, placement)])[0])
    low, _, high = anchored(instance).bands(terms[None], SHARE)[0].tolist()
    runs, source = _known_runs(instance)
    return Band(
        low_s=min(low * iteration_time_s, middle_s),
        middle_s=middle_s,
        high_s=max(high * iteration_time_s, middle_s),
        share=SHARE,
        source=source,
        runs=runs,
    )


def jobs_of_bands(instance: Instance) -> str:
    """Return words for the jobs whose times the bands of a job hold."""
    return jobs_words(_known_runs(instance)[0], is_own=bool(instance.stack.anchors))


def _known_runs(instance: Instance) -> tuple[int, str]:
    """Return the number of the user's runs, else of public runs of this kind of job, and a text on all that count."""
    if anchors := instance.stack.anchors:
        return len(anchors), f"{counted(len(anchors), 'run')} {MEASURED_RUNS}"
    kind, counts = job_kind(instance), shipped_priors().runs
    runs, every = counts.get(kind, 0), counted(sum(counts.values()), "public run")
    return runs, f"{every}, {runs or 'none'} of them like this ({kind})"
