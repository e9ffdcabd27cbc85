"""Sections of systems on the page of their runner, with options as typed."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.page import run_page
from benchmarks.squares import processes
from benchmarks.systems.__main__ import OPTIONS, make

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Text of the page with one section; without measured runs, and ranks of the squares' check are threads."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path))
    monkeypatch.setattr(processes, "check_squares", partial(processes.check_squares, threads=True))

    def page(name: str, *words: str) -> str:
        out = tmp_path / "page.md"
        run_page(make, *OPTIONS, arguments=["--only", name, "-o", str(out), *words])
        return out.read_text()

    return page


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
    """A row for each budget; what fits nowhere has a dash."""
    page = run("layers", "--profile", str(profile), "--num-layers", "2", "--batches", "8", "--budgets", "1,3")
    assert "| 8 | 1 GB | - | - |" in page
    assert "| 8 | 3 GB | 0." in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budgets", "8,x"), "--budgets: must be positive numbers separated by commas, got 'x'"),
        (("--num-layers", "0"), "--num-layers: must be >= 1, got 0"),
        (("--stages", "3"), "--stages: invalid choice: 3"),
        (("--budgets", "3,0.01"), "--budgets: must be at least"),
    ],
)
def test_words_that_cannot_be(
    run: Run, profile: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message each."""
    with pytest.raises(SystemExit):
        run("layers", "--profile", str(profile), *words)
    assert message in capsys.readouterr().err


def test_without_a_profile(run: Run) -> None:
    """Galvatron's section says that its profile is missing."""
    assert "Not run" in run("layers")


@pytest.mark.search
def test_squares(run: Run) -> None:
    """Priced rows of four micro-batches, the paper's claims, and the check, whose errors are those of rounding."""
    page = run("squares", "--gpu", "a100-80gb")
    assert page.count("\n| 4 | ") == 5
    assert "1.68 x" in page
    assert "e-07 | 20480 | 20480 |" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "mixtral-8x7b"), "--model: has 8 experts; squares are priced for dense layers only"),
        (("--gpus-per-node", "1", "--nics", "1x400"), "--model: has 32 heads; squares need 4, 16 or 64 GPUs"),
    ],
)
def test_squares_that_cannot_be(
    run: Run, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message each."""
    with pytest.raises(SystemExit):
        run("squares", *words)
    assert message in capsys.readouterr().err


@pytest.mark.search
@pytest.mark.parametrize(("name", "cell"), [("slices", "| 4608, 3584 |"), ("stages", "| flush | any |")])
def test_slices_and_stages(run: Run, name: str, cell: str) -> None:
    """The instance of each runs, with its table."""
    assert cell in run(name)
