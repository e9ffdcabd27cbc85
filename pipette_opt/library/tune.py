"""``tune``: search for the fastest configuration by trials, on a cluster or on a table of measured runs."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.typed import Size, typed
from pipette_opt.base.units import counted, number_of, percent
from pipette_opt.calibrate.left_out import LeftOut, unread
from pipette_opt.candidates import SearchSpace
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.library.arguments import Named, argument_errors, described, job_and_space, params_of
from pipette_opt.library.measured import in_worlds, own_runs
from pipette_opt.options.description import fields_of
from pipette_opt.options.trials import TrialOptions, TuneOptions
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.read.runs import read_rows
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.tune.folder import TuneFolder
from pipette_opt.tune.jobs import fingerprint, trial_space
from pipette_opt.tune.loop import Progress, Tuned, Tuner
from pipette_opt.tune.replay import Step, replay, replay_jobs, trials_csv
from pipette_opt.tune.settings import TuneSettings
from pipette_opt.worlds.factor import anchored
from pipette_opt.worlds.worlds import Worlds

SHOWN_TRIALS = (1, 2, 3)
"""Numbers of trials after which the summary of a replay says the regret."""

UNTIL = 0.02
"""Default regret at which a search on a cluster ends: about the noise of a run. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """
    Trials on a table of measured runs.

    Parameters
    ----------
    steps
        Trials of each job in order, the jobs in the order of their first rows.
    left_out
        Rows that cannot be read, each with the reason.
    least_s
        Least time in the table of each job that has one, by name.
    """

    steps: tuple[Step, ...]
    num_jobs: int
    num_rows: int
    left_out: tuple[LeftOut, ...] = ()
    least_s: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return lines_at_most(f"{len(self.steps)} trials of {self.num_jobs} jobs", [self.summary()])

    def regret_after(self, trials: int) -> float:
        """Return the regret of the best row after some trials, mean over jobs; 1 for a job without a time yet."""
        best_s = {step.job: step.best_s for step in self.steps if step.trial <= trials}
        regrets = [
            1.0 if (found_s := best_s.get(job)) is None else found_s / least_s - 1
            for job, least_s in self.least_s.items()
        ]
        return sum(regrets) / max(len(regrets), 1)

    def summary(self) -> str:
        """Return a sentence on the regret after the first trials."""
        if not self.least_s:
            return "No job has a row with a time."
        regrets = ", ".join(percent(self.regret_after(trials)) for trials in SHOWN_TRIALS)
        after = ", ".join(map(str, SHOWN_TRIALS))
        failed = any(step.best_s is None and step.job in self.least_s for step in self.steps)
        return (
            f"After {after} trials the best is {regrets} slower than the job's fastest row (mean of "
            f"{counted(len(self.least_s), 'job')}{'; 100 % while a job has no time' if failed else ''})."
        )

    def csv(self) -> str:
        """Return the trials as CSV text, with the columns of :data:`~pipette_opt.tune.replay.COLUMNS`."""
        return trials_csv(self.steps)


@argument_errors()
def tune(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    out: Named = "tuning",
    format: str | None = None,  # noqa: A002
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop: threading.Event | None = None,
    **options: Any,
) -> Tuned:
    """
    Search for the fastest configuration of a job by trials on its cluster, and return the best measured.

    Each trial is exported, run by the command ``run``, and read from its log. The state is a folder: a search that was
    interrupted goes on when it is started again with the same folder.

    Parameters
    ----------
    cluster, model, training, space
        The job, as in :func:`~pipette_opt.solve`.
    out
        Folder of the search.
    format
        Export format; by default that of the job's launcher.
    on_progress
        Callback that gets the trials whenever one changes.
    stop
        Event that ends the search soon; running commands go on.
    options
        The job, as in :func:`~pipette_opt.solve`, and fields of :class:`~pipette_opt.options.trials.TuneOptions`, such
        as ``run``, ``budget=8`` and ``until="2%"``, and of :class:`~pipette_opt.export.launch_options.ExportOptions`.

    Raises
    ------
    InputError
        If an argument or a file is wrong, or the folder belongs to another job.
    InfeasibleError
        If no configuration is legal and fits in memory.
    """
    given, pinned, made, asked, exported = described(cluster, model, training, options, TuneOptions, ExportOptions)
    until = regret_of(asked.until)
    check_limits(asked.budget, until)
    job, space = job_and_space(given, pinned, made, space)
    settings = TuneSettings(
        **{name: getattr(asked, name) for name in fields_of(TrialOptions)},
        until=UNTIL if until is None else until,
        format=format or job.instance.launcher,
        options=exported,
        search=params_of(asked, time_limit_s=asked.time_limit),
    )
    own = own_runs(job, given.measured_runs)
    folder, job = TuneFolder(Path(out)), in_worlds(job)
    space = trial_space(job.instance, space, settings.parallel)
    with folder.locked(fingerprint(job.instance, space)):
        search = Tuner(
            job.instance,
            space,
            job.inputs,
            worlds=anchored(job.instance),
            folder=folder,
            settings=settings,
            own=own,
            report=on_progress,
            stop=stop,
        )
        return search.run()


def replayed(
    runs: Path,
    *,
    budget: int = 8,
    until: str | None = None,
    leave_out_source: bool = False,
    software: str | None = None,
) -> Replayed:
    """
    Search each job of a table of measured runs for its fastest configuration; the table stands for the cluster.

    Rows with equal source, GPU, model, sequence length, batch, number of GPUs, attention kernel and precision are
    configurations of one job. A row's time is read when the row is tried.

    Parameters
    ----------
    until
        Stated regret at which the search of a job ends, such as 2% or 0.02; without it the budget is spent.
    leave_out_source
        Whether the sources of the table are left out of what the tool learned from public runs.
    software
        Stack file or the name of a shipped stack.

    Raises
    ------
    InputError
        If an argument or the file is wrong, or no row has a result.
    """
    limit = regret_of(until)
    check_limits(budget, limit)
    measured, bad = read_rows(runs)
    stack = read_stack(software) if software else read_stack()
    jobs = replay_jobs(measured, stack)
    if not jobs:
        raise InputError(str(runs), "has no row with a time or an out-of-memory error, so nothing can be tried.")
    steps = [
        step
        for job in jobs
        for step in replay(
            job, Worlds.load(job.source or runs.stem if leave_out_source else None), budget=budget, until=limit
        )
    ]
    times = {job.name: [run.iter_time_s for run in job.runs if run.iter_time_s is not None] for job in jobs}
    return Replayed(
        steps=tuple(steps),
        num_jobs=len(jobs),
        num_rows=len(measured) + len(bad),
        left_out=tuple(unread(bad)),
        least_s={name: min(found) for name, found in times.items() if found},
    )


def check_limits(budget: int, until: float | None) -> None:
    """Raise ``InputError`` for a budget or a regret that ends no search sensibly."""
    typed(Size, budget, "--budget")
    if until is not None and not 0 <= until < 10:
        raise InputError("--until", f"must be a regret such as 2% or 0.02, got {until:g}.")


def regret_of(text: str | None) -> float | None:
    """Return a regret written as ``2%`` or ``0.02``; ``None`` without a text."""
    if text is None:
        return None
    number, percent = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        return number_of(number) * percent
    except ValueError:
        raise InputError("--until", f"must be a regret such as 2% or 0.02, got {text!r}.") from None
