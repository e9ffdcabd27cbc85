"""Layer times on the processor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from factories import LLAMA_8B, TINY

from pipette_opt.base.errors import InputError
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.measure.compute import ComputeParams, divides, profile_compute
from pipette_opt.measure.layer import build_layer
from pipette_opt.read.model import read_model
from pipette_opt.read.profile import read_profile
from pipette_opt.specs import LayerKind, ModelSpec, ProfileKey, TrainingSpec

TRAINING = TrainingSpec(global_batch_size=1, seq_length=64, precision="fp32")


@pytest.mark.parametrize(("model", "tp"), [(TINY, 1), (TINY, 4), (LLAMA_8B, 1), (LLAMA_8B, 8)])
def test_a_layer_has_the_parameters_of_the_model(model: ModelSpec, tp: int) -> None:
    """The sharded ones divided, row-parallel biases and norms whole."""
    layer = build_layer(model, tp)
    expected = layer_parameters(model, LayerKind()).sharded // tp + layer_parameters(model, LayerKind()).replicated
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_ranks_of_a_layer_add_up() -> None:
    """Two halves of the heads and of the MLP give the output of the whole layer."""
    torch.manual_seed(0)
    model = TINY
    full: Any = build_layer(model, 1).to_empty(device="cpu")
    for parameter in full.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    x = torch.randn(1, 16, model.hidden_size)
    h, d, heads = model.hidden_size, model.kv_channels, model.num_attention_heads
    norm1 = full.norm1(x)
    parts = []
    for half in range(2):
        rank: Any = build_layer(model, 2).to_empty(device="cpu")
        rows = slice(half * heads // 2 * d, (half + 1) * heads // 2 * d)
        q, k, v = full.qkv.weight.split([heads * d] * 3)
        rank.qkv.weight.data = torch.cat([q[rows], k[rows], v[rows]])
        qb, kb, vb = full.qkv.bias.split([heads * d] * 3)
        rank.qkv.bias.data = torch.cat([qb[rows], kb[rows], vb[rows]])
        rank.proj.weight.data = full.proj.weight[:, rows]
        rank.proj.bias.data = torch.zeros(h)
        rank.up.weight.data.zero_()
        rank.up.bias.data.zero_()
        rank.down.weight.data.zero_()
        rank.down.bias.data.zero_()
        rank.norm1 = torch.nn.Identity()
        rank.norm2 = torch.nn.Identity()
        parts.append(rank(norm1) - norm1)
    attention = sum(parts) + full.proj.bias
    full.down.weight.data.zero_()
    full.down.bias.data.zero_()
    torch.testing.assert_close(full(x), x + attention, rtol=1e-4, atol=1e-5)


@pytest.mark.search
def test_the_file_is_what_solve_reads(tmp_path: Path) -> None:
    """Rows that it has are not timed again."""
    path = tmp_path / "layers.csv"
    params = ComputeParams(tensor_parallel=(2, 3), micro_batch_size=(1,), repeats=1)
    profile_compute(TINY, TRAINING, path, params, device="cpu")
    key = ProfileKey(gpu="cpu", tensor_model_parallel_size=2, micro_batch_size=1, seq_length=64)
    assert list(read_profile(path).layers) == [key]
    first = read_profile(path).layers[key]
    asked: list[str] = []
    again = ComputeParams(tensor_parallel=(2, 4), micro_batch_size=(1,), repeats=1)
    profile_compute(TINY, TRAINING, path, again, device="cpu", on_row=lambda done, total, what: asked.append(what))
    assert asked == ["tp4 mbs1", "done"]
    assert read_profile(path).layers[key] == first


def test_what_cannot_be_timed(tmp_path: Path) -> None:
    """Sizes that do not divide, and a GPU that is not there."""
    assert [tp for tp in (1, 2, 3, 8, 16, 32) if divides(LLAMA_8B, tp)] == [1, 2, 8, 16, 32]
    with pytest.raises(InputError, match="do not divide"):
        profile_compute(TINY, TRAINING, tmp_path / "x", ComputeParams(tensor_parallel=(3,)), device="cpu")
    with pytest.raises(InputError, match="must be cuda, cuda:N or cpu, got 'tpu'"):
        profile_compute(TINY, TRAINING, tmp_path / "x", ComputeParams(), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="torch finds no GPU on this machine"):
            profile_compute(TINY, TRAINING, tmp_path / "x", ComputeParams(), device="cuda")


def test_layers_with_experts_are_refused(tmp_path: Path) -> None:
    """Their dense part alone would be written as the time of the layer."""
    with pytest.raises(InputError, match="has 8 experts"):
        profile_compute(read_model("mixtral-8x7b"), TRAINING, tmp_path / "layers.csv", ComputeParams(), device="cpu")
    assert not (tmp_path / "layers.csv").exists()
