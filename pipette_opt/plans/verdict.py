"""Verdict on a plan or a launch in one sentence: whether it fits, distance from the best, uncertainty of the time."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipette_opt.base.risk import IGNORED_RISK, USUAL_RISK
from pipette_opt.base.units import (
    above_best,
    chosen_percent,
    counted,
    gib,
    listed,
    percent,
    short_seconds,
    three_digits,
)
from pipette_opt.plans.certificate import Certificate
from pipette_opt.plans.predicted import AS_GOOD, FEW_RUNS, IterationTime, StageMemory, fullness
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import LARGE_EFFECT, by_size

NARROWED_FROM = 0.1
"""
Standard deviation of the logarithm of a peak from which one measured peak narrows it. Chosen: twice the deviation of a
stack with known constants.
"""

OPEN_RISKS = (0.01, 0.99)
"""Risks of running out of memory between which a measured peak may change the verdict. Chosen."""


def verdict(
    memory: Sequence[StageMemory],
    estimate: IterationTime,
    *,
    max_oom_risk: float | None = None,
    certificate: Certificate | None = None,
    links_measured: bool = True,
    not_modelled: Sequence[NotModelled] = (),
) -> str:
    """
    Return the verdict on a plan, or on a launch without a search, as one sentence.

    Parameters
    ----------
    max_oom_risk
        Accepted risk of running out of memory; ``None`` if unknown.
    certificate
        Proof about the plan; ``None`` without a search.
    links_measured
        Whether the links between hosts were measured; ``True`` for a single host.
    not_modelled
        Options that predicted times and sizes leave out.
    """
    parts = [fit_words(memory, max_oom_risk)]
    if certificate is not None:
        parts.append(_proof(certificate, estimate.iteration_time_s))
    parts.append(expected_time(estimate))
    if not links_measured:
        parts.append("no link was measured")
    large, others, in_part = by_size(not_modelled)
    if large:
        parts.append(f"with {listed(large, 1)} {LARGE_EFFECT}")
    if others:
        parts.append(f"not modelled: {listed(others, 1)}")
    if in_part:
        parts.append(f"counted in part: {listed(in_part, 1)}")
    return "; ".join(parts) + "."


def links_measured(inputs: Mapping[str, Any], num_hosts: int) -> bool:
    """Return whether links between hosts were measured; ``False`` for ``--nodes`` or files without matrices."""
    cluster = inputs.get("cluster")
    if not isinstance(cluster, Mapping) or num_hosts == 1:
        return True
    return "document" not in cluster and bool(cluster.get("matrices", True))


def is_to_fit(memory: Sequence[StageMemory], max_oom_risk: float) -> bool:
    """
    Return whether a job can be taken to run: it fits, its risk is accepted, its memory is unknown or not counted.

    Parameters
    ----------
    max_oom_risk
        Accepted risk of running out of memory.
    """
    if not memory or max_oom_risk == IGNORED_RISK:
        return True
    worst = max(memory, key=fullness)
    return worst.oom_probability <= max(max_oom_risk, USUAL_RISK) and worst.predicted_bytes <= worst.capacity_bytes


def fit_words(memory: Sequence[StageMemory], max_oom_risk: float | None) -> str:
    """Return a clause on the stage that is most likely to run out of memory: whether it fits, its room, its risk."""
    if not memory:
        return "Whether it fits is not known"
    worst = max(memory, key=fullness)
    risk, peak = worst.oom_probability, worst.predicted_bytes
    sizes = f"{gib(peak):.1f} of {gib(worst.capacity_bytes):.1f} GiB"
    details = [f"risk of running out of memory {risk_words(risk)}"]
    if peak > worst.capacity_bytes:
        answer = f"Does not fit: stage {worst.stage} needs {sizes}"
    elif risk > USUAL_RISK:
        answer = f"May not fit: {sizes}"
        details += ["as accepted"] if max_oom_risk is not None and risk <= max_oom_risk < IGNORED_RISK else []
    else:
        answer = f"Fits: {sizes}"
    if worst.spread >= NARROWED_FROM and OPEN_RISKS[0] < risk < OPEN_RISKS[1]:
        details.append("one measured peak narrows it")
    answer = f"{answer} ({', '.join(details)})"
    return f"{answer}, but memory was not counted, as asked" if max_oom_risk == IGNORED_RISK else answer


def risk_words(risk: float) -> str:
    """Return a probability of running out of memory as a percentage, never as 0 or 100 %."""
    if risk > 0.995:
        return "more than 99 %"
    return percent(risk, decimals=1)


def _proof(certificate: Certificate, iteration_time_s: float) -> str:
    """Return a clause that says how far a plan is from the best of the searched space, by time or by its objective."""
    if certificate.robust is not None:
        above = certificate.robust.value_s / certificate.robust.lower_bound_s - 1
        if above <= AS_GOOD:
            return "proven to have the least upper end of its time among what was searched"
        return f"the upper end of its time is {above_best(certificate.robust.shown_gap)}"
    is_fastest = certificate.fastest_s is None or iteration_time_s <= (1 + AS_GOOD) * certificate.fastest_s
    if certificate.status == "OPTIMAL" and is_fastest:
        return "proven optimal among what was searched"
    return above_best(1 - certificate.lower_bound_s / iteration_time_s)


def expected_time(estimate: IterationTime) -> str:
    """Return the expected time as text: the middle of the band, with the band and its number of runs."""
    answer, band = f"about {short_seconds(estimate.expected_s)} per iteration", estimate.band
    if band is None:
        return f"{answer}, as simulated"
    of_ten = "nine of ten" if round(10 * band.share, 6) == 9 else f"{chosen_percent(band.share)} of"
    ends = f"{three_digits(band.low_s)} to {short_seconds(band.high_s)} in {of_ten}"
    if band.unmeasured:
        factor = max(band.high_s / band.middle_s, band.middle_s / band.low_s)
        no_run = f"no public run on {band.unmeasured}"
        return f"{answer} ({ends} jobs); {no_run}: the time may be off by a factor of {factor:.2g}"
    return f"{answer} ({ends} {jobs_words(band.runs, is_own=band.is_own)})"


def jobs_words(runs: int, *, is_own: bool, unmeasured: str = "") -> str:
    """
    Return words for the jobs whose times a band holds: by the user's runs, or by public runs of such jobs.

    ``unmeasured``: as in :class:`~pipette_opt.plans.predicted.Band`.
    """
    if is_own:
        return f"jobs, by {counted(runs, 'run')} of your own"
    if unmeasured:
        return f"jobs; no public run on {unmeasured}, so the band is wide"
    if runs >= FEW_RUNS:
        return "jobs like this"
    few = f"few runs like this were measured: {runs}" if runs else "no run like this was measured"
    return f"jobs; {few}, so the band is wide"


def times_words(low: float, high: float, jobs: str) -> str:
    """Return a sentence on expected times and the ends of their bands, as shares of the expected time."""
    return f"Times are expected times; real ones are {low:.2f} to {high:.2f} times as long in nine of ten {jobs}."
