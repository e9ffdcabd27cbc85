"""Five small jobs on one GPU: predicted first, run on whatever device torch has, published good or bad."""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from benchmark_modules import loaded

from pipette_opt.read.model import read_model

five, plain = loaded("five_jobs", "silicon"), loaded("plain_models", "silicon")
JOBS = {job.name: job for job in five.JOBS}

TINY = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 8,
    "vocab_size": 64,
}
TINY_EXPERTS = {"num_experts": 4, "moe_router_topk": 2}


def tiny(name: str, **sizes: int):
    """A job with sizes for a CPU."""
    experts = TINY_EXPERTS if name == "experts" else {}
    return replace(JOBS[name], sizes=TINY | experts | sizes, seq_length=16, micro_batch_size=1, global_batch_size=2)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread of the CPU, also where torch has a GPU."""
    monkeypatch.setattr(plain, "DEVICE", "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.search
@pytest.mark.parametrize("name", ["dense", "experts", "fsdp2"])
def test_models_have_the_parameters_that_predictions_assume(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted on tensors without data."""
    monkeypatch.setattr(plain, "DEVICE", "meta")
    model = plain.built(asdict(JOBS[name]))
    assert sum(each.numel() for each in model.parameters()) == five.model_of(JOBS[name]).num_parameters
    assert all(each.requires_grad for each in model.parameters())


def test_adapters_are_on_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 16 on seven products of each layer; all else of the 3B is frozen."""
    monkeypatch.setattr(plain, "DEVICE", "meta")
    model = plain.built(asdict(JOBS["lora"]))
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    hidden, width, keys = 3072, 8192, 8 * 128
    assert trained == 28 * 16 * (2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + width)) == 24_313_856
    frozen = sum(each.numel() for each in model.parameters()) - trained
    assert frozen == read_model("llama-3.2-3b").num_parameters == five.model_of(JOBS["lora"]).num_parameters


def test_the_dense_job_is_a_known_model() -> None:
    """Sizes are those of Llama 3.2 1B."""
    known = read_model("llama-3.2-1b")
    assert all(getattr(known, name) == size for name, size in JOBS["dense"].sizes.items())


@pytest.mark.search
def test_predictions_come_first_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """``--predict`` writes all five jobs, no number for those without a price, and never overwrites a file."""
    path = tmp_path / "predictions.json"
    monkeypatch.setattr(sys, "argv", ["five_jobs", "--predict", str(path)])
    five.main()
    text = path.read_text("utf-8")
    given = json.loads(text)
    assert (given["gpu"], given["torch"]) == ("h200", "unknown")
    assert given["predicted"]
    assert given["commit"]
    rows = {job["name"]: job["predicted"] for job in given["jobs"]}
    assert list(rows) == ["dense", "experts", "fsdp2", "lora", "qlora"]
    assert rows["lora"] is rows["qlora"] is None
    for name in ("dense", "experts", "fsdp2"):
        row = rows[name]
        assert row["low_s"] < row["step_s"] < row["high_s"]
        # Weights, gradients, copies and moments: 18 bytes a parameter, and activations.
        assert 18 * row["parameters"] < row["peak_bytes"] == sum(row["components"].values())
    with pytest.raises(SystemExit):
        five.main()
    assert "stay as they were made" in capsys.readouterr().err
    assert path.read_text("utf-8") == text


@pytest.mark.search
@pytest.mark.parametrize("name", ["dense", "experts", "lora"])
def test_a_job_runs_on_a_cpu(name: str, on_cpu: None) -> None:
    """Ten timed steps at the loss of random tokens, and no peak of a GPU."""
    row = five.measured(asdict(tiny(name)))
    assert len(row["steps_s"]) == 10
    assert min(row["steps_s"]) <= row["step_s"] <= max(row["steps_s"])
    assert row["loss"] == pytest.approx(math.log(TINY["vocab_size"]), rel=0.05)
    assert row["allocated_bytes"] is row["reserved_bytes"] is None
    assert (row["device"], row["torch"]) == ("CPU", torch.__version__)
    assert (row["trained_parameters"] == row["parameters"]) == (name != "lora")


@pytest.mark.parametrize("name", ["dense", "experts", "lora"])
def test_a_step_moves_what_is_trained_and_nothing_else(
    name: str, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every trained parameter gets a gradient; frozen ones stay."""
    monkeypatch.setattr(plain, "LEARNING_RATE", 0.1)
    job = asdict(tiny(name))
    torch.manual_seed(1)
    model = plain.built(job)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    plain.training_step(job, model)()
    moved = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert moved == {key for key, value in model.named_parameters() if value.requires_grad}


def test_groups_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product for each expert gives what the grouped kernel gives."""
    x, weights = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    ends = torch.tensor([4, 8], dtype=torch.int32)
    expected = torch.cat([x[:4] @ weights[0], x[4:] @ weights[1]])
    torch.testing.assert_close(plain.grouped_product(x, weights, ends), expected)
    monkeypatch.delattr(torch.nn.functional, "grouped_mm", raising=False)
    monkeypatch.delattr(torch, "_grouped_mm", raising=False)
    torch.testing.assert_close(plain.grouped_product(x, weights, ends), expected)


@pytest.mark.search
def test_a_job_that_raises_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run, each in its own process; results hold the predictions, and the page its reason."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = [tiny("experts", num_experts=5), tiny("fsdp2")]
    before = {"step_s": 0.5, "low_s": 0.4, "high_s": 0.7, "peak_bytes": 2**30}
    given = {"predicted": "before", "commit": "abc", "gpu": "h200", "torch": "unknown"}
    given["jobs"] = [asdict(job) | {"predicted": before} for job in jobs]
    path, out = tmp_path / "predictions.json", tmp_path / "measured.json"
    path.write_text(json.dumps(given), "utf-8")
    five.run(path, out)
    results = json.loads(out.read_text("utf-8"))
    assert results["predictions"] == given
    assert "do not divide over 5 experts" in results["rows"]["experts"]["failed"]
    assert results["rows"]["fsdp2"]["step_s"] > 0
    page = out.with_suffix(".md").read_text("utf-8")
    assert "| experts | 0.5 (0.4 to 0.7) | - | - | 1.0 | - | - | - | ended with 1: ValueError" in page
    assert five.measured_apart(path, "fsdp2", limit_s=0.01) == {"failed": "stopped after 0.01 s"}


def test_four_bits_need_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bitsandbytes the row says so."""
    monkeypatch.setattr(five.importlib.util, "find_spec", lambda name: None)
    assert five.measured(asdict(tiny("qlora"))) == {"failed": "not run: needs bitsandbytes"}


def test_errors_are_of_the_peak_that_the_stack_describes() -> None:
    """Megatron-Core's allocated, torchtitan's reserved; jobs without a prediction show what was measured."""
    before = {"step_s": 0.5, "low_s": 0.4, "high_s": 0.7, "peak_bytes": 2**31}
    after = {"step_s": 0.4, "allocated_bytes": 2**30, "reserved_bytes": 2**32, "device": "NVIDIA H200", "torch": "2"}
    jobs = [asdict(JOBS[name]) | {"predicted": before} for name in ("dense", "fsdp2")]
    jobs.append(asdict(JOBS["lora"]) | {"predicted": None})
    given = {"predicted": "before", "commit": "abc", "gpu": "h200", "torch": "unknown", "jobs": jobs}
    page = five.page(
        {"measured": "after", "predictions": given, "rows": dict.fromkeys(("dense", "fsdp2", "lora"), after)}
    )
    assert "| dense | 0.5 (0.4 to 0.7) | 0.4 | +25 % | 2.0 | 1.0 | 4.0 | +100 % |  |" in page
    assert "| fsdp2 | 0.5 (0.4 to 0.7) | 0.4 | +25 % | 2.0 | 1.0 | 4.0 | -50 % |  |" in page
    assert "| lora | - | 0.4 | - | - | 1.0 | 4.0 | - |  |" in page
    assert "measured from\nafter on NVIDIA H200 with torch 2" in page
