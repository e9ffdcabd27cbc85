"""
Page that compares prices of sparse attention, and of other operations, with seconds measured on a GPU.

``python -m benchmarks.silicon.sparse_attention``. The rows of ``benchmarks/results/h200-operations.json`` are those of
``python -m benchmarks.silicon.on_gpu``.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import RESULTS, option, run_page
from pipette_opt.costs.attention import BACKWARD_RATE, BACKWARD_WORK
from pipette_opt.costs.modules import FUSED_NORM_PASSES
from pipette_opt.costs.products import plain_format, product_times_s
from pipette_opt.costs.scan import SCAN_BACKWARD, SCAN_SHARE
from pipette_opt.costs.sparse import SparseTimes, sparse_times_s
from pipette_opt.layers.branch import OnRank
from pipette_opt.layers.sparse import SparseAttentionBranch
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.gpus import recognise_gpu
from pipette_opt.read.model import read_model
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import GatedDeltaNet, GpuSpec, Mamba, ModelSpec, SparseAttention, TrainingSpec

ROWS = RESULTS / "h200-operations.json"
"""Measured rows."""

ALL_HEADS = 128
"""Heads of DeepSeek-V3.2 before tensor ranks split them."""

Rows = Sequence[dict[str, Any]]
"""Measured rows of an operation."""

Price = Callable[[dict[str, Any]], tuple[float, float]]
"""Function that returns the forward and backward seconds of an operation's sizes."""

HEAD = """\
# Sparse attention as priced and as measured

On one {device}, Megatron-Core's sparse attention (DSA, fused kernels of TileLang) takes {forward:.1f} times the seconds
forward, and {backward:.1f} times backward, of the roofline that priced it before, which left out the loss (medians of
the rows below). With constants fitted to these rows the module is {error} off in the mean (worst {worst}), and its kept
memory {kept}; no row was held back. Rates are shares of the peak; other GPUs were not measured. The backward pass takes
{ratio:.0f} times the forward with 128 heads, 4,096 tokens and no loss, where dense attention takes 3.

Made by `python -m benchmarks.silicon.sparse_attention` from `h200-operations.json`, which
`python -m benchmarks.silicon.on_gpu --out FILE` measures wherever torch has a GPU (here torch {torch}, TileLang 0.1.15,
Megatron-LM at d98e8a64). Micro-batches of one sequence, bf16, DeepSeek-V3.2's sizes: 64 heads of 128 in the indexer
(32 where said), the 2,048 best tokens, hidden size 7,168, latents of 1,536 and 512. Medians in milliseconds.
"""

NOTES = """\
- The module: the indexer's products, norm, positions and rotation; scores; choice; attention on the latents; its
  product with the values' matrix. `loss`: the indexer's sparse loss; without it the indexer has no backward pass.
- The fixed part of a pass is the host's: with 16 heads and 4,096 tokens the module's 88 kernels take .8 ms to launch.
- The rotation (Hadamard) is a product here; Megatron-Core has a kernel for it. It is 2 % of the module at most.
- cuDNN's kernels (`--dsa-kernel-backend cudnn`, which NVIDIA's recipes on GB200 name) were not measured.
- Not counted in memory: temporary tensors. The scores of up to 8,192 tokens take 4 bytes for every token of the
  sequence (1 GiB at 32,768); with 128 heads, the backward pass of 4,096 tokens needs 2.2 GiB beside what is kept.
"""


@cache
def deepseek() -> ModelSpec:
    """Return DeepSeek-V3, which has the sizes of V3.2 without its indexer."""
    return read_model("deepseek-v3")


def job(sizes: dict[str, Any]) -> tuple[SparseAttentionBranch, TrainingSpec, ParallelConfig]:
    """Return the sparse attention of a row, and the job with one tensor rank's heads."""
    indexer = SparseAttention(n_heads=sizes.get("index_heads", 64), loss_coeff=0.01 * bool(sizes.get("loss")))
    model = replace(deepseek(), sparse_attention=indexer)
    branch = model.mixer(model.layers[0])
    assert isinstance(branch, SparseAttentionBranch)
    tp = ALL_HEADS // sizes.get("heads", ALL_HEADS)
    config = ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=1,
        layers_per_stage=(model.num_layers,),
    )
    return branch, TrainingSpec(global_batch_size=1, seq_length=sizes["seq"]), config


class Prices:
    """Predicted seconds of operations on one GPU."""

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu, self.rates = gpu, read_stack()
        self.stream = gpu.memory_bytes_per_s * self.rates.streaming

    def products(self, tokens: int, outputs: int, inputs: int) -> tuple[float, float]:
        """Return the seconds of a product, whose weight gradient is written in bf16."""
        form = plain_format(self.gpu, TrainingSpec(global_batch_size=1, seq_length=tokens), self.rates)
        times = product_times_s(tokens, outputs, inputs, form=form, gpu=self.gpu, rates=self.rates, gradient_bytes=2)
        return times.passes_s

    def sparse(self, sizes: dict[str, Any]) -> SparseTimes:
        """Return the seconds of sparse attention's parts."""
        return sparse_times_s(*job(sizes), self.gpu, self.rates)

    def module(self, sizes: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of the module: its parts, the indexer's products and the one with the values' matrix."""
        branch, training, config = job(sizes)
        forward, backward = self.sparse(sizes).total
        values = self.products(training.seq_length, sizes["heads"] * branch.sizes.v_head_dim, branch.sizes.kv_lora_rank)
        indexer = [product.on_rank(config.tensor_model_parallel_size) for product in branch.products[-3:]]
        seconds = [self.products(training.seq_length, *shape) for shape in indexer]
        has_loss = branch.indexer.loss_coeff > 0
        return (
            forward + values[0] + sum(each for each, _ in seconds),
            backward + values[1] + has_loss * sum(each / 2 for _, each in seconds),  # weights' gradients only
        )

    def attention(self, sizes: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of dense attention (``costs/attention.py``)."""
        law, seq, heads = self.gpu.efficiency.attention, sizes["seq"], sizes["heads"]
        key, value = sizes.get("key", 128), sizes.get("value", 128)
        compute = heads * seq * seq * (key + value) * (1 + law.half_seq / seq)
        compute /= self.gpu.peak_flops["bf16"] * law.share(value)
        stream = seq * heads * 4.0 * (key + value) / self.stream
        backward = BACKWARD_WORK / BACKWARD_RATE * compute + 2.5 * stream
        return law.start_s + compute + stream, law.start_s + backward

    def norm(self, sizes: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of a fused norm."""
        moved = 2.0 * sizes["seq"] * sizes["vectors"] * sizes["width"] / self.stream
        return FUSED_NORM_PASSES[0] * moved, FUSED_NORM_PASSES[1] * moved

    def scan(self, mixer: Mamba | GatedDeltaNet, tokens: int) -> tuple[float, float]:
        """Return the seconds of a scan (``costs/scan.py``), without convolution and norm."""
        ideal = mixer.scan_flops / self.gpu.peak_flops["bf16"] + mixer.scan_bytes / self.gpu.memory_bytes_per_s
        forward = tokens * ideal / SCAN_SHARE
        return forward, SCAN_BACKWARD * forward

    def delta(self, sizes: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of a gated delta net's scan, whose queries and keys have as many heads as its values."""
        heads = sizes["heads"]
        return self.scan(GatedDeltaNet(num_key_heads=heads, num_value_heads=heads), sizes["seq"])

    def mamba(self, sizes: dict[str, Any]) -> tuple[float, float]:
        """Return the seconds of Mamba-2's scan."""
        mixer = Mamba(
            num_heads=sizes["heads"],
            head_dim=sizes["width"],
            state_dim=sizes["state"],
            num_groups=sizes["in_groups"],
        )
        return self.scan(mixer, sizes["seq"])


def kept_bytes(sizes: dict[str, Any]) -> float:
    """Return the bytes that the module keeps, its output included, without its inputs, which others keep."""
    branch, training, config = job(sizes)
    tokens, tp = training.seq_length, config.tensor_model_parallel_size
    rank = OnRank(training, tokens, shards=1, tp=tp, cp=1, expert_ranks=1, expert_tp=1, imbalance=1.0)
    core = sum(kept.size for kept in branch.kept_inside(rank) if "core_attn" in kept.freed_by)
    gathered = branch.model.hidden_size + (branch.sizes.q_lora_rank or 0)  # on one GPU, nothing is
    core -= 2 * tokens * gathered * (tp > 1) * bool(sizes.get("loss"))
    return float(core + 2 * tokens * sizes["heads"] * branch.sizes.v_head_dim)


def ratio_lines(rows: Rows, price: Price, *, of_kernels: bool = False) -> Iterator[tuple[str, list[float]]]:
    """
    Yield the table line of each row, and its predicted over measured times.

    ``of_kernels``: seconds of the GPU's kernels alone, for operations that their launches bound.
    """
    for row in rows:
        predicted, measured = price(row["sizes"]), (row["forward_s"], row.get("backward_s"))
        if of_kernels:
            measured = row["kernel_s"]
        pairs = [(1e3 * ours, 1e3 * theirs) for ours, theirs in zip(predicted, measured, strict=True) if theirs]
        cells = [f"{theirs:.3g} | {ours:.3g} | {ours / theirs:.2f}" for ours, theirs in pairs]
        cells += ["| |"] * (2 - len(pairs))
        yield f"| {described(row['sizes'])} | {' | '.join(cells)} |", [ours / theirs for ours, theirs in pairs]


def described(sizes: dict[str, Any]) -> str:
    """Return the sizes of a row as text."""
    words = []
    for name, value in sizes.items():
        if name == "loss":
            words.append("loss" if value else "no loss")
        elif name != "backend" or value != "none":
            words.append(f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) else str(value))
    return ", ".join(words)


TABLE = """\
| sizes | forward measured | predicted | ratio | backward measured | predicted | ratio |
|---|---|---|---|---|---|---|"""
"""Head of a table of seconds."""


def table(title: str, rows: Rows, price: Price, *, of_kernels: bool = False) -> list[str]:
    """Return the lines of a section with a table."""
    return ["", f"## {title}", "", TABLE, *(line for line, _ in ratio_lines(rows, price, of_kernels=of_kernels))]


def page(data: dict[str, Any]) -> str:
    """Return the page."""
    entry = recognise_gpu(data["device"])
    if entry is None:
        raise SystemExit(f"{data['device']} is no GPU of the catalogue.")
    prices, of = Prices(entry.gpu), rows_of(data)
    lines = [head(data, prices, of["sparse module"]).rstrip()]
    lines += [*table("The module", of["sparse module"], prices.module), "", NOTES.rstrip()]
    lines += table("Attention on the latents", of["sparse attention"], lambda sizes: prices.sparse(sizes).attention)
    lines += table("Scores of the indexer", of["sparse indexer scores"], lambda sizes: prices.sparse(sizes).scores)
    lines += kept_lines(of["sparse module"]) + unfused_lines(of["sparse unfused module"])
    lines += ["", "## Other operations", "", others(prices, of)]
    lines += table("Dense attention", of["dense attention"], prices.attention)
    lines += table(
        "Scans: gated delta net, Mamba-2; kernels", of["scan of gated delta net"], prices.delta, of_kernels=True
    )
    lines += [line for line, _ in ratio_lines(of["scan of Mamba-2"], prices.mamba, of_kernels=True)]
    lines += table("RMSNorm of heads and of hidden states; kernels", of["norm"], prices.norm, of_kernels=True)
    lines += ["", NORMS]
    return "\n".join(lines) + "\n"


def head(data: dict[str, Any], prices: Prices, modules: Rows) -> str:
    """Return the head of the page, with its answer."""
    errors = np.abs([each - 1 for _, both in ratio_lines(modules, prices.module) for each in both])
    measured = np.array([[row["forward_s"], row["backward_s"]] for row in modules])
    slower = np.median(measured / [old_roofline_s(prices, row["sizes"]) for row in modules], axis=0)
    kept = [abs(kept_bytes(row["sizes"]) / row["kept_bytes"] - 1) for row in modules]
    most = next(row for row in modules if row["sizes"] == {"seq": 4096, "heads": 128, "loss": False})
    return HEAD.format(
        device=data["device"],
        torch=data["torch"].split("+")[0],
        forward=slower[0],
        backward=slower[1],
        error=f"{100 * errors.mean():.0f} %",
        worst=f"{100 * errors.max():.0f} %",
        kept=f"{100 * max(kept):.0f} % at most",
        ratio=most["backward_s"] / most["forward_s"],
    )


def kept_lines(modules: Rows) -> list[str]:
    """Return the section of kept memory."""
    lines = ["", "## Kept memory", "", "| sizes | measured, MiB | predicted | ratio |", "|---|---|---|---|"]
    for row in modules:
        measured, predicted = row["kept_bytes"], kept_bytes(row["sizes"])
        cells = f"{measured / 2**20:,.0f} | {predicted / 2**20:,.0f} | {predicted / measured:.3f}"
        lines.append(f"| {described(row['sizes'])} | {cells} |")
    return lines


def unfused_lines(modules: Rows) -> list[str]:
    """Return the section of the module without fused kernels."""
    lines = ["", "## Without fused kernels", "", UNFUSED, ""]
    lines += ["| sizes | forward | backward | kept, MiB | peak, MiB |", "|---|---|---|---|---|"]
    for row in modules:
        cells = f"{1e3 * row['forward_s']:.3g} | {1e3 * row['backward_s']:.3g}"
        memory = f"{row['kept_bytes'] / 2**20:,.0f} | {row['peak_bytes'] / 2**20:,.0f}"
        lines.append(f"| {described(row['sizes'])} | {cells} | {memory} |")
    return lines


NORMS = """\
Compiled (one Triton kernel) norms of heads stream about as counted, 1.8 and 4 passes for 2 and 3; PyTorch's own kernel
needs 10 and 14, because its blocks are made for wide vectors."""

UNFUSED = """\
`--dsa-kernel-backend none`, which is Megatron-Core's default, writes out the scores of all tokens in fp32. It is not
priced: with 16 heads and 4,096 or 8,192 tokens it takes 2 to 10 times as long as the fused kernels and keeps 15 to 32
times the memory, which grows with the square of the sequence."""


def others(prices: Prices, of: dict[str, list[dict[str, Any]]]) -> str:
    """Return a summary of products, launches and copies."""
    ratios = np.array([both for _, both in ratio_lines(of["product"], lambda sizes: prices.products(**sizes))])
    large = [row["sizes"]["inputs"] >= 1024 and row["sizes"]["outputs"] >= 4096 for row in of["product"]]
    eager, graph = (of[name][0]["forward_s"] * 1e6 / 1000 for name in ("launches", "launches in a graph"))
    copy = max(2 * row["sizes"]["mebibytes"] * 2**20 / row["forward_s"] for row in of["copy"])
    cells = [
        f"{np.median(each):.2f} ({each.min():.2f} to {each.max():.2f})" for each in (ratios[large, 0], ratios[large, 1])
    ]
    return (
        f"- Predicted over measured time of {sum(large)} products of at least 1,024 by 4,096: {cells[0]} forward, "
        f"{cells[1]} backward. Bursts of a third of a second; the catalogue's rates are of sustained products.\n"
        f"- Launches: {eager:.1f} us a kernel from PyTorch, {graph:.1f} us in a CUDA graph. Copies: {copy / 1e12:.2f} "
        f"TB/s read and written, {copy / prices.gpu.memory_bytes_per_s:.2f} of the datasheet."
    )


def old_roofline_s(prices: Prices, sizes: dict[str, Any]) -> list[float]:
    """
    Return the seconds that the module had before the measurement: scores at the rate of attention, of chosen tokens
    only, and ordinary attention's backward pass.
    """
    branch, training, config = job(sizes)
    law, seq, tp = prices.gpu.efficiency.attention, training.seq_length, config.tensor_model_parallel_size
    seen, width = branch.tokens_seen(seq), sum(branch.core_widths) / tp
    rate = prices.gpu.peak_flops["bf16"] * law.share(branch.model.value_head_size)
    index = branch.indexer.n_heads * branch.indexer.head_dim * seq
    compute = seq * (2 * width * seen * (1 + law.half_seq / (2 * seen)) + index) / rate
    stream = 2.0 * seq * (width + seen * branch.latent_width) / prices.stream
    parts = law.start_s + compute + stream, law.start_s + BACKWARD_WORK / BACKWARD_RATE * compute + 2.5 * stream
    module, now = prices.module(sizes), prices.sparse(sizes).total
    return [module[way] - now[way] + parts[way] for way in (0, 1)]


def rows_of(data: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows with a time, by operation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in data["rows"]:
        if "forward_s" in row:
            found.setdefault(row["operation"], []).append(row)
    return found


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    yield page(json.loads(given.rows.read_text(encoding="utf-8")))


if __name__ == "__main__":
    run_page(
        make,
        option("--rows", type=Path, default=ROWS, help="JSON file of measured rows"),
        out=RESULTS / "sparse-attention.md",
    )
