"""Multi-head latent attention by hand (arXiv 2405.04434, section 2.1), with and without a latent of queries."""

from dataclasses import replace

from layer_counts import ATTENTION_BACKWARD, SEQUENCE, Counts, check, gated_mlp

from pipette_opt.specs import LatentAttention, ModelSpec

HIDDEN, WIDTH, HEADS = 512, 1000, 8
QUERY_LATENT, KEY_LATENT, PLAIN, ROTARY, VALUE = 96, 64, 48, 16, 32
KEY = PLAIN + ROTARY

LATENT = ModelSpec(
    name="latent",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_query_groups=HEADS,
    kv_channels=HIDDEN // HEADS,
    vocab_size=12800,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    gated_linear_unit=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    qk_layernorm=True,
    normalization="RMSNorm",
    position_embedding_type="rope",
    multi_latent_attention=LatentAttention(
        q_lora_rank=QUERY_LATENT,
        kv_lora_rank=KEY_LATENT,
        qk_head_dim=PLAIN,
        qk_pos_emb_head_dim=ROTARY,
        v_head_dim=VALUE,
        yarn=None,
    ),
)
"""Layers of latent attention and a gated MLP."""

UP = ((HEADS * KEY, QUERY_LATENT), (HEADS * (PLAIN + VALUE), KEY_LATENT))
"""Queries, and keys with values, from their latents."""

DOWN = ((QUERY_LATENT, HIDDEN), (KEY_LATENT + ROTARY, HIDDEN))
"""Both latents; the rotary key, which all heads share, comes with that of the keys."""

OUT = (HIDDEN, HEADS * VALUE)

ATTENTION = Counts(
    split=(*UP, OUT),
    whole=DOWN,
    orthogonal=(*UP, OUT, *DOWN),
    whole_vectors=HIDDEN + QUERY_LATENT + KEY_LATENT,  # norms of the input and of both latents
    core_flops=2 * HEADS * (KEY + VALUE) * SEQUENCE / 2,
    core_s=(1.0, ATTENTION_BACKWARD),
    model_flops=3 * 2 * HEADS * (KEY + VALUE) * SEQUENCE / 2,
    # Queries, keys and values of all heads; the output; a log-sum-exp in fp32 for each head.
    kept_split=2 * HEADS * (KEY + KEY + VALUE) + 2 * HEADS * VALUE + 4 * HEADS,
    # Inputs of the norm and of the down projections, the norm's statistic; latents before and after their norms.
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 4 + 2 * (QUERY_LATENT + KEY_LATENT + ROTARY) + 2 * (QUERY_LATENT + KEY_LATENT),
    kept_core=4 * HEADS,
    offloaded=(
        ("attn_norm", 2 * HIDDEN),
        ("qkv_linear", 2 * HIDDEN),
        ("core_attn", 2 * HEADS * (KEY + KEY + VALUE)),
        ("attn_proj", 2 * HEADS * VALUE),
    ),
    # Each tensor rank projects its own tokens down; latents and rotary key are gathered, a call each.
    gathered=QUERY_LATENT + KEY_LATENT + ROTARY,
    scattered=HIDDEN,
    collectives=3 + 1,
    gathered_again=(QUERY_LATENT, KEY_LATENT),
    # As in other attention; three more products, two norms, three copies.
    launches=1 + 2 + 4 + 8 + 3 + 2 + 3,
    exchanged_queries=HEADS * (KEY + VALUE),
    exchanged_keys=HEADS * (KEY + VALUE),
    legal_tp=(1, 2, 4, 8),
    legal_cp=("p2p",),  # keys and values of unequal width
    flags=(
        "--multi-latent-attention",
        "--q-lora-rank 96",
        "--kv-lora-rank 64",
        "--qk-head-dim 48",
        "--qk-pos-emb-head-dim 16",
        "--v-head-dim 32",
        "--rope-type rope",
    ),
)


def test_both_latents() -> None:
    """DeepSeek-V3's attention."""
    check(LATENT, ATTENTION, gated_mlp(HIDDEN, WIDTH))


def test_queries_without_a_latent() -> None:
    """DeepSeek-V2-Lite's attention: queries are projected from the input, which is gathered for them."""
    up, down = ((HEADS * KEY, HIDDEN), UP[1]), DOWN[1:]
    sizes = LATENT.multi_latent_attention
    assert sizes is not None
    without = replace(LATENT, multi_latent_attention=replace(sizes, q_lora_rank=None))
    attention = replace(
        ATTENTION,
        split=(*up, OUT),
        whole=down,
        orthogonal=(*up, OUT, *down),
        whole_vectors=HIDDEN + KEY_LATENT,
        kept_whole=2 * HIDDEN + 2 * HIDDEN + 4 + 2 * (KEY_LATENT + ROTARY) + 2 * KEY_LATENT,
        gathered=HIDDEN + KEY_LATENT + ROTARY,
        gathered_again=(HIDDEN, KEY_LATENT),
        launches=ATTENTION.launches - 2,  # a product and a norm less
        flags=("--multi-latent-attention", "--kv-lora-rank 64"),
    )
    check(without, attention, gated_mlp(HIDDEN, WIDTH))
