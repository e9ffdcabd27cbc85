"""Recipes of products in fewer than 16 bits: bytes by hand, and what excludes what."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import check_legal
from pipette_opt.costs.collectives import parameter_traffic
from pipette_opt.costs.compute import layer_times_s, optimizer_time_s
from pipette_opt.costs.products import linear_format
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.read.gpus import read_gpu
from pipette_opt.specs import DEFAULT_STACK, TrainingSpec
from pipette_opt.specs.precision import fp8_copies

BF16 = TrainingSpec(global_batch_size=64, seq_length=4096)
RECIPES = {
    "delayed": replace(BF16, fp8=True),
    "tensorwise": replace(BF16, fp8=True, fp8_recipe="tensorwise"),
    "blockwise": replace(BF16, fp8=True, fp8_recipe="blockwise"),
    "mxfp8": replace(BF16, fp8=True, fp8_recipe="mxfp8"),
    "nvfp4": replace(BF16, fp4=True),
}
ELEMENT = {"delayed": 1, "tensorwise": 1, "blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
SPLIT = make_config(tp=2, dp=4, num_layers=32, use_distributed_optimizer=True)


@pytest.mark.parametrize("name", RECIPES)
def test_bytes_of_weights(name: str) -> None:
    """bf16 and two copies of each matrix; with the parameter gather the copies alone."""
    whole, matrices = stage_parameters(LLAMA_8B, SPLIT).own[0], 32 * (4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)) / 2
    both, alone = (
        formula_bytes(stage_table(LLAMA_8B, one, [SPLIT])).weights[0]
        for one in (RECIPES[name], replace(RECIPES[name], fp8_param_gather=True))
    )
    assert both == pytest.approx(2 * whole + 2 * ELEMENT[name] * matrices)
    assert alone == pytest.approx(2 * (whole - matrices) + 2 * ELEMENT[name] * matrices)


@pytest.mark.parametrize(
    ("name", "gathered"), [("delayed", 1), ("tensorwise", 1), ("blockwise", 1), ("mxfp8", 2), ("nvfp4", 0.5625)]
)
def test_bytes_of_the_parameter_gather(name: str, gathered: float) -> None:
    """Matrices in the recipe's format, the vocabulary in 16 bits; MXFP8 gathers 16 bits and casts both ways."""
    given = replace(RECIPES[name], fp8_param_gather=True)
    whole, matrices = stage_parameters(LLAMA_8B, SPLIT).own[0], stage_parameters(LLAMA_8B, SPLIT).matrices[0]
    (ring,) = parameter_traffic(LLAMA_8B, given, SPLIT)
    assert ring.hop_bytes == pytest.approx(3 / 4 * (2 * (whole - matrices) + gathered * matrices))
    (plain,) = parameter_traffic(LLAMA_8B, RECIPES[name], SPLIT)
    assert plain.hop_bytes == pytest.approx(3 / 4 * 2 * whole)


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("a100-80gb", []),
        ("l40s", ["delayed", "tensorwise"]),
        ("h100-80gb", ["delayed", "tensorwise", "blockwise"]),
        ("b200", [*RECIPES]),
        ("gb300", [*RECIPES]),
    ],
)
def test_gpus_have_the_formats_that_they_have(gpu: str, names: list[str]) -> None:
    """Others are refused, with what there is."""
    for name, training in RECIPES.items():
        if name in names:
            assert linear_format(read_gpu(gpu), training, DEFAULT_STACK).operand_bytes == ELEMENT[name]
        else:
            with pytest.raises(InputError, match=f"is not a precision of {gpu}"):
                linear_format(read_gpu(gpu), training, DEFAULT_STACK)


def test_narrower_is_faster_where_products_are_large() -> None:
    """On B200, a layer of 16,384 wide MLPs: bf16, then fp8, then nvfp4; a search for scales costs a pass."""
    gpu, wide = read_gpu("b200"), replace(LLAMA_8B, hidden_size=16384, ffn_hidden_size=65536)
    seconds = {
        name: sum(
            layer_times_s(replace(make_job(make_cluster(1), wide), training=one), make_config(num_layers=32), gpu)
        )
        for name, one in {"bf16": BF16, **RECIPES}.items()
    }
    assert seconds["nvfp4"] < seconds["delayed"] < seconds["tensorwise"] < seconds["bf16"]
    assert seconds["nvfp4"] < seconds["mxfp8"] < seconds["bf16"]


def test_casts_of_weights_are_shared_by_replicas_that_gather_them() -> None:
    """With fp8 gathered each rank casts what it owns, a quarter here; with MXFP8 all."""
    job = make_job(make_cluster(1), LLAMA_8B)
    b200 = read_gpu("b200")
    saved = {}
    for name in ("delayed", "mxfp8"):
        both, alone = (
            optimizer_time_s(replace(job, training=one), SPLIT, b200)
            for one in (RECIPES[name], replace(RECIPES[name], fp8_param_gather=True))
        )
        saved[name] = both - alone
    owned = stage_parameters(LLAMA_8B, SPLIT).own[0] / 4
    moved = 4 * (stage_parameters(LLAMA_8B, SPLIT).matrices[0] - owned)
    assert saved["delayed"] == pytest.approx(moved / (b200.memory_bytes_per_s * DEFAULT_STACK.streaming))
    assert saved["mxfp8"] == 0.0


def test_blocks_of_mxfp8_have_32_elements() -> None:
    """Sizes of 16 are legal with one scale a tensor, and not with MXFP8."""
    narrow = replace(LLAMA_8B, ffn_hidden_size=14336 + 16)
    assert check_legal(narrow, RECIPES["tensorwise"], make_config(num_layers=32)) == []
    (reason,) = check_legal(narrow, RECIPES["mxfp8"], make_config(num_layers=32))
    assert reason == "mxfp8 needs multiples of 32, and ffn_hidden_size on a rank is 14352"


@pytest.mark.parametrize(
    ("fields", "state", "step"),
    [
        ({}, 12, 0),
        ({"use_precision_aware_optimizer": True}, 10, 0),
        ({"use_precision_aware_optimizer": True, "accumulate_allreduce_grads_in_fp32": False}, 10, 0),
        ({"accumulate_allreduce_grads_in_fp32": False}, 12, 4),
        ({"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}, 6, 8),
        ({"use_precision_aware_optimizer": True, "fp8": True}, 10, 0),
        ({"use_precision_aware_optimizer": True, "fp8": True, "fp8_recipe": "mxfp8"}, 12, 0),
        ({"use_precision_aware_optimizer": True, "main_params_dtype": "fp16"}, 10, 4),
    ],
)
def test_bytes_of_optimizer_states(fields: dict[str, object], state: int, step: int) -> None:
    """Adam keeps the 16 bits that bf16 lacks of a master, unless Megatron-Core keeps masters (scales of the tensor)."""
    given = replace(BF16, **fields)  # type: ignore[arg-type]
    assert (given.optimizer_bytes, given.step_bytes) == (state, step)


def test_transposed_copies_are_not_on_every_gpu() -> None:
    """Blackwell's products take operands in any layout: one copy of a matrix with one scale, and a cheaper cast."""
    assert fp8_copies([read_gpu("h100-80gb").peak_flops]) == 2
    assert fp8_copies([read_gpu("b200").peak_flops]) == 1
    assert fp8_copies([read_gpu("b200").peak_flops, read_gpu("h100-80gb").peak_flops]) == 2
    for name, saved in (("delayed", 1), ("mxfp8", 0)):
        two, one = (replace(RECIPES[name], fp8_param_gather=True, fp8_copies=number) for number in (2, 1))
        assert one.recipe is not None
        assert two.recipe is not None
        assert two.recipe.cast_bytes - one.recipe.cast_bytes == saved
        both, alone = (formula_bytes(stage_table(LLAMA_8B, given, [SPLIT])).weights[0] for given in (two, one))
        assert both - alone == pytest.approx(saved * stage_parameters(LLAMA_8B, SPLIT).matrices[0])
