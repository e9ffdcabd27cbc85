"""Mamba-2 by hand (arXiv 2405.21060, section 6; ``core/ssm/mamba_mixer.py`` of Megatron-Core)."""

from layer_counts import SEQUENCE, Counts, check

from pipette_opt.specs import Mamba, ModelSpec

HIDDEN, HEADS, CHANNELS, GROUPS, STATE, WINDOW = 512, 24, 32, 8, 64, 4
INNER, STATES = HEADS * CHANNELS, GROUPS * STATE
CONVOLVED = INNER + 2 * STATES
CHUNK = 128
SCAN_SHARE, SCAN_BACKWARD = 0.3, 3.0
"""Share of the peak that the scan attains, and its backward over its forward time (``costs/scan.py``)."""

INTO, OUT = (INNER + CONVOLVED + HEADS, HIDDEN), (HIDDEN, INNER)
"""Gate, values with both state projections, step size of each head; output product."""

MAMBA = Counts(
    split=(INTO, OUT),
    orthogonal=(INTO, OUT),
    # Convolution with bias; step bias, decay and skip of each head; the gated norm.
    split_vectors=CONVOLVED * WINDOW + CONVOLVED + 3 * HEADS + INNER,
    whole_vectors=HIDDEN,  # the norm
    # In a chunk: scores of each group, their product with the values. Between chunks: states written, and read.
    core_flops=2 * CHUNK * STATES + 2 * CHUNK * INNER + 2 * STATE * INNER + 2 * STATE * INNER,
    core_s=(1 / SCAN_SHARE, SCAN_BACKWARD / SCAN_SHARE),
    # Convolution, and Megatron-LM's count of the recurrence: 7 for each channel and state, forward.
    model_flops=3 * (2 * CONVOLVED * WINDOW + 7 * INNER * STATE),
    # Outputs of the first product, of the scan and of the gated norm.
    kept_split=2 * (INNER + CONVOLVED + HEADS) + 2 * INNER + 2 * INNER,
    # Inputs of the norm and of the product, and the norm's statistic in fp32.
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 4,
    gathered=HIDDEN,
    scattered=HIDDEN,
    collectives=2,
    gathered_again=(HIDDEN,),
    launches=4 + 8,  # norm, two products, addition; convolution, scan and gated norm
    legal_tp=(1, 2, 4, 8),  # eight groups
    legal_cp=(),  # not modelled
    flags=(
        "--hybrid-layer-pattern MM",
        "--mamba-state-dim 64",
        "--mamba-head-dim 32",
        "--mamba-num-groups 8",
        "--mamba-num-heads 24",
    ),
)


def test_mamba() -> None:
    """24 heads in eight groups, wider together than the hidden size."""
    model = ModelSpec(
        name="mamba",
        num_layers=2,
        hidden_size=HIDDEN,
        ffn_hidden_size=1600,
        num_attention_heads=16,
        num_query_groups=16,
        kv_channels=32,
        vocab_size=12800,
        max_position_embeddings=SEQUENCE,
        untie_embeddings_and_output_weights=True,
        hybrid_layer_pattern="MM",
        mamba=Mamba(state_dim=STATE, head_dim=CHANNELS, num_groups=GROUPS, num_heads=HEADS, conv_kernel_dim=WINDOW),
        add_bias_linear=False,
        add_qkv_bias=False,
        normalization="RMSNorm",
        position_embedding_type="none",
    )
    check(model, MAMBA)
