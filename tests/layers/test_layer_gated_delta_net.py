"""Gated delta net by hand (arXiv 2412.06464, section 3.3; ``core/ssm/gated_delta_net.py`` of Megatron-Core)."""

from layer_counts import SEQUENCE, Counts, check

from pipette_opt.specs import GatedDeltaNet, ModelSpec

HIDDEN, KEY_HEADS, VALUE_HEADS, KEY, VALUE, WINDOW = 512, 4, 8, 32, 48, 4
KEYS, VALUES = KEY_HEADS * KEY, VALUE_HEADS * VALUE
REPEATED = VALUE_HEADS * KEY
"""Channels of queries, and of keys, repeated for every head of values."""

CONVOLVED = 2 * KEYS + VALUES
CHUNK = 64
SCAN_SHARE, SCAN_BACKWARD = 0.3, 3.0
"""Share of the peak that the scan attains, and its backward over its forward time (``costs/scan.py``)."""

INTO, OUT = (CONVOLVED + VALUES + 2 * VALUE_HEADS, HIDDEN), (HIDDEN, VALUES)
"""Queries, keys, values, gate, decay and step of each head of values; output product."""

DELTA = Counts(
    split=(INTO, OUT),
    orthogonal=(INTO, OUT),
    split_vectors=CONVOLVED * WINDOW + 2 * VALUE_HEADS,  # convolution without bias; step bias and decay
    whole_vectors=HIDDEN + VALUE,  # the norm, and the gated norm that all heads share
    # In a chunk: keys by keys, queries by keys, the triangular system solved for keys and for values, scores by values.
    # Between chunks: states are read for keys and for queries, and written.
    core_flops=2 * CHUNK * (3 * REPEATED + 2 * VALUES) + 3 * 2 * KEY * VALUES,
    core_s=(1 / SCAN_SHARE, SCAN_BACKWARD / SCAN_SHARE),
    # Convolution; decay, delta, update and query of the state.
    model_flops=6 * (CONVOLVED * WINDOW + 4 * KEY * VALUES),
    # Outputs of the first product and of the convolution; repeated queries and keys; a row of each chunk's triangle;
    # outputs of the scan and of the gated norm; decay and step in fp32.
    kept_split=2 * (CONVOLVED + VALUES + 2 * VALUE_HEADS)
    + 2 * CONVOLVED
    + 2 * 2 * REPEATED
    + 2 * VALUE_HEADS * CHUNK
    + 2 * 2 * VALUES
    + 4 * 2 * VALUE_HEADS,
    # Inputs of the norm and of the product, and the norm's statistic in fp32.
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 4,
    gathered=HIDDEN,
    scattered=HIDDEN,
    collectives=2,
    gathered_again=(HIDDEN,),
    launches=4 + 4 + 8,  # as Mamba; queries and keys split and repeated
    legal_tp=(1, 2, 4),  # four heads of keys
    legal_cp=(),  # not modelled
    flags=(
        "--hybrid-layer-pattern GG",
        "--linear-num-key-heads 4",
        "--linear-num-value-heads 8",
        "--linear-key-head-dim 32",
        "--linear-value-head-dim 48",
        "--linear-conv-kernel-dim 4",
    ),
)


def test_gated_delta_net() -> None:
    """Two heads of values for each head of keys."""
    model = ModelSpec(
        name="delta",
        num_layers=2,
        hidden_size=HIDDEN,
        ffn_hidden_size=1600,
        num_attention_heads=16,
        num_query_groups=16,
        kv_channels=32,
        vocab_size=12800,
        max_position_embeddings=SEQUENCE,
        untie_embeddings_and_output_weights=True,
        hybrid_layer_pattern="GG",
        gated_delta_net=GatedDeltaNet(
            conv_kernel_dim=WINDOW,
            key_head_dim=KEY,
            value_head_dim=VALUE,
            num_key_heads=KEY_HEADS,
            num_value_heads=VALUE_HEADS,
        ),
        add_bias_linear=False,
        add_qkv_bias=False,
        normalization="RMSNorm",
        position_embedding_type="none",
    )
    check(model, DELTA)
