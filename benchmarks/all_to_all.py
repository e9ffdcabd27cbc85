"""
Measured and predicted all-to-alls between two hosts: a table of the page that ``network.py`` writes.

The model of ``costs/exchange.py`` gets three inputs: the bandwidth from one GPU to one GPU of the other host
(nccl-tests
``sendrecv``), an assumed 8 NICs per host, and NVLink's bandwidth from the GPU catalogue. It predicts the time of an
all-to-all of 1, 4 and 8 GPUs on each host; no constant is fitted.
"""

import csv
from pathlib import Path

import numpy as np

from pipette_opt.base.units import GB, MIB
from pipette_opt.costs._flows import exchange_loads, exchanging_ranks
from pipette_opt.costs.exchange import exchange_s
from pipette_opt.read.gpus import read_gpu, read_gpu_entry
from pipette_opt.specs import DEFAULT_STACK, ClusterSpec, LinkMatrix, NodeSpec

ROOT = Path(__file__).parents[1]
GPU, NUM_NICS = "h100-80gb", 8
SIZES = {"busbw_32MiB": 32 * MIB, "busbw_256MiB": 256 * MIB, "busbw_1GiB": 1024 * MIB}
CLUSTER = "example-cluster00"


def pair(rate: float, gpus: int) -> ClusterSpec:
    """Return two hosts with ``gpus`` GPUs each; a GPU reaches ``rate`` GB/s to one GPU of the other host."""
    node = read_gpu(GPU)
    entry = read_gpu_entry(GPU)
    return ClusterSpec(
        name="pair",
        nodes=tuple(NodeSpec(host=host, gpu=node, num_gpus=gpus) for host in ("a", "b")),
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((2, 2), rate * GB)),),
        nics_per_node=NUM_NICS,
    )


def predicted_s(spec: ClusterSpec, size: float, gpus: int) -> float:
    """Return the predicted seconds of an all-to-all of ``size`` bytes per GPU, on ``gpus`` GPUs of each host."""
    groups = np.repeat(np.arange(2), gpus)[None, None]
    domain, near = spec.domain_of_node, np.full((2, 2), spec.intra_node_bytes_per_s)
    ranks = exchanging_ranks(groups, domain)
    rates = spec.pair_bytes_per_s(gpus)[None]
    rows, shares = np.zeros(gpus + 1, dtype=np.int64), np.ones(2 * gpus + 1)
    loads, ports, inside, spans, _ = exchange_loads(groups, ranks, rows, rates, domain, near, shares, False)
    return float(
        exchange_s(spec, DEFAULT_STACK, size / (2 * gpus), inside * ports, spans, loads, spec.pair_latency_s[0, 1])[
            0, 0
        ]
    )


def exchange_lines(path: Path) -> list[str]:
    """Return a Markdown table of predicted over measured time, by GPUs per host and size."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok" and row["cluster"] == CLUSTER]
    one_to_one = {
        (row["node_a"], row["node_b"]): row
        for row in rows
        if row["test"] == "sendrecv_perf" and row["gpus_per_node_used"] == "1"
    }
    lines = [
        "| GPUs per host | size | pairs | predicted / measured, median | p10 | p90 |",
        "|---|---|---|---|---|---|",
    ]
    for gpus in (1, 4, 8):
        for column, size in SIZES.items():
            ratios = []
            for row in rows:
                other = one_to_one.get((row["node_a"], row["node_b"]))
                if row["test"] != "alltoall_perf" or row["gpus_per_node_used"] != str(gpus) or other is None:
                    continue
                ranks = 2 * gpus
                measured_s = size * (ranks - 1) / ranks / (float(row[column]) * GB)  # nccl-tests' bus bandwidth
                ratios.append(predicted_s(pair(float(other["busbw_1GiB"]), gpus), size, gpus) / measured_s)
            if ratios:
                low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
                cells = [
                    f"{gpus}",
                    f"{size // MIB} MiB",
                    f"{len(ratios)}",
                    *(f"{quantile:.3f}" for quantile in (middle, low, high)),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    head = [
        "Measured: xxrjun/nccl-tests-cluster, all pairs of 17 H100 hosts. Predicted from the rate of one GPU to one "
        f"GPU (`sendrecv`, 1 GiB), {NUM_NICS} NICs a host assumed, no latency, nothing fitted.",
        "",
    ]
    tail = [
        "",
        "The median is a few percent too fast, more so with more GPUs. The tail is pairs where GPUs other than the "
        "measured one are slow; a matrix of 8 concurrent flows would show them.",
    ]
    return [*head, *lines, *tail]
