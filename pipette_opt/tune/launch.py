"""
A trial's command as a process that outlives ``tune``.

The command runs in a session of its own and keeps a lock on a file of the trial; its exit code goes to another file. So
a ``tune`` that was killed finds out later whether the command still runs, and how it ended.
"""

import fcntl
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from string import Formatter

from pipette_opt.base.errors import InputError

LOCK, EXIT, OUTPUT = ".running", ".exit", "run.log"
"""Files in the folder of a trial: process and lock of a running command, its exit code, and its output."""

MAX_SHOWN = 200
"""Most characters of a printed line in a message. Chosen."""

GRACE_S = 10.0
"""Seconds that a stopped command has to end by itself, and ``scancel`` to answer. Chosen."""

SUBMITTED = re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?$", re.MULTILINE)
"""Line that ``sbatch`` prints for a job, with its number and its cluster."""

PLACEHOLDERS = ("script", "dir", "plan", "trial", "steps", "hosts")
"""Names in braces that a command may contain."""


def filled(text: str, values: Mapping[str, str], option: str) -> str:
    """Return a text with its placeholders filled; ``InputError`` for an unknown placeholder or a lone brace."""
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError:
        raise InputError(option, f"has a brace without a partner: {text!r}; write {{{{ or }}}} for a brace.") from None
    unknown = sorted(names - set(PLACEHOLDERS))
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise InputError(option, f"has the unknown placeholder {{{unknown[0]}}}; known are {known}.")
    return text.format_map(values)


def start(command: str, folder: Path) -> None:
    """Start a command of the shell in the folder of a trial; its output goes to ``OUTPUT`` there."""
    (folder / EXIT).unlink(missing_ok=True)
    script = f"echo $$ > {LOCK}\n({command}\n)\ncode=$?\necho $code > {EXIT}.part && mv {EXIT}.part {EXIT}"
    with (folder / LOCK).open("w") as lock, (folder / OUTPUT).open("wb") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock.fileno(),),
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # an ended child would stay as a zombie


def is_running(folder: Path) -> bool:
    """Return whether the command of a trial, or a process that it started, still runs."""
    try:
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return not (folder / EXIT).exists()
    except OSError:
        return False
    return False


def exit_code(folder: Path) -> int | None:
    """Return the exit code of a trial's command; ``None`` if it was not started, still runs, or was killed."""
    try:
        return int((folder / EXIT).read_text())
    except (OSError, ValueError):
        return None


def started(folder: Path) -> float:
    """Return when the command of a trial was started, by the clock of its file system; 0 if it was not."""
    return written(folder / LOCK)


def ended(folder: Path) -> float:
    """Return when the command of a trial ended, by the clock of its file system; 0 if unknown."""
    return written(folder / EXIT)


def written(file: Path) -> float:
    """Return when a file was written last, seconds since 1970; 0 if there is none."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def submitted(folder: Path) -> list[tuple[str, str]]:
    """Return the Slurm jobs that a trial's command submitted, each with its cluster; an empty text for the own one."""
    return list(dict.fromkeys(SUBMITTED.findall(_output(folder))))


def stop(folder: Path) -> str:
    """
    End the command of a trial, and cancel the Slurm jobs that it submitted.

    All processes of its session get SIGTERM, and SIGKILL if one is still there after ``GRACE_S``.

    Returns
    -------
    str
        Participle that says what was done, such as ``stopped; Slurm job 12 was cancelled``.
    """
    for order in (signal.SIGTERM, signal.SIGKILL):
        if not is_running(folder):
            break
        try:
            os.killpg(int((folder / LOCK).read_text()), order)
        except (OSError, ValueError):
            break
        deadline = time.monotonic() + GRACE_S
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
    return "; ".join(["stopped", *(_cancelled(*job) for job in submitted(folder))])


def _cancelled(job: str, cluster: str) -> str:
    """Cancel a Slurm job. Return a clause that says whether that worked."""
    where = [f"--clusters={cluster}"] if cluster else []
    try:
        done = subprocess.run(["scancel", *where, job], capture_output=True, text=True, timeout=GRACE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Slurm job {job} may still run, as scancel failed: {error}"
    if done.returncode:
        return f"Slurm job {job} may still run, as scancel failed: {done.stderr.strip()[:MAX_SHOWN]}"
    return f"Slurm job {job} was cancelled"


def last_line(folder: Path) -> str:
    """Return the last line that a trial's command printed, as the end of a sentence; empty if it printed nothing."""
    lines = _output(folder).split("\n")
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; it printed last: {text[:MAX_SHOWN]}" if text else ""


def _output(folder: Path) -> str:
    """Return what the command of a trial printed; empty if nothing."""
    try:
        return (folder / OUTPUT).read_text("utf-8", errors="replace")
    except OSError:
        return ""
