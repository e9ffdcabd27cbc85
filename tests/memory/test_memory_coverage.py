"""
The tracer's further kinds of models and jobs against hand counts.

Experts: what each step of Megatron-Core 0.16.1's all-to-all dispatcher and grouped products keeps. ZeRO: the 2, 4 and
12 bytes of arXiv 1910.02054. Ring attention, fp8: what Transformer Engine keeps.
"""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B

from models.memory.trace import trace_stage
from pipette_opt.base.shipped import shipped_path
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.memory.weights import read_weights
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.schedule import max_in_flight
from pipette_opt.simulate.orders import named_schedule
from pipette_opt.specs import ModelSpec, TrainingSpec

pytestmark = pytest.mark.search

MIXTRAL = replace(LLAMA_8B, name="mixtral", vocab_size=32000, num_experts=8, moe_router_topk=2)
DEEPSEEK = replace(
    LLAMA_8B,
    name="deepseek-moe",
    num_layers=28,
    hidden_size=2048,
    ffn_hidden_size=10944,
    num_attention_heads=16,
    num_query_groups=16,
    vocab_size=102400,
    num_experts=64,
    moe_router_topk=6,
    moe_ffn_hidden_size=1408,
    moe_shared_expert_intermediate_size=2816,
    num_dense_layers=1,
)
JOB = TrainingSpec(global_batch_size=64, seq_length=4096)
TOKENS, HIDDEN, KV = 4096, 4096, 1024


def config(tp: int = 1, pp: int = 1, dp: int = 1, layers: int = 32, **changes: object) -> ParallelConfig:
    """One sequence at a time, sequence parallel where it can be."""
    defaults: dict[str, object] = {"micro_batch_size": 1, "sequence_parallel": tp > 1}
    return ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        layers_per_stage=(layers // pp,) * pp,
        **(defaults | changes),  # type: ignore[arg-type]
    )


def held_per_layer(model: ModelSpec, job: TrainingSpec, tp: int, dp: int = 1, **changes: object) -> int:
    """What one more layer of a middle stage keeps of one micro-batch."""
    one, two = (trace_stage(model, job, config(tp, 4, dp, 4 * n, **changes), 1).held_bytes for n in (1, 2))
    return two - one


def attention_kept(tokens: int, tp: int, shards: int) -> int:
    """Norm input, product input, query, keys, values, output, statistics and sums of rows; in bytes, bf16."""
    return (
        2 * 2 * tokens // shards * HIDDEN
        + 2 * tokens * (2 * HIDDEN + 2 * KV) // tp
        + 4 * tokens // shards
        + 4 * 32 // tp * tokens
    )


@pytest.mark.parametrize(
    ("tp", "dp", "ep", "etp"), [(1, 8, 8, 1), (1, 8, 2, 1), (2, 4, 8, 1), (4, 2, 2, 4), (4, 2, 8, 1), (2, 1, 1, 2)]
)
def test_a_layer_with_experts_by_hand(tp: int, dp: int, ep: int, etp: int) -> None:
    """Each token goes to two experts; ranks that share an expert see all tokens of each other."""
    tokens = TOKENS // tp  # of one rank between norm and router
    rows = tokens * 2 * etp  # through its experts
    width = 14336 // etp
    router = 2 * tokens * HIDDEN + 4 * tokens * 8 + (4 + 8) * tokens * 2 + 4 * tokens * (2 * 8 + 1)
    experts = 2 * rows * (HIDDEN + 2 * width + width) + 4 * rows  # inputs, both halves, their product; weights
    norm = 2 * tokens * HIDDEN + 4 * tokens
    expected = attention_kept(TOKENS, tp, tp) + norm + router + experts
    found = held_per_layer(MIXTRAL, JOB, tp, dp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    assert found == pytest.approx(expected, rel=1e-4)  # maps of a few KiB are rounded up to 512 bytes


def test_parameters_of_experts_by_hand() -> None:
    """Eight experts on eight ranks: one each, whole; attention is split by tensor ranks, the router is not."""
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV
    norms, router, expert = 2 * HIDDEN, 8 * HIDDEN, 3 * HIDDEN * 14336
    trace = trace_stage(MIXTRAL, JOB, config(1, 4, 8, expert_model_parallel_size=8), 1)
    assert trace.num_parameters == 8 * (layer + norms + router + expert)
    split = config(2, 4, 4, expert_model_parallel_size=4, expert_tensor_parallel_size=2)
    assert trace_stage(MIXTRAL, JOB, split, 1).num_parameters == 8 * (layer // 2 + norms + router + 2 * expert // 2)
    assert MIXTRAL.num_parameters == 32 * (layer + norms + router + 8 * expert) + 2 * 32000 * HIDDEN + HIDDEN
    assert MIXTRAL.num_parameters == pytest.approx(46.7e9, rel=0.01)  # as published for Mixtral 8x7B


def test_experts_share_their_optimizer_among_their_own_replicas() -> None:
    """Of 8 ranks 4 hold the same experts: 12 bytes of these are divided by 4, of all else by 8."""
    job = config(1, 1, 8, 4, expert_model_parallel_size=2, use_distributed_optimizer=True)
    trace = trace_stage(replace(MIXTRAL, num_layers=4), JOB, job, 0, rounding_bytes=1)
    experts = 4 * 4 * 3 * HIDDEN * 14336
    assert trace.optimizer_bytes == 12 * (experts // 4) + 12 * -(-(trace.num_parameters - experts) // 8)


def test_dense_layers_come_first_and_shared_experts_are_in_all_others() -> None:
    """DeepSeek-MoE: 16.4 billion parameters (as published); its first layer has no experts."""
    assert DEEPSEEK.num_parameters == pytest.approx(16.4e9, rel=0.01)
    job = config(1, 4, 8, 28, expert_model_parallel_size=8)
    first, second = (trace_stage(DEEPSEEK, JOB, job, stage).num_parameters for stage in (0, 1))
    dense, shared, routed = (3 * 2048 * width for width in (10944, 2816, 8 * 1408))
    assert first - second == 102400 * 2048 + dense - (shared + routed + 64 * 2048)


def test_impossible_experts_are_refused() -> None:
    """Numbers that do not divide, and tensor parallelism without sequence parallelism."""
    for changes, message in (
        ({"expert_model_parallel_size": 3}, "must divide num_experts=8"),
        ({"expert_model_parallel_size": 8}, "ranks of a stage"),
        ({"sequence_parallel": False}, "need sequence_parallel"),
        ({"expert_tensor_parallel_size": 5}, "must divide the experts' width"),
    ):
        with pytest.raises(ValueError, match=message):
            trace_stage(MIXTRAL, JOB, config(2, 4, **({"expert_tensor_parallel_size": 1} | changes)), 0)


def test_ring_attention_by_hand() -> None:
    """
    A quarter of the sequence each; kept as without a ring, and 4 received copies and outputs while it turns.

    With many ranks the forward pass is the peak of a stage of one layer that is neither the first nor the last.
    """
    job = replace(JOB, seq_length=4 * TOKENS)
    kept = held_per_layer(LLAMA_8B, job, 1, context_parallel_size=4)
    norm_and_mlp = 2 * TOKENS * (2 * HIDDEN + 3 * 14336) + 4 * TOKENS
    assert kept == attention_kept(TOKENS, 1, 1) + norm_and_mlp
    long = replace(job, seq_length=64 * TOKENS)
    peaks = [
        trace_stage(LLAMA_8B, replace(job, seq_length=cp * TOKENS), config(1, 4, 1, 4, context_parallel_size=cp), 1)
        for cp in (32, 64)
    ]
    of_a_step = 2 * TOKENS * (2 * KV + HIDDEN) + 4 * 32 * TOKENS
    assert peaks[1].activation_bytes - peaks[0].activation_bytes == 32 * of_a_step
    with pytest.raises(ValueError, match="attention_kernel flash"):
        trace_stage(LLAMA_8B, replace(long, attention_kernel="unfused"), config(context_parallel_size=64), 0)


def test_fp8_keeps_inputs_in_one_byte_and_weights_twice_more() -> None:
    """Inputs of four products in fp8; the attention's output stays too; two fp8 copies of every matrix element."""
    plain, fp8 = (held_per_layer(LLAMA_8B, replace(JOB, fp8=fp8), 1) for fp8 in (False, True))
    assert plain - fp8 == TOKENS * (HIDDEN + HIDDEN + 14336 - HIDDEN)  # the last: its fp8 copy comes on top
    one = trace_stage(LLAMA_8B, JOB, config(1, 4), 1)
    two = trace_stage(LLAMA_8B, replace(JOB, fp8=True), config(1, 4), 1)
    matrices = 8 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * 14336)
    assert two.weight_bytes - one.weight_bytes == 2 * matrices


@pytest.mark.parametrize(("stage", "shared"), [(0, ()), (1, (12,)), (2, (12, 4)), (3, (12, 4, 2))])
def test_zero_divides_what_its_paper_says(stage: int, shared: tuple[int, ...]) -> None:
    """2 + 4 + 12 bytes a parameter; what stage 1, 2, 3 share is an eighth on each of 8 ranks, plus two layers."""
    job = config(1, 4, 8, use_distributed_optimizer=stage > 0, zero_stage=stage)
    trace = trace_stage(LLAMA_8B, JOB, job, 1, rounding_bytes=1)
    layer = trace.num_parameters // 8
    kinds = {2: trace.weight_bytes, 4: trace.gradient_bytes, 12: trace.optimizer_bytes}
    for size, found in kinds.items():
        whole = size * trace.num_parameters
        buffers = 2 * layer * size if size in shared and size < 12 else 0
        assert found == (whole // 8 + buffers if size in shared else whole)


@pytest.mark.parametrize(
    ("changes", "state", "step"),
    [
        ({}, 12, 0),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 8, 8),
        ({"exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp16", "main_params_dtype": "fp16"}, 5, 12),
        ({"precision": "fp32"}, 8, 0),
        ({"precision": "fp32", "exp_avg_dtype": "fp8"}, 5, 4),
    ],
)
def test_formats_of_optimizer_states(changes: dict[str, str], state: int, step: int) -> None:
    """Bytes per parameter of master copy and moments, and of the fp32 copies of narrow ones during the step."""
    job = replace(JOB, **changes)  # type: ignore[arg-type]
    trace = trace_stage(LLAMA_8B, job, config(1, 4), 1, rounding_bytes=1)
    assert trace.optimizer_bytes == state * trace.num_parameters
    assert trace.step_bytes == step * trace.num_parameters


def test_block_recomputation_keeps_the_other_layers() -> None:
    """Of four layers one is recomputed: its input is kept, and three layers are kept as without."""
    one, all_four, none = (
        trace_stage(LLAMA_8B, JOB, config(1, 4, 1, 16, **changes), 1).held_bytes
        for changes in (
            {"recompute_granularity": "full", "recompute_method": "block"},
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 9},
            {},
        )
    )
    layer, its_input = none // 4, 2 * TOKENS * HIDDEN
    assert one == pytest.approx(3 * layer + its_input, rel=1e-5)
    assert all_four == pytest.approx(4 * its_input, rel=1e-5)


def test_uniform_recomputation_in_groups() -> None:
    """Five layers, two at a time: three inputs are kept, and two layers come back at once."""
    five = {"layers": 20, "recompute_granularity": "full"}
    single = trace_stage(LLAMA_8B, JOB, config(1, 4, 1, **five), 1)
    pairs = trace_stage(LLAMA_8B, JOB, config(1, 4, 1, recompute_num_layers=2, **five), 1)
    its_input = 2 * TOKENS * HIDDEN
    assert (single.held_bytes, pairs.held_bytes) == pytest.approx((5 * its_input, 3 * its_input), rel=1e-5)
    in_flight, layer = 3, trace_stage(LLAMA_8B, JOB, config(1, 4, 1, 4), 1).held_bytes
    less = in_flight * 2 * its_input
    assert pairs.activation_bytes - single.activation_bytes == pytest.approx(layer - less, rel=0.1)


@pytest.mark.parametrize(
    ("model", "layers", "changes"),
    [
        (MIXTRAL, 8, {"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1}),
        (MIXTRAL, 8, {"zero_stage": 3, "use_distributed_optimizer": True}),
        (DEEPSEEK, 12, {"virtual_pipeline_model_parallel_size": 3, "expert_tensor_parallel_size": 1}),
        (LLAMA_8B, 8, {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}),
        (LLAMA_8B, 12, {"recompute_granularity": "full", "recompute_num_layers": 3}),
        (LLAMA_8B, 8, {"context_parallel_size": 4}),
    ],
)
def test_the_formula_knows_all_of_it(model: ModelSpec, layers: int, changes: dict[str, object]) -> None:
    """Parameters agree to the last one, static bytes up to rounding, the peak to 0.5 %."""
    model = replace(model, num_layers=layers)
    job = config(2, 2, 4, layers, **changes)
    for training in (JOB, replace(JOB, fp8=True, exp_avg_dtype="bf16")):
        for stage in (0, 1):
            trace = trace_stage(model, training, job, stage)
            table = stage_table(model, training, [job], stage=stage)
            formula = formula_bytes(table)
            assert parameters(table)[0] == trace.num_parameters
            assert formula.static[0] == pytest.approx(trace.static_bytes, rel=1e-5)
            assert formula.total[0] == pytest.approx(trace.peak_bytes, rel=5e-3)


def test_replaying_finds_fragmentation() -> None:
    """Reserved is at least allocated, counted in full; a trace without replay says nothing about it."""
    trace = trace_stage(LLAMA_8B, JOB, config(1, 4), 1, replay=True)
    assert trace.peak_bytes <= trace.reserved_bytes < 1.2 * trace.peak_bytes
    assert trace_stage(LLAMA_8B, JOB, config(1, 4), 1).reserved_bytes == 0
    need = trace_stage(LLAMA_8B, JOB, config(1, 4), 1, need=True)
    assert need.reserved_bytes == trace.reserved_bytes
    assert need.peak_bytes <= need.needed_bytes <= need.reserved_bytes


def test_memory_follows_the_schedule_that_is_timed() -> None:
    """GPipe holds all its micro-batches at once, whichever the stage; 1F1B as many as are in flight; others refused."""
    job = config(1, 4, 1, 8)
    one = trace_stage(LLAMA_8B, JOB, job, 2).held_bytes
    gpipe = named_schedule("gpipe", 4, 6)
    assert max_in_flight(gpipe).tolist() == [6] * 4
    few = trace_stage(LLAMA_8B, JOB, job, 2, 6)
    all_at_once = trace_stage(LLAMA_8B, JOB, job, 2, 6, schedule=gpipe)
    assert all_at_once.activation_bytes - few.activation_bytes == pytest.approx((6 - 2) * one, rel=1e-5)
    with pytest.raises(ValueError, match="4 stages and 1 chunks"):
        trace_stage(LLAMA_8B, JOB, job, 2, schedule=named_schedule("gpipe", 2, 6))
    with pytest.raises(ValueError, match="whole backwards"):
        trace_stage(LLAMA_8B, JOB, job, 2, schedule=named_schedule("zb-h1", 4, 6))


def test_ten_thousand_predictions_take_less_than_a_trace() -> None:
    """From configurations to expected bytes, the best of five."""
    degrees = itertools.product((1, 2, 4, 8), range(1, 400), (1, 2, 4, 8), (False, True))
    configs = [
        config(tp, 1, dp, micro_batch_size=size, use_distributed_optimizer=shared)
        for tp, dp, size, shared in itertools.islice(degrees, 10_000)
    ]
    network, job, times = read_weights(shipped_path("models", "memory.npz")), replace(JOB, global_batch_size=4096), []
    job = replace(job, unequal_microbatches=True)  # so that any number of replicas will do
    for _ in range(5):
        start = time.process_time()
        table = stage_table(MIXTRAL, job, configs)
        formula = formula_bytes(table)
        found = formula.total * np.exp(network.log_ratio(table_features(table, formula)))
        times.append(time.process_time() - start)
    assert found.shape == (10_000,)
    start = time.process_time()
    trace_stage(MIXTRAL, job, configs[0], 0)
    assert min(times) < time.process_time() - start
