"""Replay of the search for the fastest configuration on a table of measured runs, which stands for the cluster."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, why_untimed
from pipette_opt.calibrate.described import describe_cases
from pipette_opt.calibrate.memory import memory_run
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec
from pipette_opt.tune.choice import Candidates, Trial, outlook
from pipette_opt.tune.memory_odds import MemoryOdds, Outcome
from pipette_opt.worlds.terms import TERMS
from pipette_opt.worlds.worlds import Worlds

COLUMNS = ("job", "trial", "row", "iter_time_s", "best_so_far_s", "regret_bound")
"""Columns of the file of trials."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayJob:
    """
    Rows of a table that are configurations of one job.

    Parameters
    ----------
    name
        Name of the job (:func:`job_name`).
    source
        Value of the column ``source``.
    runs
        Rows that can be tried, in the order of the table; the first ``len(candidates.predicted_s)`` can be predicted.
    """

    name: str
    source: str
    runs: tuple[MeasuredRun, ...]
    candidates: Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    Trial of a replay.

    Parameters
    ----------
    trial
        Number of the trial in its job, from 1.
    row
        Number of the row in the table, from 0.
    time_s
        Measured time; ``None`` if the run ran out of memory.
    best_s
        Best measured time so far; ``None`` before the first.
    regret
        Stated bound on the regret of the best measured configuration; ``None`` before the first measured time.
    """

    job: str
    trial: int
    row: int
    time_s: float | None
    best_s: float | None
    regret: float | None


def replay_jobs(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[ReplayJob]:
    """Return the jobs of a table whose rows have a time or ran out of memory, in the order of their first rows."""
    chosen = [run for run in runs if run.oom or run.iter_time_s is not None]
    cases = make_cases([_unseen(run) for run in chosen], stack)
    members: dict[str, list[int]] = {}
    for index, run in enumerate(chosen):
        members.setdefault(job_name(run), []).append(index)
    times, terms = _described(cases)
    memory_constants = stack.memory

    def job(name: str, rows: list[int]) -> ReplayJob:
        known = [row for row in rows if np.isfinite(times[row])]
        others = [row for row in rows if row not in set(known)]
        ours = [case for row in known if isinstance(case := cases[row], Case)]
        memories = [predict_memory(memory_constants, memory_run(case)) for case in ours]
        memory = MemoryOdds(
            usable_bytes=GIB * np.array([memory.usable_gib for memory in memories]),
            needed_bytes=GIB * np.array([memory.needed_gib for memory in memories]),
            shown_bytes=GIB * np.array([memory.taken_gib for memory in memories]),
            spread=np.array([memory.needed_spread for memory in memories]),
        )
        return ReplayJob(
            name=name,
            source=chosen[rows[0]].source,
            runs=tuple(chosen[row] for row in [*known, *others]),
            candidates=Candidates(predicted_s=times[known], terms=terms[known], memory=memory),
        )

    return [job(name, rows) for name, rows in members.items()]


def job_name(run: MeasuredRun) -> str:
    """Return what runs of one job share: source, GPU, model, tokens, sequences, number of GPUs, kernel, precision."""
    job = (run.launch.seq_length, run.launch.global_batch_size, run.num_gpus, run.attention_kernel, run.precision)
    return " / ".join("" if value is None else str(value) for value in (run.source, run.gpu_name, run.model, *job))


def replay(job: ReplayJob, worlds: Worlds, *, budget: int, until: float | None = None) -> list[Step]:
    """
    Return the trials of a job in order.

    A row's time is read when it is tried. Rows that cannot be predicted are tried last, in the order of the table.

    Parameters
    ----------
    budget
        Largest number of trials.
    until
        Stated regret at which the search ends; ``None``: at the end of the budget or of the rows.
    """
    trials: list[Trial] = []
    steps: list[Step] = []
    num_known = len(job.candidates.predicted_s)
    others = list(range(num_known, len(job.runs)))
    view = outlook(job.candidates, worlds, trials)
    best_s = None
    while len(steps) < budget:
        chosen = next(iter(view.ranking()), others[0] if others else None)
        if chosen is None:
            break
        run = job.runs[chosen]
        time_s = None if run.oom else run.iter_time_s
        if time_s is not None:
            best_s = min(time_s, best_s or time_s)
        if chosen < num_known:
            outcome = Outcome(ran_out=time_s is None, peak_bytes=run.peak_mem_bytes)
            trials.append(Trial(config=chosen, time_s=time_s, outcome=outcome))
            view = outlook(job.candidates, worlds, trials)
        else:
            others.remove(chosen)
        regret = _stated(view.regret, view.best_s, best_s) if not others else None
        steps.append(Step(job=job.name, trial=len(steps) + 1, row=run.row, time_s=time_s, best_s=best_s, regret=regret))
        if until is not None and regret is not None and regret <= until:
            break
    return steps


def trials_csv(steps: Sequence[Step]) -> str:
    """Return the CSV text of trials, with the columns of ``COLUMNS``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step in steps:
        writer.writerow(
            [step.job, step.trial, step.row, *map(_cell, (step.time_s, step.best_s, step.regret))],
        )
    return text.getvalue()


def _unseen(run: MeasuredRun) -> MeasuredRun:
    """Return the run as it is known before it is tried."""
    return replace(run, iter_time_s=None, peak_mem_bytes=None, oom=None, mfu=None)


def _described(cases: Sequence[Case | Skipped]) -> tuple[FloatArray, FloatArray]:
    """Return predicted time and terms of each case; the time is infinite if it cannot be predicted."""
    times, terms = np.full(len(cases), np.inf), np.zeros((len(cases), len(TERMS)))
    known = [index for index, case in enumerate(cases) if isinstance(case, Case) and not why_untimed(case)]
    if known:
        ours = [case for index in known if isinstance(case := cases[index], Case)]
        times[known], terms[known] = describe_cases(ours)
    return times, terms


def _stated(regret: float, best_predictable_s: float, best_s: float | None) -> float | None:
    """Return the regret bound of the best measured time, if rows that cannot be predicted were faster."""
    if best_s is None or not np.isfinite(regret):
        return None
    return max((1 + regret) * best_s / best_predictable_s - 1, 0.0)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
