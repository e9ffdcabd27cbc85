"""Dense MLPs by hand: gated without biases, and plain with biases; and a layer of attention and an MLP."""

from dataclasses import replace

from layer_counts import SEQUENCE, Counts, check, gated_mlp

from pipette_opt.specs import ModelSpec

HIDDEN, WIDTH = 512, 1000

GATED = ModelSpec(
    name="gated",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=WIDTH,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=32,
    vocab_size=12800,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    hybrid_layer_pattern="--",
    gated_linear_unit=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
)
"""Layers of an MLP alone."""

LEGAL_TP = (1, 2, 4, 8)
"""16 tensor ranks do not divide the width."""

PLAIN = Counts(
    split=((WIDTH, HIDDEN), (HIDDEN, WIDTH)),
    orthogonal=((WIDTH, HIDDEN), (HIDDEN, WIDTH)),
    split_vectors=WIDTH,  # bias of the first product
    whole_vectors=2 * HIDDEN + HIDDEN,  # weight and bias of the norm; bias of the second product
    # Input and output of the activation.
    kept_split=2 * WIDTH + 2 * WIDTH,
    # Inputs of the norm and of the product, and the norm's mean and deviation in fp32.
    kept_whole=2 * HIDDEN + 2 * HIDDEN + 2 * 4,
    offloaded_rest=2 * HIDDEN + 2 * HIDDEN + 2 * WIDTH + 2 * WIDTH,
    gathered=HIDDEN,
    scattered=HIDDEN,
    collectives=2,
    gathered_again=(HIDDEN,),
    launches=4,  # norm, two products, activation
    legal_tp=LEGAL_TP,
    flags=("--ffn-hidden-size 1000",),
)


def test_gated() -> None:
    """Gate and value are one product; the activation makes one tensor of both."""
    check(GATED, replace(gated_mlp(HIDDEN, WIDTH), legal_tp=LEGAL_TP))


def test_plain_with_biases() -> None:
    """The MLP of GPT."""
    plain = replace(
        GATED,
        gated_linear_unit=False,
        add_bias_linear=True,
        add_qkv_bias=True,
        normalization="LayerNorm",
        position_embedding_type="learned_absolute",
    )
    check(plain, PLAIN)


def test_squared_relu() -> None:
    """Another activation, no biases: as many matrices, kernels and kept tensors."""
    squared = replace(
        PLAIN,
        split_vectors=0,
        whole_vectors=HIDDEN,
        kept_whole=2 * HIDDEN + 2 * HIDDEN + 4,
        flags=("--squared-relu",),
    )
    check(replace(GATED, gated_linear_unit=False, activation_func="squared_relu"), squared)
