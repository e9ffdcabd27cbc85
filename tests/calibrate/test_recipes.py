"""What a row does not say, its framework's recipe does."""

import pytest
from measured_runs import measured_run

from pipette_opt.calibrate.cases import Case, make_case
from pipette_opt.specs import DEFAULT_STACK


@pytest.mark.parametrize(
    ("source", "zero_stage", "columns", "expected"),
    [
        ("own", 1, {}, (False, False, 4)),
        ("own", 1, {"overlap_grad_reduce": "true"}, (True, False, 4)),
        ("own", 1, {"overlap_grad_reduce": "true", "overlap_param_gather": "true"}, (True, True, 4)),
        ("MLPerf-Training-v5.0", 1, {}, (True, True, 2)),
        ("MLPerf-Training-v5.0", 1, {"overlap_grad_reduce": "false"}, (False, False, 2)),
        ("MegatronBridge-26.08", 0, {}, (True, False, 2)),
        ("HF-UltraScale-nanotron", 1, {}, (True, False, 4)),
    ],
)
def test_overlap_and_gradients(
    source: str, zero_stage: int, columns: dict[str, str], expected: tuple[bool, bool, int]
) -> None:
    """The row counts before the recipe; parameters are gathered beside compute only where they are sharded."""
    case = make_case(measured_run(source=source, zero_stage=zero_stage, extra=columns), DEFAULT_STACK)
    assert isinstance(case, Case)
    found = case.config.overlap_grad_reduce, case.config.overlap_param_gather, case.instance.training.gradient_bytes
    assert found == expected


@pytest.mark.parametrize(("source", "kernel"), [("own", "unfused"), ("DGXC-benchmarking-25.05", "flash")])
def test_attention_of_a_framework(source: str, kernel: str) -> None:
    """A GPT's attention is not fused unless its framework fuses all."""
    case = make_case(measured_run(source=source, model="Nemotron-4-15B", attention_kernel=""), DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.instance.training.attention_kernel == kernel


@pytest.mark.parametrize(
    ("source", "kernel", "version"),
    [
        ("own", "flash", 3),
        ("own", "flash_attention2", 2),
        ("mosaicml/llm-foundry", "flash", 2),
        ("mosaicml/llm-foundry", "flash_attention (triton)", 1),
        ("torchtitan-benchmarks", "", 2),
        ("pytorch/torchtitan docs", "", 2),
        ("MegatronBridge-26.08", "", 3),
    ],
)
def test_versions_of_flash_attention(source: str, kernel: str, version: int) -> None:
    """As the row says, and no newer than its framework runs."""
    case = make_case(measured_run(source=source, model="Llama-3-8B", attention_kernel=kernel), DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.instance.training.flash_version == version


def test_nothing_to_overlap() -> None:
    """One replica reduces nothing; fully sharded rows send beside every micro-batch by their own law."""
    alone = make_case(measured_run(source="MLPerf-Training-v5.0", num_gpus=4, dp=1), DEFAULT_STACK)
    sharded = make_case(measured_run(source="MegatronBridge-26.08", zero_stage=3, tp=1, pp=1, dp=16), DEFAULT_STACK)
    for case in (alone, sharded):
        assert isinstance(case, Case)
        assert not case.config.overlap_grad_reduce
