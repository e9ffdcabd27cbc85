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

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import read_output, refuse_links
from pipette_opt.export.shell import quoted_within
from pipette_opt.tune.process import Process, read_process

LOCK, EXIT, OUTPUT = ".running", ".exit", "run.log"
"""Files in the folder of a trial: process and lock of a running command, its exit code, and its output."""

MAX_SHOWN = 200
"""Most characters of a printed line in a message. Chosen."""

GRACE_S = 10.0
"""Seconds that a stopped command has to end by itself, and ``scancel`` to answer. Chosen."""

SUBMITTED = re.compile(r"^Submitted batch job ([0-9]+)(?: on cluster (\S+))?$", re.MULTILINE)
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


def command(text: str, values: Mapping[str, str]) -> str:
    """
    Return the command of ``--run`` with its placeholders filled; each value is one word of the shell.

    ``InputError`` for a value that quotes around its placeholder would let the shell read.
    """
    filled(text, values, "--run")
    done = ""
    for before, name, _, _ in Formatter().parse(text):
        done += before
        if name is None:
            continue
        word = quoted_within(done, values[name])
        if word is None:
            problem = f"{{{name}}} is {shown(values[name])}, which the shell would read inside quotes or a comment"
            raise InputError("--run", f"{problem}; write {{{name}}} without quotes, tune quotes the value.")
        done += word
    return done


def start(command: str, folder: Path) -> None:
    """Start a command of the shell in the folder of a trial; its output goes to ``OUTPUT`` there."""
    refuse_links("tune", folder)
    for name in (EXIT, f"{EXIT}.part", LOCK, OUTPUT):  # new files: a link is removed, and the file behind it kept
        (folder / name).unlink(missing_ok=True)
    script = f"({command}\n)\ncode=$?\necho $code > {EXIT}.part && mv {EXIT}.part {EXIT}"
    with (folder / LOCK).open("x") as lock, (folder / OUTPUT).open("xb") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began_ns = os.fstat(lock.fileno()).st_mtime_ns
        process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock.fileno(),),
            start_new_session=True,
        )
        lock.write(Process.of(process.pid).text())
        lock.flush()
        os.utime(lock.fileno(), ns=(began_ns, began_ns))  # a quick command's log may be older than this text
    threading.Thread(target=process.wait, daemon=True).start()  # an ended child would stay as a zombie


def is_running(folder: Path) -> bool:
    """Return whether the command of a trial, or a process that it started, still runs."""
    try:
        with open(folder / LOCK, "r+", opener=_no_link) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return not (folder / EXIT).exists()
    except OSError:
        return False
    return False


def exit_code(folder: Path) -> int | None:
    """Return the exit code of a trial's command; ``None`` if it was not started, still runs, or was killed."""
    try:
        text = read_output(folder / EXIT).decode("ascii", errors="replace")
    except (OSError, InputError):
        return None
    return int(text) if re.fullmatch(r"[0-9]{1,3}\n", text) else None


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

    All processes of its session get SIGTERM, and SIGKILL if one is still there after ``GRACE_S``. Nothing is ended if
    the process that ``LOCK`` names is not the one that was started.

    Returns
    -------
    str
        Participle that says what was done, such as ``stopped; Slurm job 12 was cancelled``.
    """
    if not is_running(folder):
        return "over by then"
    jobs = submitted(folder)
    try:
        process = read_process(folder / LOCK)
        why = process.why_another(folder)
    except InputError as error:
        why = str(error)
    if why:
        return "; ".join([f"not stopped, as {why}", *(f"Slurm job {job} may still run" for job, _ in jobs)])
    _end(folder, process.pid)
    return "; ".join(["stopped", *(_cancelled(*job) for job in jobs)])


def _end(folder: Path, group: int) -> None:
    """End the process group of a trial's command."""
    for order in (signal.SIGTERM, signal.SIGKILL):
        if not is_running(folder):
            return
        try:
            os.killpg(group, order)
        except OSError:
            return
        deadline = time.monotonic() + GRACE_S
        while is_running(folder) and time.monotonic() < deadline:
            time.sleep(0.05)


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
        return read_output(folder / OUTPUT).decode("utf-8", errors="replace")
    except (OSError, InputError):
        return ""


def _no_link(path: str, flags: int) -> int:
    """Open a file that is no symbolic link, for ``open``."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
