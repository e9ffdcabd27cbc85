"""
State of a search by trials: a folder with a subfolder for each trial, from which a search that was stopped goes on.

A trial's folder has the exported files, the plan, the logs, and ``trial.json``, which is replaced atomically. A search
that is killed loses nothing: a finished trial is not run again, and a command that still runs is waited for.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import note_continued, read_output, refuse_links, write_atomically
from pipette_opt.base.typed import NotNegative, Positive, Share, Size, typed
from pipette_opt.base.units import three_digits
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.files import decoded, parse_json

Status = Literal["exported", "started", "timed", "ran out", "refused"]
"""Status of a trial: its files are written; its command was started; its result is known (the other three)."""

RECORD, PLAN, JOB, IN_USE = "trial.json", "plan.json", "tune.json", ".in-use"
"""Names of the record and of the plan of a trial, of the record of the job, and of the lock of the folder."""

OWN_PLAN = "own-run.json"
"""Name of the plan file of the user's own run, if that is the fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """
    Measured run of the user that is of the job.

    Parameters
    ----------
    place
        Launch, log or table row of the run, for people.
    config
        Configuration of the run.
    time_s
        Measured iteration time; ``None`` if the run ran out of memory.
    """

    place: str
    config: ParallelConfig
    time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """
    Content of ``trial.json``.

    Parameters
    ----------
    trial
        Number of the trial, from 1.
    predicted_s
        Simulated iteration time of the trial's plan, seconds.
    expected_s
        Time that was expected when the trial was chosen: its 5 %, 50 % and 95 % quantiles over the worlds; ``None`` for
        a trial that was not exported.
    least_s
        Time that the model's FLOPs take at the peak of the GPUs, seconds; no run can be faster.
    fits
        Probability that the run fits in memory, as believed when it was chosen.
    started
        Seconds since 1970 at which the command was started; ``None`` before.
    time_s, peak_bytes
        Measured iteration time and memory; ``None`` without.
    problem
        Reason why the trial was refused; empty if it was not.
    note
        Sentence on what the result leaves open; empty without.
    run
        Text of ``--run`` by which the trial was started; ``None`` if the user starts it.
    """

    trial: Size
    status: Status
    config: ParallelConfig
    predicted_s: Positive
    least_s: NotNegative
    fits: Share
    hosts: tuple[str, ...] = ()
    expected_s: tuple[Positive, Positive, Positive] | None = None
    started: NotNegative | None = None
    time_s: Positive | None = None
    peak_bytes: Positive | None = None
    problem: str = ""
    note: str = ""
    run: str | None = None

    def __post_init__(self) -> None:
        if (self.time_s is None) == (self.status == "timed"):
            right = "a number" if self.status == "timed" else "nothing"
            raise ValueError(f"time_s must be {right} at the status {self.status}, got {shown(self.time_s)}.")

    @property
    def is_over(self) -> bool:
        """Return whether the result of the trial is known."""
        return self.status in ("timed", "ran out", "refused")


class _JobRecord(msgspec.Struct, frozen=True):
    """Content of ``tune.json``: fingerprint of each part of the job."""

    job: dict[str, str]


def band_words(band_s: tuple[float, float, float]) -> str:
    """Return a time with the range of nine in ten runs, such as ``4.21 s (3.40 to 5.20)``."""
    low, middle, high = map(three_digits, band_s)
    return f"{middle} s ({low} to {high})"


@dataclass(frozen=True, slots=True)
class TuneFolder:
    """
    Folder of a search.

    Parameters
    ----------
    path
        The folder; made when it is first written to.
    """

    path: Path

    def trial(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.path / f"trial-{number:03d}"

    @contextmanager
    def locked(self, job: Mapping[str, str]) -> Iterator[None]:
        """
        Keep other searches out of the folder within the context.

        Parameters
        ----------
        job
            Fingerprint of each part of the job; a folder of another job is refused.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(str(self.path), "is a file; -o is the folder of the trials.")
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links("tune", *(self.path / name for name in (JOB, IN_USE, OWN_PLAN)))
        self._check_job(job)
        with (self.path / IN_USE).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    str(self.path), "is in use by another tune; wait for it, or give another -o."
                ) from None
            yield

    def records(self) -> list[TrialRecord]:
        """Return the records of all trials, in order."""
        folders = sorted(folder for folder in self.path.glob("trial-*") if (folder / RECORD).is_file())
        return [self._read(folder) for folder in folders]

    def _read(self, folder: Path) -> TrialRecord:
        """Return the record of a trial; its number is that of the folder."""
        path = folder / RECORD
        refuse_links("tune", folder, path)
        try:
            record = typed(TrialRecord, _content(path), str(path), closed=True)
        except InputError as error:
            advice = f"{error.problem.rstrip('.')}; remove the folder of this trial to run it again."
            raise InputError(error.where, advice) from None
        if self.trial(record.trial).name != folder.name:
            raise InputError(str(path), f"trial must be the number of the folder {folder.name}, got {record.trial}.")
        return record

    def write(self, record: TrialRecord) -> None:
        """Write the record of a trial in place of the earlier one."""
        path = self.trial(record.trial) / RECORD
        refuse_links("tune", path.parent, path)
        note_continued(path)
        write_atomically(path, json.dumps(asdict(record), indent=1) + "\n")

    def _check_job(self, job: Mapping[str, str]) -> None:
        """Record the job of a new folder; raise ``InputError`` for the folder of another job, or with other files."""
        path = self.path / JOB
        note_continued(path)
        if not path.exists():
            others = sorted(entry.name for entry in self.path.iterdir() if entry.name != IN_USE)
            if others:
                raise InputError(
                    str(self.path), f"has files that tune did not write, such as {others[0]}; give another -o."
                )
            write_atomically(path, json.dumps({"job": dict(job)}) + "\n")
            return
        known = typed(_JobRecord, _content(path), str(path)).job
        if differing := [part for part, value in job.items() if known.get(part) != value]:
            raise InputError(
                str(self.path),
                f"has the trials of another job: not the same {', '.join(differing)}. Give another -o, or the job "
                "options of these trials.",
            )


def _content(path: Path) -> object:
    """Return the content of a file of the folder, which the search may replace."""
    return parse_json(decoded(read_output(path), str(path)), str(path))
