"""Commands that collect, train and trace, as they are typed in a checkout."""

import json
from pathlib import Path

import pytest
from factories import plan_of, small_config, small_instance
from modules_here import typed_module

from models.memory import trace_plan
from models.memory.dataset import read_rows

SEEDS = Path(__file__).parents[3] / "benchmarks" / "hardening" / "seeds"


@pytest.mark.search
def test_collect_writes_the_points(tmp_path: Path) -> None:
    """Two points on one process."""
    code, out, _ = typed_module(tmp_path, "models.memory.collect", "--num-points", "2", "--workers", "1")
    assert code == 0
    assert "2 points traced, traces.csv holds all 2." in out
    assert len(read_rows(tmp_path / "traces.csv")) == 2


@pytest.mark.parametrize(
    ("out", "message"),
    [("no/such/folder/t.csv", "no/such/folder/t.csv"), ("-", "--out: must be a file name, not -: an unfinished one")],
)
def test_collect_checks_its_file_before_the_work(tmp_path: Path, out: str, message: str) -> None:
    """A folder that is absent, and standard output, which cannot be continued."""
    code, _, err = typed_module(tmp_path, "models.memory.collect", "-o", out)
    assert code == 2
    assert message in err


@pytest.mark.search
def test_train_needs_enough_points(tmp_path: Path) -> None:
    """Training on two points is refused, and nothing is written."""
    typed_module(tmp_path, "models.memory.collect", "--num-points", "2", "--workers", "1")
    code, _, err = typed_module(tmp_path, "models.memory.train", "-o", "memory.npz")
    assert code == 2
    assert "traces.csv: holds 2 points, training needs at least 400" in err
    assert not (tmp_path / "memory.npz").exists()


def test_train_writes_over_no_input(tmp_path: Path) -> None:
    """Refused in a line that names the output, and the file is as it was."""
    (tmp_path / "traces.csv").write_text("anything")
    code, _, err = typed_module(tmp_path, "models.memory.train", "--data", "traces.csv", "-o", "traces.csv")
    assert code == 2
    assert "traces.csv: would overwrite an input file of this command" in err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("traces.csv", "anything")]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of two stages, whatever file is named."""
    given = small_instance()
    monkeypatch.setattr(trace_plan, "plan_and_instance", lambda *_: (plan_of(given, small_config()), given))


@pytest.mark.search
@pytest.mark.usefixtures("plan")
def test_stages_of_a_plan_are_traced(tmp_path: Path) -> None:
    """A row for each stage; the allocator needs no less than the tensors and no more than it reserves."""
    code, out, err = typed_module(tmp_path, "models.memory.trace_plan", "plan.json", "--json")
    assert code == 0, err
    rows = json.loads(out)
    assert [row["stage"] for row in rows] == [0, 1]
    for row in rows:
        assert row["traced_gib"] <= row["needed_gib"] <= row["reserved_gib"] < 1.2 * row["traced_gib"]
        assert row["predicted_gib"] > row["traced_gib"]
    code, out, _ = typed_module(tmp_path, "models.memory.trace_plan", "plan.json")
    assert code == 0
    assert "needed gib" in out


def test_no_plan(tmp_path: Path) -> None:
    """A file that is not there is named."""
    code, _, err = typed_module(tmp_path, "models.memory.trace_plan", "plan.json")
    assert code == 2
    assert "plan.json" in err
