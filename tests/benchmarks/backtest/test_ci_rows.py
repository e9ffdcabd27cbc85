"""Rows of Megatron-LM's functional tests: flags in notes as columns, and halves of layouts."""

from types import ModuleType

import pytest
from benchmark_modules import loaded
from factories import make_run

from pipette_opt.calibrate.cases import Case, make_case
from pipette_opt.specs import DEFAULT_STACK


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    """The module."""
    return loaded("ci_rows")


def small(notes: str = "env dev; flags deterministic-mode", **changes: object) -> object:
    """A test of the small model."""
    fields = {"hidden": 512, "num_layers": 12, "heads": 8, "kv_heads": 8, "ffn_hidden": 2048, "notes": notes}
    return make_run(**(fields | changes))


def test_flags_become_columns(rows: ModuleType) -> None:
    """Embeddings are tied unless untied, SwiGLU is gated, the version is the environment's."""
    plain = rows.with_flags(small())
    assert (plain.cells["tied_embeddings"], plain.cells["gated_linear_unit"]) == ("true", "false")
    assert (plain.cells["stack_version"], plain.model) == ("dev", "12 layers, 512 wide")
    other = rows.with_flags(small("env lts; flags untie-embeddings-and-output-weights,swiglu"))
    assert (other.cells["tied_embeddings"], other.cells["gated_linear_unit"]) == ("false", "true")
    assert other.cells["stack_version"] == "lts"
    again = rows.with_flags(small(recompute="full uniform 1"))
    assert again.launch.recompute_granularity == "full"


def test_experts(rows: ModuleType) -> None:
    """One of them for each token, or two by the test's name."""
    job = {"num_gpus": 4, "tp": 1, "pp": 1, "dp": 4, "n_experts": "8.0", "ep": "2"}
    row = rows.with_flags(small(**job))
    assert (row.model, row.cells["moe_router_topk"]) == ("12 layers, 512 wide, 8 experts", "1")
    made = make_case(row, DEFAULT_STACK)
    assert isinstance(made, Case)
    assert made.instance.model.num_experts == 8
    assert rows.with_flags(small(**job, model="te_top2router")).cells["moe_router_topk"] == "2"


@pytest.mark.parametrize(
    "flag",
    [
        "use-megatron-fsdp",
        "multi-latent-attention",
        "decoder-first-pipeline-num-layers=2",
        "account-for-embedding-in-pipeline-split",
    ],
)
def test_what_is_not_modelled_is_left_out(rows: ModuleType, flag: str) -> None:
    """Rather than predicted as something else."""
    assert rows.with_flags(small(f"env dev; flags swiglu,{flag}")) is None


def test_layouts_are_halved(rows: ModuleType) -> None:
    """Both versions of a layout are fitted, or both are tested; larger models are neither."""
    runs = [
        small(f"env {version}; flags deterministic-mode", mbs=mbs, tp=tp, pp=2, dp=16 // tp // 2)
        for version in ("dev", "lts")
        for tp in (1, 2, 4, 8)
        for mbs in (1, 2)
    ]
    seen, tested = rows.small_models([*runs, make_run(notes="env dev")])
    assert len(seen) == len(tested) == 8
    assert not {run.cells["tp"] for run in seen} & {run.cells["tp"] for run in tested}


def test_larger_models_need_a_batch(rows: ModuleType) -> None:
    """Nothing is fitted to; without a batch a row tells too little."""
    large = make_run(notes="env dev")
    seen, tested = rows.large_models([large, make_run(notes="env dev", gbs=None), small()])
    assert not seen
    assert [run.model for run in tested] == ["24 layers, 2048 wide"]
