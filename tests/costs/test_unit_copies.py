"""Copies between parameters and the flat buffers of collectives."""

from dataclasses import replace

import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.compute import head_times_s, layer_times_s, look_up_s
from pipette_opt.costs.unit_copies import copies_s, host_copies_s, layer_copies_s, layer_host_copies_s
from pipette_opt.layers.adapters import Adapters, linears_of
from pipette_opt.layers.parameters import layer_parameters, trained_layer_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.specs.training import SHARDS_ON_HOST

FSDP = replace(DEFAULT_STACK, family="fsdp")


def sharded(stage: int, dp: int = 8) -> ParallelConfig:
    """Replicas that share gradients, and weights too at stage 3."""
    zero = {"use_distributed_optimizer": True, "zero_stage": stage} if dp > 1 else {}
    return make_config(dp=dp, num_layers=32, **zero)


def test_a_layer_of_llama_by_hand() -> None:
    """
    218,112,000 parameters of 2 bytes are read and written to copy them out, at 2.0 TB/s times 0.8: 0.545 ms.

    Backward, gradients are also read in 2 bytes and written in 4: 0.818 ms more.
    """
    job = make_job(make_cluster(1), LLAMA_8B)
    forward, backward = layer_copies_s(LLAMA_8B, job.training, sharded(3), A100_80, FSDP, LLAMA_8B.layers[0])
    assert (1e3 * forward, 1e3 * backward) == pytest.approx((0.5453, 0.5453 + 0.8179), rel=1e-3)


@pytest.mark.parametrize(("family", "stage", "dp"), [("megatron", 3, 8), ("recipes", 3, 8), ("fsdp", 3, 1)])
def test_no_copies(family: str, stage: int, dp: int) -> None:
    """Megatron keeps parameters and gradients in the buffers; a single rank gathers nothing."""
    job, stack = make_job(make_cluster(1), LLAMA_8B), replace(DEFAULT_STACK, family=family)
    assert layer_copies_s(LLAMA_8B, job.training, sharded(stage, dp), A100_80, stack, LLAMA_8B.layers[0]) == (0.0, 0.0)


@pytest.mark.parametrize("stage", [2, 3])
def test_they_lengthen_layers_and_ends(stage: int) -> None:
    """By what the copies take; with ZeRO 2 only gradients are copied."""
    job, config = make_job(make_cluster(1), LLAMA_8B), sharded(stage)
    copies = layer_copies_s(LLAMA_8B, job.training, config, A100_80, FSDP, LLAMA_8B.layers[0])
    plain, longer = (layer_times_s(replace(job, stack=stack), config, A100_80) for stack in (DEFAULT_STACK, FSDP))
    assert [after - before for before, after in zip(plain, longer, strict=True)] == pytest.approx(copies)
    assert (copies[0] > 0) == (stage == 3)
    ends = (LLAMA_8B, job.training, config, A100_80)
    heads = zip(head_times_s(*ends, DEFAULT_STACK), head_times_s(*ends, FSDP), strict=True)
    matrix = 128256 * 4096
    assert [b - a for a, b in heads] == pytest.approx(
        copies_s(matrix + 4096, matrix + 4096, job.training, config, A100_80, FSDP)
    )
    of_look_up = look_up_s(*ends, FSDP) - look_up_s(*ends, DEFAULT_STACK)
    assert 2 * of_look_up == pytest.approx(sum(copies_s(matrix, matrix, job.training, config, A100_80, FSDP)))


@pytest.mark.parametrize(("stack", "wide"), [(FSDP, 4), (DEFAULT_STACK, 2)], ids=["fsdp", "others"])
def test_shards_come_from_the_host(stack: StackSpec, wide: int) -> None:
    """By hand: an eighth of a layer, in FSDP2 as fp32; back go fp32 gradients. A slow host bounds layers and ends."""
    job, config = make_job(make_cluster(1), LLAMA_8B, stack=stack), sharded(3)
    training = replace(job.training, **SHARDS_ON_HOST)
    kind, slow = LLAMA_8B.layers[0], replace(A100_80, host_bytes_per_s=1e6)
    parameters = layer_parameters(LLAMA_8B, kind).total
    copies = layer_host_copies_s(LLAMA_8B, training, config, slow, stack, kind)
    assert copies == pytest.approx((wide * parameters / 8 / 1e6, 4 * parameters / 8 / 1e6))
    assert layer_host_copies_s(LLAMA_8B, job.training, config, slow, stack, kind) == (0.0, 0.0)
    assert layer_times_s(replace(job, training=training), config, slow) == pytest.approx(copies)
    ends = host_copies_s(128256 * 4096, 128256 * 4096, LLAMA_8B, training, config, slow, stack)
    assert look_up_s(LLAMA_8B, training, config, slow, stack) == pytest.approx(max(ends))
    assert head_times_s(LLAMA_8B, training, config, slow, stack) == pytest.approx(ends, rel=1e-3)


def test_frozen_shards_come_in_their_format() -> None:
    """4-bit matrices beside adapters: half a byte each, both ways; only gradients of adapters go back."""
    model = replace(LLAMA_8B, adapters=Adapters(rank=8, targets=linears_of(LLAMA_8B), base="nf4"))
    training = replace(make_job(make_cluster(1), model).training, **SHARDS_ON_HOST)
    own, all_of_them = (size(model, model.layers[0]).total for size in (trained_layer_parameters, layer_parameters))
    copies = layer_host_copies_s(model, training, sharded(3), A100_80, FSDP, model.layers[0])
    bytes_of_both = 0.5625 * all_of_them + 4 * own
    assert copies == pytest.approx((bytes_of_both / 8 / A100_80.host_bytes_per_s,) * 2)
