"""Attention by hand: full heads with biases, grouped queries with rotary positions, and the gate of its output."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_cluster
from layer_counts import ATTENTION_BACKWARD, NO_OVERHEAD, SEQUENCE, Counts, check, check_flags, job, ranks

from pipette_opt.costs.compute import layer_times_s
from pipette_opt.specs import ModelSpec

HIDDEN, HEADS, GROUPS, CHANNELS = 512, 8, 4, 100
QUERIES, KEYS = HEADS * CHANNELS, GROUPS * CHANNELS

GROUPED = ModelSpec(
    name="grouped",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=1600,
    num_attention_heads=HEADS,
    num_query_groups=GROUPS,
    kv_channels=CHANNELS,
    vocab_size=12800,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    hybrid_layer_pattern="**",
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
)
"""Layers of attention alone."""

ATTENTION = Counts(
    split=((QUERIES + 2 * KEYS, HIDDEN), (HIDDEN, QUERIES)),
    orthogonal=((QUERIES, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, QUERIES)),
    whole_vectors=HIDDEN,  # the norm
    # A token sees half of the sequence: a product with its keys, and one with its values.
    core_flops=2 * (2 * QUERIES) * SEQUENCE / 2,
    core_s=(1.0, ATTENTION_BACKWARD),
    model_flops=3 * 2 * (2 * QUERIES) * SEQUENCE / 2,
    # Queries, keys and values; the output; a log-sum-exp in fp32 for each head.
    kept_split=2 * (QUERIES + 2 * KEYS) + 2 * QUERIES + 4 * HEADS,
    # Inputs of the norm and of the product, and the norm's statistic in fp32.
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 4,
    kept_core=4 * HEADS,
    offloaded=(
        ("qkv_linear", 2 * HIDDEN + 2 * HIDDEN),
        ("core_attn", 2 * (QUERIES + 2 * KEYS)),
        ("attn_proj", 2 * QUERIES),
    ),
    gathered=HIDDEN,
    scattered=HIDDEN,
    collectives=2,
    gathered_again=(HIDDEN,),
    # Norm, two products, attention with three copies, addition; rotary positions.
    launches=1 + 2 + 4 + 8,
    exchanged_queries=2 * QUERIES,
    exchanged_keys=2 * KEYS,
    legal_tp=(1, 2, 4, 8),  # 16 tensor ranks for 8 heads
    flags=("--group-query-attention", "--num-query-groups 4", "--kv-channels 100", "--num-attention-heads 8"),
)


def test_grouped_queries() -> None:
    """Four groups of two heads, whose width differs from the hidden size."""
    check(GROUPED, ATTENTION)


GPT = replace(
    GROUPED,
    name="gpt",
    num_query_groups=HEADS,
    add_bias_linear=True,
    add_qkv_bias=True,
    normalization="LayerNorm",
    position_embedding_type="learned_absolute",
)
FULL_HEADS = replace(
    ATTENTION,
    split=((3 * QUERIES, HIDDEN), (HIDDEN, QUERIES)),
    orthogonal=3 * ((QUERIES, HIDDEN),) + ((HIDDEN, QUERIES),),
    split_vectors=3 * QUERIES,  # bias of the first product
    whole_vectors=2 * HIDDEN + HIDDEN,  # weight and bias of the norm; bias of the second product
    kept_split=2 * 3 * QUERIES + 2 * QUERIES + 4 * HEADS,
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 2 * 4,  # mean and deviation
    offloaded=(("qkv_linear", 4 * HIDDEN), ("core_attn", 2 * 3 * QUERIES), ("attn_proj", 2 * QUERIES)),
    launches=1 + 2 + 4,
    exchanged_keys=2 * QUERIES,
    flags=("--num-attention-heads 8", "--position-embedding-type learned_absolute", "--normalization LayerNorm"),
)


def test_full_heads_with_biases() -> None:
    """A layer of GPT: every head has keys of its own, products have biases, positions are learned."""
    check(GPT, FULL_HEADS)


def test_gate_of_the_output() -> None:
    """A gate as wide as the queries comes from the first product; the gate and the ungated output are kept."""
    gated = replace(
        ATTENTION,
        split=((2 * QUERIES + 2 * KEYS, HIDDEN), (HIDDEN, QUERIES)),
        orthogonal=((2 * QUERIES, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, QUERIES)),
        kept_split=ATTENTION.kept_split + 2 * 2 * QUERIES,
        flags=("--attention-output-gate",),
    )
    check(replace(GROUPED, attention_output_gate=True), gated)


def test_norms_of_queries_and_keys() -> None:
    """All heads share a vector of their width; inputs of both norms, and a statistic for each head, are kept."""
    normed = replace(
        ATTENTION,
        whole_vectors=ATTENTION.whole_vectors + 2 * CHANNELS,
        kept_split=ATTENTION.kept_split + 2 * (QUERIES + KEYS) + 4 * (HEADS + GROUPS),
        launches=ATTENTION.launches + 2,
        flags=("--qk-layernorm",),
    )
    check(replace(GROUPED, qk_layernorm=True), normed)


@pytest.mark.parametrize("tp", [1, 2])
def test_norms_stream_queries_and_keys(tp: int) -> None:
    """A fused norm reads and writes them forward; backward it reads them and a gradient, and writes a gradient."""
    gpu, rates = make_cluster(1).gpu_kinds[0], replace(NO_OVERHEAD, streaming=0.5, host_kernel_s=0.0)
    without, with_norms = (
        layer_times_s(job(replace(GROUPED, qk_layernorm=norms)), ranks(GROUPED, tp), gpu, rates)
        for norms in (False, True)
    )
    size_s = 2 * SEQUENCE * (QUERIES + KEYS) / tp / (0.5 * gpu.memory_bytes_per_s)
    assert np.subtract(with_norms, without) == pytest.approx([2 * size_s, 3 * size_s])


def test_layer_norms_of_queries_and_keys() -> None:
    """A LayerNorm has a weight and a bias for each channel, and keeps two statistics for each head."""
    normed = replace(
        FULL_HEADS,
        whole_vectors=FULL_HEADS.whole_vectors + 2 * 2 * CHANNELS,
        kept_split=FULL_HEADS.kept_split + 2 * 2 * QUERIES + 2 * 4 * 2 * HEADS,
        launches=FULL_HEADS.launches + 2,
        flags=("--qk-layernorm",),
    )
    check(replace(GPT, qk_layernorm=True), normed)


def test_sinks() -> None:
    """A learnable softmax has a parameter for each head; of the context types, only the all-to-all supports it."""
    sinks = replace(ATTENTION, split_vectors=HEADS, legal_cp=("a2a",), flags=("--softmax-type learnable",))
    check(replace(GROUPED, softmax_type="learnable"), sinks)


def test_norms_behind_the_branch() -> None:
    """A second norm keeps its input and statistic, and is a kernel more."""
    second = replace(
        ATTENTION,
        whole_vectors=2 * HIDDEN,
        kept_whole=ATTENTION.kept_whole + 2 * HIDDEN + 4,
        launches=ATTENTION.launches + 1,
    )
    check(replace(GROUPED, post_norms=True), second, unasked=(check_flags,))  # Megatron-LM has no option for it
