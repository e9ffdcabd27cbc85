"""The least time of a measured run."""

from dataclasses import replace

import pytest
from factories import make_run

from pipette_opt.base.errors import InputError
from pipette_opt.read.run_bounds import OF_A_LOG, check_time, least_time_s, peak_of
from pipette_opt.read.runs import MeasuredRun


def llama(**changes: object) -> MeasuredRun:
    """A Llama of 13 billion parameters on 128 H100, 1,024 sequences of 2,048 tokens."""
    fields: dict[str, object] = {
        "gpu": "h100-80gb",
        "num_gpus": 128,
        "model": "llama-2-13b",
        "num_layers": 40,
        "hidden": 5120,
        "ffn_hidden": 13824,
        "heads": 40,
        "kv_heads": 40,
        "vocab": 32000,
        "gbs": 1024,
        "mbs": 2,
        "tp": 2,
        "pp": 1,
        "dp": 64,
    }
    return make_run(**fields | changes)


def test_the_bound_counts_all_matrices_and_causal_attention() -> None:
    """By hand: four matrices of attention, three of a gated MLP, the head; half the scores; six FLOPs each."""
    weights = 40 * (4 * 5120**2 + 3 * 5120 * 13824) + 5120 * 32000
    scores = 40 * 12 * 5120 * 2048 / 2
    flops = 1024 * 2048 * (6 * weights + scores)
    assert least_time_s(llama()) == pytest.approx(flops / (128 * 989.4e12))


@pytest.mark.parametrize("precision", ["", "bf16", "fp16", "fp32", "fp8", "fp8-mx"])
def test_the_edge_is_exact(precision: str) -> None:
    """A time just above the bound is read, one just below it is refused, in the row's own format."""
    run = llama(precision=precision)
    bound_s = least_time_s(run)
    assert bound_s is not None
    check_time("row", replace(run, iter_time_s=bound_s))
    with pytest.raises(InputError, match=f"need {bound_s:.4g} s"):
        check_time("row", replace(run, iter_time_s=bound_s * (1 - 1e-9)))


def test_a_bf16_row_has_the_peak_of_bf16() -> None:
    """The peak of fp8 is no bound of a bf16 row; fp32 may run as tf32."""
    found = {word: peak_of(llama(precision=word))[0] for word in ("", "bf16", "fp16", "fp32", "fp8")}
    assert found == {"": "bf16", "bf16": "bf16", "fp16": "fp16", "fp32": "tf32", "fp8": "fp8"}
    assert peak_of(llama(gpu="v100-32gb", precision="bf16"))[0] == "fp16"


def test_the_columns_to_check_are_named() -> None:
    """In one line; of a log, its times and its GPU."""
    for source, said in (("paper", "check iter_time_s (seconds of one iteration), gbs"), (OF_A_LOG, "check the times")):
        with pytest.raises(InputError) as caught:
            check_time("row", llama(iter_time_s=0.4, source=source))
        assert said in caught.value.problem
        assert "\n" not in caught.value.problem


@pytest.mark.parametrize("unknown", ["gpu", "num_layers", "hidden", "seq_len", "gbs"])
def test_what_a_row_leaves_open_bounds_nothing(unknown: str) -> None:
    """Without model, batch or GPU there is no bound; without heads there is still."""
    assert least_time_s(llama(**{"model": "our llama", unknown: "TPU" if unknown == "gpu" else None})) is None
    assert least_time_s(llama(heads=None)) == least_time_s(llama())
