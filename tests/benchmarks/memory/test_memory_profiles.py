"""Peaks of other software by hand, by the constants of its shipped stack."""

from dataclasses import replace
from typing import Any

import pytest
from factories import make_run

from benchmarks.memory.profiles import Peak, described, errors, page, peaks_among
from pipette_opt.base.units import GIB
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack

LLAMA_8B = {"num_layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256}
INTERNLM_7B = {"num_layers": 32, "hidden": 4096, "ffn_hidden": 11008, "heads": 32, "kv_heads": 32, "vocab": 103168}
PARAMETERS = 8_030_261_248
"""Parameters of Llama 3 8B."""

TABLE = 128256 * 4096
"""Parameters of its embeddings, and of its head."""

LAYER_7B = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
"""Parameters of a layer of InternLM 7B."""


def peak_of(stack: str, **columns: Any) -> Peak:
    """A row of 8 H100 by the shipped stack."""
    gpus = {"gpu": "H100", "num_gpus": 8, "tp": 1, "pp": 1, "dp": 8}
    run = make_run(**gpus | {"mbs": 1, "gbs": 8, "zero_stage": 3, "peak_mem_bytes": 40 * GIB} | columns)
    (found,) = peaks_among([run], read_stack(stack).memory)
    return found


def llama(stack: str, **columns: Any) -> float:
    """Prediction of Llama 3 8B with 8192 tokens, all layers recomputed, GiB."""
    job = {"model": "llama-3-8b", "seq_len": 8192, "recompute": "full"}
    return peak_of(stack, **LLAMA_8B | job | columns).profile_gib


def parameters_of(**cells: object) -> int:
    """Parameters of the model of a row."""
    model = make_run(**cells).launch.model
    assert model is not None
    return model.num_parameters


def test_parameters_of_the_models() -> None:
    """Numbers of the hand counts below are those of the models."""
    assert parameters_of(model="llama-3-8b", **LLAMA_8B) == PARAMETERS
    assert parameters_of(model="internlm-7b", **INTERNLM_7B) == (32 * LAYER_7B + 2 * 103168 * 4096 + 4096)


@pytest.mark.parametrize(("notes", "of_logit"), [("torchtitan", 6), ("torchtitan, no compile", 14)])
def test_fsdp2_by_hand(notes: str, of_logit: int) -> None:
    """
    Full shards of 16 bytes, two gathered units, inputs of layers and norm, logits; gaps of 4 %.

    A shard has fp32 weights, gradients and two moments. Embeddings and head are gathered in 16 bits, with their
    gradients. A compiled loss has 6 bytes per logit, PyTorch's kernels 14.
    """
    inputs, logits = 8192 * 4096 * 2, 8192 * 128256
    state = 16 * PARAMETERS / 8 + (2 + 2) * 2 * TABLE
    by_hand = state + (32 + 3) * inputs + of_logit * logits
    assert llama("torchtitan", notes=notes) == pytest.approx(1.04 * by_hand / GIB, rel=0.02)


def test_a_fused_loss_has_a_chunk_of_logits() -> None:
    """Of 262144 tokens, 31 of 32 parts of 6 bytes per logit are gone; the host's optimizer has no step here."""
    notes = "DeepSpeed, Liger kernels, AdamW states on the CPU"
    whole, chunks = (llama("deepspeed", seq_len=262144, notes=text, gbs=None) for text in ("", notes))
    assert whole - chunks > 31 / 32 * 6 * 262144 * 128256 / GIB
    inputs, shard = 32 * 262144 * 4096 * 2, (2 + 2) * PARAMETERS / 8
    assert 1.04 * (inputs + shard) / GIB < chunks < 130


def test_internevo_by_hand() -> None:
    """
    The step is fullest: 30 bytes per parameter of the last of four stages, without replicas.

    16-bit weights and gradients and 12 bytes of state; a flat copy of the gradients in 16 and one in 32 bits; two
    temporary tensors of Adam. Gaps of 4 % on the state and the fp32 gradients, and two buckets.
    """
    job = {"model": "internlm-7b", "seq_len": 2048, "recompute": "full", "zero_stage": 1}
    columns = INTERNLM_7B | job | {"source": "InternEvo", "num_gpus": 4, "pp": 4, "dp": 1, "gbs": 4}
    size = 8 * LAYER_7B + 103168 * 4096 + 4096
    by_hand = (1.04 * (16 + 4) + 10) * size / GIB + 0.0625 + 2 * 2 * 5e8 / GIB
    assert peak_of("internevo", **columns).profile_gib == pytest.approx(by_hand, rel=1e-3)


def test_rows_have_what_their_notes_say() -> None:
    """Of torchtitan, recomputation by operation; other rows stay as they are."""
    titan = make_run(source="pytorch/ao", notes="torchtitan, FSDP2", recompute="selective", gbs=None)
    launch = described(titan).launch
    assert (launch.recompute_modules, launch.global_batch_size) == (("ops",), 8)
    other = make_run(recompute="selective")
    assert described(other) == other


def test_the_page_begins_with_errors() -> None:
    """Two peaks, 10 % too high and 10 % too low."""
    run: MeasuredRun = make_run()
    high = Peak(run=run, publisher="a lab", measured_gib=10.0, megatron_gib=5.0, profile_gib=11.0)
    rows = [high, replace(high, profile_gib=9.0)]
    assert errors(rows, "profile_gib").tolist() == pytest.approx([0.1, -0.1])
    lines = page({"titan": rows, "nobody": []}).splitlines()
    assert lines[2] == "- titan: mean error 10% of 2 peaks of 1 publisher, 50% by Megatron-Core's constants."
    assert any(line.startswith("| titan | a lab | 2 | -50% | 50% | +0% | 10% |") for line in lines)
