"""
Measured kernels of NVIDIA's AIConfigurator (Apache-2.0), read in place; the project ships fitted constants only.

The rows that represent training are chosen here: kernels that training also runs, random data, and sustained runs where
they exist. In a second of repeats B200 and GB200 reach their power limit; bursts of milliseconds do not.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measured import shared_folder
from pipette_opt.read.gpus import read_gpu

ROOT = Path(__file__).resolve().parents[2]

SOURCE = (
    "github.com/ai-dynamo/aiconfigurator at 095f58a51c4ca8e61b66ec108d86f223f8d559ce, Copyright (c) 2025-2026 NVIDIA "
    "CORPORATION & AFFILIATES, Apache-2.0"
)

GPUS = ("a100-80gb", "h100-80gb", "b200", "gb200", "l40s")
"""GPUs with tables."""

STAND_IN = {"a100-80gb": "h100-80gb", "h100-80gb": "a100-80gb", "b200": "gb200", "gb200": "b200", "l40s": "a100-80gb"}
"""GPU whose constants another would have without measurements: of its generation, or the nearest in memory."""

WIDE, NARROW, BLOCK, FP4 = "bf16", "fp8", "fp8_block", "nvfp4"

ELEMENT_BYTES = {WIDE: 2.0, NARROW: 1.0, BLOCK: 1 + 4 / 128, FP4: 0.5 + 1 / 16}
"""Bytes of an operand's element, including its part of the scales."""

PRODUCTS = {
    ("a100-80gb", WIDE): ("sglang", 0),
    ("h100-80gb", WIDE): ("trtllm", 0),
    ("h100-80gb", NARROW): ("trtllm", 0),
    ("b200", WIDE): ("trtllm", 1),
    ("b200", NARROW): ("trtllm", 1),
    ("gb200", WIDE): ("trtllm", 1),
    ("gb200", NARROW): ("trtllm", 1),
    ("l40s", WIDE): ("trtllm", 0),
    ("l40s", NARROW): ("trtllm", 0),
    ("h100-80gb", BLOCK): ("trtllm", 0),
    ("b200", BLOCK): ("trtllm", 1),
    ("gb200", BLOCK): ("trtllm", 1),
    ("b200", FP4): ("trtllm", 1),
    ("gb200", FP4): ("trtllm", 1),
}
"""
Framework of the rows, and whether sustained.

TensorRT-LLM's data are random; on A100 its rows end at 8,192 tokens, SGLang's do not.
"""

ATTENTION = {
    "a100-80gb": (("flash_attention", 0), ("vllm_flash_attn", 0)),
    "h100-80gb": (("fa3", 0), ("vllm_flash_attn_fa3", 0)),
    "b200": (("torch_flow", 1),),
    "gb200": (("torch_flow", 1),),
    "l40s": (("vllm_flash_attn_fa2", 0),),
}
"""Kernels of the rows, and whether sustained: FlashAttention 2 and 3, and TensorRT-LLM's on Blackwell."""

EXPERTS = {
    ("h100-80gb", WIDE),
    ("h100-80gb", NARROW),
    ("b200", WIDE),
    ("b200", NARROW),
    ("gb200", WIDE),
    ("gb200", NARROW),
    ("l40s", WIDE),
    ("l40s", NARROW),
}
"""GPUs and formats with rows of TensorRT-LLM's CUTLASS experts; A100 only has an inference kernel of another kind."""

MIN_TOKENS, MIN_WIDTH, MIN_US = 128, 512, 15.0
"""Minimum tokens, width and microseconds of usable products; smaller ones are launches, which training layers lack."""

MIN_ATTENTION_US, MIN_QUERIES = 40.0, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Figures of a GPU's datasheet: FLOP/s by format, and memory bandwidth in bytes/s."""

    wide: float
    narrow: float
    bytes_per_s: float
    fp4: float = 1.0

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of products in a format of the tables."""
        return self.wide if dtype == WIDE else self.fp4 if dtype == FP4 else self.narrow


def folder() -> Path:
    """Return the folder of the tables."""
    return shared_folder() / "silicon"


def hardware(gpu: str) -> Hardware:
    """Return the catalogue's figures of a GPU."""
    spec = read_gpu(gpu)
    return Hardware(
        wide=spec.peak_flops[WIDE],
        narrow=spec.peak_flops.get(NARROW, 1.0),
        bytes_per_s=spec.memory_bytes_per_s,
        fp4=spec.peak_flops.get(FP4, 1.0),
    )


def products(gpu: str, dtype: str, *, sustained: int | None = None) -> pd.DataFrame:
    """
    Return the rows of products in one format that represent training on one GPU.

    ``sustained`` selects bursts (0) or sustained runs (1) in place of the default of ``PRODUCTS``.
    """
    framework, chosen = PRODUCTS[gpu, dtype]
    rows = _table("gemm", gpu)
    which = (rows.dtype == dtype) & (rows.framework == framework) & (rows.graph == 1)
    which &= rows.sustained == (chosen if sustained is None else sustained)
    which &= (rows.m >= MIN_TOKENS) & (rows.n >= MIN_WIDTH) & (rows.k >= MIN_WIDTH)
    return rows[which & (rows.latency_us > MIN_US)].reset_index(drop=True)


def attention(gpu: str) -> pd.DataFrame:
    """Return the rows of causal attention on one GPU in bf16, without a window."""
    rows = _table("attention", gpu)
    which = pd.Series(False, index=rows.index)
    for kernel, sustained in ATTENTION[gpu]:
        which |= (rows.kernel == kernel) & (rows.sustained == sustained)
    which &= (rows.dtype == WIDE) & (rows.window == 0) & (rows.suspect == 0) & (rows.seq >= MIN_QUERIES)
    return rows[which & (rows.latency_us > MIN_ATTENTION_US)].reset_index(drop=True)


def windows(gpu: str) -> pd.DataFrame:
    """Return the rows of causal attention in bf16 with a window shorter than the sequence, of any release."""
    rows = _table("attention", gpu)
    which = rows.kernel.isin([kernel for kernel, _ in ATTENTION[gpu]]) & (rows.window > 0) & (rows.window < rows.seq)
    which &= (rows.dtype == WIDE) & (rows.suspect == 0) & (rows.seq >= MIN_QUERIES)
    return rows[which & (rows.latency_us > MIN_ATTENTION_US)].reset_index(drop=True)


def experts(gpu: str, dtype: str) -> pd.DataFrame:
    """Return the rows of balanced experts in one format, all on one GPU, in bursts."""
    rows = _table("moe", gpu)
    which = (rows.dtype == dtype) & (rows.kernel == "moe_torch_flow_cutlass") & (rows.suspect == 0)
    which &= (rows.ep == 1) & (rows.distribution == "balanced") & (rows.sustained == 0) & (rows.num_tokens >= 2048)
    return rows[which].reset_index(drop=True)


def collectives(gpu: str, fewest_bytes: float) -> pd.DataFrame:
    """Return the rows of NCCL inside one host with at least ``fewest_bytes`` bytes over each hop."""
    rows = _table("collectives", gpu)
    hop = rows.bytes * (rows.gpus - 1) / rows.gpus * np.where(rows.op == "all_reduce", 2.0, 1.0)
    return rows[hop >= fewest_bytes].reset_index(drop=True)


def deepep(gpu: str) -> pd.DataFrame:
    """Return the rows of DeepEP's normal kernels with the largest number of multiprocessors tried."""
    rows = _table("deepep", gpu)
    which = (rows["mode"] == "normal") & (rows.sms == rows.sms.max()) & (rows.tokens >= 4096)
    return rows[which].reset_index(drop=True)


def _table(operator: str, gpu: str) -> pd.DataFrame:
    return pd.read_csv(folder() / f"{operator}_{gpu}.csv.gz")
