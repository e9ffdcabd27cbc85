"""Running instances: what a row says against hand counts, what is left out, resumed and stopped."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from instances import best_by_enumeration

from benchmarks.placement import run
from benchmarks.placement.instances import BenchInstance
from benchmarks.placement.run import (
    BASELINES,
    BenchRow,
    both_annealings,
    dependent_ticks,
    key_of,
    run_all,
    run_one,
)
from benchmarks.placement.tables import csv_text, markdown, read_rows, summary, what_stays_open
from pipette_opt.base.errors import InputError
from pipette_opt.baselines.megatron import identity_order
from pipette_opt.baselines.rounds import place
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Result
from pipette_opt.solver.incumbent import OnProgress
from pipette_opt.solver.params import SolverParams


def tiny(cluster: str = "tree", shape: tuple[int, int] = (2, 2), **changes: object) -> BenchInstance:
    """Four hosts, half a second."""
    one = BenchInstance(
        cluster=cluster, weights="balanced", shape=shape, p2p="blocking", seed=0, limit_s=0.5, target=0.0, target_s=0.5
    )
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def row() -> BenchRow:
    """The tiny tree."""
    return run_one(tiny(), tiny().build(), workers=2)


@pytest.mark.search
def test_row_against_enumeration(row: BenchRow) -> None:
    """The objective is the optimum, closed; baselines are not below; the listed order is what it is."""
    data = tiny().build()
    optimum = best_by_enumeration(data, data.candidates[0]) * data.tick_s
    assert row.status == "OPTIMAL"
    assert row.objective_s == row.lower_bound_s == pytest.approx(optimum)
    assert row.placement_gap == row.gap == 0
    assert row.num_open == 0
    for name in BASELINES:
        above = row.above(name)
        assert above is not None
        assert above >= 0
    listed = identity_order(data).solution
    assert listed is not None
    assert row.identity_s == pytest.approx(listed.objective_ticks * data.tick_s)
    assert row.dependent_s is not None
    assert row.above("identity") == pytest.approx((row.identity_s - optimum) / row.dependent_s)


@pytest.mark.search
def test_stops_at_its_goal(tmp_path: Path) -> None:
    """A goal that any bound meets ends at once; the other runs on, here to the end of its time."""
    hard = tiny("unif", (8, 4), limit_s=1.0, target_s=1.0)
    soon = run_one(replace(hard, target=0.5, stops_at_goal=True), hard.build(), workers=2)
    late = run_one(replace(hard, target=0.5), hard.build(), workers=2)
    assert soon.placement_gap is not None
    assert 0 < soon.placement_gap <= 0.5
    assert soon.seconds < late.seconds
    assert soon.key() != late.key()
    path = tmp_path / "rows.csv"
    path.write_text(csv_text([soon, late]), encoding="utf-8")
    assert read_rows(path) == [soon, late]
    assert [cells[11] for cells in summary([soon, late])] == ["1*", "1"]


def test_dependent_part_by_hand() -> None:
    """With free links only compute is left: 2 stages of 120,000 ticks and 7 more periods of as much."""
    data = tiny().build()
    solution = identity_order(data).solution
    assert solution is not None
    assert data.candidates[0].num_microbatches == 8
    alone = 2 * 120_000 + 7 * 120_000
    value = objective_ticks(data, data.candidates[0], solution.nodes)
    assert dependent_ticks(data, solution) == value - alone


@pytest.mark.search
def test_spares_and_unlisted_orders() -> None:
    """Six hosts for four; a job that a baseline cannot place leaves it without an objective."""
    found = run_one(tiny("spares"), tiny("spares").build(), workers=1)
    assert (found.num_used, found.num_listed) == (4, 6)
    job = tiny(weights="llama-2-13b")
    with_tensor_parallelism = run_one(job, job.build(), workers=1)
    assert with_tensor_parallelism.varuna_s is None
    assert with_tensor_parallelism.above("varuna") is None
    assert with_tensor_parallelism.amp_s is not None


@pytest.mark.search
@pytest.mark.parametrize("workers", [1, 2])
def test_both_annealings_have_the_same_seconds(workers: int) -> None:
    """At once or in turn; the first is the tuned one, which does not lose on eight hosts."""
    data = tiny("unif", (2, 4)).build()
    tuned, pipette = both_annealings(data, 0.2, workers, 0)
    assert tuned.solution is not None
    assert pipette.solution is not None
    assert tuned.solution.objective_ticks <= pipette.solution.objective_ticks
    assert tuned.wall_time_s == pytest.approx(0.2, abs=0.5)


@pytest.mark.search
def test_a_failure_is_a_row(row: BenchRow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others still run, the table names the error, and a later run tries again."""
    monkeypatch.setattr(BenchInstance, "build", lambda one: 1 / 0)
    said: list[str] = []
    rows = list(run_all([tiny("unif"), tiny()], workers=1, known=[row], say=said.append))
    assert [one.status for one in rows] == ["FAILED", "OPTIMAL"]
    assert rows[0].error == "ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in said[0]
    assert "failed: unif 2x2 seed 0: ZeroDivisionError" in markdown(rows, 0.0, 1)
    monkeypatch.undo()
    again = list(run_all([tiny("unif")], workers=1, known=rows))
    assert again[0].status != "FAILED"


@pytest.mark.search
def test_absent_data_is_left_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: BenchRow) -> None:
    """Said once for each cluster; the others run, known rows are not run again."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path))
    said: list[str] = []
    chosen = [tiny("measured-16"), tiny("measured-16", seed=1), tiny()]
    rows = list(run_all(chosen, workers=1, known=[row], say=said.append))
    assert rows == [row]
    assert len(said) == 1
    assert "measured-16" in said[0]


@pytest.mark.search
def test_stopped(row: BenchRow) -> None:
    """Nothing is begun once stopped; what is known still comes."""
    stop = threading.Event()
    stop.set()
    assert list(run_all([tiny(), tiny("unif")], workers=1, known=[row], stop=stop)) == [row]


@pytest.mark.search
def test_what_is_interrupted_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the solver stops all, not only its instance, which had less than its time."""
    begun = []

    def interrupted(
        data: ProblemData, params: SolverParams, *, on_progress: OnProgress, stop: threading.Event
    ) -> Result:
        begun.append(params.seed)
        stop.set()  # as the solver does at an interrupt
        return place(data, params, on_progress=on_progress, stop=stop)

    monkeypatch.setattr(run, "place", interrupted)
    assert list(run_all([tiny(), tiny(seed=1)], workers=1)) == []
    assert begun == [0]


def test_key_identifies_the_instance(row: BenchRow) -> None:
    """Row and instance have the same key; another seed or limit another one."""
    assert row.key() == key_of(tiny())
    assert row.key() != key_of(tiny(seed=1))
    assert row.key() != key_of(tiny(limit_s=9.0))


def test_csv_round_trip(row: BenchRow, tmp_path: Path) -> None:
    """What is written is read again, missing values too."""
    rows = [row, replace(row, seed=1, target=None, target_s=None, varuna_s=None)]
    path = tmp_path / "rows.csv"
    path.write_text(csv_text(rows))
    assert read_rows(path) == rows


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "cluster\ntree\n"])
def test_other_csv_is_refused(text: str, tmp_path: Path) -> None:
    """The error names file and line."""
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other.csv: line 2 is no row of this benchmark"):
        read_rows(path)


def seeded(row: BenchRow, seed: int, gap: float, seconds: float) -> BenchRow:
    """A row with another gap."""
    assert row.objective_s is not None
    assert row.dependent_s is not None
    return replace(
        row,
        seed=seed,
        status="OPTIMAL" if gap == 0 else "FEASIBLE",
        placement_gap=gap,
        lower_bound_s=row.objective_s - gap * row.dependent_s,
        seconds=seconds,
    )


def test_medians_over_seeds(row: BenchRow) -> None:
    """Median gap and seconds, the worst gap, how many are closed, and whether the goal is met."""
    rows = [seeded(row, 0, 0.0, 1.0), seeded(row, 1, 0.02, 3.0), seeded(row, 2, 0.01, 2.0)]
    rows += [seeded(replace(row, cluster="unif"), 0, 0.0, 0.1)]
    (tree, unif) = summary(rows)
    assert tree[:5] == ["tree", "balanced", "blocking", "4", "2x2"]
    assert tree[7:14] == ["1.00%", "2.00%", "1/3", "2.0", "0.5", "0% in 0.5 s", "no"]
    assert unif[13] == "yes"
    (short,) = summary([replace(seeded(row, 0, 0.1, 1.0), target_s=9.0)])
    assert short[13] == "not yet"


def test_markdown(row: BenchRow) -> None:
    """A table with equal columns, date, versions, hardware; baselines that were better and open rows are said."""
    assert row.objective_s is not None
    better = replace(seeded(row, 1, 0.01, 1.0), annealing_tuned_s=row.objective_s * 0.999)
    text = markdown([row, better], 1.5, 2)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "ortools" in text
    assert "cores" in text
    assert "imports and compilation 1.5 s" in text
    assert "1 of 2 instances closed" in text
    assert "annealing, tuned: " in text
    assert "better than the solver on 1 of 2" in text
    assert "tree 4 2x2 balanced blocking: seed 1, between" in text
    assert not what_stays_open([row])


def test_no_solution_in_the_table(row: BenchRow) -> None:
    """Dashes, not zeros."""
    nothing = replace(row, status="UNKNOWN", objective_s=None, dependent_s=None, gap=None, placement_gap=None)
    (cells,) = summary([nothing])
    assert cells[5] == cells[7] == cells[8] == "-"
    assert cells[13] == "no"
    assert np.isfinite(nothing.lower_bound_s)
