"""
AMP's pipeline of unequal layers (TransGAN's generator on 16 V100), from AMP's measured layer times.

No transformer of equal layers describes it, so its stages are sums of measured forward times of its 56 pseudo-layers.
The schedule with asynchronous sends, messages and reductions are the simulator's. Shapes are AMP's (DachengLi1/AMP,
``cost_het_model.py``, ``het_model.py``): twelve blocks of width 1024 over 81 positions, twelve of width 16 over 82,944.
A block has 12 h^2 parameters, reduced in 32 bits. A backward pass takes two forward passes. Pseudo-layers 3-14 and
41-52 are the blocks.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.collectives import all_reduce_traffic
from pipette_opt.costs.links import EachLink, NoLinks, RingShape
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.simulate.many import simulate_many
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec, StackSpec

WIDE, NARROW = range(3, 15), range(41, 53)
WIDE_ELEMENTS, NARROW_ELEMENTS = 81 * 1024, 82_944 * 16
"""Elements of one sample that cross a border inside the wide blocks, and after them."""

BLOCK_PARAMETERS = {1024: 12 * 1024**2, 16: 12 * 16**2}
ELEMENT_BYTES, GRADIENT_BYTES = 2, 4
GPUS_PER_NODE, NUM_NODES = 4, 4

PRIORS = {"launch_share": (0.3, 0.7), "node_bytes_per_s": (1.25e9, 0.5), "iteration_s": (0.05, 1.0)}
"""
Centre, and standard deviation of the log, of the prior of each fitted constant; 10 Gbit/s is the hosts' nominal link.
"""

NOISE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """
    Fitted constants.

    Parameters
    ----------
    launch_share
        Fraction of a layer's measured time for one sample that does not grow with the number of samples.
    node_bytes_per_s
        Bandwidth of all GPUs of a host together to another host, bytes/s.
    iteration_s
        Seconds added to each iteration.
    """

    launch_share: float
    node_bytes_per_s: float
    iteration_s: float


def read_layers(path: Path) -> dict[int, FloatArray]:
    """Return the forward seconds of each pseudo-layer for one sample, by tensor-parallel size."""
    seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    return {tp: np.array(seconds[f"transgan_P3_{tp}"]) for tp in (1, 2, 4)}


def predict_s(runs: Sequence[MeasuredRun], layers: dict[int, FloatArray], constants: Constants) -> FloatArray:
    """Return the predicted iteration times, seconds, shape ``(len(runs),)``."""
    hosts = cluster(constants.node_bytes_per_s)
    times = [placed(run, layers, constants, hosts) for run in runs]
    microbatches = [(run.gbs or 0) // ((run.dp or 1) * (run.mbs or 1)) for run in runs]
    return simulate_many(times, microbatches, "async")


def placed(run: MeasuredRun, layers: dict[int, FloatArray], constants: Constants, hosts: ClusterSpec) -> PlacedTimes:
    """Return the times of stages, messages and reductions of a row."""
    tp, pp, dp, mbs = run.tp or 1, run.pp or 1, run.dp or 1, run.mbs or 1
    bounds = boundaries(run)
    samples = constants.launch_share + (1.0 - constants.launch_share) * mbs
    forward = np.array([layers[tp][a:b].sum() for a, b in pairwise(bounds)]) * samples
    node = np.arange(run.num_gpus).reshape(pp, dp, tp) // GPUS_PER_NODE
    whole = np.repeat(forward[None, :, None], dp, axis=2)
    sends = np.zeros((pp, dp))
    for stage in range(pp - 1):
        elements = WIDE_ELEMENTS if bounds[stage + 1] <= WIDE.stop else NARROW_ELEMENTS
        sends[stage] = message_s(hosts, elements * mbs * ELEMENT_BYTES, node[stage], node[stage + 1])
    return PlacedTimes(
        forward_s=whole,
        backward_s=2.0 * whole,
        tensor_forward_s=np.zeros_like(whole),
        tensor_backward_s=np.zeros_like(whole),
        send_forward_s=sends,
        send_backward_s=sends,
        reduction_s=reductions_s(hosts, bounds, node),
        optimizer_s=constants.iteration_s,
    )


def boundaries(run: MeasuredRun) -> list[int]:
    """Return the index of each stage's first pseudo-layer, and the number of pseudo-layers."""
    found = re.search(r"stage boundaries \[([\d,\s]+)\]", run.notes)
    assert found is not None
    return [int(part) for part in found.group(1).split(",")]


def message_s(hosts: ClusterSpec, size: float, sources: IntArray, targets: IntArray) -> float:
    """Return the seconds of a border's slowest message; messages between one pair of hosts share its link."""
    pairs, flows = np.unique(np.stack([sources.ravel(), targets.ravel()]), axis=1, return_counts=True)
    times = [
        intra_node_message_s(hosts, size) if a == b else float(inter_node_message_s(hosts, size, int(flow))[a, b])
        for (a, b), flow in zip(pairs.T, flows, strict=True)
    ]
    return max(times)


def reductions_s(hosts: ClusterSpec, bounds: Sequence[int], node: IntArray) -> FloatArray:
    """Return each stage's gradient reduction, seconds, shape ``(pp,)``; rings that leave a host share its link."""
    pp, dp, tp = node.shape
    on_host = [np.unique(node[stage, :, rank], return_counts=True) for stage in range(pp) for rank in range(tp)]
    flows = np.zeros(NUM_NODES, dtype=np.int64)
    for passed, members in on_host:
        if len(passed) > 1:
            flows[passed] += members.min()
    times = np.zeros(pp)
    for stage in range(pp if dp > 1 else 0):
        own = range(bounds[stage], bounds[stage + 1])
        wide, narrow = (sum(layer in blocks for layer in own) for blocks in (WIDE, NARROW))
        parameters = (wide * BLOCK_PARAMETERS[1024] + narrow * BLOCK_PARAMETERS[16]) / tp
        traffic = all_reduce_traffic(parameters * GRADIENT_BYTES, dp)
        passed, members = on_host[stage * tp]
        if len(passed) == 1:
            times[stage] = float(NoLinks(hosts).ring_s(RingShape(dp), traffic)[0])
            continue
        shape = RingShape(int(members.min()), len(passed), int(flows[passed].max()))
        times[stage] = float(np.nanmax(EachLink(hosts).ring_s(shape, traffic)))
    return times


def cluster(node_bytes_per_s: float) -> ClusterSpec:
    """Return a cluster of four hosts with four V100 each."""
    entry = read_gpu_entry("v100-16gb")
    one_flow = np.full((NUM_NODES, NUM_NODES), node_bytes_per_s)
    return ClusterSpec(
        name="p3.8xlarge",
        nodes=tuple(NodeSpec(host=f"n{i}", gpu=entry.gpu, num_gpus=GPUS_PER_NODE) for i in range(NUM_NODES)),
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        intra_node_latency_s=entry.intra_node_latency_s,
        inter_node_latency_s=StackSpec().assumed_latency_s,
        nics_per_node=1,
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=one_flow),),
    )


def fit(runs: Sequence[MeasuredRun], layers: dict[int, FloatArray]) -> Constants:
    """Return the constants with the least absolute log errors plus priors, found by coordinate descent."""
    measured = np.log([run.iter_time_s for run in runs])
    values = {name: np.log(centre) for name, (centre, _) in PRIORS.items()}

    def loss(trial: dict[str, float]) -> float:
        constants = Constants(**{name: float(np.exp(value)) for name, value in trial.items()})
        if constants.launch_share > 0.95:
            return float("inf")
        prior = sum(((trial[name] - np.log(centre)) / spread) ** 2 for name, (centre, spread) in PRIORS.items())
        return float(np.abs(np.log(predict_s(runs, layers, constants)) - measured).sum() / NOISE + 0.5 * prior)

    best = loss(values)
    step = 0.5
    while step > 0.02:
        improved = False
        for name in values:
            for sign in (1.0, -1.0):
                trial = values | {name: values[name] + sign * step}
                if (found := loss(trial)) < best:
                    values, best, improved = trial, found, True
        step = step if improved else step / 2
    return Constants(**{name: float(np.exp(value)) for name, value in values.items()})
