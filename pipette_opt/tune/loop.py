"""Search for the fastest configuration on a cluster: choose, export, run, read the log, and choose again."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.files import refuse_links
from pipette_opt.base.units import counted, percent, short_seconds
from pipette_opt.candidates import SearchSpace, with_known
from pipette_opt.export.folder import write_folder
from pipette_opt.export.megatron import with_iterations
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.plans.watcher import Watcher
from pipette_opt.report.plan_file import write_plan
from pipette_opt.specs import Instance
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.tune import launch
from pipette_opt.tune.choice import Candidates, Outlook, Trial, outlook
from pipette_opt.tune.folder import OWN_PLAN, PLAN, RECORD, OwnRun, TrialRecord, TuneFolder, band_words
from pipette_opt.tune.jobs import check_record, host_groups, inputs_on, on_hosts
from pipette_opt.tune.logs import STOPPED, LogResult, NoResult, expected_arguments, read_result
from pipette_opt.tune.memory_odds import Outcome
from pipette_opt.tune.settings import TuneSettings
from pipette_opt.worlds.worlds import Worlds

if TYPE_CHECKING:
    from pipette_opt.tune.listing import Listing

POLL_S = 0.5
"""Seconds between two looks at running trials. Chosen."""

LATE_S = 20.0
"""Seconds that a log may appear or grow after its command ended. Chosen: caches of NFS are seconds old."""

QUIET_S = 60.0
"""Seconds without change after which a log with fewer iterations than asked for counts as complete. Chosen."""

MAX_REFUSED, MAX_ALIKE = 3, 2
"""
Number of refused trials in a row after which the search ends, and the number if their failures are alike: the command
is likely wrong. Chosen.
"""

UNBELIEVABLE = 200.0
"""Measured over predicted time above which a time must be of another unit or another job. Chosen."""


@dataclass(frozen=True, slots=True)
class End:
    """End of a search: the reason, as the end of a sentence, and a sentence that says how it can go on."""

    reason: str
    advice: str = ""


AFTER_FAILURES = (
    "With another --run these trials start again. To run them again by this command, remove their folders; else the "
    "search goes on with other configurations."
)
"""Advice after a search that ended because its command seems wrong."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """
    State of a search, for display.

    Parameters
    ----------
    records
        All trials, in order.
    view
        Scores, odds and regret after the finished trials.
    message
        Sentence on what happened last; empty if only time passed.
    """

    records: tuple[TrialRecord, ...]
    view: Outlook
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """
    Result of a search on a cluster.

    Parameters
    ----------
    records
        All trials, in order.
    own
        Runs of the user's own that are of the job and its search space.
    best
        Trial, or run of the user's own, with the least measured time; ``None`` without a time.
    plan
        File of its plan; ``None`` without a time.
    regret
        In nine of ten worlds the best measured time is at most this share above the best possible.
    num_listed
        Number of configurations that may be the fastest in some world.
    reason
        Reason why the search ended, as the end of a sentence.
    advice
        Sentence that says how the search can go on; empty if it need not.
    """

    records: tuple[TrialRecord, ...]
    best: TrialRecord | OwnRun | None
    plan: Path | None
    regret: float
    num_listed: int
    reason: str
    advice: str = ""
    own: tuple[OwnRun, ...] = ()

    def __repr__(self) -> str:
        best = "no run has a time"
        if self.best is not None:
            best = f"{self.best.config.label()}, {self.best.time_s:.4g} s, regret at most {percent(self.regret)}"
        return lines_at_most(best, [f"{counted(len(self.records), 'trial')}; {self.reason}"])


class Tuner:
    """
    A search by trials, whose state is a folder.

    Parameters
    ----------
    instance
        Job on all hosts of the cluster.
    space
        Configurations that may be tried.
    inputs
        Inputs of the job, as plans record them.
    own
        Measured runs of the user that are of the job; ``worlds`` and the job's memory constants start from them.
    """

    def __init__(
        self,
        instance: Instance,
        space: SearchSpace,
        inputs: Mapping[str, Any],
        *,
        worlds: Worlds,
        folder: TuneFolder,
        settings: TuneSettings,
        own: Sequence[OwnRun] = (),
        report: Callable[[Progress], None] = lambda progress: None,
        stop: threading.Event | None = None,
    ) -> None:
        self.instance, self.space, self.inputs, self.settings = instance, space, inputs, settings
        self.worlds, self.folder, self.report = worlds, folder, report
        self.stop = stop or threading.Event()
        self.groups = host_groups(instance, space, settings.parallel)
        self.records = {record.trial: record for record in folder.records()}
        for record in self.records.values():
            check_record(instance, record, str(folder.trial(record.trial) / RECORD))
        self.again = [record for record in self._all() if self._starts_again(record)]
        self.failures: list[TrialRecord] = []
        self.own = tuple(run for run in own if self._counts(run))
        configs = [*(record.config for record in self.records.values()), *(run.config for run in self.own)]
        known = list(dict.fromkeys(configs))
        first = on_hosts(instance, self.groups[0])
        from pipette_opt.tune.listing import list_configs  # imports the search: a wrong record is told before

        self.listing: Listing = list_configs(first, space, worlds, known, settings.search.max_oom_risk)
        self._check_predictions()
        self.view = self._outlook()

    def run(self) -> Tuned:
        """Try configurations until the search ends, and return the best measured."""
        for record in self._unfinished():
            self._go_on(record)
        end = None
        while end is None or self._unfinished():
            if self.stop.is_set():
                running = [record.trial for record in self._unfinished() if launch.is_running(self._folder(record))]
                still = "".join(f"Trial {trial} still runs. " for trial in running)
                end = End("interrupted", f"{still}Type the same command to go on.")
                break
            for record in self._unfinished():
                self._look_at(record)
            end = self._end()
            if end is None and len(self._unfinished()) < self.settings.parallel and self._begin():
                continue
            if self._unfinished():
                self.report(Progress(records=self._all(), view=self.view))
                self.stop.wait(POLL_S)
        return self._tuned(end)

    def _check_predictions(self) -> None:
        """Raise ``InputError`` for a record whose times are far from what is predicted now."""
        predicted_s = dict(zip(self.listing.configs, self.listing.candidates.predicted_s.tolist(), strict=True))
        for record in self.records.values():
            where = str(self._folder(record) / RECORD)
            now_s = predicted_s.get(record.config, record.predicted_s)
            if not now_s / UNBELIEVABLE <= record.predicted_s <= now_s * UNBELIEVABLE:
                raise InputError(where, f"predicted_s must be near {now_s:.3g}, got {record.predicted_s:g}.")
            if record.time_s is not None and (problem := implausible(record, record.time_s)):
                raise InputError(where, f"time_s is wrong: {problem}")

    def _counts(self, run: OwnRun) -> bool:
        """Return whether a run is of the search space, and no trial of this folder that is given as a run."""
        if any((record.config, record.time_s) == (run.config, run.time_s) for record in self.records.values()):
            return False
        num_gpus = self.instance.cluster.num_nodes * self.instance.cluster.gpus_per_node
        return run.config.world_size <= num_gpus and run.config in with_known(self.space, run.config).more_configs

    def _starts_again(self, record: TrialRecord) -> bool:
        """Return whether a command other than that of ``--run`` made the trial fail, so that it tells nothing now."""
        return record.status == "refused" and record.started is not None and record.run != self.settings.run

    def _begin(self) -> bool:
        """Choose, export and start the next trial. Return whether hosts were free."""
        busy = {host for record in self._unfinished() for host in record.hosts}
        for record in self.again:
            if not busy.intersection(record.hosts):
                self.again.remove(record)
                self._start(replace(record, problem=""), "starts again, by another --run")
                return True
        hosts = next((group for group in self.groups if not busy.intersection(group)), None)
        if hosts is None or self.again:
            return False
        chosen = self.view.ranking()[0]
        config, number = self.listing.configs[chosen], max(self.records, default=0) + 1
        record = TrialRecord(
            trial=number,
            status="exported",
            config=config,
            predicted_s=float(self.listing.candidates.predicted_s[chosen]),
            least_s=0.0,
            fits=float(self.view.fits[chosen]),
            hosts=hosts,
        )
        try:
            plan, files = self._exported(record, self.listing.risks[chosen])
        except (InputError, InfeasibleError) as error:
            if self.stop.is_set():  # the search for a placement was interrupted
                return True
            if isinstance(error, InputError) and error.where.startswith("--"):  # an option, wrong for all trials
                raise
            problem = f"it cannot be exported: {error}"
            refuse_links("tune", self.folder.trial(number))
            self.folder.trial(number).mkdir(parents=True, exist_ok=True)
            self._keep(replace(record, status="refused", problem=problem), f"is refused: {problem}")
            return True
        refuse_links("tune", self.folder.trial(number), self.folder.trial(number) / PLAN)
        write_folder(self.folder.trial(number), files)
        write_plan(plan, self.folder.trial(number) / PLAN)
        simulated_s = plan.estimate.iteration_time_s
        low_s, middle_s, high_s = (simulated_s / record.predicted_s * end for end in self.view.band_s(chosen))
        record = replace(
            record,
            predicted_s=simulated_s,
            least_s=simulated_s * plan.estimate.mfu,
            expected_s=(low_s, middle_s, high_s),
        )
        why = f"expected {band_words((low_s, middle_s, high_s))}, fits with {percent(record.fits, decimals=1)}"
        place = f", on {compress_hosts(hosts)}" if len(self.groups) > 1 else ""
        self._keep(record, f"is next: {config.label()}{place}, {why}")
        self._start(record)
        return True

    def _exported(self, record: TrialRecord, risk: float) -> tuple[Plan, dict[str, str]]:
        """Return the plan and the launch files of a trial."""
        from pipette_opt.tune.listing import plan_of

        settings = self.settings
        instance = on_hosts(self.instance, record.hosts)
        params = replace(settings.search, max_oom_risk=risk)
        plan = plan_of(
            instance,
            record.config,
            params,
            Watcher(stop=self.stop),
            inputs_on(self.instance, self.inputs, record.hosts),
        )
        return plan, dict(with_iterations(export(plan, settings.format, settings.options), settings.steps))

    def _start(self, record: TrialRecord, message: str = "") -> None:
        """Start the command of a trial, or ask the user to."""
        record = replace(record, status="started", started=time.time(), run=self.settings.run)
        self.folder.write(record)
        if self.settings.run is not None:
            launch.start(launch.command(self.settings.run, self._values(record)), self._folder(record))
        asked = f"waits for a log at {self._log(record)}; start {self._values(record)['script']}"
        self._keep(record, message if self.settings.run is not None else asked)

    def _go_on(self, record: TrialRecord) -> None:
        """Take up a trial that an earlier search left: wait for its command, read its log, or start it again."""
        folder = self._folder(record)
        ended = launch.is_running(folder) or launch.exit_code(folder) is not None
        if ended or self.settings.run is None:
            return
        if isinstance(self._result(record), NoResult) and not self.stop.is_set():
            again = "starts again, as its command was killed without a result"
            self._start(record, "" if record.started is None else again)

    def _look_at(self, record: TrialRecord) -> None:
        """Record the result of a trial that has ended, and end a trial that takes too long."""
        folder = self._folder(record)
        if self.settings.run is None:
            result = self._result(record)
            if result.is_wrong if isinstance(result, NoResult) else self._is_complete(record, result):
                self._finish(record, result)
        elif not launch.is_running(folder):
            result = self._result(record)
            if isinstance(result, LogResult) or result.is_wrong or not self._may_come_late(record):
                self._finish(record, result)
        elif time.time() - (record.started or 0.0) > self.settings.run_timeout:
            limit_s = self.settings.run_timeout
            limit = f"the command did not end within {limit_s:g} s (--run-timeout) and was {launch.stop(folder)}"
            result = self._result(record)
            self._finish(record, result if isinstance(result, LogResult) else NoResult(problem=limit))

    def _may_come_late(self, record: TrialRecord) -> bool:
        """Return whether the log of a command that ended may still appear: a shared file system shows it later."""
        folder = self._folder(record)
        waited_s = time.time() - launch.ended(folder)
        return waited_s < LATE_S and (launch.exit_code(folder) == 0 or not self._logs(record))

    def _finish(self, record: TrialRecord, result: LogResult | NoResult) -> None:
        """Record the result of a trial, and weigh the worlds again; nothing if its logs were not all read."""
        if isinstance(result, NoResult) and result.problem == STOPPED:
            return
        folder = self._folder(record)
        if isinstance(result, NoResult):
            problem = result.problem
            code = launch.exit_code(folder)
            if self.settings.run is not None and code not in (0, None) and not result.is_wrong:
                problem = f"the command ended with exit code {code}, and {problem}{launch.last_line(folder)}"
            elif code == 0 and launch.submitted(folder) and not result.is_wrong:
                problem += "; the command ended before its Slurm job: use sbatch --wait"
            record = replace(record, status="refused", problem=problem)
        elif result.ran_out:
            record = replace(record, status="ran out", peak_bytes=None, note=result.note)
        elif problem := implausible(record, result.time_s or 0.0):
            record = replace(record, status="refused", problem=problem)
        else:
            record = replace(
                record, status="timed", time_s=result.time_s, peak_bytes=result.peak_bytes, note=result.note
            )
        if record.status == "refused":
            self.failures.append(record)
        else:
            self.failures.clear()
        expected = f", expected {band_words(record.expected_s)}" if record.expected_s is not None else ""
        note = f"; {record.note}" if record.note else ""
        words = {
            "timed": f"took {short_seconds(record.time_s)}{expected}",
            "ran out": "ran out of memory",
            "refused": f"is refused: {record.problem}",
        }
        self._keep(record, f"{words[record.status]}{note}")

    def _keep(self, record: TrialRecord, message: str) -> None:
        """Write the record of a trial, weigh the worlds, and report."""
        self.folder.write(record)
        self.records[record.trial] = record
        self.view = self._outlook()
        text = f"trial {record.trial} {message}" if message else ""
        self.report(Progress(records=self._all(), view=self.view, message=text))

    def _outlook(self) -> Outlook:
        """Return what the worlds say after all trials; trials that still run say nothing yet."""
        predicted_s = self.listing.candidates.predicted_s.copy()
        places = {config: index for index, config in enumerate(self.listing.configs)}
        trials = []
        for record in self.records.values():
            place = places.get(record.config)
            if place is None:
                continue
            predicted_s[place] = record.predicted_s
            known = record.status in ("timed", "ran out")
            outcome = Outcome(ran_out=record.status == "ran out", peak_bytes=record.peak_bytes) if known else None
            trials.append(Trial(config=place, time_s=record.time_s, outcome=outcome, is_running=not record.is_over))
        own = [run for run in self.own if run.config in places]
        trials += [Trial(config=places[run.config], time_s=run.time_s, is_known=True) for run in own]
        candidates: Candidates = replace(self.listing.candidates, predicted_s=predicted_s)
        return outlook(candidates, self.worlds, trials)

    def _end(self) -> End | None:
        """Return the reason why no further trial begins; ``None`` if one does."""
        until, records = self.settings.until, self._all()
        if until is not None and self.view.regret <= until:
            return End(f"the regret is at most {percent(self.view.regret)}")
        if trials := self._failed_in_a_row():
            return End(f"{trials} in a row; the command is likely wrong", AFTER_FAILURES)
        if self.again:
            return None
        tried = [record for record in records if record.started is not None or not record.is_over]
        if len(tried) >= self.settings.budget:
            spent = counted(self.settings.budget, "trial")
            return End(f"the budget of {spent} is spent", "A larger --budget goes on from here.")
        return None if self.view.ranking() else End("every listed configuration was tried")

    def _failed_in_a_row(self) -> str:
        """Return a clause that names the trials refused in a row, enough to end the search; empty if there are few."""
        last = self.failures[-MAX_ALIKE:]
        problems = {re.sub(r"[0-9]+", "0", record.problem) for record in last}  # which differ in more than numbers
        is_alike = len(last) == MAX_ALIKE and len(problems) == 1
        if not is_alike:
            last = self.failures[-MAX_REFUSED:]
            if len(last) < MAX_REFUSED:
                return ""
        trials = ", ".join(str(record.trial) for record in last)
        return f"trials {trials} failed{' alike' if is_alike else ''}"

    def _tuned(self, end: End) -> Tuned:
        runs: tuple[TrialRecord | OwnRun, ...] = (*self._all(), *self.own)
        timed = [run for run in runs if run.time_s is not None]
        best = min(timed, key=lambda run: run.time_s or np.inf, default=None)
        return Tuned(
            records=self._all(),
            own=self.own,
            best=best,
            plan=self._plan_file(best),
            regret=self.view.regret,
            num_listed=len(self.listing.configs),
            reason=end.reason,
            advice=end.advice,
        )

    def _plan_file(self, best: TrialRecord | OwnRun | None) -> Path | None:
        """Return the file of a trial's plan, or make that of a run of the user's own; ``None`` without a run."""
        if not isinstance(best, OwnRun):
            return None if best is None else self.folder.trial(best.trial) / PLAN
        from pipette_opt.tune.listing import plan_of

        path, hosts = self.folder.path / OWN_PLAN, self.groups[0]
        params = replace(self.settings.search, max_oom_risk=self.listing.risks[self.listing.configs.index(best.config)])
        inputs = inputs_on(self.instance, self.inputs, hosts)
        write_plan(plan_of(on_hosts(self.instance, hosts), best.config, params, Watcher(), inputs), path)
        return path

    def _folder(self, record: TrialRecord) -> Path:
        return self.folder.trial(record.trial)

    def _all(self) -> tuple[TrialRecord, ...]:
        return tuple(self.records[number] for number in sorted(self.records))

    def _unfinished(self) -> list[TrialRecord]:
        return [record for record in self._all() if not record.is_over]

    def _result(self, record: TrialRecord) -> LogResult | NoResult:
        training = self.instance.training
        expected = expected_arguments(record.config, training.global_batch_size, training.seq_length)
        logs = self._logs(record)
        return (
            read_result(logs, expected, self.settings.warm_up, self.stop.is_set)
            if logs
            else NoResult(problem=f"no log that matches --log {self.settings.log} was written since it began")
        )

    def _is_complete(self, record: TrialRecord, result: LogResult) -> bool:
        """Return whether a log has an error or all iterations that were asked for, or has not changed for long."""
        if result.ran_out:
            return True
        newest = max(file.stat().st_mtime for file in self._logs(record))
        return result.num_reports >= self.settings.steps or time.time() - newest > QUIET_S

    def _log(self, record: TrialRecord) -> str:
        return launch.filled(self.settings.log, self._values(record), "--log")

    def _logs(self, record: TrialRecord) -> list[Path]:
        """Return the logs of a trial; files that were not written since it was started are of another run."""
        folder = self._folder(record)
        values = {name: escape(value) for name, value in self._values(record).items()}
        pattern = folder.resolve() / launch.filled(self.settings.log, values, "--log")
        begun = launch.started(folder) or record.started or 0.0
        found = sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
        return [file for file in found if launch.written(file) >= begun]

    def _values(self, record: TrialRecord) -> dict[str, str]:
        """Return the values of the placeholders in the command and in the pattern of the log."""
        folder = self._folder(record).resolve()
        main = TARGETS[self.settings.format].files.split(",")[0].strip()
        return {
            "script": str(folder / main),
            "dir": str(folder),
            "plan": str(folder / PLAN),
            "trial": str(record.trial),
            "steps": str(self.settings.steps),
            "hosts": compress_hosts(record.hosts),
        }


def implausible(record: TrialRecord, time_s: float) -> str:
    """Return the reason why a measured time cannot be that of the trial; empty if it can."""
    if time_s < record.least_s:
        return (
            f"{time_s:.4g} s an iteration is faster than the GPUs' peak allows, {record.least_s:.4g} s; is the log of "
            "this job, with all its micro-batches?"
        )
    if time_s > UNBELIEVABLE * record.predicted_s:
        return (
            f"{time_s:.4g} s an iteration is {time_s / record.predicted_s:.0f} times the predicted time; another unit?"
        )
    return ""
