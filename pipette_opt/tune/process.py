"""Identity of a process: host, boot, number and start time, so that no other process is taken for it."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_output
from pipette_opt.base.typed import typed
from pipette_opt.read.files import decoded, parse_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File of Linux with a text that is new at every start of the machine."""

ASKED_S = 5.0
"""Longest time for an answer of ``ps`` or ``sysctl``, seconds. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """
    Content of ``.running``: leader of a process group.

    Parameters
    ----------
    host, boot
        Name of the machine, and the id of its start.
    pid
        Number of the process and of its group.
    begun
        Start of the process as the system states it: clock ticks since the boot on Linux.
    """

    host: str
    boot: str
    pid: Annotated[int, Meta(ge=2)]
    begun: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return the identity of a process of this machine."""
        return cls(host=platform.node(), boot=_boot(), pid=pid, begun=_begun(pid))

    def why_another(self, folder: Path) -> str:
        """
        Return the reason why no process of this machine is this one, as a clause; empty if the process is here.

        Parameters
        ----------
        folder
            Folder in which it was started, and in which its leader stays; a record that names another process is wrong.
        """
        if self.host != platform.node():
            return f"it was started on host {self.host}, not here on {platform.node()}"
        if not self.boot or self.boot != _boot():
            return "this machine was started anew since"
        is_ours = bool(self.begun) and self.begun == _begun(self.pid) and _group(self.pid) == self.pid
        if not is_ours or not _is_in(folder, self.pid):
            return f"process {self.pid} is gone, or another one"
        return ""

    def text(self) -> str:
        """Return the content of the file."""
        return dumps(asdict(self)) + "\n"


def read_process(path: Path) -> Process:
    """Return the process that a file names; ``InputError`` for any other content."""
    try:
        text = decoded(read_output(path), str(path))
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    return typed(Process, parse_json(text, str(path)), str(path), closed=True)


def _boot() -> str:
    """Return the id of the machine's start; empty if the system does not say it."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return _answer("sysctl", "-n", "kern.bootsessionuuid")


def _begun(pid: int) -> str:
    """Return the start of a process; empty if the process is gone."""
    if not BOOT_ID.exists():
        return _answer("ps", "-o", "lstart=", "-p", str(pid))
    try:
        behind_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return behind_name[19]  # field 22, ``starttime``; the state behind the name is field 3 (proc(5))


def _is_in(folder: Path, pid: int) -> bool:
    """Return whether a process works in a folder; true where the system does not say it."""
    if not BOOT_ID.exists():
        return True
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:
        return False


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _answer(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
