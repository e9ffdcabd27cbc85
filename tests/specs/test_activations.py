"""What goes to the host's memory, by hand: bytes of inputs for each token of a rank."""

from dataclasses import replace

import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.candidates import check_legal
from pipette_opt.costs.compute import layer_times_s, optimizer_time_s
from pipette_opt.costs.host import HOST_MEMORY_BYTES_PER_S
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.activations import moved_bytes

TOKENS, HIDDEN = 4096, 4096
BF16 = TrainingSpec(global_batch_size=32, seq_length=TOKENS)
MOE = replace(LLAMA_8B, name="moe", num_experts=8, moe_router_topk=2, moe_ffn_hidden_size=1024)
ONE = make_config(num_layers=32)


@pytest.mark.parametrize("modules", [("core_attn",), ("core_attn", "attn_proj"), ("expert_fc1", "moe_act")])
def test_memory_has_what_is_not_moved(modules: tuple[str, ...]) -> None:
    """And of two layers what is on its way or at work."""
    moved = replace(BF16, offload_modules=modules)
    held, kept = (formula_bytes(stage_table(MOE, one, [ONE])) for one in (BF16, moved))
    bytes_ = moved_bytes(MOE, moved, ONE, MOE.layers[0])
    assert held.saved[0] - kept.saved[0] == pytest.approx(32 * bytes_)
    assert kept.layer_work[0] - held.layer_work[0] == pytest.approx(2 * bytes_)


def test_layers_on_the_host() -> None:
    """Half of them leave less than six tenths; a layer takes as long as its way if that is slow."""
    half = replace(BF16, cpu_offloading_num_layers=16)
    held, kept = (formula_bytes(stage_table(LLAMA_8B, one, [ONE])).saved[0] for one in (BF16, half))
    assert 0.4 * held < kept < 0.6 * held
    job = replace(make_job(make_cluster(1), LLAMA_8B), training=half)
    slow = replace(A100_80, host_bytes_per_s=1e9)
    sent = moved_bytes(LLAMA_8B, half, ONE, LLAMA_8B.layers[0]) / 1e9
    assert layer_times_s(job, ONE, slow) == pytest.approx((sent, sent))
    free = layer_times_s(replace(job, training=BF16), ONE, A100_80)
    assert layer_times_s(job, ONE, replace(A100_80, host_bytes_per_s=1e15)) == free


def test_what_whole_layers_on_the_host_go_with() -> None:
    """No pipeline, no recomputation, not all layers."""
    half = replace(BF16, cpu_offloading_num_layers=16)
    assert check_legal(LLAMA_8B, half, ONE) == []
    for bad, why in (
        (make_config(pp=2, num_layers=32), "needs pipeline_model_parallel_size=1"),
        (make_config(num_layers=32, recompute_granularity="full"), "does not go with recomputation"),
    ):
        (reason,) = check_legal(LLAMA_8B, half, bad)
        assert why in reason
    (reason,) = check_legal(LLAMA_8B, replace(BF16, cpu_offloading_num_layers=32), ONE)
    assert "must be less than num_layers=32" in reason


def test_an_optimizer_on_the_host() -> None:
    """A quarter of the states frees a quarter; its step waits for Adam there, and for the way unless that is beside."""
    sharded = make_config(num_layers=32, dp=4, use_distributed_optimizer=True)
    quarter = replace(BF16, optimizer_offload_fraction=0.25)
    all_, less = (formula_bytes(stage_table(LLAMA_8B, one, [sharded])).optimizer[0] for one in (BF16, quarter))
    assert less == pytest.approx(0.75 * all_)
    job = make_job(make_cluster(1), LLAMA_8B)
    here, there, beside = (
        optimizer_time_s(replace(job, training=one), sharded, A100_80)
        for one in (BF16, quarter, replace(quarter, overlap_cpu_optimizer_d2h_h2d=True))
    )
    owned = all_ / 12
    adam, way = (4 + 24 + 2) / HOST_MEMORY_BYTES_PER_S, (4 + 2) / A100_80.host_bytes_per_s
    assert there == pytest.approx(0.75 * here + 0.25 * owned * (adam + way))
    assert beside == pytest.approx(0.75 * here + 0.25 * owned * max(adam, way))
