"""NCCL inside one host: start-up time and fraction of the GPU's link, fitted here; and DeepEP's bandwidth."""

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.silicon.tables import collectives, deepep
from pipette_opt.base.types import FloatArray
from pipette_opt.costs.collectives import INSIDE_STEP, OWN_PART
from pipette_opt.costs.experts import distinct_share
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.stack import read_stack

NCCL_GPUS = ("a100-80gb", "h100-80gb", "b200", "gb200")
"""GPUs with usable tables; L40S was measured on a host without peer access."""

MIN_BYTES = 4e6
"""Minimum bytes over each hop of a collective; layers of training move more. Chosen."""

TYPICAL_ERROR = 0.05
"""Relative error at which the loss turns from squares to absolute values. Chosen."""


def nccl_lines() -> Iterator[str]:
    """Yield the lines of the page's section on collectives: errors by GPU."""
    rows, stack = {gpu: collectives(gpu, MIN_BYTES) for gpu in NCCL_GPUS}, read_stack()
    share, start_s, own = fit_nccl(rows)
    yield "## Collectives inside a host, 4 MB and more over each hop\n"
    yield "All-reduces, all-gathers, reduce-scatters and all-to-alls of 2 to 8 GPUs. Three constants for all: they"
    start_us = 1e6 * stack.collective_s
    yield f"attain {stack.intra_node:.2f} of the link's rate in the catalogue, start in {start_us:.0f} us, and"
    fitted = f"{share:.2f}, {1e6 * start_s:.0f} us, {own:.2f}"
    yield f"a rank's own part costs {OWN_PART:.2f} of one that is sent; {fitted} by this fit."
    yield "Two GPUs attain 0.6 to 0.7 of what eight do: without own part a share of 0.81 stood for both, beside the"
    yield "catalogue's own 0.8 of the datasheet. Before: all of the rate, at once.\n"
    yield "| GPU | rows | before | shipped | GPU left out | without own part, GPU left out |"
    yield "|---|---|---|---|---|---|"
    for gpu, its in rows.items():
        others = {name: row for name, row in rows.items() if name != gpu}
        shipped = stack.intra_node, stack.collective_s, OWN_PART
        found = [(1.0, 0.0, 0.0), shipped, fit_nccl(others), fit_nccl(others, with_own=False)]
        cells = [_error(its, nccl_s(its, gpu, *constants)) for constants in found]
        yield f"| {gpu} | {len(its)} | {' | '.join(cells)} |"
    yield "\n## Tokens sent once to each place (`flex`)\n"
    yield "Bytes of DeepEP's combine in bf16, counted by our law (a token once to each host, and once to each rank),"
    yield "over its time, with 24 multiprocessors and 4,096 tokens a GPU or more; GB/s of one GPU, medians.\n"
    yield "| GPU | hosts | through its NIC | through its NVLink | link's rate in the catalogue |"
    yield "|---|---|---|---|---|"
    for gpu in ("h100-80gb", "b200", "gb200"):
        for hosts, its in deepep(gpu).groupby("nodes"):
            nic, nvlink = (np.median(size / its.combine_us) / 1e3 for size in combined_bytes(its))
            link = read_gpu_entry(gpu).intra_node_bytes_per_s / 1e9
            yield f"| {gpu} | {hosts} | {f'{nic:.0f}' if hosts > 1 else ''} | {nvlink:.0f} | {link:.0f} |"
    yield "\nIts rate inside a host follows the multiprocessors that it is given, not the link: on Blackwell the clock"
    yield "is too fast for DeepEP there. HybridEP, which recipes take on Blackwell, was not measured."


def fit_nccl(rows: Mapping[str, pd.DataFrame], *, with_own: bool = True) -> tuple[float, float, float]:
    """Return share of the link, start-up in seconds, and cost of a rank's own part that fit these tables best."""

    def constants(x: FloatArray) -> tuple[float, float, float]:
        share, start_s, own = np.exp(x)
        return float(share), float(start_s), float(own) if with_own else 0.0

    def residuals(x: FloatArray) -> FloatArray:
        return np.concatenate(
            [np.log(nccl_s(its, gpu, *constants(x)) / (its.latency_us.to_numpy() * 1e-6)) for gpu, its in rows.items()]
        )

    found = least_squares(residuals, np.log([0.9, 2e-5, 0.4]), loss="soft_l1", f_scale=TYPICAL_ERROR)
    return constants(found.x)


def nccl_s(rows: pd.DataFrame, gpu: str, share: float, start_s: float, own: float) -> FloatArray:
    """Return the seconds of collectives by the simulator's law (``inside_s`` in ``costs/collectives.py``)."""
    entry = read_gpu_entry(gpu)
    ranks, size = rows.gpus.to_numpy(float), rows.bytes.to_numpy(float)
    steps = np.where(rows.op == "all_reduce", 2 * (ranks - 1), ranks - 1)
    moved = (steps + own) / ranks * size / (entry.intra_node_bytes_per_s * share)
    time_s: FloatArray = start_s + steps * INSIDE_STEP * entry.intra_node_latency_s + moved
    return time_s


def combined_bytes(rows: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Return the bytes through each NIC and through each GPU's port, if hosts have equal numbers of ranks."""
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
