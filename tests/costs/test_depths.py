"""Multi-token prediction: its time, weights and memory on the last stage, by hand."""

from dataclasses import replace
from typing import Any

import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job, plan_of

from pipette_opt.base.errors import InputError
from pipette_opt.costs.compute import layer_times_s, stage_compute
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.memory.formula import parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.specs import ModelSpec, TrainingSpec

PLAIN = replace(LLAMA_8B, num_layers=8)
TWO = replace(PLAIN, mtp_num_layers=2)
SHARED = replace(TWO, mtp_use_repeated_layer=True)
EXPERTS = replace(TWO, num_experts=8, num_dense_layers=2, moe_ffn_hidden_size=1024)
TRAINING = TrainingSpec(global_batch_size=64, seq_length=1024)
LAYER = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336 + 2 * 4096
"""Parameters of a layer: query and output, key and value, MLP, two norms."""


def split(**options: Any) -> ParallelConfig:
    """Eight layers on four stages of two tensor ranks."""
    given = {"tp": 2, "pp": 4, "dp": 1, "num_layers": 8, "sequence_parallel": True}
    return make_config(**{**given, **options})


def test_weights_on_the_last_stage() -> None:
    """A layer, a projection of twice the width and three norms for each depth, and embeddings to look tokens up in."""
    one = split()
    found = stage_parameters(TWO, one).own - stage_parameters(PLAIN, one).own
    table = 128256 * 4096 / 2
    depth = (LAYER - 2 * 4096) / 2 + 2 * 4096 + 2 * 4096**2 / 2 + 3 * 4096
    assert found.tolist() == pytest.approx([0, 0, 0, 2 * depth + table])
    shared = stage_parameters(SHARED, one).own - stage_parameters(PLAIN, one).own
    assert shared.tolist() == pytest.approx([0, 0, 0, depth + table])
    for model in (TWO, SHARED):
        assert parameters(stage_table(model, TRAINING, [one])).tolist() == pytest.approx(
            stage_parameters(model, one).own
        )


def test_experts_of_depths() -> None:
    """The layer of a depth is like the last one of the model, so it has experts."""
    held = stage_parameters(EXPERTS, split(expert_model_parallel_size=2, expert_tensor_parallel_size=1)).experts
    layer = 8 * 3 * 4096 * 1024 / 2
    assert held.tolist() == pytest.approx([0, 2 * layer, 2 * layer, 4 * layer])


def test_recomputed_layers() -> None:
    """Full recomputation brings layers of depths back, too; blocks leave them as they are."""
    given = make_job(make_cluster(1), TWO, seq_length=1024)
    whole, block = (
        split(recompute_granularity="full", recompute_method=method, recompute_num_layers=1)
        for method in ("uniform", "block")
    )
    layer = [sum(layer_times_s(given, one, A100_80)) for one in (split(), whole)]
    last = [
        float((found.forward_s + found.backward_s)[0, 0, -1])
        for found in (stage_compute(given, one) for one in (split(), whole, block))
    ]
    assert last[1] - last[0] == pytest.approx(4 * (layer[1] - layer[0]))
    assert last[2] - last[0] == pytest.approx(layer[1] - layer[0])


def test_arguments_say_where_heads_are() -> None:
    """A split that only a layout can say has an ``m`` for each depth, and is read back."""
    given = make_job(make_cluster(1), TWO, seq_length=1024)
    one = split(layers_per_stage=(3, 2, 2, 1))
    uneven = replace(one, layers_per_stage=(2, 3, 2, 1))
    for chosen, said in ((one, "--decoder-first-pipeline-num-layers 3"), (uneven, "Ett|t*3|tt|tmmL")):
        plan = plan_of(given, chosen, (0,), stages_per_host=4)
        words = " ".join(megatron_arguments(plan))
        assert said in words.replace("'", "") or said.replace("tt", "t*2").replace("mm", "m*2") in words
        found = parse_megatron_args(words.replace("|", "\\|").replace("(", "\\(").replace(")", "\\)"))
        assert isinstance(found.model, ModelSpec)
        assert found.model.mtp_num_layers == 2
        assert found.parallel_config(8, 8).layers_per_stage == chosen.layers_per_stage


HYBRID = (
    "--num-layers 6 --hidden-size 256 --num-attention-heads 8 --ffn-hidden-size 512 --vocab-size 1024 "
    "--mamba-head-dim 32 --max-position-embeddings 1024 --position-embedding-type none --disable-bias-linear "
    "--normalization RMSNorm "
    "--hidden-dropout 0 --attention-dropout 0 --num-experts 4 --moe-ffn-hidden-size 128 --bf16 "
    "--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 8 --seq-length 1024 "
)


def test_depths_of_hybrids_have_a_pattern() -> None:
    """Attention and experts after each slash; shared weights count once, bars cut the layers before."""
    args = parse_megatron_args(
        f"{HYBRID} --mtp-num-layers 2 --mtp-use-repeated-layer --hybrid-layer-pattern 'ME*|MEM/*E/*E' "
        "--pipeline-model-parallel-size 2"
    )
    model = args.model
    assert model is not None
    assert [kind.mixer for kind in model.mtp_layers] == ["attention", "none"]
    one = args.parallel_config(6, 8)
    assert one.layers_per_stage == (3, 3)
    plain = replace(model, mtp_num_layers=0, mtp_layer_pattern=None, mtp_use_repeated_layer=False)
    depth = sum(layer_parameters(model, kind).total for kind in model.mtp_layers) + 2 * 256**2 + 3 * 256
    assert model.num_parameters - plain.num_parameters == depth
    found = [parameters(stage_table(which, TRAINING, [one])) for which in (plain, model)]
    assert (found[1] - found[0]).tolist() == pytest.approx([0, depth + 1024 * 256])
    given = make_job(make_cluster(1), model, seq_length=1024)
    before, after = (stage_compute(replace(given, model=which), one) for which in (plain, model))
    more = (after.forward_s - before.forward_s)[0, 0]
    layers = sum(layer_times_s(given, one, A100_80, kind=kind)[0] for kind in model.mtp_layers)
    assert more[0] == 0
    assert more[1] > 2 * layers


def test_positions_that_megatron_refuses() -> None:
    """Multi-token prediction needs rotary positions, or none (``validate_args``)."""
    with pytest.raises(ValueError, match="mtp_num_layers=2 needs position_embedding_type rope or none"):
        replace(TWO, position_embedding_type="learned_absolute", rotary_base=10000, rope_scaling_factor=None)
    with pytest.raises(ValueError, match="mtp_use_repeated_layer=True needs mtp_num_layers"):
        replace(PLAIN, mtp_use_repeated_layer=True)
    with pytest.raises(ValueError, match="mtp_layer_pattern must be given if and only if a hybrid has mtp_num_layers"):
        replace(TWO, mtp_layer_pattern="*")


@pytest.mark.parametrize(
    ("pattern", "depths", "message"),
    [
        ("ME*MEM/*E/E*", 2, r"must have equal layers after each /, got \*E E\*"),
        ("ME*MEM/*-", 1, "mtp_layer_pattern must be of letters that hybrid_layer_pattern has, got '\\*-'"),
    ],
)
def test_wrong_patterns_of_depths(pattern: str, depths: int, message: str) -> None:
    """As many as are said, all alike, of kinds that the model has."""
    with pytest.raises(InputError, match=message):
        parse_megatron_args(f"{HYBRID} --mtp-num-layers {depths} --hybrid-layer-pattern '{pattern}'")
