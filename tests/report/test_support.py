"""What is known of a model on a GPU: measured, interpolated, assumed, tested here, elsewhere, nowhere."""

import pytest

from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.model import read_model
from pipette_opt.read.stack import read_stack
from pipette_opt.report.support import Support, support_of


def known(model: str, gpu: str) -> Support:
    """By the shipped tables."""
    return support_of(model, read_model(model), read_gpu_entry(gpu, "here"), read_stack())


def test_tested_here() -> None:
    """Runs of the model on the GPU come first, with their error."""
    found = known("llama-3.1-8b", "h100")
    assert {one.gpu for one in found.tested} == {"h100-80gb"}
    assert "h100-80gb" not in {one.gpu for one in found.elsewhere}
    assert f"{sum(one.runs for one in found.tested)} public runs" in found.verdict
    assert found.formats["bf16"] == "measured"
    assert "nvfp4" not in found.formats
    assert found.layers == {"attention, dense MLP": 32}


@pytest.mark.search
@pytest.mark.parametrize(
    ("model", "gpu", "said"),
    [
        ("llama-3-70b", "vr200", "never tested; "),
        ("gemma-3-27b", "mi325x", "never tested; no public run like it; rates of products on mi325x are assumed"),
    ],
)
def test_never_tested(model: str, gpu: str, said: str) -> None:
    """Elsewhere only, or nowhere."""
    found = known(model, gpu)
    assert found.tested == ()
    assert said in found.verdict
    assert all(origin.startswith("assumed") for origin in found.formats.values())


@pytest.mark.search
def test_parts_that_are_not_counted_are_named() -> None:
    """Kinds of layers by number, and what the model has beside."""
    found = known("nemotron-h-8b", "gb300")
    assert sum(found.layers.values()) == 52
    assert found.not_modelled
    assert found.formats["fp8 mxfp8"] == "interpolated (kernels of gb200)"
