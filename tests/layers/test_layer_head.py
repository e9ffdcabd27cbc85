"""Embeddings, head and multi-token prediction by hand, on two stages of a layer each, and on one stage."""

import shlex
from dataclasses import replace

import pytest
from factories import make_cluster, make_config, make_job
from layer_counts import (
    COMPUTE_ONLY,
    ELEMENT,
    NEWTON_SCHULZ,
    NO_OVERHEAD,
    PEAK,
    SEQUENCE,
    SUMMED_RATE,
    training,
)

from pipette_opt.costs.collectives import embedding_traffic, has_tied_stages
from pipette_opt.costs.compute import optimizer_stages_s, stage_compute
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model_words import model_options
from pipette_opt.specs import ModelSpec

HIDDEN, WIDTH, VOCABULARY = 512, 1000, 12800
TABLE = VOCABULARY * HIDDEN
LAYER = 3 * WIDTH * HIDDEN
"""Elements of the matrices of a layer, a gated MLP."""

UNTIED = ModelSpec(
    name="untied",
    num_layers=2,
    hidden_size=HIDDEN,
    ffn_hidden_size=WIDTH,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=32,
    vocab_size=VOCABULARY,
    max_position_embeddings=SEQUENCE,
    untie_embeddings_and_output_weights=True,
    hybrid_layer_pattern="--",
    gated_linear_unit=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="none",
)
TIED = replace(UNTIED, untie_embeddings_and_output_weights=False)
PREDICTING = replace(UNTIED, mtp_num_layers=1, mtp_layer_pattern="-")

PROJECTION = 2 * HIDDEN * HIDDEN
"""Elements of the matrix that a depth of prediction multiplies with the hidden state and the next embedding."""


def stages(pp: int, tp: int = 1) -> ParallelConfig:
    """Return a layer on each of ``pp`` stages, or both on one."""
    return make_config(tp=tp, pp=pp, num_layers=2, sequence_parallel=tp > 1)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("model", "pp", "first", "last"),
    [
        (UNTIED, 2, TABLE, TABLE),
        (TIED, 2, TABLE, TABLE),  # a copy on each of both stages
        (UNTIED, 1, 2 * TABLE, 0),
        (TIED, 1, TABLE, 0),
        # A depth looks tokens up, so the last stage has the embeddings as well; its projection, and its layer.
        (PREDICTING, 2, TABLE, 2 * TABLE + PROJECTION + LAYER),
        (PREDICTING, 1, 2 * TABLE + PROJECTION + LAYER, 0),
    ],
)
def test_parameters(model: ModelSpec, pp: int, tp: int, first: int, last: int) -> None:
    """Tables and matrices that tensor ranks split, and the vectors of norms, that they do not."""
    # A norm of each layer, and the last one. Of a depth: both inputs of the projection, its layer, its output.
    layers, ends = 2 // pp, HIDDEN + 4 * HIDDEN * model.mtp_num_layers
    expected = [(first + layers * LAYER) / tp + layers * HIDDEN, (last + layers * LAYER) / tp + layers * HIDDEN][:pp]
    expected[-1] += ends
    config = stages(pp, tp)
    assert stage_parameters(model, config).own == pytest.approx(expected)
    assert parameters(stage_table(model, training(), [config])) == pytest.approx(expected)
    if pp == tp == 1:
        assert model.num_parameters == sum(expected)


@pytest.mark.parametrize(
    ("model", "met"), [(UNTIED, TABLE), (TIED, TABLE), (PREDICTING, 2 * TABLE + PROJECTION + LAYER)]
)
def test_flops_and_seconds(model: ModelSpec, met: int) -> None:
    """Each matrix takes two FLOPs a token forward and four backward; looking a token up takes none."""
    assert model.flops_per_token(SEQUENCE) == 6 * (2 * LAYER + met)
    job = make_job(make_cluster(1, kinds=(COMPUTE_ONLY,)), model, seq_length=SEQUENCE)
    for tp in (1, 2):
        found = stage_compute(job, stages(2, tp), NO_OVERHEAD)
        products = SEQUENCE * 2 / PEAK / tp
        assert found.forward_s[0, 0] == pytest.approx([products * LAYER, products * (LAYER + met)], rel=1e-5)
        assert found.backward_s == pytest.approx(found.forward_s * (1 + 1 / SUMMED_RATE), rel=1e-5)


@pytest.mark.parametrize("tp", [1, 2])
def test_kept_bytes(tp: int) -> None:
    """
    A loss keeps the inputs of the last norm and of the head, the norm's statistic, and the logits in fp32.

    A depth keeps both inputs of its norms, both normed, the part of the tensor of all outputs, and two statistics.
    """
    loss = 2 * ELEMENT * HIDDEN + 4 + 4 * VOCABULARY
    depth = 5 * ELEMENT * HIDDEN + 2 * 4
    for model, expected in ((UNTIED, loss), (PREDICTING, 2 * loss + depth)):
        found = formula_bytes(stage_table(model, training(), [stages(2, tp)])).head
        assert found / SEQUENCE == pytest.approx([0, expected / tp])


def test_tied_gradients() -> None:
    """Both copies of a table are reduced in fp32 over two ranks, each of which sends all of it."""
    assert [has_tied_stages(model, stages(2)) for model in (UNTIED, TIED, PREDICTING)] == [False, True, True]
    assert not has_tied_stages(TIED, stages(1))
    assert embedding_traffic(TIED, training(), stages(2, tp=2)).hop_bytes == 4 * TABLE / 2


def test_muon() -> None:
    """Adam updates both tables; of the last stage, Muon updates the layers and the projection of a depth."""
    layer = 4 * HIDDEN**2 * (2 * WIDTH) + 2 * HIDDEN**3 + 4 * HIDDEN**2 * WIDTH + 2 * HIDDEN**3
    projection = 4 * HIDDEN**2 * (2 * HIDDEN) + 2 * HIDDEN**3
    job = make_job(make_cluster(1, kinds=(COMPUTE_ONLY,)), PREDICTING, seq_length=SEQUENCE, stack=NO_OVERHEAD)
    (found,) = optimizer_stages_s(replace(job, training=training(optimizer="muon")), stages(2))
    expected = [layer, 2 * layer + projection]
    assert found == pytest.approx([NEWTON_SCHULZ * flops / PEAK for flops in expected], rel=1e-5)


@pytest.mark.parametrize(
    ("model", "flag", "is_there"),
    [
        (UNTIED, "--untie-embeddings-and-output-weights", True),
        (TIED, "--untie-embeddings-and-output-weights", False),
        (PREDICTING, "--mtp-num-layers 1", True),
        (PREDICTING, "--hybrid-layer-pattern=--/-", True),
    ],
)
def test_flags(model: ModelSpec, flag: str, is_there: bool) -> None:
    """Options of Megatron-LM, and the model that is read from them."""
    options = model_options(model, training())
    assert (flag in [" ".join(words) for words in options]) is is_there
    read = parse_megatron_args(shlex.join(word for option in options for word in option)).model
    assert read == replace(model, name="megatron")
