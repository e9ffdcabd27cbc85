"""Stopping early leaves the best plan so far on disk."""

import ctypes
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from commands_here import typed, wait_for

from pipette_opt import cli
from pipette_opt.cli import interrupt


def started(path: Path) -> subprocess.Popen[str]:
    """A long solve in the background."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pipette_opt", "solve", "--example", "lab-16x8", "--virtual-pipeline", "1"),
            *("--tensor-parallel", "8", "--context-parallel", "1", "--micro-batch-size", "1", "--recompute", "none"),
            *("--time-limit", "300", "--gap-limit", "0", "-o", str(path)),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.search
@pytest.mark.parametrize("step", ["bounding simulated times", "placing"])
def test_an_interrupt_writes_the_best_plan_so_far(tmp_path: Path, step: str) -> None:
    """Ctrl-C while bounding or placing: exit code 4 and a plan that verifies; a kill would leave the first plan."""
    path = tmp_path / "plan.json"
    process = started(path)
    wait_for(process, step)
    if step == "placing":
        assert json.loads(path.read_text())["certificate"]["status"] in ("OPTIMAL", "FEASIBLE")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, out + err
    assert "stopped early" in err
    certificate = json.loads(path.read_text())["certificate"]
    assert certificate["lower_bound_s"] <= certificate["objective_s"]
    code, _, err = typed(tmp_path, "verify", str(path))
    assert code == 0, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_nothing_to_keep_says_so(number: signal.Signals) -> None:
    """Ctrl-C and a scheduler's SIGTERM end it alike."""
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored by what a script starts behind itself
        "from pipette_opt.cli import main\n"
        "import pipette_opt.cli.app as cli\n"
        f"cli.app = lambda: os.kill(os.getpid(), {int(number)})\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr


def test_an_interrupt_in_a_callback_of_compiled_code_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would print it and go on, as where numba saves a kernel."""
    monkeypatch.setattr(sys, "unraisablehook", cli._interrupt_again)

    @ctypes.CFUNCTYPE(None)
    def called() -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    try:
        called()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(1)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_search_with_nothing_to_finish_ends_soon(is_prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a search prepares, an interrupt ends it after the grace; later it has the time to finish its plan."""
    monkeypatch.setattr(interrupt, "GRACE_S", 0.05)
    before, stop = signal.signal(signal.SIGINT, signal.default_int_handler), threading.Event()
    ended = False
    try:
        with interrupt.stop_on_interrupt(stop, lambda: is_prepared):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
    except KeyboardInterrupt:
        ended = True
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.is_set()
    assert ended is not is_prepared
