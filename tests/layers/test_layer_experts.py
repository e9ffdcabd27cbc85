"""Routed and shared experts by hand, and experts that are narrower than the hidden size (``moe/`` of Megatron-Core)."""

from dataclasses import replace

from layer_counts import SEQUENCE, Counts, check

from pipette_opt.specs import ModelSpec

HIDDEN, EXPERTS, TOPK, WIDTH, SHARED, LATENT = 512, 16, 4, 200, 300, 128

ROUTED = ModelSpec(
    name="routed",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=1600,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=32,
    vocab_size=12800,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    hybrid_layer_pattern="EE",
    gated_linear_unit=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="none",
    num_experts=EXPERTS,
    moe_router_topk=TOPK,
    moe_ffn_hidden_size=WIDTH,
)
"""Layers of routed experts alone."""

ROUTER = (EXPERTS, HIDDEN)

ONLY_ROUTED = Counts(
    whole=(ROUTER,),
    one_expert=((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH)),
    orthogonal=(ROUTER,),
    whole_vectors=HIDDEN,  # the norm
    # Input of the norm and its statistic. Input of the router, its fp32 scores, a weight in fp32 and an 8-byte index
    # for each choice, the int32 map that sorts tokens. Of each copy: input, gate and value of the activation, its
    # output, and its probability in fp32.
    kept_whole=2 * HIDDEN
    + 4
    + (2 * HIDDEN + 4 * EXPERTS + 12 * TOPK + 4 * (2 * EXPERTS + 1))
    + TOPK * (2 * HIDDEN + 2 * 2 * WIDTH + 2 * WIDTH + 4),
    offloaded=(
        ("mlp_norm", 2 * HIDDEN),
        ("expert_fc1", TOPK * 2 * HIDDEN),
        ("moe_act", TOPK * 2 * 2 * WIDTH),
    ),
    offloaded_rest=2 * HIDDEN + TOPK * 2 * WIDTH,  # inputs of the router, and of the experts' second product
    launches=6 + 20,  # as a gated MLP; router, sorting and back, experts
    routed_bytes=TOPK * 2 * HIDDEN,
    flags=(
        "--hybrid-layer-pattern EE",
        "--num-experts 16",
        "--moe-router-topk 4",
        "--moe-ffn-hidden-size 200",
        "--moe-grouped-gemm",
    ),
)


def test_routed_experts() -> None:
    """Tokens go to four of sixteen experts; nothing is gathered over tensor ranks."""
    check(ROUTED, ONLY_ROUTED)


def test_shared_experts() -> None:
    """An MLP that every token passes beside the routed ones, split by tensor ranks, from the router's input."""
    shared = Counts(
        split=((2 * SHARED, HIDDEN), (HIDDEN, SHARED)),
        orthogonal=((2 * SHARED, HIDDEN), (HIDDEN, SHARED)),
        kept_split=2 * 2 * SHARED + 2 * SHARED,
        offloaded_rest=2 * 2 * SHARED + 2 * SHARED,
        gathered=HIDDEN,
        scattered=HIDDEN,
        collectives=2,
        gathered_again=(HIDDEN,),
        legal_tp=(1, 2, 4),
        flags=("--moe-shared-expert-intermediate-size 300",),
    )
    check(replace(ROUTED, moe_shared_expert_intermediate_size=SHARED), ONLY_ROUTED, shared)


def test_narrow_experts() -> None:
    """A projection to the experts' width and another back; copies travel, and are kept, at that width."""
    projections = ((LATENT, HIDDEN), (HIDDEN, LATENT))
    narrow = replace(
        ONLY_ROUTED,
        whole=(ROUTER, *projections),
        one_expert=((2 * WIDTH, LATENT), (LATENT, WIDTH)),
        orthogonal=(ROUTER, *projections),
        kept_whole=ONLY_ROUTED.kept_whole - TOPK * 2 * (HIDDEN - LATENT) + 2 * LATENT,
        routed_bytes=TOPK * 2 * LATENT,
        offloaded=tuple((dict(ONLY_ROUTED.offloaded) | {"expert_fc1": TOPK * 2 * LATENT}).items()),
        flags=("--moe-latent-size 128",),
    )
    check(replace(ROUTED, moe_latent_size=LATENT), narrow)
