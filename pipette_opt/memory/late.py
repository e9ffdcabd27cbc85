"""
Buffers that come back late: what the host frees before its GPU has used it.

A collective runs on a stream of its own. A tensor that it reads or writes may be freed by the host at once, and is
there for others when the GPU has come so far (``Tensor.record_stream`` in PyTorch). A host that runs ahead piles such
tensors up. Before PyTorch fails it waits for all of them (``release_cached_blocks`` in
``c10/cuda/CUDACachingAllocator.cpp``).
"""

from collections import deque
from collections.abc import Sequence

import torch

from pipette_opt.memory.allocator import CachingAllocator, DeviceFullError, Event
from pipette_opt.memory.shapes import LocalShapes
from pipette_opt.memory.statics import StaticSizes, static_sizes
from pipette_opt.memory.storage import LiveStorages
from pipette_opt.memory.trace import StageRun, build_stage, iterate_twice, passes_of
from pipette_opt.memory.transformer.operations import DTYPES
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

MICROBATCHES = 2
"""Traced of an iteration: the second meets what the first has left."""


class LateAllocator(CachingAllocator):
    """
    The allocator of a device whose host is ahead.

    Parameters
    ----------
    capacity_bytes
        What its segments may have together; ``None`` for no limit.
    buffer_bytes
        Size of the tensors that collectives use: gathered micro-batches.
    behind
        How many more of them are asked for before a freed one is there again; 0 if the host is not ahead.

    Attributes
    ----------
    num_waits
        How often the device was full and all that waited was taken back.
    """

    def __init__(self, capacity_bytes: int | None, *, buffer_bytes: int, behind: int) -> None:
        super().__init__(capacity_bytes)
        self.buffer_bytes, self.behind = buffer_bytes, behind
        self.num_waits = 0
        self._asked = 0
        self._buffers: set[int] = set()
        self._waiting: deque[tuple[int, int]] = deque()

    def allocate(self, key: int, size: int) -> None:
        """Allocate; on a full device after all that waits has been taken back."""
        if size == self.buffer_bytes and self.behind:
            self._asked += 1
            self._buffers.add(key)
            while self._waiting and self._waiting[0][0] <= self._asked - self.behind:
                super().release(self._waiting.popleft()[1])
        try:
            super().allocate(key, size)
        except DeviceFullError:
            self.num_waits += 1
            while self._waiting:
                super().release(self._waiting.popleft()[1])
            super().allocate(key, size)

    def release(self, key: int) -> None:
        """Free; a collective's buffer waits."""
        if key in self._buffers:
            self._buffers.remove(key)
            self._waiting.append((self._asked, key))
        else:
            super().release(key)


def replay_late(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    behind: int,
    growth: float = 1.0,
    capacity_bytes: int | None = None,
) -> LateAllocator:
    """
    The allocator after two iterations of a job without a pipeline; raises ``DeviceFullError`` if it does not fit.

    Attention keeps no scores outside its layers, as flash attention does not.

    Parameters
    ----------
    behind
        Buffers of one gathered micro-batch that the host is ahead.
    growth
        What all other tensors of the passes are multiplied by: stacks keep more than is traced.
    """
    if config.pipeline_model_parallel_size > 1:
        raise ValueError(f"pipeline_model_parallel_size must be 1, got {config.pipeline_model_parallel_size}.")
    shapes = LocalShapes.of(model, training, config)
    statics, events = _traced(model, training, config, shapes)
    buffer_bytes = shapes.tokens * shapes.hidden * DTYPES[training.precision].itemsize
    grown = [
        event if event.size in (-1, buffer_bytes) else Event(event.key, int(event.size * growth)) for event in events
    ]
    allocator = LateAllocator(capacity_bytes, buffer_bytes=buffer_bytes, behind=behind)
    iterate_twice(allocator, statics, 0, grown)
    return allocator


def _traced(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, shapes: LocalShapes
) -> tuple[StaticSizes, Sequence[Event]]:
    """What is there all the time, and what the passes allocate and free."""
    with torch.device("meta"):
        chunks = build_stage(model, training, config, shapes, 0)
        statics = static_sizes(chunks, training, config)
        with LiveStorages(apart=chunks.parameters()) as storages:
            run = StageRun(chunks, training, shapes, storages)
            run.go(passes_of(training, config, 0, MICROBATCHES))
            del run
    return statics, storages.events
