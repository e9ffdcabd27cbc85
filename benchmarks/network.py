"""
Network part of the simulator against public measurements: ``python -m benchmarks.network [--out PAGE]``.

The measurements are read in place, from the folder in the environment variable PIPETTE_OPT_SHARED or from ``../shared``
beside the project; none is copied. The page names each missing source.

Curves: start-up, step and bandwidth (``pipette_opt/costs/curves.py``) are fitted to every other size and tested on the
sizes between. Group sizes: fitted to the smaller groups, tested on the largest. Sharing: groups of every shape on two
and four hosts, all at once. One bandwidth is fitted to the groups of one GPU on each of two hosts; each algorithm
predicts the other shapes. Hosts: laws of their number, fitted up to 8, tested beyond.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.all_to_all import exchange_lines
from benchmarks.curves import Curve, fit_curve
from benchmarks.measured import measured_folder
from benchmarks.page import made_by, run_page
from pipette_opt.base.types import FloatArray
from pipette_opt.costs.collectives import (
    RingTraffic,
    across_s,
    all_reduce_traffic,
    gather_traffic,
    hierarchical_s,
    stacked,
    tree_edges,
    tree_s,
)
from pipette_opt.specs import DEFAULT_STACK, ClusterSpec, GpuSpec, LinkMatrix, NodeSpec

LARGEST_MB = 1e5
"""Maximum size of a usable row, MB; larger sizes in the profiles are placeholders."""

LONGEST_MS = 1e5
"""Maximum time of a usable row, ms; longer times in the profiles are placeholders."""

FABRIC = {"a100-sxm4-40gb": 240e9, "v100-sxm2-16gb": 120e9, "v100-sxm2-32gb": 120e9, "a10g": 10e9}
"""Bandwidth from a GPU to another GPU of its host, bytes/s: NVLink at 0.8 of its nominal rate, or PCIe."""

Run = tuple[str, str, RingTraffic, int, float, float]
"""Source and GPU, operation, traffic, number of ranks, size (MB or bytes by source), and seconds of a measurement."""


def folder() -> Path:
    """Return the folder of the bandwidth measurements."""
    return measured_folder() / "bandwidth"


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file; empty if the file is missing."""
    path = folder() / name
    if not path.is_file():
        return []
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def traffic_of(operation: str, message_bytes: float, ranks: int, *, gather_is_shard: bool) -> RingTraffic | None:
    """
    Return the traffic of an operation; in an all-to-all each rank sends the others their parts one after the other.

    ``gather_is_shard``: whether an all-gather's size is that of one rank's shard, as in some profilers.
    """
    if operation == "all_reduce":
        return all_reduce_traffic(message_bytes, ranks)
    if operation == "all_gather" and gather_is_shard:
        return gather_traffic(message_bytes * ranks, ranks)
    return gather_traffic(message_bytes, ranks)


def runs() -> list[Run]:
    """Return the measured messages and collectives inside hosts, and messages between two hosts."""
    found: list[Run] = []
    for row in rows("p2p_curves.csv"):
        size = float(row["message_MB"]) * 2**20
        seconds = size / (float(row["p2p_GBps"]) * 1e9)
        who = f"{row['source'].split('-')[0]} {row['gpu']}"
        where = "message inside" if row["link"] == "intra_node" else "message between hosts"
        found.append((who, f"{where} {row['repeat']}", RingTraffic(size, 1), 2, size, seconds))
    for row in rows("intranode_collective_times.csv"):
        size, ranks = float(row["data_MB"]), int(row["gpus_in_node"])
        if 0 < size < LARGEST_MB and float(row["time_ms_median"]) < LONGEST_MS:
            moved = traffic_of(row["op"], size * 2**20, ranks, gather_is_shard=True)
            who = f"{row['source'].split('-')[0]} {row['gpu']}"
            found.append((who, row["op"], moved, ranks, size, float(row["time_ms_median"]) / 1e3))
    for row in rows("vtrain_intranode_allreduce.csv"):
        size, ranks = float(row["bytes"]), int(row["ranks_in_one_node"])
        found.append(
            (
                f"vTrain {row['gpu']}",
                "all_reduce",
                all_reduce_traffic(size, ranks),
                ranks,
                size,
                float(row["in_place_s"]),
            )
        )
    for row in rows("nnscaler_mi200_collectives.csv"):
        size, ranks = float(row["MB"]) * 2**20, int(row["gpus"])
        moved = traffic_of(row["op"].replace(" ", "_"), size, ranks, gather_is_shard=False)
        found.append((f"nnScaler {row['gpu']}", row["op"].replace(" ", "_"), moved, ranks, size, float(row["time_s"])))
    return found


def errors(curve: Curve, given: Sequence[Run]) -> FloatArray:
    """Return the absolute relative errors of a curve's predicted times."""
    predicted = curve.time_s([run[2] for run in given])
    return np.abs(predicted / np.array([run[5] for run in given]) - 1.0)


def grouped(given: Iterable[Run], key: Callable[[Run], tuple]) -> dict[tuple, list[Run]]:
    """Return the runs by key, each group sorted by size."""
    groups: dict[tuple, list[Run]] = defaultdict(list)
    for run in given:
        groups[key(run)].append(run)
    return {name: sorted(members, key=lambda run: run[4]) for name, members in sorted(groups.items())}


def curve_table(given: Sequence[Run]) -> list[str]:
    """Return a table of errors of fitted curves, by source and operation; group sizes are pooled."""
    found: dict[tuple[str, str], list[FloatArray]] = defaultdict(list)
    for (who, operation, _), members in grouped(given, lambda run: (run[0], run[1], run[3])).items():
        fitted, tested = members[::2], members[1::2]
        if len(fitted) < 3 or not tested:
            continue
        curve = fit_curve([run[2] for run in fitted], np.array([run[5] for run in fitted]))
        found[who, operation.split(" ")[0]].append(errors(curve, tested))
    operations = sorted({operation for _, operation in found})
    lines = [f"| source, GPU | {' | '.join(operations)} |", "|---" * (1 + len(operations)) + "|"]
    for who in dict.fromkeys(who for who, _ in found):
        cells = [
            f"{np.concatenate(found[who, operation]).mean():.1%} of {len(found[who, operation])}"
            if (who, operation) in found
            else ""
            for operation in operations
        ]
        lines.append(f"| {who} | {' | '.join(cells)} |")
    means = np.array([curve.mean() for curves in found.values() for curve in curves])
    whole = np.concatenate([curve for curves in found.values() for curve in curves])
    lines += [
        "",
        f"{len(means)} curves: mean error {whole.mean():.1%}, of the median curve {np.median(means):.1%}; "
        f"{(means <= 0.1).sum()} curves are within 10 % on average, {(means > 0.3).sum()} beyond 30 %.",
    ]
    return lines


def group_table(given: Sequence[Run]) -> list[str]:
    """Return a table of errors on the largest group size, with constants fitted to the smaller group sizes."""
    lines = ["| source, GPU | operation | fitted to | tested on | mean | worst |", "|---|---|---|---|---|---|"]
    for (who, operation), members in grouped(given, lambda run: (run[0], run[1])).items():
        ranks = sorted({run[3] for run in members})
        if len(ranks) < 3:
            continue
        fitted, tested = ([run for run in members if (run[3] == ranks[-1]) == last] for last in (False, True))
        wrong = errors(fit_curve([run[2] for run in fitted], np.array([run[5] for run in fitted])), tested)
        smaller = ", ".join(map(str, ranks[:-1]))
        lines.append(f"| {who} | {operation} | {smaller} | {ranks[-1]} | {wrong.mean():.1%} | {wrong.max():.1%} |")
    return lines


def sharing_table() -> list[str]:
    """Return a table of errors on groups of all shapes that share the network of their hosts, by algorithm."""
    lines = [
        "| GPU | GB/s of a host | hosts | GPUs of a host in a group | groups at once | ring | hierarchical | tree |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shapes: dict[tuple[str, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows("mist_g2g_bandwidth.csv"):
        if int(row["nodes"]) > 1 and float(row["MB"]) >= 64:
            key = (row["gpu"], int(row["nodes"]), int(row["gpus_per_node"]), int(row["intra_group"]))
            shapes[key].append((float(row["MB"]) * 2**20, float(row["latency_ms"]) / 1e3))
    total = defaultdict(list)
    for gpu in sorted({key[0] for key in shapes if (key[0], 2, 8, 1) in shapes}):
        pairs = shapes[gpu, 2, 8, 1]  # eight groups of two, each with an eighth of the host's bandwidth
        host = 8 * float(np.median([all_reduce_traffic(size, 2).hop_bytes / seconds for size, seconds in pairs]))
        for (name, nodes, gpus, inside), measured in sorted(shapes.items()):
            if name != gpu or (nodes, inside) == (2, 1):
                continue
            shown = []
            for algorithm in ("ring", "hierarchical", "tree"):
                wrong = [
                    predict_shared(algorithm, host, FABRIC[gpu], size, nodes, gpus, inside) / seconds - 1
                    for size, seconds in measured
                ]
                total[algorithm].append(np.abs(wrong).mean())
                shown.append(f"{np.mean(wrong):+.1%}")
            lines.append(f"| {gpu} | {host / 1e9:.3g} | {nodes} | {inside} | {gpus // inside} | {' | '.join(shown)} |")
    shown = ", ".join(f"{name} {np.mean(wrong):.1%}" for name, wrong in total.items())
    return [*lines, "", f"Mean of the absolute errors: {shown}."]


def predict_shared(
    algorithm: str, host: float, fabric: float, size: float, nodes: int, gpus: int, inside: int
) -> float:
    """
    Return the predicted seconds of all-reduces in groups of ``nodes * inside`` ranks that all run at once.

    Parameters
    ----------
    host, fabric
        Bandwidth of a host's network and inside a host, bytes/s.
    size
        Bytes of the message.
    nodes, gpus, inside
        Number of hosts, GPUs per host, and ranks of a group on each host.
    """
    gpu = GpuSpec(name="any", memory_bytes=1, peak_flops={}, memory_bytes_per_s=1.0)
    cluster = ClusterSpec(
        name="pair",
        nodes=tuple(NodeSpec(host=f"n{index}", gpu=gpu, num_gpus=gpus) for index in range(nodes)),
        intra_node_bytes_per_s=fabric,
        link_matrices=(LinkMatrix(concurrent_flows=gpus, bytes_per_s=np.full((nodes, nodes), host)),),
    )
    moved = stacked([all_reduce_traffic(size, nodes * inside)])
    flow, own, hosts = np.array(host / gpus), np.array(inside), np.array(nodes)
    if algorithm == "tree":
        edges = tree_edges(nodes)
        ends = np.concatenate([edges[:, 0], edges[:, 1]])
        load = np.array(np.bincount(ends).max() * 0.5 / float(flow))
        return float(tree_s(cluster, moved, load, fabric, own, hosts, DEFAULT_STACK)[0])
    form = across_s if algorithm == "ring" else hierarchical_s
    return float(form(cluster, moved, flow, fabric, own, hosts, DEFAULT_STACK)[0])


MAX_FITTED = 8
"""Maximum number of hosts to which the laws are fitted; larger numbers are the test."""

GPUS = 8
"""GPUs per host in the sweep of ``hosts_table``."""


def hosts_table() -> tuple[list[str], str]:
    """
    Return a table of all-reduce bandwidth over all ranks by number of hosts, with the predictions of ring and tree.

    The second result is the mean error of each law, as text. A ring of ``n`` ranks takes ``2 (n - 1)`` steps and sends
    ``2 (n - 1) / n`` of the message, so the inverse of its bus bandwidth grows with ``n``. A tree takes ``2
    log2(hosts)`` steps; its bus bandwidth counts equally many bytes.
    """
    by_hosts: dict[int, list[float]] = defaultdict(list)
    for row in rows("hf_ultrascale_job_collectives.csv"):
        if row["allreduce_all_ranks_GBps"]:
            by_hosts[int(row["nodes"])].append(float(row["allreduce_all_ranks_GBps"]))
    hosts = np.array(sorted(count for count in by_hosts if count > 1))
    ranks = GPUS * hosts
    rates = np.array([np.median(by_hosts[count]) for count in hosts.tolist()])
    known = hosts <= MAX_FITTED
    forms = {"ring": ranks, "tree": ranks / (ranks - 1) * np.log2(hosts), "rate / hosts^c": None}
    predicted = {}
    for name, form in forms.items():
        if form is None:
            power, base = np.polyfit(np.log(hosts[known]), np.log(rates[known]), 1)
            predicted[name] = np.exp(base + power * np.log(hosts))
        else:
            slope, rest = np.polyfit(form[known], 1 / rates[known], 1, w=rates[known])
            predicted[name] = 1 / (rest + slope * form)
    lines = [
        f"| hosts | jobs | median GB/s | fastest twentieth | {' | '.join(forms)} |",
        "|---" * (4 + len(forms)) + "|",
    ]
    for place, count in enumerate(hosts.tolist()):
        cells = [f"{rate[place] / rates[place] - 1:+.0%}" for rate in predicted.values()]
        fastest = np.quantile(by_hosts[count], 0.95)
        lines.append(f"| {count} | {len(by_hosts[count])} | {rates[place]:.4g} | {fastest:.4g} | {' | '.join(cells)} |")
    wrong = {name: np.abs(rate / rates - 1)[~known].mean() for name, rate in predicted.items()}
    errors_text = ", ".join(f"{name} {error:.0%}" for name, error in wrong.items())
    return lines, errors_text


def page() -> str:
    """Return the page."""
    made = f"{made_by()} Error: `|predicted / measured - 1|` of the times."
    if not folder().is_dir():
        return "\n".join(
            ["# Network", "", made, "", "No measurements: set PIPETTE_OPT_SHARED. Nothing was compared.", ""]
        )
    given = runs()
    collectives = [run for run in given if not run[1].startswith("message")]
    hosts, errors_text = hosts_table()
    pairs = folder() / "nccl_tests_cluster_pairs_h100.csv"
    parts = [
        "# Network",
        "",
        f"- More hosts: mean errors of laws fitted to 2 to {MAX_FITTED} hosts on 16 to 64: {errors_text}. A power",
        "  law is nearer to the median. But the bandwidth of the fastest twentieth levels off from 4 hosts on, like a",
        "  ring's.",
        "- Groups that share NICs: the flat ring is nearer than other algorithms on three of four kinds of host.",
        "- One start-up time and bandwidth per group has the errors of the last table. Errors from small groups of a "
        "host",
        "  to its largest are far larger where GPU pairs of the host differ in bandwidth.",
        "- Collectives inside hosts of today's GPUs: [silicon.md](silicon.md).",
        "",
        made,
        "",
        "## Number of hosts",
        "",
        "All-reduce of one small message over all ranks, before each job of one public sweep (H100). Signed errors of "
        "three laws, each with two constants fitted to the medians of up to {MAX_FITTED} hosts. The simulator has the "
        "ring: its bandwidth levels off, and each step takes its latency. NCCL did not change to a tree here.",
        "",
        *hosts,
        "",
        "## Groups that share a host's network",
        "",
        "All-reduce of 64 MiB and more in groups of GPUs on two or four hosts, all groups at the same time. One "
        "bandwidth per GPU type is fitted to the eight groups of two; every other shape is predicted. Signed mean "
        "error.",
        "",
        *sharing_table(),
        "",
        "## All-to-alls between two hosts",
        "",
        *(exchange_lines(pairs) if pairs.is_file() else ["Not measured here."]),
        "",
        "## Group sizes",
        "",
        "One start-up, step and bandwidth for an operation, fitted to the smaller groups of a host, tested on the "
        "largest.",
        "",
        *group_table(collectives),
        "",
        "## Sizes",
        "",
        "Latency and bandwidth fitted to every other size of a curve, tested on the sizes between: mean error, and "
        "number of curves. Curves of another shape: profiles whose all-gather copies its parts through lists, GPUs "
        "of one host that are not all equally near (V100, MI200, RTX), and NCCL's change of protocol between 1 and "
        "8 MB.",
        "",
        *curve_table(given),
        "",
    ]
    return "\n".join(parts)


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    yield page()


if __name__ == "__main__":
    run_page(make)
