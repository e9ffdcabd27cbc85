"""What the constants are fitted with is what the clock computes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from benchmark_modules import loaded
from factories import LLAMA_8B, make_config

from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.products import linear_format, matmul_time_s
from pipette_opt.read.gpus import read_gpu
from pipette_opt.specs import DEFAULT_STACK, LayerKind, TrainingSpec


@pytest.mark.parametrize(("gpu", "dtype"), [("a100-80gb", "bf16"), ("h100-80gb", "fp8"), ("gb200", "bf16")])
def test_products(gpu: str, dtype: str) -> None:
    """For small and large shapes; casts of fp8 come on top in the fit, and are another term of the clock."""
    spec, training = read_gpu(gpu), TrainingSpec(global_batch_size=8, seq_length=4096, fp8=dtype == "fp8")
    law = spec.efficiency.narrow if training.fp8 else spec.efficiency.wide
    shapes = [(128, 512, 512), (4096, 8192, 1024), (32768, 28672, 8192)]
    rows = pd.DataFrame(shapes, columns=["m", "n", "k"])
    constants = np.array([law.share, law.half_inner, law.half_result, law.start_s, 0.0])
    fitted = loaded("fit", "silicon").product_s(constants, rows, gpu, dtype)
    form = linear_format(spec, training, DEFAULT_STACK)
    assert fitted == pytest.approx([matmul_time_s(*one, form=form, gpu=spec, rates=DEFAULT_STACK) for one in shapes])


def test_attention() -> None:
    """A whole micro-batch of Llama's heads on one rank."""
    spec, training = read_gpu("h100-80gb"), TrainingSpec(global_batch_size=8, seq_length=4096)
    law = spec.efficiency.attention
    names = ["batch", "seq", "heads", "kv_heads", "head_dim"]
    rows = pd.DataFrame([(1, 4096, 32, 8, 128)], columns=names)
    fitted = loaded("fit", "silicon").attention_s(
        np.array([law.half_seq, law.start_s, law.share(128)]), rows, "h100-80gb", [128]
    )
    forward, backward = attention_times_s(
        LLAMA_8B, training, make_config(num_layers=32), spec, DEFAULT_STACK, LayerKind()
    )
    assert fitted == pytest.approx([forward])
    assert 2.5 * (forward - law.start_s) < backward


def test_windows_count_the_tokens_that_are_seen() -> None:
    """With a window of 128 of 4,096 tokens each sees 126, as in a sequence of 252; a window of all changes nothing."""
    spec, training, one = (
        read_gpu("h100-80gb"),
        TrainingSpec(global_batch_size=8, seq_length=4096),
        make_config(num_layers=32),
    )
    windowed = replace(LLAMA_8B, window_size=(127, 0))
    law, kind = spec.efficiency.attention, windowed.layers[0]
    short = replace(training, seq_length=252)
    whole = attention_times_s(LLAMA_8B, short, one, spec, DEFAULT_STACK, LayerKind())
    found = attention_times_s(windowed, training, one, spec, DEFAULT_STACK, kind)
    assert windowed.mixer(kind).tokens_seen(4096) == 126.0
    for way in (0, 1):
        assert (found[way] - law.start_s) * 252 == pytest.approx((whole[way] - law.start_s) * 4096)
    full = replace(LLAMA_8B, window_size=(4095, 0))
    everything = attention_times_s(full, training, one, spec, DEFAULT_STACK, full.layers[0])
    assert everything == attention_times_s(LLAMA_8B, training, one, spec, DEFAULT_STACK, LayerKind())


@pytest.mark.parametrize(("gpu", "second"), [("h100-80gb", 0.57), ("a100-80gb", 1.0)])
def test_versions_of_flash_attention(gpu: str, second: float) -> None:
    """Hopper has faster kernels than the second version, Ampere has none; the first is a share of the second."""
    spec, one = read_gpu(gpu), make_config(num_layers=32)
    usual, older, first = (
        attention_times_s(
            LLAMA_8B,
            TrainingSpec(global_batch_size=8, seq_length=65536, flash_version=version),
            one,
            spec,
            DEFAULT_STACK,
            LayerKind(),
        )
        for version in (3, 2, 1)
    )
    # Long sequences: start and traffic are a hundredth.
    assert usual[0] / older[0] == pytest.approx(second, rel=0.01)
    assert usual[1] / older[1] == pytest.approx(second, rel=0.01)
    assert older[0] / first[0] == pytest.approx(DEFAULT_STACK.flash1, rel=0.01)
