"""Defaults of training software stand in for what a row does not say."""

from dataclasses import replace

import pytest
from factories import make_run

from pipette_opt.calibrate.cases import Case, make_case, make_cases, with_stack
from pipette_opt.calibrate.software import (
    FSDP2,
    INTERNEVO,
    MEGATRON_LM,
    NANOTRON,
    NEMO,
    OWN,
    PYTORCH,
    TORCHTITAN,
    Software,
    software_of,
)
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.specs import DEFAULT_STACK


@pytest.mark.parametrize(
    ("source", "zero_stage", "columns", "expected"),
    [
        ("own", 1, {}, (False, False, 4)),
        ("own", 1, {"overlap_grad_reduce": "true"}, (True, False, 4)),
        ("own", 1, {"overlap_grad_reduce": "true", "overlap_param_gather": "true"}, (True, True, 4)),
        ("own", 1, {"framework": "NeMo 2 / Megatron-core"}, (True, True, 2)),
        ("own", 1, {"framework": "NeMo", "grad_reduce_in_fp32": "true"}, (True, True, 4)),
        ("own", 1, {"framework": "NeMo", "overlap_grad_reduce": "false"}, (False, False, 2)),
        ("MegatronBridge-26.08", 0, {}, (True, False, 2)),
        ("HF-UltraScale-nanotron", 1, {}, (True, False, 4)),
        ("InternLM/InternEvo", 1, {}, (False, False, 2)),
        ("our DeepSpeed jobs", 1, {"grad_reduce_in_fp32": "true"}, (False, False, 4)),
        ("vTrain, Megatron-DeepSpeed", 1, {}, (False, False, 4)),
    ],
)
def test_overlap_and_gradients(
    source: str, zero_stage: int, columns: dict[str, str], expected: tuple[bool, bool, int]
) -> None:
    """The row counts before the recipe; parameters are gathered beside compute only where they are sharded."""
    case = make_case(make_run(source=source, zero_stage=zero_stage, extra=columns), DEFAULT_STACK)
    assert isinstance(case, Case)
    found = case.config.overlap_grad_reduce, case.config.overlap_param_gather, case.instance.training.gradient_bytes
    assert found == expected


@pytest.mark.parametrize(("source", "kernel"), [("own", "unfused"), ("our NeMo jobs", "flash")])
def test_attention_of_a_framework(source: str, kernel: str) -> None:
    """A GPT's attention is not fused unless its framework fuses all."""
    case = make_case(make_run(source=source, model="Nemotron-4-15B", attention_kernel=""), DEFAULT_STACK)
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
    case = make_case(make_run(source=source, model="Llama-3-8B", attention_kernel=kernel), DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.instance.training.flash_version == version


@pytest.mark.parametrize(
    ("source", "said", "expected"),
    [("pytorch/torchtitan", None, True), ("pytorch/torchtitan", False, False), ("own", None, False)],
)
def test_tensor_ranks_of_torchtitan_split_norms(source: str, said: bool | None, expected: bool) -> None:
    """Unless the row says otherwise; Megatron-LM's only where they are told."""
    case = make_case(make_run(source=source, seq_parallel=said), DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.config.sequence_parallel is expected


def test_nothing_to_overlap() -> None:
    """One replica reduces nothing; fully sharded rows send beside every micro-batch by their own law."""
    alone = make_case(make_run(source="MLPerf-Training-v5.0", num_gpus=4, dp=1), DEFAULT_STACK)
    sharded = make_case(make_run(source="MegatronBridge-26.08", zero_stage=3, tp=1, pp=1, dp=16), DEFAULT_STACK)
    for case in (alone, sharded):
        assert isinstance(case, Case)
        assert not case.config.overlap_grad_reduce


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Megatron-LM", "nanotron", ""), MEGATRON_LM),
        (("", "our nanotron sweep", "compared with NeMo"), NANOTRON),
        (("", "", "results/n64_nemo/gpt3"), NEMO),
        (("", "NVIDIA-NeMo/Megatron-Bridge", ""), NEMO),
        (("NeMo AutoModel (FSDP2)", "NVIDIA-NeMo/Automodel", ""), FSDP2),
        (("NeMo-RL", "NVIDIA-NeMo/RL", ""), MEGATRON_LM),
        (("", "own", "Nemotron-4"), MEGATRON_LM),
        (("", "PyTorch blog", ""), PYTORCH),
        (("", "pytorch/torchtitan docs", ""), TORCHTITAN),
        (("Megatron-DeepSpeed", "own", ""), OWN),
        (("", "InternLM/InternEvo@3a665e88", ""), INTERNEVO),
    ],
)
def test_names_of_software(texts: tuple[str, str, str], expected: Software) -> None:
    """The column ``framework`` counts before ``source``, and that before the notes; models and organisations do not."""
    framework, source, notes = texts
    assert software_of(make_run(extra={"framework": framework}, source=source, notes=notes)) is expected


@pytest.mark.parametrize(
    ("extra", "source", "expected"),
    [
        ({"tuned": "true", "framework": "NeMo"}, "own", "recipes"),
        ({"framework": "NeMo"}, "own", "megatron"),
        ({}, "torchtitan-benchmarks", "fsdp"),
        ({}, "own", "fsdp"),
    ],
)
def test_families_of_runs(extra: dict[str, str], source: str, expected: str) -> None:
    """That of the named software, tuned or not; a run that names none counts with the stack."""
    (case,) = make_cases([make_run(extra=extra, source=source)], replace(DEFAULT_STACK, family="fsdp"))
    assert isinstance(case, Case)
    assert case.instance.stack.family == expected
    (moved,) = with_stack([case], DEFAULT_STACK)
    assert moved.instance.stack.family == expected


@pytest.mark.parametrize(
    ("source", "precision", "recipe"),
    [
        ("torchtitan-benchmarks", "fp8", "tensorwise"),
        ("torchtitan-benchmarks", "fp8-delayed", "delayed"),
        ("own", "fp8", "delayed"),
    ],
)
def test_recipes_of_fp8(source: str, precision: str, recipe: str) -> None:
    """torchao's, where a row of its software names none."""
    case = make_case(make_run(source=source, gpu=read_gpu_entry("h100"), precision=precision), DEFAULT_STACK)
    assert isinstance(case, Case)
    assert case.instance.training.fp8_recipe == recipe
