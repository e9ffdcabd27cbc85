"""``python -m benchmarks.placement`` as a user runs it."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from modules_here import typed_benchmark

from benchmarks.placement.run import BenchRow

pytestmark = pytest.mark.search

Run = Callable[..., tuple[int, str, str]]

SMALL = ("placement", "--instances", "tree", "--sizes", "8", "--seconds", "0.4", "--workers", "1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder: exit code, standard output, standard error; kernels are compiled when used."""
    monkeypatch.setattr("benchmarks.placement.run.WARM_UP_SHAPES", ((2, 2),))
    return partial(typed_benchmark, tmp_path)


def test_table_and_files(run: Run, tmp_path: Path) -> None:
    """The table on standard output and in a file, every run in the CSV, which a second run takes over."""
    code, out, err = run(*SMALL, "--csv", "rows.csv", "-o", "table.md")
    assert code == 0
    assert "| tree | balanced | async | 8 | 2x4 |" in out
    assert (tmp_path / "table.md").read_text() in out
    assert "1/1 tree 8 2x4 balanced async seed 0: placement gap" in err
    before = (tmp_path / "rows.csv").read_text()
    code, _, err = run(*SMALL, "--csv", "rows.csv", "--resume")
    assert code == 0
    assert "placement gap" not in err
    assert (tmp_path / "rows.csv").read_text() == before


def test_other_runs_are_kept(run: Run, tmp_path: Path) -> None:
    """Resumed with another cluster, the table and the CSV have both."""
    assert run(*SMALL, "--csv", "rows.csv")[0] == 0
    other = ("placement", "--instances", "rail", "--sizes", "16", *SMALL[5:])
    code, out, err = run(*other, "--csv", "rows.csv", "--resume")
    assert code == 0
    assert "1/1 rail" in err
    for name in ("tree", "rail"):
        assert f"| {name} |" in out
        assert f"\n{name}," in (tmp_path / "rows.csv").read_text()


def test_rows_whose_turn_had_not_come_are_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over two seeds dies after the first, whose row is new: the second's, of an earlier run, is still there."""
    both = (*SMALL[:1], "--seeds", "2", *SMALL[1:])
    assert run(*both, "--csv", "rows.csv")[0] == 0
    head, _, second = (tmp_path / "rows.csv").read_text().splitlines()
    (tmp_path / "rows.csv").write_text(f"{head}\n{second}\n")

    def dies(*args: object, known: Iterable[BenchRow] = (), **settings: object) -> Iterator[BenchRow]:
        (row,) = known
        yield replace(row, seed=0)
        raise MemoryError

    monkeypatch.setattr("benchmarks.placement.__main__.run_all", dies)
    with contextlib.suppress(MemoryError):
        run(*both, "--csv", "rows.csv", "--resume")
    assert second in (tmp_path / "rows.csv").read_text().splitlines()
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3


def test_json(run: Run) -> None:
    """One object for each run."""
    code, out, _ = run(*SMALL, "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert row["cluster"] == "tree"
    assert row["objective_s"] >= row["lower_bound_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--instances", "trees"), "--instances: must be one of unif"),
        (("--sizes", "17"), "--sizes: must be one of 8, 16"),
        (("--set", "huge"), "--set: must be one of quick, full"),
        (("--p2p", "both"), "--p2p: must be one of blocking, async"),
        (("--sizes", "1280"), "has none with this size"),
        (("--seeds", "0"), "--seeds: must be > 0"),
        (("--seconds", "-1"), "--seconds: must be > 0"),
        (("--resume",), "--resume: needs --csv"),
        (("--weights", ","), "--weights: must list at least one"),
    ],
)
def test_wrong_options(run: Run, options: tuple[str, ...], message: str) -> None:
    """Exit code 2, and what would be right."""
    code, _, err = run("placement", *options)
    assert code == 2
    assert message in err.replace("│ ", "")


def test_annealing_speeds(run: Run) -> None:
    """Each kernel on each instance makes some moves; the tuned one most."""
    code, out, _ = run("annealing", "--seconds", "0.02", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {(row["cluster"], row["p2p"]) for row in rows} == {
        (a, b) for a in ("unif", "tree") for b in ("blocking", "async")
    }
    assert all(row["tuned_per_s"] > row["general_per_s"] > 0 < row["pipette_per_s"] for row in rows)


def test_annealing_seconds_are_checked(run: Run) -> None:
    """Exit code 2."""
    code, _, err = run("annealing", "--seconds", "0")
    assert code == 2
    assert "--seconds: must be > 0" in err
