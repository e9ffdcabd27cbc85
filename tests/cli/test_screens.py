"""
Whole screens, as people read them, beside their snapshots.

``pytest tests/cli/test_screens.py --snapshot-update`` writes them again; the change is read in the diff of the commit.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from consoles import shown
from factories import make_plan, whole_plan
from syrupy.assertion import SnapshotAssertion

from pipette_opt.plans.plan import Plan
from pipette_opt.report.first_screen import first_screen
from pipette_opt.report.tables import plan_tables

PLANS: dict[str, Callable[[], Plan]] = {"tiny": make_plan, "whole": partial(whole_plan, 1.3)}

LAUNCH = (
    "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 --sequence-parallel "
    "--use-distributed-optimizer --recompute-granularity selective --tp-comm-overlap --log-interval 1"
)

COMMANDS = {
    "estimate": ("estimate", "--example", "lab-2x8", "--launch", LAUNCH),
    "explain legal": ("explain", "tp=8,pp=2", "--example", "lab-2x8"),
    "explain illegal": ("explain", "tp=8,pp=3", "--example", "lab-2x8"),
    "unknown model": ("explain", "--example", "lab-2x8", "--model", "lama-3-8b"),
}


@pytest.mark.parametrize("name", PLANS)
def test_screens_of_plans(name: str, snapshot: SnapshotAssertion) -> None:
    """The first screen on 80 columns, and all tables on 100."""
    plan = replace(PLANS[name](), versions={})
    assert shown(*first_screen(plan, flags=[("--tensor-model-parallel-size", "2")]), width=80) == snapshot(name="first")
    assert shown(*plan_tables(plan)) == snapshot(name="tables")


@pytest.mark.parametrize("name", COMMANDS)
def test_screens_of_commands(
    name: str,
    command: Callable[..., tuple[int, str, str]],
    snapshot: SnapshotAssertion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code, answer, and what is said beside it."""
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = command(*COMMANDS[name])
    assert f"exit code {code}\n{out}{err and '--- standard error'}\n{err}" == snapshot
