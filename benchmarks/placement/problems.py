"""Problems of placement instances: equal weights of transfers and rings, weights of real jobs, and joint choices."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.base.units import GB, US
from pipette_opt.baselines.compare import analytical_problem
from pipette_opt.candidates import SearchSpace
from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.prepare import Question, prepare
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.model import read_model
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, NodeSpec, TrainingSpec

MAX_OOM_RISK = 0.01
"""Accepted risk of running out of memory for the joint instance's candidates."""

Shape = tuple[int, int]
"""Pipeline and data size of the grid of hosts."""

TICKS_PER_LINK = 40_000
"""Integer time units (ticks) of a transfer over the median link of a balanced instance. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Real job whose weights of transfers and rings, for each stage, come from the costs of its layers."""

    model: str
    global_batch_size: int
    seq_length: int
    micro_batch_size: int = 1
    gpu: str = "h100-80gb"


JOINT = Job(model="llama-2-70b", global_batch_size=512, seq_length=4096)
JOINT_HOSTS = 16


def balanced_problem(gb_per_s: FloatArray, shape: Shape, p2p: P2PMode) -> ProblemData:
    """
    Return a problem with one candidate whose transfers and slowest ring take about equal time over equal links.

    Each cell of the grid is one host. Stages are equal; a micro-batch's compute takes as long as three transfers over
    the median link, a third of it forward. There are four micro-batches for each stage. Hosts have one GPU, so that
    methods without tensor parallelism have a placement too.
    """
    P, D = shape
    m = 4 * P
    link = np.round(TICKS_PER_LINK * np.nanmedian(gb_per_s) / gb_per_s)
    if p2p == "blocking":
        link = np.maximum(link, link.T)
    ring = np.round(link * _path_links(P, m, p2p))
    work = np.full((1, P), TICKS_PER_LINK)
    none = np.zeros((0, 0), dtype=np.int64)
    candidate = CandidateData(
        config=ParallelConfig(
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=P,
            data_parallel_size=D,
            micro_batch_size=1,
            layers_per_stage=(1,) * P,
        ),
        tile=HostTile(stages=1, replicas=1, nodes_per_slot=1, order="tp-cp-ep-dp-pp", contiguous=True),
        grid=(P, D, 1),
        num_microbatches=m,
        forward_ticks=work,
        backward_ticks=2 * work,
        intra_p2p_ticks=0,
        p2p_ticks=_ticks(link),
        ring_class=np.zeros(P, dtype=np.int64),
        ring_ticks=_ticks(ring)[None] if D > 1 else np.zeros((1, 0, 0), dtype=np.int64),
        ring_floor_ticks=np.zeros(P, dtype=np.int64),
        tensor_forward_ticks=none,
        tensor_backward_ticks=none,
        optimizer_ticks=0,
        memory_need_mib=np.ones(P, dtype=np.int64),
        rounding_ticks=0,
    )
    same = np.ones(len(gb_per_s), dtype=np.int64)
    return ProblemData(candidates=(candidate,), p2p=p2p, tick_s=1e-6, kind_of_node=same - 1, capacity_mib=same)


def _path_links(P: int, m: int, p2p: P2PMode) -> float:
    """Return the part of a replica's time over equal links that depends on placement, in transfers; at least 1."""
    period = min(P - 1, 2) if p2p == "blocking" else 2 * (P - 1) / P
    return max(1.0, (m - 1) * period + 2 * (P - 1))


def _ticks(links: FloatArray) -> IntArray:
    """Return link times as integers, with ``UNUSABLE_TICKS`` for missing links."""
    return np.where(np.isnan(links), UNUSABLE_TICKS, links).astype(np.int64)


def cluster_of(gb_per_s: FloatArray, flows: int, gpu: str) -> ClusterSpec:
    """Return hosts of eight GPUs with a NIC each; ``flows`` flows of a pair share the given bandwidth."""
    entry = read_gpu_entry(gpu)
    return ClusterSpec(
        name="benchmark",
        nodes=tuple(NodeSpec(host=f"n{number}", gpu=entry.gpu, num_gpus=8) for number in range(len(gb_per_s))),
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        intra_node_latency_s=entry.intra_node_latency_s,
        inter_node_latency_s=12 * US,
        nics_per_node=8,
        link_matrices=(LinkMatrix(concurrent_flows=flows, bytes_per_s=gb_per_s * GB),),
    )


def job_problem(job: Job, cluster: ClusterSpec, shape: Shape, p2p: P2PMode) -> ProblemData:
    """Return a problem with one candidate of a real job: tensor parallelism inside hosts, nearly equal stages."""
    P, D = shape
    model = read_model(job.model)
    m = max(P, job.global_batch_size // (D * job.micro_batch_size))
    config = ParallelConfig(
        tensor_model_parallel_size=8,
        pipeline_model_parallel_size=P,
        data_parallel_size=D,
        micro_batch_size=job.micro_batch_size,
        layers_per_stage=tuple(len(part) for part in np.array_split(np.arange(model.num_layers), P)),
        sequence_parallel=True,
        use_distributed_optimizer=D > 1,
    )
    training = TrainingSpec(global_batch_size=m * D * job.micro_batch_size, seq_length=job.seq_length)
    instance = Instance(model=model, cluster=cluster, training=training, p2p=p2p)
    fitting = FittingCandidate(config=config, need_bytes=np.zeros(P, dtype=np.int64))
    return build_problem_data(instance, [fitting], np.zeros(cluster.num_nodes, dtype=np.int64))


def joint_problem(cluster: ClusterSpec, p2p: P2PMode) -> ProblemData:
    """Return a problem with all candidates of a job with 128 GPUs that fit and have an exact analytical 1F1B model."""
    training = TrainingSpec(global_batch_size=JOINT.global_batch_size, seq_length=JOINT.seq_length)
    instance = Instance(model=read_model(JOINT.model), cluster=cluster, training=training, p2p=p2p)
    space = SearchSpace(
        num_gpus=8 * JOINT_HOSTS,
        virtual_pipeline=(1,),
        context_parallel=(1,),
        recompute=(None, "selective", "full"),
        overlap_grad_reduce=False,
    )
    return analytical_problem(prepare(Question(instance, space, MAX_OOM_RISK)))
