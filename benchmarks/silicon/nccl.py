"""NCCL inside one host: a start and a share of the GPU's link, fitted here; and what DeepEP's kernels attain."""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from tables import collectives, deepep

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.collectives import INSIDE_STEP
from pipette_opt.costs.experts import distinct_share
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.stack import read_stack

NCCL_GPUS = ("a100-80gb", "h100-80gb", "b200", "gb200")
"""L40S was measured on a host without peer access."""

FEWEST_BYTES = 4e6
"""Over each hop; layers of training move more."""

TYPICAL_ERROR = 0.05
"""Where the loss turns from squares to absolute values."""


def nccl_lines() -> Iterator[str]:
    """Errors by GPU."""
    rows, stack = {gpu: collectives(gpu, FEWEST_BYTES) for gpu in NCCL_GPUS}, read_stack()
    share, start_s = fit_nccl(rows)
    yield "## Collectives inside a host, 4 MB and more over each hop\n"
    yield "All-reduces, all-gathers, reduce-scatters and all-to-alls of 2 to 8 GPUs. Two constants for all: they attain"
    yield f"{stack.intra_node:.2f} of the link's rate in the catalogue, and start in {1e6 * stack.collective_s:.0f} us;"
    yield f"{share:.2f} and {1e6 * start_s:.0f} us by this fit. Before: all of the rate, at once.\n"
    yield "| GPU | rows | before | shipped | GPU left out |"
    yield "|---|---|---|---|---|"
    for gpu, its in rows.items():
        unseen = fit_nccl({name: one for name, one in rows.items() if name != gpu})
        found = [(1.0, 0.0), (stack.intra_node, stack.collective_s), unseen]
        cells = [_error(its, nccl_s(its, gpu, *constants)) for constants in found]
        yield f"| {gpu} | {len(its)} | {' | '.join(cells)} |"
    yield "\n## Tokens sent once to each place (`flex`)\n"
    yield "Bytes of DeepEP's combine in bf16, counted by our law (a token once to each host, and once to each rank),"
    yield "over its time, with 24 multiprocessors and 4,096 tokens a GPU or more; GB/s of one GPU, medians.\n"
    yield "| GPU | hosts | through its NIC | through its NVLink | link's rate in the catalogue |"
    yield "|---|---|---|---|---|"
    for gpu in ("h100-80gb", "b200", "gb200"):
        for hosts, its in deepep(gpu).groupby("nodes"):
            nic, nvlink = (np.median(one / its.combine_us) / 1e3 for one in combined_bytes(its))
            link = read_gpu_entry(gpu).intra_node_bytes_per_s / 1e9
            yield f"| {gpu} | {hosts} | {f'{nic:.0f}' if hosts > 1 else ''} | {nvlink:.0f} | {link:.0f} |"
    yield "\nIts rate inside a host follows the multiprocessors that it is given, not the link: on Blackwell the clock"
    yield "is too fast for DeepEP there. HybridEP, which recipes take on Blackwell, was not measured."


def fit_nccl(rows: Mapping[str, pd.DataFrame]) -> tuple[float, float]:
    """Share of the link, and start in seconds, that explain these tables best."""

    def residuals(x: FloatArray) -> FloatArray:
        share, start_s = np.exp(x)
        return np.concatenate(
            [np.log(nccl_s(its, gpu, share, start_s) / (its.latency_us.to_numpy() * 1e-6)) for gpu, its in rows.items()]
        )

    share, start_s = np.exp(least_squares(residuals, np.log([0.9, 2e-5]), loss="soft_l1", f_scale=TYPICAL_ERROR).x)
    return float(share), float(start_s)


def nccl_s(rows: pd.DataFrame, gpu: str, share: float, start_s: float) -> FloatArray:
    """Seconds, by the clock's law (``inside_s`` in ``costs/collectives.py``)."""
    entry = read_gpu_entry(gpu)
    ranks = rows.gpus.to_numpy(float)
    steps = np.where(rows.op == "all_reduce", 2 * (ranks - 1), ranks - 1)
    moved = steps / ranks * rows.bytes.to_numpy(float) / (entry.intra_node_bytes_per_s * share)
    time_s: FloatArray = start_s + steps * INSIDE_STEP * entry.intra_node_latency_s + moved
    return time_s


def combined_bytes(rows: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Through each NIC, and through each GPU's port, where hosts have equal numbers of ranks."""
    share = cache(distinct_share)
    nic, port = np.zeros(len(rows)), np.zeros(len(rows))
    for place, row in enumerate(rows.itertuples()):
        experts, topk, here = int(row.num_experts), int(row.topk), int(row.gpus // row.nodes)
        copies = row.tokens * row.hidden * 2.0 * topk / row.gpus  # for one rank
        nic[place] = copies * here * (row.nodes - 1) * share(experts, topk, experts // row.nodes)
        port[place] = copies * (here - 1) * row.nodes * share(experts, topk, experts // row.gpus)
    return nic, port


def _error(rows: pd.DataFrame, seconds: FloatArray) -> str:
    wrong = np.abs(seconds / (rows.latency_us.to_numpy(float) * 1e-6) - 1.0)
    return f"{100 * np.median(wrong):.1f} / {100 * np.quantile(wrong, 0.9):.0f}"
