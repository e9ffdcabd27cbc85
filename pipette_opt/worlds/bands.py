"""Error bands of predicted times: what worlds leave possible, from public runs and from the user's own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.plans.plan import MEASURED_RUNS, Band, IterationTime
from pipette_opt.plans.verdict import jobs_words
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.worlds.factor import anchored, job_factor, unmoved
from pipette_opt.worlds.jobs import job_kind, unmeasured_gpus
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
    runs, source, unmeasured = _known_runs(instance)
    return Band(
        low_s=min(low * iteration_time_s, middle_s),
        middle_s=middle_s,
        high_s=max(high * iteration_time_s, middle_s),
        share=SHARE,
        source=source,
        runs=runs,
        unmeasured=unmeasured,
    )


def jobs_of_bands(instances: Sequence[Instance]) -> str:
    """Return words for the jobs whose times the bands hold: the first job, or one on GPUs that no public run used."""
    known = [(*_known_runs(instance), instance) for instance in instances]
    runs, _, unmeasured, instance = next((found for found in known if found[2]), known[0])
    return jobs_words(runs, is_own=bool(instance.stack.anchors), unmeasured=unmeasured)


def _known_runs(instance: Instance) -> tuple[int, str, str]:
    """
    Return what is known of jobs like this.

    It is the number of the user's runs, else of public runs of this kind of job; a text on all runs that count; and the
    GPUs that no public run used (:func:`~pipette_opt.worlds.jobs.unmeasured_gpus`).
    """
    if anchors := instance.stack.anchors:
        return len(anchors), f"{counted(len(anchors), 'run')} {MEASURED_RUNS}", ""
    kind, counts = job_kind(instance), shipped_priors().runs
    runs, every = counts.get(kind, 0), counted(sum(counts.values()), "public run")
    return runs, f"{every}, {runs or 'none'} of them like this ({kind})", unmeasured_gpus(instance.cluster)
