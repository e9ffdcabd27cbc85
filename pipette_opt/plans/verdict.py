"""Verdict on a plan or a launch in one sentence: whether it fits, distance from the best, uncertainty of the time."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipette_opt.base.units import above_best, counted, gib, listed, three_digits
from pipette_opt.plans.certificate import Certificate
from pipette_opt.plans.predicted import AS_GOOD, FEW_RUNS, IterationTime, StageMemory, fullness
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import LARGE_EFFECT, by_size

MEMORY_IGNORED = 1.0
"""Accepted out-of-memory risk at which memory does not count."""

FITS_UP_TO = 0.01
"""Largest out-of-memory risk at which a job "fits"; equal to the default of ``--max-oom-risk``."""


def verdict(
    memory: Sequence[StageMemory],
    estimate: IterationTime,
    *,
    max_oom_risk: float | None = None,
    certificate: Certificate | None = None,
    links_measured: bool = True,
    not_modelled: Sequence[NotModelled] = (),
    one_risk: bool = False,
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
    one_risk
        Give only the risk with all that is unknown about the stack.
    """
    parts = [fit_words(memory, max_oom_risk, one_risk=one_risk)]
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
    if not memory or max_oom_risk == MEMORY_IGNORED:
        return True
    worst = max(memory, key=fullness)
    return worst.oom_probability <= max(max_oom_risk, FITS_UP_TO) and worst.predicted_bytes <= worst.capacity_bytes


def fit_words(memory: Sequence[StageMemory], max_oom_risk: float | None, *, one_risk: bool = False) -> str:
    """
    Return a clause that says whether the job fits, by the stage that is most likely to run out of memory.

    ``one_risk``: as in :func:`verdict`.
    """
    if not memory:
        return "Whether it fits is not known"
    worst = max(memory, key=fullness)
    whole, chance = risk_words(worst), worst.stack_oom_probability or 0.0
    share = _risk_as_assumed(worst)
    of_any_stack = "" if one_risk or whole == share else f", {whole} with what is unknown about the stack"
    risk = f"risk of running out of memory {whole if one_risk else share}{of_any_stack}"
    if worst.predicted_bytes > worst.capacity_bytes:
        need, room = gib(worst.predicted_bytes), gib(worst.capacity_bytes)
        answer = f"Does not fit: stage {worst.stage} needs {need:.1f} GiB of {room:.1f} ({risk})"
    elif worst.upper_bytes > worst.capacity_bytes or worst.oom_probability > FITS_UP_TO:
        accepted = max_oom_risk is not None and worst.oom_probability <= max_oom_risk < MEMORY_IGNORED
        answer = f"May not fit ({risk}{', as accepted' if accepted else ''})"
    else:
        answer = f"{'Predicted to fit' if one_risk and chance > FITS_UP_TO else 'Fits'} ({risk})"
    if max_oom_risk == MEMORY_IGNORED:
        return f"{answer}, but memory was not counted, as asked"
    return answer


def risk_words(stage: StageMemory) -> str:
    """Return the risk of running out of memory, with all that is unknown about the stack where that is recorded."""
    chance = stage.stack_oom_probability
    return _risk_as_assumed(stage) if chance is None else _share(chance)


def _risk_as_assumed(stage: StageMemory) -> str:
    """Return the risk of running out of memory on a stack with the predictor's constants."""
    share = _share(stage.oom_probability)
    return f"at most {share}" if stage.oom_probability_at_most and not share.startswith("less") else share


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
    answer, band = f"about {three_digits(estimate.expected_s)} s per iteration", estimate.band
    if band is None:
        return f"{answer}, as simulated"
    of_ten = "nine of ten" if round(10 * band.share, 6) == 9 else f"{_share(band.share)} of"
    ends = f"{three_digits(band.low_s)} to {three_digits(band.high_s)} s in {of_ten}"
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
    return f"Times are expected times: {low:.2f} to {high:.2f} times as long in nine of ten {jobs}."


def _share(share: float) -> str:
    """Return a share as a percentage: one digit after the point below 10 %, none from 10 % on."""
    if 0 < share < 5e-4:
        return "less than 0.1 %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
