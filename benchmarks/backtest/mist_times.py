"""
Times of stages of operators: shares of a layer's time, messages and collectives over measured links.

A layer's time is the simulator's (``pipette_opt.costs.compute``) with the stage's own tensor ranks and samples. Its
operators divide it in proportion to their products and bytes. Links are those of Aceso's profiler on the same clusters:
messages of one pair of GPUs, and all-reduces inside a host. The schedule is the simulator's 1F1B with blocking sends.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.backtest.mist_plans import (
    ATTENTION_DROPOUT,
    CONTEXT,
    NUM_KINDS,
    OPERATORS,
    SCORES,
    SOFTMAX,
    Plan,
    StagePlan,
)
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import assumed_cluster, run_training
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.compute import head_times_s, layer_times_s
from pipette_opt.costs.products import matmul_time_s, plain_format
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.run_models import run_model
from pipette_opt.simulate.many import simulate_many
from pipette_opt.specs import GpuSpec, Instance, StackSpec

CORE = [SCORES, SOFTMAX, ATTENTION_DROPOUT, CONTEXT]
QKV, PROJECTION, UP, DOWN = (OPERATORS.index(name) for name in ("query key value", "projection", "MLP up", "MLP down"))

STREAMED = np.array([2, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 3])
"""Hidden states that operators without products read and write; the activation instead has 2 of the MLP's width."""

MESSAGE_MB, COLLECTIVE_MB = (8.0, 1024.0), (10.0, 110.0)
"""Ranges of message sizes, MB, over which measured bandwidths are averaged: those of hidden states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """
    Bandwidths of one cluster, bytes/s.

    Parameters
    ----------
    inside, across
        One message between two GPUs of a host, and of two hosts.
    node
        Total of several messages from one host to another at the same time.
    ring
        Bus bandwidth of an all-reduce inside a host, by its number of ranks.
    """

    inside: float
    across: float
    node: float
    ring: dict[int, float]


def read_links(messages: Path, collectives: Path, groups: Path, gpu: str) -> Links:
    """Return median bandwidths over the sizes of hidden states; ``gpu`` is the name in the files."""
    sent = [row for row in _rows(messages) if row["gpu"] == gpu and row["source"] == "Mist-Aceso-profiler"]
    sent = [row for row in sent if MESSAGE_MB[0] <= float(row["message_MB"]) <= MESSAGE_MB[1]]
    reduced = [row for row in _rows(collectives) if row["gpu"] == gpu and row["op"] == "all_reduce"]
    reduced = [row for row in reduced if COLLECTIVE_MB[0] <= float(row["data_MB"]) <= COLLECTIVE_MB[1]]
    across = _median(float(row["p2p_GBps"]) * 1e9 for row in sent if row["link"] == "inter_node")
    between = [
        float(row["gpus_per_node"]) / float(row["intra_group"]) * float(row["g2g_GBps"]) * 1e9
        for row in _rows(groups)
        if row["gpu"] == gpu and row["nodes"] == "2" == row["inter_group"] and float(row["MB"]) >= COLLECTIVE_MB[0]
    ]
    return Links(
        inside=_median(float(row["p2p_GBps"]) * 1e9 for row in sent if row["link"] == "intra_node"),
        across=across,
        node=max(between, default=np.inf),
        ring={
            ranks: _median(
                2 * (ranks - 1) / ranks * float(row["data_MB"]) * 2**20 / (float(row["time_ms_median"]) * 1e-3)
                for row in reduced
                if int(row["gpus_in_node"]) == ranks
            )
            for ranks in sorted({int(row["gpus_in_node"]) for row in reduced})
        },
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def predict_s(plans: Sequence[Plan], stack: StackSpec, links: dict[str, Links]) -> FloatArray:
    """Return the predicted iteration times, seconds, shape ``(len(plans),)``; ``links`` are by GPU name."""
    times = [plan_times(plan, stack, links[_gpu(plan).name]) for plan in plans]
    return simulate_many(times, [plan.num_microbatches for plan in plans], "blocking")


def plan_times(plan: Plan, stack: StackSpec, links: Links) -> PlacedTimes:
    """Return the times of the run's stages as one replica; ranks of a stage work in parallel."""
    clocks = {(stage.tp, stage.dp): _Clock.of(plan, stage, stack, links) for stage in plan.stages}
    mine = [clocks[stage.tp, stage.dp] for stage in plan.stages]
    passes = np.array([clock.passes_s(stage) for clock, stage in zip(mine, plan.stages, strict=True)])
    inside = np.array([clock.tensor_s(stage) for clock, stage in zip(mine, plan.stages, strict=True)])
    sends = _sends_s(plan, stack, links)
    work = passes + inside + stack.micro_batch_s / 2.0
    states = [clock.states_s(stage, plan.shards_states) for clock, stage in zip(mine, plan.stages, strict=True)]
    tied = len(plan.stages) > 1 and not mine[0].instance.model.untie_embeddings_and_output_weights
    return PlacedTimes(
        forward_s=work[None, :, :1],
        backward_s=work[None, :, 1:],
        tensor_forward_s=inside[None, :, :1],
        tensor_backward_s=inside[None, :, 1:],
        send_forward_s=sends[:, :1],
        send_backward_s=sends[:, 1:],
        reduction_s=np.array([reduction for reduction, _ in states]),
        optimizer_s=stack.iteration_s + max(step for _, step in states),
        embedding_s=_embedding_s(plan, mine, links) if tied else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Clock:
    """Times of operators for one number of tensor ranks and samples."""

    instance: Instance
    config: ParallelConfig
    gpu: GpuSpec
    stack: StackSpec
    links: Links

    @classmethod
    def of(cls, plan: Plan, stage: StagePlan, stack: StackSpec, links: Links) -> "_Clock":
        run = plan.run
        assert run.gpu is not None
        instance = Instance(
            model=run_model(run),
            cluster=assumed_cluster(run, run.gpu, stack),
            training=run_training(run),
            stack=stack,
        )
        config = ParallelConfig(
            tensor_model_parallel_size=stage.tp,
            pipeline_model_parallel_size=1,
            data_parallel_size=stage.dp,
            micro_batch_size=plan.samples // stage.dp,
            layers_per_stage=(run.num_layers or 1,),
        )
        return cls(instance=instance, config=config, gpu=run.gpu.gpu, stack=stack, links=links)

    @property
    def tokens(self) -> int:
        return self.config.micro_batch_size * self.instance.training.seq_length

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one hidden state of all samples of a replica."""
        return float(self.tokens * self.instance.model.hidden_size * self.instance.training.parameter_bytes)

    def operators_s(self) -> FloatArray:
        """Return forward and backward seconds of each kind of operator, shape ``(2, 13)``; in sum the layer's."""
        model, training, rates = self.instance.model, self.instance.training, self.stack
        layer = layer_times_s(self.instance, self.config, self.gpu, rates)
        core = attention_times_s(model, training, self.config, self.gpu, rates, model.layers[0])
        return np.array([self._shared(layer[back], core[back], 1.0 + back) for back in (0, 1)])

    def _shared(self, layer_s: float, core_s: float, passes: float) -> FloatArray:
        model, tp = self.instance.model, self.config.tensor_model_parallel_size
        h, ffn, query = model.hidden_size, model.ffn_hidden_size, model.query_projection_size
        up = 2 * ffn if model.gated_linear_unit else ffn
        shares = np.zeros(NUM_KINDS)
        shares[CORE] = core_s / len(CORE)
        for kind, n, k in (
            (QKV, (query + 2 * model.kv_projection_size) // tp, h),
            (PROJECTION, h, query // tp),
            (UP, up // tp, h),
            (DOWN, h, ffn // tp),
        ):
            shares[kind] = passes * matmul_time_s(
                self.tokens,
                n,
                k,
                form=plain_format(self.gpu, self.instance.training, self.stack),
                gpu=self.gpu,
                rates=self.stack,
            )
        streamed = STREAMED.astype(np.float64)
        streamed[UP + 1] = (up + ffn) / tp / h
        shares += max(layer_s - shares.sum(), 0.0) * streamed / streamed.sum()
        shares *= layer_s / shares.sum()
        return shares

    def passes_s(self, stage: StagePlan) -> FloatArray:
        """Return forward and backward seconds of one micro-batch without collectives, shape ``(2,)``."""
        each = self.operators_s()
        forward, backward = each @ stage.kinds
        backward += each[0] @ stage.twice
        if stage.has_lookup:
            forward += each[0, -1]
            backward += each[1, -1]
        if stage.has_head:
            head = head_times_s(self.instance.model, self.instance.training, self.config, self.gpu, self.stack)
            forward += head[0] + each[0, 0]
            backward += head[1] + each[1, 0]
        return np.array([forward, backward])

    def tensor_s(self, stage: StagePlan) -> FloatArray:
        """
        Return the seconds of all-reduces of one micro-batch, forward and backward, shape ``(2,)``.

        Forward: behind the look-up, the projection and the MLP. Backward: before the head, and before the first
        products of attention and MLP; also the recomputed all-reduces of the forward pass.
        """
        if stage.tp == 1:
            return np.zeros(2)
        kinds, twice = stage.kinds, stage.twice
        forward = kinds[PROJECTION] + kinds[DOWN] + stage.has_lookup
        backward = kinds[QKV] + kinds[UP] + stage.has_head + twice[PROJECTION] + twice[DOWN]
        each = 2.0 * self._hop_s(self.hidden_bytes, stage.tp) + self.stack.collective_s
        return np.array([forward, backward]) * each

    def states_s(self, stage: StagePlan, shards_states: bool) -> tuple[float, float]:
        """Return the seconds of the gradient reduction and of Adam; sharded states add the gather of parameters."""
        training = self.instance.training
        parameters = self.parameters(stage)
        step = training.gradient_bytes + 2 * training.optimizer_bytes + training.parameter_bytes
        traffic = training.gradient_bytes + (training.parameter_bytes if shards_states else training.gradient_bytes)
        reduction = self._hop_s(parameters * traffic, stage.dp) if stage.dp > 1 else 0.0
        owned = parameters / stage.dp if shards_states else parameters
        return reduction, owned * step / (self.gpu.memory_bytes_per_s * self.stack.streaming)

    def parameters(self, stage: StagePlan) -> float:
        """Return the parameters of the large matrices on one tensor rank of the stage."""
        model, tp = self.instance.model, self.config.tensor_model_parallel_size
        h, query = model.hidden_size, model.query_projection_size
        matrices = np.zeros(NUM_KINDS)
        matrices[QKV] = h * (query + 2 * model.kv_projection_size)
        matrices[PROJECTION] = h * query
        matrices[UP] = h * model.ffn_hidden_size * (2 if model.gated_linear_unit else 1)
        matrices[DOWN] = h * model.ffn_hidden_size
        vocabulary = h * model.padded_vocab_size(tp) * (int(stage.has_lookup) + int(stage.has_head))
        if stage.has_lookup and stage.has_head and not model.untie_embeddings_and_output_weights:
            vocabulary //= 2
        return float((matrices @ stage.kinds + vocabulary) / tp)

    def _hop_s(self, size: float, ranks: int) -> float:
        """Return the seconds of one round of a ring inside a host: all but one of its parts over each link."""
        return (ranks - 1) / ranks * size / (self.links.ring[ranks] * self.stack.intra_node)


def _sends_s(plan: Plan, stack: StackSpec, links: Links) -> FloatArray:
    """
    Return the seconds of the forward and backward message of each border, shape ``(pp, 2)``.

    Whole hidden states are sent in parts, one for each pair of ranks, and gathered by the receiving tensor ranks
    (Megatron's scatter and gather, the default of Aceso's runtime); split ones are sent unchanged.
    """
    run = plan.run
    hidden_bytes = float(plan.samples * (run.seq_len or 0) * (run.hidden or 0) * 2)
    starts = np.cumsum([0, *(stage.num_gpus for stage in plan.stages)])
    hosts = starts[:-1] // run.gpus_per_node
    sends = np.zeros((len(plan.stages), 2))
    for border, (sender, follower) in enumerate(pairwise(plan.stages)):
        whole, split = sender.crossing
        flows = max(sender.num_gpus, follower.num_gpus)
        size = (whole + split) * hidden_bytes
        if hosts[border] == hosts[border + 1]:
            message = size / flows / links.inside
        else:
            message = size / min(flows * links.across, links.node)
        for way, receiver in enumerate((follower, sender)):
            sends[border, way] = message + stack.assumed_latency_s
            if receiver.tp > 1:
                part = (receiver.tp - 1) / receiver.tp * whole * hidden_bytes / receiver.dp
                sends[border, way] += part / (links.ring[receiver.tp] * stack.intra_node)
    return sends


def _embedding_s(plan: Plan, clocks: Sequence[_Clock], links: Links) -> float:
    """Return the seconds of the embedding gradient's reduction between the first and the last stage."""
    model, training, run = clocks[0].instance.model, clocks[0].instance.training, plan.run
    ranks = min(plan.stages[0].tp, plan.stages[-1].tp)
    size = model.padded_vocab_size(ranks) * model.hidden_size * training.gradient_bytes
    if run.num_gpus <= run.gpus_per_node:
        return size / ranks / links.inside
    return size / min(ranks * links.across, links.node)


def _gpu(plan: Plan) -> GpuSpec:
    assert plan.run.gpu is not None
    return plan.run.gpu.gpu
