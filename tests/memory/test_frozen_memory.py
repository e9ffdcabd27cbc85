"""Memory of fine-tuning: frozen weights in their format, gradients and states of adapters only, other optimizers."""

from dataclasses import replace
from typing import Any

import pytest
from factories import LLAMA_8B, make_config

from pipette_opt.layers.adapters import BASE_BYTES, Adapters, linears_of
from pipette_opt.layers.parameters import num_trained_parameters
from pipette_opt.memory.formula import FormulaBytes, formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.optimizers import OPTIMIZERS
from pipette_opt.specs.training import SHARDS_ON_HOST, optimizer_fields

MATRICES = sum(n * k for kind in LLAMA_8B.layers for part in LLAMA_8B.branches(kind) for n, k, _ in part.products)
"""Parameters of the matrices of all layers."""


def bytes_of(model: ModelSpec, dp: int = 1, zero: int | None = None, **training: Any) -> FormulaBytes:
    """The formula of one stage, for sequences of 64 tokens."""
    spec = TrainingSpec(global_batch_size=dp, seq_length=64, **training)
    config = make_config(tp=1, pp=1, dp=dp, num_layers=32, zero_stage=zero, use_distributed_optimizer=zero is not None)
    return formula_bytes(stage_table(model, spec, [config]))


def lora(base: str = "16-bit") -> ModelSpec:
    """The model with adapters of rank 8 at all its matrices."""
    return replace(LLAMA_8B, adapters=Adapters(rank=8, targets=linears_of(LLAMA_8B), base=base))  # type: ignore[arg-type]


@pytest.mark.parametrize("base", BASE_BYTES)
def test_weights_are_as_wide_as_their_format(base: str) -> None:
    """By hand: matrices of layers in the format, all others and the adapters in 16 bits; the rest as the adapters'."""
    model, count = lora(base), num_trained_parameters(lora())
    found = bytes_of(model)
    table = LLAMA_8B.padded_vocab_size(1) - LLAMA_8B.vocab_size
    others = LLAMA_8B.num_parameters + 2 * table * LLAMA_8B.hidden_size - MATRICES
    assert found.weights[0] == pytest.approx(BASE_BYTES[base] * MATRICES + 2 * (others + count))
    assert found.gradients[0] == 4 * count
    assert found.optimizer[0] == 12 * count
    assert found.placeholders[0] == found.embedding_work[0] == 0


@pytest.mark.parametrize("base", ["16-bit", "nf4"])
def test_shards_and_gathered_units_have_the_format(base: str) -> None:
    """ZeRO 3 on 8 ranks: an eighth of the weights, and the embeddings and head, the two largest units, in 16 bits."""
    found, alone = bytes_of(lora(base), dp=8, zero=3), bytes_of(lora(base))
    largest = 2 * LLAMA_8B.padded_vocab_size(1) * LLAMA_8B.hidden_size + LLAMA_8B.hidden_size
    assert found.weights[0] == pytest.approx(alone.weights[0] / 8 + 2 * largest)
    of_layer = num_trained_parameters(lora()) / 32
    assert found.gradients[0] == pytest.approx(alone.gradients[0] / 8 + 4 * 2 * of_layer)
    assert found.optimizer[0] == alone.optimizer[0] / 8


def test_a_narrow_matrix_is_restored_for_its_product() -> None:
    """The largest, of gate or up, in 16 bits."""
    narrow, wide = bytes_of(lora("nf4")), bytes_of(lora())
    assert narrow.layer_work[0] - wide.layer_work[0] == 2 * LLAMA_8B.ffn_hidden_size * LLAMA_8B.hidden_size


@pytest.mark.parametrize(
    ("name", "main_weights", "state", "gradient"),
    [
        ("adam", None, 12, 4),
        ("adam", "none", 4, 2),
        ("adam-8bit", None, 4 + 2 * (1 + 4 / 256), 4),
        ("adam-8bit", "none", 2 * (1 + 4 / 256), 2),
        ("adafactor", "none", 0, 2),
        ("lion", "none", 2, 2),
        ("sgd", None, 4, 4),
    ],
)
def test_states_of_optimizers(name: str, main_weights: str | None, state: float, gradient: float) -> None:
    """Bytes per parameter; without copies, moments and gradients have the format of the weights."""
    found = bytes_of(LLAMA_8B, **optimizer_fields(name, main_weights))
    parameters = found.weights[0] / 2
    assert found.optimizer[0] == pytest.approx(state * parameters)
    assert found.gradients[0] == gradient * parameters


def test_fused_steps_keep_no_whole_gradients() -> None:
    """LOMO has those of a unit at a time: the larger two of embeddings, head and layers."""
    found = bytes_of(LLAMA_8B, **optimizer_fields("lomo", "none"))
    assert found.optimizer[0] == 0
    assert found.gradients[0] == 2 * (2 * LLAMA_8B.padded_vocab_size(1) + 1) * LLAMA_8B.hidden_size
    assert not OPTIMIZERS["lomo"].keeps_gradients


@pytest.mark.parametrize(
    ("name", "fused", "copied"), [("adam", False, "all"), ("adam", True, "none"), ("lomo", False, "unit")]
)
def test_temporaries_of_a_step_in_16_bits(name: str, fused: bool, copied: str) -> None:
    """A list of all parameters in eager steps, none in fused ones, those of a unit where gradients do not wait."""
    found = bytes_of(LLAMA_8B, **optimizer_fields(name, "none"), fused_step=fused)
    unit = bytes_of(LLAMA_8B, **optimizer_fields("lomo", "none")).gradients[0]
    assert found.step_work[0] == {"all": found.weights[0], "none": 0.0, "unit": unit}[copied]


@pytest.mark.parametrize(("base", "zero"), [("16-bit", 3), ("16-bit", 2), ("nf4", 3)])
def test_flat_frozen_weights_have_gradients(base: str, zero: int) -> None:
    """Those of all layers, whole, in the format of the weights; not without sharded weights, nor in 4 bits."""
    model = lora(base)
    assert model.adapters is not None
    flat = replace(model, adapters=replace(model.adapters, flat_gradients=True))
    more = bytes_of(flat, dp=8, zero=zero).gradients[0] - bytes_of(model, dp=8, zero=zero).gradients[0]
    layers = MATRICES + 32 * 2 * LLAMA_8B.hidden_size + num_trained_parameters(model)
    assert more == (2 * layers if (base, zero) == ("16-bit", 3) else 0)


@pytest.mark.parametrize("base", ["", "16-bit", "nf4"])
def test_shards_on_the_host_leave_units(base: str) -> None:
    """Of weights, gradients and states only gathered units stay, and the step is the host's."""
    model = lora(base) if base else LLAMA_8B
    found, whole = bytes_of(model, dp=8, zero=3, **SHARDS_ON_HOST), bytes_of(model, dp=8, zero=3)
    alone = bytes_of(model)
    assert whole.weights[0] - found.weights[0] == pytest.approx(alone.weights[0] / 8)
    assert whole.gradients[0] - found.gradients[0] == pytest.approx(alone.gradients[0] / 8)
    assert found.optimizer[0] == found.step_work[0] == 0
    assert found.saved[0] == whole.saved[0]


@pytest.mark.parametrize("base", ["16-bit", "nf4"])
def test_quantised_products_may_keep_their_inputs(base: str) -> None:
    """By hand, with adapters at queries and values: in a gated MLP of 4 bits, both products keep their inputs, too."""
    model = replace(LLAMA_8B, adapters=Adapters(rank=8, targets=("q_proj", "v_proj"), base=base))  # type: ignore[arg-type]
    assert model.adapters is not None
    keeping = replace(model, adapters=replace(model.adapters, keeps_inputs=True))
    more = bytes_of(keeping).saved[0] - bytes_of(model).saved[0]
    assert more == (32 * 64 * 2 * (LLAMA_8B.hidden_size + LLAMA_8B.ffn_hidden_size) if base == "nf4" else 0)


@pytest.mark.parametrize(("precision", "chunks"), [("bf16", 1), ("bf16", 8), ("fp32", 1)])
def test_an_eager_loss_keeps_and_works_on_more_logits(precision: str, chunks: int) -> None:
    """16-bit logits stay, and the backward pass has two gradients in fp32; in fp32 nothing is cast."""
    given = {"precision": precision, "loss_chunks": chunks}
    fused, eager = (bytes_of(LLAMA_8B, fused_loss=each, **given) for each in (True, False))
    logits = 64 * LLAMA_8B.padded_vocab_size(1) / chunks
    narrow = precision == "bf16"
    assert eager.head[0] - fused.head[0] == 2 * logits * narrow
    assert eager.head_work[0] == (max(8 * logits, fused.head_work[0]) if narrow else fused.head_work[0])


def test_offload_moves_no_more_than_recomputed_layers_keep() -> None:
    """By hand: of each layer, the input of 64 tokens; one of them is at work, and one in transfer."""
    spec = TrainingSpec(global_batch_size=1, seq_length=64, cpu_offloading_num_layers=32)
    config = make_config(tp=1, pp=1, dp=1, num_layers=32, recompute_granularity="full", recompute_method="uniform")
    away = formula_bytes(stage_table(LLAMA_8B, spec, [config]))
    here = formula_bytes(stage_table(LLAMA_8B, replace(spec, cpu_offloading_num_layers=0), [config]))
    inputs = 32 * 2 * 64 * 4096
    assert (here.saved[0], away.saved[0]) == (inputs, 0.0)
    assert away.layer_work[0] - here.layer_work[0] == pytest.approx(2 * inputs / 32)
