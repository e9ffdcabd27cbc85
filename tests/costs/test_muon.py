"""Muon's step and states, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.costs.compute import optimizer_time_s
from pipette_opt.costs.muon import layer_flops, orthogonal_flops, orthogonal_s
from pipette_opt.costs.products import plain_format
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.specs import DEFAULT_STACK

MUON = replace(make_job(make_cluster(1)).training, optimizer="muon")
SHARDED = make_config(tp=2, dp=4, num_layers=32, use_distributed_optimizer=True)
MOE = replace(LLAMA_8B, name="moe", num_experts=8, moe_ffn_hidden_size=1024)


def test_flops_of_a_matrix() -> None:
    """Five times two products with the matrix and a square, whichever side is longer."""
    assert orthogonal_flops(2, 3) == orthogonal_flops(3, 2) == 5 * (2 * (2 * 2 * 2 * 3) + 2 * 8)


def test_flops_of_a_layer() -> None:
    """Its matrices on one of two tensor ranks, keys apart from queries and values; of two experts their two each."""
    shapes = [(2048, 4096), (512, 4096), (512, 4096), (4096, 2048), (14336, 4096), (4096, 7168)]
    dense, experts = layer_flops(LLAMA_8B, SHARDED, LLAMA_8B.layers[0])
    assert (dense, experts) == (sum(orthogonal_flops(*one) for one in shapes), 0)
    spread = make_config(tp=1, dp=8, num_layers=32, expert_model_parallel_size=4)
    _, experts = layer_flops(MOE, spread, MOE.layers[0])
    assert experts == 2 * (orthogonal_flops(2048, 4096) + orthogonal_flops(4096, 1024))


@pytest.mark.parametrize("seed", range(10))
def test_flops_of_experts_are_those_of_their_products(seed: int) -> None:
    """Random sizes, also those that ranks do not divide: a rank has whole experts and channels, as in its products."""
    rng = np.random.default_rng(seed)
    ep, etp, tp = (int(each) for each in rng.integers(1, 5, 3))
    num_experts, width = int(rng.integers(ep, 20)), int(rng.integers(64, 2048))
    model = replace(MOE, num_experts=num_experts, moe_ffn_hidden_size=width)
    one = make_config(
        tp=tp, dp=4 * ep * etp, num_layers=32, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp
    )
    dense, experts = layer_flops(model, one, MOE.layers[0])
    up, down = (width // etp * 2, 4096), (4096, width // etp)
    assert experts == num_experts // ep * (orthogonal_flops(*up) + orthogonal_flops(*down))
    queries, keys = 4096 // tp, 1024 // tp
    shapes = [(queries, 4096), (keys, 4096), (keys, 4096), (4096, queries), (num_experts, 4096)]
    assert dense == sum(orthogonal_flops(*shape) for shape in shapes)


def test_replicas_share_the_matrices() -> None:
    """A quarter of the time on four; Adam, in 8 bits too, has none of it."""
    given = (A100_80, DEFAULT_STACK)
    (shared,) = orthogonal_s(LLAMA_8B, MUON, SHARDED, *given)
    (alone,) = orthogonal_s(LLAMA_8B, MUON, replace(SHARDED, use_distributed_optimizer=False), *given)
    rate = plain_format(A100_80, MUON, DEFAULT_STACK).flops_per_s
    assert alone == pytest.approx(32 * layer_flops(LLAMA_8B, SHARDED, LLAMA_8B.layers[0])[0] / rate)
    assert shared == pytest.approx(alone / 4)
    job = make_job(make_cluster(1), LLAMA_8B)
    adam, muon = (optimizer_time_s(replace(job, training=one), SHARDED, A100_80) for one in (job.training, MUON))
    assert muon - adam == pytest.approx(shared)
    assert orthogonal_s(LLAMA_8B, replace(job.training, optimizer="adam-8bit"), SHARDED, *given) == 0


def test_time_follows_the_number_of_iterations() -> None:
    """Ten take twice as long as five; other iterations than the default travel to the launch of a plan."""
    launch = parse_megatron_args("--optimizer muon --muon-num-ns-steps 10 --bf16")
    training = replace(launch.training(MUON), precision="bf16")
    assert launch.not_modelled == ()
    assert training.other_arguments == (("--muon-num-ns-steps", "10"),)
    given = (SHARDED, A100_80, DEFAULT_STACK)
    (ten,), (five,) = (orthogonal_s(LLAMA_8B, one, *given) for one in (training, MUON))
    assert ten == pytest.approx(2 * five)
    assert parse_megatron_args("--optimizer muon --muon-num-ns-steps 5").training(MUON).other_arguments is None
    with pytest.raises(InputError, match="muon-num-ns-steps must be a whole number >= 1, got '0'"):
        parse_megatron_args("--optimizer muon --muon-num-ns-steps 0")


def test_matrices_have_no_second_moment() -> None:
    """Four bytes less for each that a rank owns; embeddings, head and norms keep it."""
    adam, muon = (
        formula_bytes(stage_table(LLAMA_8B, one, [SHARDED])).optimizer[0]
        for one in (replace(MUON, optimizer="adam"), MUON)
    )
    matrices = 32 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) / 2
    assert adam - muon == pytest.approx(4 * matrices / 4)


def test_what_muon_does_not_go_with() -> None:
    """As Megatron-Core refuses it."""
    for fields in ({"use_precision_aware_optimizer": True}, {"precision": "fp16"}):
        with pytest.raises(ValueError, match="optimizer=muon cannot be combined with"):
            replace(MUON, **fields)
