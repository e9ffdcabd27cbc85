"""Benchmarks of other systems as a user runs them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from modules_here import typed_benchmark

from benchmarks.squares import processes

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a benchmark in an empty folder without measured runs: exit code, standard output, standard error."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return partial(typed_benchmark, tmp_path)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile as Galvatron's files have it, with round figures."""

    def of(value: float) -> dict[str, float]:
        return {str(degree): value / degree for degree in (1, 2, 4, 8)}

    vocabulary = {"2048": {"model_states": of(4000.0), "activation": of(800.0)}}
    layer = {"parameter_size": 800.0, "tp_activation_per_bsz_dict": {**of(500.0), "checkpoint": 32.0}}
    memory = {
        "layertype_0_sp": {"2048": layer},
        "other_memory_pp_off_sp": vocabulary,
        "other_memory_pp_on_first_sp": vocabulary,
        "other_memory_pp_on_last_sp": vocabulary,
    }
    times = {f"layertype_{kind}_bsz{size}_seq2048": 4.0 for kind in ("0", "other") for size in (1, 2, 4)}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"data": {"memory_profiling": memory, "computation_profiling": times}}))
    return path


def test_layers(run: Run, profile: Path) -> None:
    """A row for each budget; what fits nowhere is said."""
    words = ("--profile", str(profile), "--num-layers", "2", "--batches", "8", "--budgets", "1,3", "--csv", "rows.csv")
    code, out, err = run("layers", *words, "--json")
    assert code == 0
    small, large = json.loads(out)
    assert small["ours"] == small["galvatron"] == "nothing fits"
    assert large["ours_s"] <= large["galvatron_s"] * (1 + 1e-9)
    assert "batch 8, 1 GB: nothing fits" in err
    assert len(Path("rows.csv").read_text().splitlines()) == 3
    code, out, _ = run("layers", *words[:-2])
    assert code == 0
    assert "Galvatron" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budgets", "8,x"), "--budgets must be positive numbers separated by commas, got 'x'"),
        (("--batches", "8.5"), "--batches must be whole numbers >= 1, separated by commas"),
        (("--num-layers", "0"), "--num-layers must be >= 1, got 0"),
        (("--stages", "3"), "--stages must be 1, 2, 4 or 8"),
        (("--time-limit", "0"), "--time-limit must be > 0"),
        (("--budgets", "3,0.01"), "--budgets must be at least"),
    ],
)
def test_words_that_cannot_be(run: Run, profile: Path, words: tuple[str, ...], message: str) -> None:
    """One message each."""
    code, _, err = run("layers", "--profile", str(profile), *words)
    assert code == 2
    assert message in err.replace(":", "")


def test_the_profile_is_no_output(run: Run, profile: Path) -> None:
    """A table in place of the profile is refused, and the profile is as it was."""
    before = profile.read_bytes()
    code, _, err = run("layers", "--profile", str(profile), "--csv", str(profile))
    assert code == 2
    assert str(profile) in err
    assert profile.read_bytes() == before


def test_no_profile(run: Run) -> None:
    """Without measured runs the file must be given."""
    code, _, err = run("layers")
    assert code == 2
    assert "--profile" in err


SQUARES = ("squares", "--model", "llama-2-7b", "--nodes", "1", "--gpu", "a100-80gb")
SQUARES += ("--global-batch-size", "8", "--seq-length", "2048")


@pytest.mark.search
def test_squares(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Priced rows, the paper's claims, and the check; ranks of the check are threads here."""
    monkeypatch.setattr(processes, "check_squares", partial(processes.check_squares, threads=True))
    code, out, err = run(*SQUARES, "--check", "4", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["ranks"] for row in found["rows"]] == [4] * 4
    assert len(found["claims"]) == 4
    assert all(error < 1e-5 for error in found["checks"][0]["errors"].values())
    assert "4 processes" in err
    code, out, _ = run(*SQUARES)
    assert code == 0
    assert "1.68 x" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--check", "9"), "--check"),
        (("--check", "x"), "--check"),
        (("--fp8", "--gpu", "h100"), "--fp8: cannot be priced on squares"),
        (("--model", "mixtral-8x7b"), "--model: has 8 experts; squares are priced for dense layers only"),
        (("--gpus-per-node", "1", "--nics", "1x400"), "--model: has 32 heads; squares need 4, 16 or 64 GPUs"),
    ],
)
def test_squares_that_cannot_be(run: Run, words: tuple[str, ...], message: str) -> None:
    """One message each."""
    code, _, err = run(*SQUARES, *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    "words", [("--num-gpus", "8"), ("--micro-batches", "unequal"), ("--launcher", "mpi"), ("--gpu-price", "2")]
)
def test_no_option_without_effect(run: Run, words: tuple[str, ...]) -> None:
    """What changes nothing is refused."""
    code, _, err = run(*SQUARES, *words)
    assert code == 2
    assert words[0] in err
