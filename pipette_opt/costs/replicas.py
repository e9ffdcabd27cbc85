"""
Waiting of replicas for the one with the longest documents.

Documents of a batch are drawn at random from the job's histogram, and handed to micro-batches and replicas in turn, as
samplers do. The work of a micro-batch is the model's FLOPs: of its padded tokens, and of attention inside documents.
With equal stages a pipeline takes the sum of its micro-batches' work and, for each further stage, the largest one
(proportionate flow shop; Pinedo, Scheduling, section 6.1).
"""

from functools import lru_cache

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec
from pipette_opt.specs.documents import Documents

DRAWN_SEQUENCES = 2**18
"""Sequences drawn in all iterations of one batch size; chosen, for some milliseconds."""

MOST_ITERATIONS = 256
"""Most iterations that are drawn; chosen."""

PACKED_SEQUENCES = 1024
"""Most different packed sequences that batches are drawn from; chosen."""

MOST_DOCUMENTS = 2**20
"""Most documents that are drawn for all packed sequences together, where documents are very short; chosen."""


def replica_waits(instance: Instance, config: ParallelConfig) -> FloatArray:
    """
    Return the slowest replica's work over that of equal micro-batches in drawn iterations, shape ``(iterations,)``.

    Its mean is at least 1. Without lengths of documents all micro-batches are equal. Model chunks of an interleaved
    pipeline do not count.
    """
    if instance.training.documents is None:
        return np.ones(1)
    return _of_config(instance, config)[0]


def share_of_longest(instance: Instance, config: ParallelConfig) -> float:
    """
    Return where the slowest replica's mean micro-batch lies between the mean (0) and whole sequences (1), by its work.

    Times are interpolated so: those of short micro-batches do not shrink with their work. 0 without lengths.
    """
    return 0.0 if instance.training.documents is None else _of_config(instance, config)[1]


def _of_config(instance: Instance, config: ParallelConfig) -> tuple[FloatArray, float]:
    """Return the result of :func:`_waits` for a configuration."""
    return _waits(
        instance.model,
        instance.training,
        (config.data_parallel_size, microbatches_of(instance.training, config), config.micro_batch_size),
        config.pipeline_model_parallel_size - 1,
        waits_at_each(instance.training, config),
    )


def waits_at_each(training: TrainingSpec, config: ParallelConfig) -> bool:
    """Return whether replicas wait for each other at every micro-batch: they share weights, or reduce gradients."""
    return config.sharding_stage > 2 or (config.sharding_stage == 2 and not training.whole_gradients)


@lru_cache(maxsize=4096)
def _waits(
    model: ModelSpec, training: TrainingSpec, shape: tuple[int, int, int], further_stages: int, waits_at_each: bool
) -> tuple[FloatArray, float]:
    """
    Return the results of :func:`replica_waits` and :func:`share_of_longest`.

    ``shape``: replicas, micro-batches of each, and sequences of a micro-batch.
    """
    tokens, attended = _drawn(model, training, shape[0] * shape[1] * shape[2])
    tokens, attended = tokens.reshape(-1, *shape), attended.reshape(-1, *shape)
    each = model.flops_per_token(1)
    work = each * shape[2] * tokens.max(axis=3) + attended.sum(axis=3)
    if waits_at_each:
        longest = work.max(axis=1)
        steps = longest.sum(axis=1) + further_stages * longest.max(axis=1)
    else:
        steps = (work.sum(axis=2) + further_stages * work.max(axis=2)).max(axis=1)
    mean, whole = work.mean(), shape[2] * training.seq_length * model.flops_per_token(training.seq_length)
    waits: FloatArray = steps / ((shape[1] + further_stages) * mean)
    slower = (float(waits.mean()) - 1) * mean
    return waits, min(1.0, slower / (whole - mean)) if whole > mean * (1 + 1e-9) else 0.0


@lru_cache(maxsize=32)
def _drawn(model: ModelSpec, training: TrainingSpec, batch: int) -> tuple[FloatArray, FloatArray]:
    """Return tokens of sequences, and FLOPs of their attention, in drawn iterations, shape ``(iterations, batch)``."""
    documents = training.documents
    assert documents is not None
    rng = np.random.default_rng(0)
    shape = min(MOST_ITERATIONS, max(1, DRAWN_SEQUENCES // batch)), batch
    lengths = np.array(documents.lengths)
    each = model.flops_per_token(1)
    attention = np.array([length * (model.flops_per_token(length) - each) for length in documents.lengths])
    if not training.packed:
        drawn = _documents(documents, shape, rng)
        return lengths[drawn].astype(np.float64), attention[drawn]
    room = training.seq_length
    of_each = max(1, int(2 * room / documents.mean_length))
    num_sequences = max(1, min(PACKED_SEQUENCES, MOST_DOCUMENTS // of_each))
    drawn = _documents(documents, (num_sequences, of_each), rng)
    filled = np.cumsum(lengths[drawn], axis=1)
    fits = filled <= room
    fits[:, 0] = True
    held = (lengths[drawn] * fits).sum(axis=1)
    of_sequence = (attention[drawn] * fits).sum(axis=1) * (room / held)
    return np.full(shape, float(room)), of_sequence[rng.integers(num_sequences, size=shape)]


def _documents(documents: Documents, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Return indices of lengths of documents drawn at random."""
    shares = np.cumsum(documents.counts) / np.sum(documents.counts)
    return np.searchsorted(shares, rng.random(shape), side="right").clip(max=len(shares) - 1)
