"""
Regret of searches by trials on tables of measured runs: ``python -m benchmarks.tune [--write]``.

Each search sees a table job by job, and reads a row's time when it tries the row. ``RULES`` describes them.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from benchmarks.measured import measured_folder
from benchmarks.page import RESULTS, made_by, run_page
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import counted
from pipette_opt.read.runs import MeasuredRun, read_rows
from pipette_opt.read.stack import read_stack
from pipette_opt.tune.replay import ReplayJob, replay, replay_jobs
from pipette_opt.worlds.worlds import Worlds

RULES = """\
- `worlds`: `tune --replay --leave-out-source`.
- `fastest predicted`: in the order of predicted times, first the rows that are more likely to fit in memory than not.
- `by hand`: first the fewest tensor x pipeline x context ranks that are likely to fit, with the largest micro-batch.
  Then the untried row with the fewest doublings of degrees and micro-batch from the best so far. After a run out of
  memory, from that run on, with more model ranks or a smaller micro-batch.
- `Gaussian process`: no predictions. Squared-exponential kernel over logarithms of degrees and micro-batch, expected
  improvement, a failed run as a slow one, a random first trial; mean of ten seeds.
- `random`: any order; mean of ten seeds.\
"""
"""Rules of the searches, for the page."""

TABLES = {
    "WANT, A100": "want_llama_a100",
    "vTrain, A100": "vtrain_a100",
    "nanotron, H100": "hf_ultrascale_h100",
    "mixtures on AWS": "aws_moe_dispatchers",
}
"""Tables with jobs of several measured configurations, by the page's name."""

TRIALS = (1, 2, 3, 6)
"""Numbers of trials after which regret is shown."""

BUDGET = 12
"""Trials of each search; a job that is not within ``NEAR`` then counts as one more."""

NEAR = 0.02
"""Regret at which a job counts as solved."""

MIN_TIMED = 3
"""Fewest measured configurations of a job that counts."""

SEEDS = 10
"""Number of random orders."""

WITHOUT_TIME = 3.0
"""Regret while no trial has a time."""

SIZES = ("tp", "pp", "cp", "dp", "mbs", "vpp")

Order = Iterator[int]
"""Rows of a job in the order in which they are tried; the time of a row is asked for between two of them."""


@dataclass(frozen=True)
class Curve:
    """Regret after each trial of a search of one job, and the regret that the search stated."""

    regrets: FloatArray
    stated: tuple[float | None, ...] = ()


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    yield page({name: searches(table) for name, table in TABLES.items()})


def searches(table: str) -> dict[str, list[Curve]]:
    """Return the curves of all searches on a table, by the search's name; each has one per job and seed."""
    runs, _ = read_rows(measured_folder() / f"{table}.csv")
    jobs = [job for job in replay_jobs(runs, read_stack()) if len(times_of(job)) >= MIN_TIMED]
    seeds = range(SEEDS)
    return {
        "worlds": [by_worlds(job, Worlds.load(job.source)) for job in jobs],
        "fastest predicted": [curve(job, fastest_predicted(job)) for job in jobs],
        "by hand": [curve(job, by_hand(job)) for job in jobs],
        "Gaussian process": [curve(job, gaussian_process(job, seed)) for job in jobs for seed in seeds],
        "random": [curve(job, at_random(job, seed)) for job in jobs for seed in seeds],
    }


def by_worlds(job: ReplayJob, worlds: Worlds) -> Curve:
    """Return the curve of ``tune --replay``."""
    steps = replay(job, worlds, budget=BUDGET)
    best_s = min(times_of(job))
    regrets = [WITHOUT_TIME if step.best_s is None else step.best_s / best_s - 1 for step in steps]
    return Curve(np.array(regrets), tuple(step.regret for step in steps))


def curve(job: ReplayJob, order: Order) -> Curve:
    """Return the curve of a search that yields rows."""
    best_s, regrets = min(times_of(job)), []
    so_far = np.inf
    for row in order:
        so_far = min(so_far, time_of(job.runs[row]))
        regrets.append(so_far / best_s - 1 if np.isfinite(so_far) else WITHOUT_TIME)
        if len(regrets) == BUDGET:
            break
    return Curve(np.array(regrets))


def fastest_predicted(job: ReplayJob) -> Order:
    """Yield rows by predicted time; those predicted to run out of memory come last."""
    num_known = len(job.candidates.predicted_s)
    unsafe = 1 - job.candidates.memory.fit() > 0.5
    yield from np.lexsort((job.candidates.predicted_s, unsafe)).tolist()
    yield from range(num_known, len(job.runs))


def at_random(job: ReplayJob, seed: int) -> Order:
    """Yield rows in a random order."""
    yield from np.random.default_rng(seed).permutation(len(job.runs)).tolist()


def by_hand(job: ReplayJob) -> Order:
    """Yield rows by the rules in ``RULES``."""
    sizes = logarithms(job.runs)
    model_ranks, micro_batch = sizes[:, :3].sum(axis=1), sizes[:, SIZES.index("mbs")]
    fits = np.ones(len(job.runs))
    fits[: len(job.candidates.predicted_s)] = job.candidates.memory.fit()
    left = set(range(len(job.runs)))
    best = chosen = int(np.lexsort((-micro_batch, model_ranks, fits < 0.5))[0])
    while left:
        yield chosen
        left.discard(chosen)
        failed = not np.isfinite(time_of(job.runs[chosen]))
        if time_of(job.runs[chosen]) <= time_of(job.runs[best]):
            best = chosen
        start = chosen if failed else best
        smaller = (model_ranks > model_ranks[start]) | (micro_batch < micro_batch[start])
        away = np.abs(sizes - sizes[start]).sum(axis=1) + 1e6 * (failed & ~smaller)
        chosen = min(left, key=lambda row: (away[row], row), default=-1)


def gaussian_process(job: ReplayJob, seed: int) -> Order:
    """Yield rows by expected improvement of a Gaussian process that knows no predictions."""
    places = logarithms(job.runs)
    random = np.random.default_rng(seed)
    tried: list[int] = []
    chosen = int(random.integers(len(job.runs)))
    while True:
        yield chosen
        tried.append(chosen)
        left = [row for row in range(len(job.runs)) if row not in tried]
        if not left:
            return
        known = [row for row in tried if np.isfinite(time_of(job.runs[row]))]
        if not known:
            chosen = int(random.choice(left))
            continue
        logs = np.log([time_of(job.runs[row]) for row in known])
        worst = [row for row in tried if row not in known]
        values = np.concatenate([logs, np.full(len(worst), logs.max() + 0.5)])  # a failure is a slow run
        mean, sd = posterior(places[[*known, *worst]], values, places[left])
        gap = (logs.min() - mean) / sd
        gain = sd * (gap * ndtr(gap) + np.exp(-(gap**2) / 2) / np.sqrt(2 * np.pi))
        chosen = left[int(gain.argmax())]


def posterior(places: FloatArray, values: FloatArray, asked: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of a Gaussian process with length 2, variance 0.25 and noise 0.03."""

    def covariance(left: FloatArray, right: FloatArray) -> FloatArray:
        squares = ((left[:, None] - right[None]) ** 2).sum(axis=2)
        found: FloatArray = 0.25 * np.exp(-squares / 8)
        return found

    middle = values.mean()
    factor = cho_factor(covariance(places, places) + 0.03**2 * np.eye(len(places)), lower=True)
    shared = covariance(asked, places)
    mean = middle + shared @ cho_solve(factor, values - middle)
    variance = 0.25 - np.einsum("ij,ji->i", shared, cho_solve(factor, shared.T))
    return mean, np.sqrt(np.maximum(variance, 1e-6))


def logarithms(runs: Sequence[MeasuredRun]) -> FloatArray:
    """Return logarithms to base 2 of degrees and micro-batch, and switches, shape ``(num_runs, num_features)``."""
    return np.array(
        [
            [
                *(np.log2(float(run.cells.get(name) or 1)) for name in SIZES),
                float(run.launch.recompute_granularity is not None),
                float(run.cells.get("zero_stage") or 0),
                float(run.cells.get("dispatcher", "") == "deepep"),
            ]
            for run in runs
        ]
    )


def time_of(run: MeasuredRun) -> float:
    """Return the measured time of a row, seconds; infinite if it ran out of memory."""
    return np.inf if run.oom or run.iter_time_s is None else run.iter_time_s


def times_of(job: ReplayJob) -> list[float]:
    """Return the measured times of a job, seconds."""
    return [time_of(run) for run in job.runs if np.isfinite(time_of(run))]


def after(curves: Sequence[Curve], trials: int) -> FloatArray:
    """Return the regret of each curve after some trials; a search that ended keeps its last."""
    return np.array([found.regrets[min(trials, len(found.regrets)) - 1] for found in curves])


def trials_needed(curves: Sequence[Curve]) -> FloatArray:
    """Return the number of trials until the regret of each curve is at most ``NEAR``."""
    near = [np.flatnonzero(found.regrets <= NEAR) for found in curves]
    return np.array([rows[0] + 1 if len(rows) else BUDGET + 1 for rows in near])


def held(curves: Sequence[Curve]) -> float:
    """Return the share of stated bounds that hold."""
    pairs = [
        (regret, bound)
        for found in curves
        for regret, bound in zip(found.regrets.tolist(), found.stated, strict=True)
        if bound is not None
    ]
    return float(np.mean([regret <= bound + 1e-9 for regret, bound in pairs]))


def page(tables: dict[str, dict[str, list[Curve]]]) -> str:
    """Return the page: answer, a table for each source, and how it was made."""
    own = {name: found["worlds"] for name, found in tables.items()}
    need = np.concatenate([trials_needed(curves) for curves in own.values()])
    third = "; ".join(f"{name} {100 * after(curves, 3).mean():.2g} %" for name, curves in own.items())
    return "\n".join(
        [
            "# Tune: regret after a few trials",
            "",
            f"Regret after three trials, mean over jobs: {third}.",
            f"Half of the jobs are within 2 % of their best after {counted(int(np.median(need)), 'trial')}, and "
            f"{(need <= BUDGET).mean():.0%} within {BUDGET}.",
            "",
            "- Regret is the best time so far over the best time of the job in the table, minus one.",
            "- The publisher of each table was left out of the prior. A run out of memory counts as a trial.",
            "",
            *(line for name, found in tables.items() for line in section(name, found)),
            "## How",
            "",
            made_by(),
            "",
            f"- A job without a time yet has a regret of {WITHOUT_TIME:.0%}.",
            f"- A job that does not come within 2 % in {BUDGET} trials counts as {BUDGET + 1}.",
            f"- Jobs with at least {MIN_TIMED} measured times count.",
            "",
            RULES,
            "",
        ]
    )


def section(name: str, found: dict[str, list[Curve]]) -> list[str]:
    """Return the lines of a source: a row for each search, and how often the stated bound held."""
    headers = [*(f"after {number}" for number in TRIALS), "worst after 3", "trials to 2 %, median", "mean"]
    lines = [f"## {name}: {len(found['worlds'])} jobs", "", f"| search | {' | '.join(headers)} |"]
    lines.append("|---|" + "---|" * len(headers))
    for search, curves in found.items():
        needed = trials_needed(curves)
        cells = [f"{100 * after(curves, number).mean():.2f} %" for number in TRIALS]
        cells += [f"{100 * after(curves, 3).max():.0f} %", f"{np.median(needed):.0f}", f"{needed.mean():.1f}"]
        lines.append(f"| {search} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"The stated bound of the regret (90 %) held after {held(found['worlds']):.0%} of the trials.",
        "",
    ]


if __name__ == "__main__":
    run_page(make, out=RESULTS / "tune.md")
