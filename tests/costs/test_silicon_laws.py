"""What the constants are fitted with is what the clock computes."""

import numpy as np
import pandas as pd
import pytest
from benchmark_modules import loaded
from specs_for_tests import LLAMA_8B, config

from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.products import linear_format, matmul_time_s
from pipette_opt.read.gpus import read_gpu
from pipette_opt.specs import DEFAULT_STACK, TrainingSpec


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
    forward, backward = attention_times_s(LLAMA_8B, training, config(num_layers=32), spec, DEFAULT_STACK)
    assert fitted == pytest.approx([forward])
    assert 2.5 * (forward - law.start_s) < backward
