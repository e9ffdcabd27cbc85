"""Windowed and chunked attention by hand; Megatron-LM has windows only in layers with an MLP."""

from dataclasses import replace

from layer_counts import ATTENTION_BACKWARD, SEQUENCE, Counts, check, check_flags, gated_mlp

from pipette_opt.specs import ModelSpec

HIDDEN, WIDTH, HEADS, GROUPS, CHANNELS, WINDOW = 512, 1000, 8, 4, 100, 256
QUERIES, KEYS = HEADS * CHANNELS, GROUPS * CHANNELS

WINDOWED = ModelSpec(
    name="windowed",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_query_groups=GROUPS,
    kv_channels=CHANNELS,
    vocab_size=12800,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    gated_linear_unit=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
    window_size=(WINDOW - 1, 0),
)
"""Layers of windowed attention and a gated MLP. A window of 255 earlier tokens and the token itself."""

SEEN = (WINDOW * WINDOW / 2 + (SEQUENCE - WINDOW) * WINDOW) / SEQUENCE
"""Mean tokens in the window: the first 256 tokens see half of it, all later ones see all of it."""

ATTENTION = Counts(
    split=((QUERIES + 2 * KEYS, HIDDEN), (HIDDEN, QUERIES)),
    orthogonal=((QUERIES, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, QUERIES)),
    whole_vectors=HIDDEN,  # the norm
    core_flops=2 * (2 * QUERIES) * SEEN,
    core_s=(1.0, ATTENTION_BACKWARD),
    model_flops=3 * 2 * (2 * QUERIES) * SEEN,
    # A window frees none of queries, keys, values, output and log-sum-exps.
    kept_split=2 * (QUERIES + 2 * KEYS) + 2 * QUERIES + 4 * HEADS,
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
    launches=1 + 2 + 4 + 8,  # norm, two products, attention with three copies, addition; rotary positions
    exchanged_queries=2 * QUERIES,
    exchanged_keys=2 * KEYS,
    legal_tp=(1, 2, 4, 8),
    legal_cp=("a2a", "all_gather"),  # no ring (Transformer Engine)
    flags=("--window-size 255,0",),
)


def test_window() -> None:
    """Beside FLOPs and the refused ring, a window changes nothing."""
    check(WINDOWED, ATTENTION, gated_mlp(HIDDEN, WIDTH))


def test_chunks() -> None:
    """In a chunk of 256 tokens, a token sees 128 on average. Megatron-LM has no option for it."""
    chunked = replace(WINDOWED, window_size=None, attention_chunk_size=WINDOW)
    attention = replace(
        ATTENTION,
        core_flops=2 * (2 * QUERIES) * WINDOW / 2,
        model_flops=3 * 2 * (2 * QUERIES) * WINDOW / 2,
    )
    check(chunked, attention, gated_mlp(HIDDEN, WIDTH), unasked=(check_flags,))
