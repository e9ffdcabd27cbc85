"""Rows of torchtitan's tables: what is modelled, and how it is described."""

from types import ModuleType

import pytest
from benchmark_modules import loaded
from factories import make_run

from pipette_opt.calibrate.cases import make_case
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import DEFAULT_STACK


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    """The module."""
    return loaded("titan_rows")


def titan(**changes: object) -> MeasuredRun:
    """FSDP on 16 H100."""
    fields: dict[str, object] = {
        "source": "torchtitan-benchmarks",
        "gpu": "H100-80GB",
        "model": "Llama-3.1-8B",
        "tp": 1,
        "pp": 1,
        "dp": 16,
        "zero_stage": 3,
        "notes": "FSDP + torch.compile",
    }
    return make_run(**(fields | changes))


def test_one_host_and_more(rows: ModuleType) -> None:
    """Eight GPUs are fitted to; other sources, asynchronous messages and scales by rows are left out."""
    runs = [
        titan(),
        titan(num_gpus=8, dp=8),
        titan(source="Korthikanti2022-Table5"),
        titan(notes="async TP"),
        titan(precision="fp8 rowwise"),
    ]
    seen, tested = rows.more_gpus(runs)
    assert [run.num_gpus for run in seen] == [8]
    assert tested == [titan()]


def test_eager_norms_are_not_fused(rows: ModuleType) -> None:
    """With ``torch.compile`` they are."""
    eager, compiled = (make_case(rows.described(titan(notes=notes)), DEFAULT_STACK) for notes in ("FSDP eager", "x"))
    assert not eager.instance.training.fused_norm
    assert compiled.instance.training.fused_norm


def test_one_scale_for_each_tensor_is_fp8(rows: ModuleType) -> None:
    """As the clock names it."""
    assert make_case(rows.described(titan(precision="fp8 tensorwise")), DEFAULT_STACK).instance.training.fp8
