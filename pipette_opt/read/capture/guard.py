"""
Run of a user's script under ``ptrace``, with a check of each program before its first instruction.

Linux stops a traced process at every ``execve`` (``ptrace(2)``, ``PTRACE_EVENT_EXEC``). This covers programs started by
an absolute path or through another ``PATH``. If tracing is not allowed, the script runs without it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PR_SET_CHILD_SUBREAPER = 36
PTRACE_CONT, PTRACE_GETEVENTMSG, PTRACE_SEIZE, PTRACE_LISTEN = 7, 0x4201, 0x4206, 0x4208
EVENT_NEW, EVENT_EXEC, EVENT_STOP = (1, 2, 3), 4, 128
OPTIONS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 20
"""
Options of ``ptrace``: follow fork, vfork and clone, stop at exec, kill traced processes with the tracer
(``linux/ptrace.h``).
"""

WALL = 0x40000000
"""Option ``__WALL`` of ``waitpid``, which includes threads."""

STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)

POLL_S = 0.02
"""Seconds between two checks of the time limit. Chosen."""

QUIET_POLLS = 3
"""Number of polls without a new process after which no further process is expected. Chosen."""

KILLING_S = 5.0
"""Seconds within which killed processes must end. Chosen."""

KEPT_LINES = 40
"""Number of last lines of error output that are kept. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """
    Description of a process that its children inherit, whatever they say of themselves.

    Parameters
    ----------
    is_stand_in
        Whether the process is a stand-in, which starts only what it has judged.
    is_elsewhere
        Whether the process stands for another host or a container, where only stand-ins run.
    """

    is_stand_in: bool = False
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """
    Program that a process is about to run.

    Parameters
    ----------
    executable
        File of the program as the kernel knows it; for a script that of its interpreter.
    words
        Command line. The program may be given any first word.
    """

    executable: str
    words: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """
    Decisions that the caller makes during a run.

    Parameters
    ----------
    judge
        Function of a new program and the mark of its process; returns the mark from then on, ``None`` to stop it.
    is_over
        Function that returns whether the run must stop.
    linger_s
        Seconds that background processes may continue after the script has ended.
    """

    judge: Callable[[Program, Mark], Mark | None]
    is_over: Callable[[], bool]
    linger_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """
    Result of a run.

    Parameters
    ----------
    status
        Exit code of the script, negative for a signal; ``None`` if the script was stopped.
    errors
        Last lines of error output.
    not_found
        Lines of error output on programs that this machine lacks.
    is_watched
        Whether each program was judged before its first step.
    """

    status: int | None
    is_watched: bool = True
    errors: Sequence[str] = ()
    not_found: Sequence[str] = ()


def run(command: Sequence[str], environment: Mapping[str, str], watch: Watch) -> Ended:
    """Run a command in its own session until it ends or must stop; then kill all its processes."""
    before = _children()
    _adopt_orphans(True)
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'read go; exec "$@" </dev/null', "sh", *command],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    errors, not_found = deque[str](maxlen=KEPT_LINES), deque[str](maxlen=KEPT_LINES)
    reader = threading.Thread(target=_keep_lines, args=(process.stderr.fileno(), errors, not_found), daemon=True)
    tracer = _Tracer(process.pid) if _seize(process.pid) else None
    try:
        with _blocked_child_signal():
            reader.start()
            _send_go(process.stdin)
            status = tracer.run(watch) if tracer is not None else _wait(process, watch)
    finally:
        if tracer is not None:
            tracer.kill_all()
        _kill_group(process.pid, before)
        process.returncode = 0  # it was waited for here, not by subprocess
        _adopt_orphans(False)
        reader.join(timeout=KILLING_S)
        process.stderr.close()
    return Ended(status=status, is_watched=tracer is not None, errors=tuple(errors), not_found=tuple(not_found))


def can_trace() -> bool:
    """Return whether processes can be traced: on Linux, if neither a container nor the administrator forbids it."""
    if sys.platform != "linux":
        return False
    process = subprocess.Popen(["/bin/sh", "-c", "read go"], stdin=subprocess.PIPE)
    try:
        return _seize(process.pid)
    finally:
        _end_traced(process.pid)
        process.returncode = 0  # it was waited for here, not by subprocess
        if process.stdin is not None:
            process.stdin.close()


def _end_traced(pid: int) -> None:
    """
    Kill a child that may be traced, and wait until it is over.

    ``Popen.kill`` asks for its status first, takes a stop of a traced process for its end, and then kills nothing.
    """
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while os.WIFSTOPPED(os.waitpid(pid, WALL)[1]):
            pass


def words_of(pid: int) -> list[str]:
    """Return the command line of a process as words; empty if the process is gone."""
    return [os.fsdecode(word) for word in _proc(pid, "cmdline").split(b"\0")[:-1]]


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment variables with which a process was started; empty if the process is gone."""
    pairs = (os.fsdecode(entry).partition("=") for entry in _proc(pid, "environ").split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def program_of(pid: int) -> Program:
    """Return the program of a process; without words if the process is gone."""
    try:
        executable = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        executable = ""
    return Program(executable=executable, words=words_of(pid), environment=environment_of(pid))


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class _Tracer:
    """
    Tracer of a process and its descendants.

    A new process is held until its parent has told of it, as only then its mark is known.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.alive = {root}
        self.marks = {root: Mark()}
        self.held: set[int] = set()
        self.status: int | None = None

    def run(self, watch: Watch) -> int | None:
        """
        Let processes run until all have ended or the run must stop. Return the exit code of the first process.

        A new process may become visible only after its parent has ended. All processes count as ended if no new process
        appears for ``QUIET_POLLS`` polls.
        """
        end_s: float | None = None
        quiet = 0
        while self.alive or quiet < QUIET_POLLS:
            if watch.is_over():
                return self.status
            if end_s is not None and time.monotonic() >= end_s:
                return self.status
            pid, state = _next_state()
            if pid < 0:
                return self.status
            if pid == 0:
                quiet += 1
                self._release_held()
                signal.sigtimedwait({signal.SIGCHLD}, POLL_S)
                continue
            quiet = 0
            self.alive.add(pid)
            if os.WIFSTOPPED(state):
                self._go_on(pid, state, watch)
                continue
            self.alive.discard(pid)
            self.marks.pop(pid, None)
            if pid == self.root:
                self.status = os.waitstatus_to_exitcode(state)
                end_s = time.monotonic() + watch.linger_s
        return self.status

    def _go_on(self, pid: int, state: int, watch: Watch) -> None:
        """Continue a stopped process, or kill it if its new program may not run."""
        number, event = os.WSTOPSIG(state), state >> 16
        if event == EVENT_STOP and number in STOPPING:
            _ptrace(PTRACE_LISTEN, pid)
            return
        if event == EVENT_STOP and pid not in self.marks:
            self.held.add(pid)
            return
        if event in EVENT_NEW and (child := _event_message(pid)):
            self._mark(child, self.marks.get(pid, Mark(is_elsewhere=True)))
        if event == EVENT_EXEC:
            mark = watch.judge(program_of(pid), self.marks.get(pid, Mark(is_elsewhere=True)))
            if mark is None:
                _kill(pid)
            else:
                self.marks[pid] = mark
        _ptrace(PTRACE_CONT, pid, 0 if event else number)

    def _mark(self, child: int, mark: Mark) -> None:
        """Mark a new process, and let it go on if it was held."""
        self.marks[child] = mark
        if child in self.held:
            self.held.discard(child)
            _ptrace(PTRACE_CONT, child)

    def _release_held(self) -> None:
        """Let processes go on whose parent was killed before it told of them, with stand-ins only."""
        for child in tuple(self.held):
            self._mark(child, Mark(is_elsewhere=True))

    def kill_all(self) -> None:
        """Kill all remaining processes, including new children, which are traced as well."""
        end_s = time.monotonic() + KILLING_S
        quiet = 0
        while (self.alive or quiet < QUIET_POLLS) and time.monotonic() < end_s:
            for pid in self.alive:
                _kill(pid)
            pid, state = _next_state()
            if pid < 0:
                return
            if pid == 0:
                quiet += 1
                time.sleep(0.002)
                continue
            quiet = 0
            if os.WIFSTOPPED(state):
                self.alive.add(pid)
                _kill(pid)
                _ptrace(PTRACE_CONT, pid)
            else:
                self.alive.discard(pid)


def _next_state() -> tuple[int, int]:
    """Return the id and state of a process that changed its state; id 0 if none did, -1 if no process is left."""
    try:
        return os.waitpid(-1, os.WNOHANG | WALL)
    except ChildProcessError:
        return -1, 0


def _wait(process: subprocess.Popen[bytes], watch: Watch) -> int | None:
    """Wait for an untraced process and its background processes. Return the exit code, or ``None`` to stop."""
    while process.poll() is None:
        if watch.is_over():
            return None
        time.sleep(POLL_S / 4)
    end_s = time.monotonic() + watch.linger_s
    while _has_group(process.pid) and time.monotonic() < end_s and not watch.is_over():
        time.sleep(POLL_S / 4)
    return process.returncode


def _kill_group(root: int, before: set[int]) -> None:
    """Kill the script's process group, and orphans that left the group and became children of this process."""
    end_s = time.monotonic() + KILLING_S
    while time.monotonic() < end_s:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        left = {pid for pid in _children() - before if pid == root or _session(pid) != os.getsid(0)}
        for pid in left:
            _kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not left and not _has_group(root):
            return
        time.sleep(0.002)


def _has_group(root: int) -> bool:
    try:
        os.killpg(root, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS, for a group of zombies
        return False
    return True


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _children() -> set[int]:
    """Return the ids of this process's children; empty outside Linux."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in listing.read_text().split()}
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _send_go(pipe: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.write(b"\n")
        pipe.flush()
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


@contextlib.contextmanager
def _blocked_child_signal() -> Iterator[None]:
    """Block SIGCHLD inside the ``with`` block for ``sigtimedwait``. New threads inherit the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


def _ptrace(request: int, pid: int, data: int = 0) -> bool:
    """Send a ``ptrace`` request; return whether it succeeded. It fails if the process is gone or may not be traced."""
    return sys.platform == "linux" and bool(_libc().ptrace(request, pid, None, data) != -1)


def _event_message(pid: int) -> int:
    """Return the number that belongs to an event: the new process; 0 if the process is gone."""
    number = ctypes.c_ulong(0)
    done = _libc().ptrace(PTRACE_GETEVENTMSG, pid, None, ctypes.addressof(number))
    return int(number.value) if done != -1 else 0


def _seize(pid: int) -> bool:
    return _ptrace(PTRACE_SEIZE, pid, OPTIONS)


def _adopt_orphans(wanted: bool) -> None:
    """Set whether orphaned processes become children of this process, so that they can be killed."""
    if sys.platform == "linux":
        _libc().prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _keep_lines(handle: int, lines: deque[str], not_found: deque[str]) -> None:
    """Keep the last lines of a pipe, each cut to 2,000 characters, and the lines on missing programs."""
    rest = ""
    while True:
        try:
            chunk = os.read(handle, 65536)
        except OSError:
            return
        *whole, rest = (rest + chunk.decode(errors="replace")).split("\n")
        lines.extend(line[-2000:] for line in whole)
        not_found.extend(line[-2000:] for line in whole if line.endswith("command not found"))
        rest = rest[-2000:]
        if not chunk:
            if rest:
                lines.append(rest)
            return
