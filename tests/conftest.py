"""
Shared by all tests: helpers can be imported, tests are of three kinds, and the summary says what was enumerated.

``unit`` is every test that is not marked otherwise: no search, no process, well under half a second. ``search`` marks a
test, or a file of tests (``pytestmark``), that takes more. ``pytest -m unit`` is the developers' loop.

A test that needs more than ``pip install '.[test]'`` brings is marked ``client``, with the Python modules and the
programs that it needs::

    @pytest.mark.client("megatron.core")
    @pytest.mark.client(programs=("mpirun",))

Without them it is skipped and says which are missing; ``pytest -m client`` runs only such tests. A module that imports
a client on its first lines calls ``clients_here.require_at_collection`` before.
"""

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Benchmarks are imported from the checkout; at the end of the path, so that an installed pipette_opt comes before its.
sys.path.append(str(Path(__file__).parents[1]))

from clients_here import missing
from instances import enumerated

pytest.register_assert_rewrite("layer_counts")

ROOT = Path(__file__).parents[1]

collect_ignore = [] if (ROOT / "benchmarks").is_dir() else ["benchmarks", "test_every_module.py"]

FOLDERS_OF_SEARCHES = ("cli", "clients")
"""Folders without unit tests: whole commands, and whole launches."""

SLOW_UNIT_S = 1.0
"""Seconds above which the summary names a unit test: it should be marked ``search``, or ask for less."""


def pytest_report_header() -> str | None:
    """Say so where tests of benchmarks are left out."""
    return f"tests/benchmarks left out: {ROOT} has no benchmarks" if collect_ignore else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``pytest -m unit`` does not read folders that have no such tests."""
    without = collection_path.parent == ROOT / "tests" and collection_path.name in FOLDERS_OF_SEARCHES
    return True if without and config.option.markexpr == "unit" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``unit`` what is marked neither ``search`` nor ``client``."""
    folders = [ROOT / "tests" / name for name in FOLDERS_OF_SEARCHES]
    for item in items:
        if item.get_closest_marker("search") or item.get_closest_marker("client"):
            continue
        whole = any(item.path.is_relative_to(folder) for folder in folders)
        item.add_marker("search" if whole else "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """The whole suite runs in a process per core, where pytest-xdist is installed; chosen tests run in this one."""
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:
        return  # a worker calls this hook, too, and would start workers of its own
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and config.pluginmanager.hasplugin("xdist") and config.getoption("numprocesses") is None:
        config.option.numprocesses = "auto"
        config.option.dist = "worksteal"
        # A process per core leaves each one thread for torch and BLAS.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items stay to the end: the collector of garbage does not look through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose client is not installed, before its fixtures are made."""
    for mark in item.iter_markers("client"):
        absent = missing(*mark.args, **mark.kwargs)
        if absent:
            pytest.skip(f"needs {', '.join(absent)}, which .ci/run installs")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several hands over what it has counted."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["enumerated"] = dict(enumerated)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the processes have counted."""
    enumerated.update(getattr(node, "workeroutput", {}).get("enumerated", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many small problems were solved by trying every placement, to compare with; which unit tests took long."""
    for report in terminalreporter.getreports("passed"):
        if "unit" in report.keywords and report.duration > SLOW_UNIT_S:
            terminalreporter.write_line(f"{report.nodeid}: {report.duration:.1f} s is long for a unit test")
    if enumerated:
        instances, placements = enumerated["instances"], enumerated["placements"]
        terminalreporter.write_line(f"{instances:,} instances enumerated, {placements:,} placements.")
