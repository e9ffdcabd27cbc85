"""What is known of the sources of public measurements, in columns of a row."""

import pytest
from factories import GPT_RUN, make_run

from benchmarks.backtest.sources import described


@pytest.mark.parametrize(
    ("source", "model", "given", "expected"),
    [
        ("ours", "", {"mine": "x"}, {"mine": "x"}),
        ("MLPerf-Training-v5.0", "", {}, {"framework": "NeMo", "tuned": "true"}),
        ("MLPerf-Training-v5.0", "", {"framework": "Megatron-LM"}, {"framework": "Megatron-LM", "tuned": "true"}),
        ("NVIDIA-NeMo/Megatron-Bridge PR", "", {}, {"grad_reduce_in_fp32": "true"}),
        ("MegatronLM-CI-golden", "gpt3_tp2", {}, {"peak_mem_stage": "last", "fused_attention": "true"}),
        ("MegatronLM-CI-golden", "mcore_tp2", {}, {"peak_mem_stage": "last", "fused_attention": "false"}),
    ],
)
def test_columns_of_sources(source: str, model: str, given: dict[str, str], expected: dict[str, str]) -> None:
    """A cell that the file fills stays; other sources gain none."""
    (run,) = described([make_run(source=source, model=model, **given)])
    assert {name: run.cells[name] for name in run.cells.keys() - GPT_RUN.keys()} == expected


@pytest.mark.parametrize(
    ("source", "model", "notes", "expected"),
    [
        ("ours", "", "EP 8; FSDP 0", {"ep": "8"}),
        ("ours", "", "EP 1; FSDP 0", {}),
        ("MegatronBridge-26.02", "DeepSeekV3", "EP 64; FSDP 0", {"ep": "64", "etp": "1", "tuned": "true"}),
        (
            "MegatronBridge-26.02",
            "GPT OSS 120B",
            "EP 64",
            {"ep": "64", "etp": "1", "tuned": "true", "dispatcher": "alltoall"},
        ),
    ],
)
def test_expert_degrees_are_read_from_notes(source: str, model: str, notes: str, expected: dict[str, str]) -> None:
    """A degree of 1 says nothing; NVIDIA's recipes do not split experts by tensor ranks."""
    (run,) = described([make_run(source=source, model=model, notes=notes)])
    assert {name: run.cells[name] for name in run.cells.keys() - GPT_RUN.keys() - {"notes"}} == expected
    (told,) = described([make_run(source=source, model=model, notes=notes, ep="2")])
    assert told.cells["ep"] == "2"
