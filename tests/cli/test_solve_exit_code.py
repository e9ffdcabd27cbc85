"""Exit code of ``solve``: whether the gap was closed to what was asked for."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_plan
from typer.testing import CliRunner

from pipette_opt.base.units import above_best
from pipette_opt.cli.app import app


@pytest.mark.parametrize(
    ("status", "gap", "options", "expected"),
    [
        ("FEASIBLE", 0.03, (), 4),
        ("FEASIBLE", 0.009, (), 0),
        ("FEASIBLE", 0.009, ("--gap-limit", "0"), 4),
        ("FEASIBLE", 0.03, ("--gap-limit", "0.02"), 4),
        ("FEASIBLE", 0.03, ("--gap-limit", "0.05"), 0),
        ("OPTIMAL", 1e-7, (), 0),
    ],
)
def test_exit_code_says_whether_the_gap_was_closed(
    status: str, gap: float, options: tuple[str, ...], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 where the run ended before its gap was closed, and the plan is written all the same."""
    plan = make_plan()
    proven = replace(plan.certificate, status=status, gap=gap)
    monkeypatch.setattr(
        "pipette_opt.optimize.objectives.optimize", lambda *given, **named: replace(plan, certificate=proven)
    )
    # The plan is another job's.
    monkeypatch.setattr("pipette_opt.library.plans.paying_options_of", lambda *given: ())
    monkeypatch.setattr("pipette_opt.worlds.bands.with_band", lambda estimate, *given: estimate)
    path = tmp_path / "plan.json"
    result = CliRunner().invoke(app, ["solve", "--example", "lab-2x8", "-o", str(path), *options])
    assert result.exit_code == expected
    assert path.exists()
    accepted = options[-1] if options else "0.01"
    said = f"the fastest plan found is {above_best(gap)}, more than --gap-limit {accepted}"
    assert (said in " ".join(result.output.split())) == (expected == 4)


@pytest.mark.parametrize(
    ("wall_time_s", "options", "said"),
    [
        (61.0, (), "; the 60 s are used up: --time-limit 240 usually narrows this"),
        (12.0, (), ""),
        (12.0, ("--time-limit", "10"), "; the 10 s are used up: --time-limit 40 usually narrows this"),
    ],
)
def test_a_gap_that_time_left_open_says_so(
    wall_time_s: float, options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the search ended by itself."""
    plan = make_plan()
    proven = replace(plan.certificate, status="FEASIBLE", gap=0.4, wall_time_s=wall_time_s)
    monkeypatch.setattr(
        "pipette_opt.optimize.objectives.optimize", lambda *given, **named: replace(plan, certificate=proven)
    )
    monkeypatch.setattr("pipette_opt.library.plans.paying_options_of", lambda *given: ())
    monkeypatch.setattr("pipette_opt.worlds.bands.with_band", lambda estimate, *given: estimate)
    result = CliRunner().invoke(app, ["solve", "--example", "lab-2x8", "-o", str(tmp_path / "plan.json"), *options])
    assert result.exit_code == 4
    output = " ".join(result.output.split())
    assert said in output
    assert ("--time-limit" in output) is bool(said)
