"""Links of the emulated clusters, and the job that runs on them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from benchmarks.placement.clusters import link_gb_per_s
from pipette_opt.base.types import FloatArray
from pipette_opt.specs import ComputeProfile, ModelSpec, ProfileKey, TrainingSpec

NUM_USED = 8

FASTEST_BYTES_PER_S = 30e6
"""Rate of each scenario's fastest link, bytes/s; few cores can carry it eight times. Chosen."""

GPU = "a100-80gb"
"""GPU type in place of the processor; only the layer times below matter."""

LAYER_S = (8e-3, 16e-3)
"""Seconds of the forward and backward pass of a stage's only layer. Chosen."""

MODEL = ModelSpec(
    name="emulated",
    num_layers=4,
    hidden_size=256,
    ffn_hidden_size=1024,
    num_attention_heads=4,
    num_query_groups=4,
    kv_channels=64,
    vocab_size=1024,
    max_position_embeddings=1024,
    untie_embeddings_and_output_weights=True,
)

TRAINING = TrainingSpec(global_batch_size=8, seq_length=1024)

PROFILE = ComputeProfile(
    layers={
        ProfileKey(gpu=GPU, tensor_model_parallel_size=1, micro_batch_size=1, seq_length=TRAINING.seq_length): LAYER_S
    }
)


def _subset(cluster: str, random: np.random.Generator) -> FloatArray:
    """Return the rates between eight random hosts of a measured cluster, all of whose links were measured."""
    rate = link_gb_per_s(cluster, 0, 0)
    for _ in range(10_000):
        hosts = np.sort(random.choice(len(rate), NUM_USED, replace=False))
        part = rate[np.ix_(hosts, hosts)]
        if not np.isnan(part[~np.eye(NUM_USED, dtype=bool)]).any():
            return part
    raise AssertionError(f"{cluster} has no {NUM_USED} hosts with all links")


def _slow_node(random: np.random.Generator) -> FloatArray:
    """Return the rates between nine hosts, within 10 %, one of them at 0.35 on all its links; eight are used."""
    rate = random.uniform(0.9, 1.0, (NUM_USED + 1, NUM_USED + 1))
    slow = int(random.integers(NUM_USED + 1))
    rate[slow] *= 0.35
    rate[:, slow] *= 0.35
    rate[slow, slow] = np.nan
    return rate


SCENARIOS: Mapping[str, Callable[[np.random.Generator], FloatArray]] = MappingProxyType(
    {
        "nccl-tests, 8 of 17": lambda random: _subset("measured-17", random),
        "mpiGraph, 8 of 16": lambda random: _subset("measured-16", random),
        "slow node among 9": _slow_node,
    }
)


def rates_of(scenario: str, seed: int) -> FloatArray:
    """Return the rates from host to host, bytes/s, with the fastest at ``FASTEST_BYTES_PER_S``; NaN on the diagonal."""
    random = np.random.default_rng((list(SCENARIOS).index(scenario), seed))
    rate = SCENARIOS[scenario](random)
    np.fill_diagonal(rate, np.nan)
    return rate / np.nanmax(rate) * FASTEST_BYTES_PER_S
