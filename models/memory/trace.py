"""Trace of a stage's peak memory: its layers run on tensors without data, while live bytes are counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from models.memory.allocator import AllocatorPeaks, CachingAllocator, smallest_capacity
from models.memory.live_storages import Event, LiveStorages
from models.memory.shapes import LocalShapes
from models.memory.stage_passes import Pass, passes_of
from models.memory.stand_ins import DTYPES
from models.memory.statics import StaticSizes, static_sizes
from models.memory.transformer.ends import Embeddings, Head
from models.memory.transformer.layers import Chunk, Layer
from models.memory.transformer.operations import FreshGradient, hop
from pipette_opt.layers.kinds import pattern_of
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.schedule import Schedule
from pipette_opt.specs import LayerKind, ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrace:
    """
    Traced bytes of one rank of a stage.

    Parameters
    ----------
    num_parameters
        Parameters that the rank works with.
    weight_bytes, gradient_bytes, optimizer_bytes
        Held during the whole iteration; under ZeRO, the rank's shards and the buffers of gathered parameters.
    placeholder_bytes
        Empty gradients of matrices, one for each shape.
    activation_bytes
        Maximum of the bytes that forward and backward passes add.
    held_bytes
        Kept by the first forward pass for its backward pass, without the output of the stage.
    step_bytes
        Bytes that the optimizer step adds.
    reserved_bytes
        Peak of the bytes that the caching allocator reserves over two iterations; 0 without a replay.
    needed_bytes
        Smallest capacity that suffices when unused segments are returned on a full device; 0 without a replay.
    """

    num_parameters: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    placeholder_bytes: int
    activation_bytes: int
    held_bytes: int
    step_bytes: int
    reserved_bytes: int = 0
    needed_bytes: int = 0

    @property
    def static_bytes(self) -> int:
        """Bytes of weights, gradients and optimizer state."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> int:
        """Peak of the allocated bytes."""
        return self.static_bytes + self.placeholder_bytes + max(self.activation_bytes, self.step_bytes)


def trace_stage(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    stage: int,
    num_microbatches: int | None = None,
    *,
    rounding_bytes: int = 512,
    replay: bool = False,
    need: bool = False,
    schedule: Schedule | None = None,
) -> StageTrace:
    """
    Run one stage of the model, forward and backward, and return the bytes that it allocates.

    Parameters
    ----------
    stage
        Pipeline stage, from 0.
    num_microbatches
        Micro-batches per replica and iteration; from the batch sizes if ``None``.
    rounding_bytes
        Sizes are rounded up to a multiple of this, as in the CUDA allocator.
    replay
        Whether the allocations are also replayed through the model of the caching allocator.
    need
        Whether the smallest sufficient capacity is searched, by replays on ever smaller devices.
    schedule
        Schedule with whole backward passes, in place of 1F1B.
    """
    passes = passes_of(training, config, stage, num_microbatches, schedule)
    shapes = LocalShapes.of(model, training, config)
    with torch.device("meta"):
        chunks = build_stage(model, training, config, shapes, stage)
        statics = static_sizes(chunks, training, config)
        with LiveStorages(rounding_bytes, apart=chunks.parameters()) as storages:
            kept = {kind: [_bytes(size) for size in sizes] for kind, sizes in statics.during_passes().items()}
            workspace = score_workspace(training, shapes)
            workspace_bytes = 0 if workspace is None else storages.size_of(workspace)
            static_bytes, num_static = storages.live_bytes - workspace_bytes, len(storages.events)
            run = StageRun(chunks, training, shapes, storages)
            run.go(passes)
            held, peak = run.held_bytes, storages.peak_bytes
            del run
            by_kind = {kind: sum(map(storages.size_of, tensors)) for kind, tensors in kept.items()}
    reserved = needed = 0
    if replay or need:
        events = storages.events[num_static:]
        peaks = replay_iterations(statics, workspace_bytes, events)
        reserved = peaks.reserved_bytes
        if need:
            needed = smallest_capacity(
                lambda capacity: replay_iterations(statics, workspace_bytes, events, capacity), peaks
            )
    return StageTrace(
        num_parameters=statics.num_parameters,
        weight_bytes=by_kind["weights"],
        gradient_bytes=by_kind["gradients"],
        optimizer_bytes=by_kind["optimizer"],
        placeholder_bytes=by_kind["placeholders"],
        activation_bytes=peak - static_bytes,
        held_bytes=held,
        step_bytes=sum(statics.step),
        reserved_bytes=reserved,
        needed_bytes=needed,
    )


def build_stage(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, shapes: LocalShapes, stage: int
) -> nn.ModuleList:
    """Return the model chunks of a stage; embeddings come before the model's first chunk, the head after its last."""
    pp = config.pipeline_model_parallel_size
    embeddings = Embeddings(model, training, shapes) if stage == 0 else None
    shared, fresh = None, FreshGradient(used_twice=False)
    if embeddings is not None and pp == 1 and not model.untie_embeddings_and_output_weights:
        shared, fresh = embeddings.tables[0], FreshGradient(used_twice=True)
        embeddings.fresh = fresh
    head = (
        Head(model, training, shapes, shared, fresh if config.sharding_stage < 2 else None) if stage == pp - 1 else None
    )
    selective = config.recompute_granularity == "selective"
    full, whole = config.recompute_granularity == "full", config.recompute_method == "uniform"
    chunks = []
    for chunk, of_stages in enumerate(config.layers_per_chunk):
        first, num_layers = first_layer(config, stage, chunk), of_stages[stage]
        layers = [
            Layer(
                model,
                training,
                shapes,
                selective,
                shapes.experts if _kind_at(model, first + n).has_experts else None,
            )
            for n in range(num_layers)
        ]
        recomputed = full * (num_layers if whole else min(config.recompute_num_layers, num_layers))
        is_last = chunk == config.num_chunks - 1
        at_once = full * (config.recompute_num_layers if whole else 1)
        chunks.append(Chunk(layers, embeddings if chunk == 0 else None, head if is_last else None, recomputed, at_once))
    return nn.ModuleList(chunks)


def _kind_at(model: ModelSpec, place: int) -> LayerKind:
    """Return the kind of the layer at an index from 0; layers beyond the last one continue the repeating pattern."""
    layers = model.layers
    if place < len(layers):
        return layers[place]
    period = pattern_of(layers).period
    return layers[len(layers) - period + (place - len(layers)) % period]


def first_layer(config: ParallelConfig, stage: int, chunk: int) -> int:
    """Return the index in the model of a chunk's first layer; consecutive stages hold consecutive layers of a chunk."""
    before = config.layers_per_chunk[:chunk]
    return sum(map(sum, before)) + sum(config.layers_per_chunk[chunk][:stage])


def score_workspace(training: TrainingSpec, shapes: LocalShapes) -> Tensor | None:
    """
    Return the buffer for one score matrix that Megatron-Core's unfused attention keeps (``get_global_memory_buffer``).

    Returns ``None`` with flash attention.
    """
    if training.attention_kernel == "flash":
        return None
    scores = (shapes.heads * shapes.micro_batch_size, shapes.seq_length, shapes.seq_length)
    return torch.empty(scores, dtype=DTYPES[training.precision])


def _bytes(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def replay_iterations(
    statics: StaticSizes, workspace_bytes: int, passes: Sequence[Event], capacity_bytes: int | None = None
) -> AllocatorPeaks:
    """
    Return the allocator's peaks over two iterations; raises ``DeviceFullError`` if they exceed the capacity.

    Adam's moments are allocated in the first step, into blocks that the first iteration's activations left free. The
    second iteration's activations find these blocks taken.

    Parameters
    ----------
    passes
        Allocations and releases of the passes of one iteration.
    capacity_bytes
        Capacity of the device; ``None`` for no limit.
    """
    allocator = CachingAllocator(capacity_bytes)
    iterate_twice(allocator, statics, workspace_bytes, passes)
    return allocator.peaks


def iterate_twice(
    allocator: CachingAllocator, statics: StaticSizes, workspace_bytes: int, passes: Sequence[Event]
) -> None:
    """Run two iterations on an allocator; see :func:`replay_iterations`."""
    keys = count()
    for size in (
        *statics.weights,
        *statics.copies,
        *statics.gradients,
        *statics.placeholders,
        *statics.master,
        workspace_bytes,
    ):
        allocator.allocate(next(keys), size)
    for iteration in range(2):
        names: dict[int, int] = {}
        for event in passes:
            if event.size >= 0:
                names[event.key] = next(keys)
                allocator.allocate(names[event.key], event.size)
            else:
                allocator.release(names[event.key])
        if iteration == 0:
            for size in statics.moments:
                allocator.allocate(next(keys), size)
        temporary = [(next(keys), size) for size in statics.step]
        for key, size in temporary:
            allocator.allocate(key, size)
        for key, _ in temporary:
            allocator.release(key)


class StageRun:
    """Running passes of one stage, with the tensors that wait for their backward pass or for being sent."""

    def __init__(
        self, chunks: nn.ModuleList, training: TrainingSpec, shapes: LocalShapes, storages: LiveStorages
    ) -> None:
        self.chunks, self.shapes, self.storages = chunks, shapes, storages
        self.dtype = DTYPES[training.precision]
        self.static_bytes = storages.live_bytes
        self.held_bytes = 0
        self.waiting: dict[tuple[int, int], tuple[Tensor, Tensor, list[Tensor]]] = {}
        self.sent_output: Tensor | None = None
        self.sent_gradient: Tensor | None = None

    def go(self, passes: Iterable[Pass]) -> None:
        """Run the passes in the order of the schedule."""
        for kind, chunk, microbatch in passes:
            if kind == "forward":
                self._forward(chunk, microbatch)
            else:
                self._backward(chunk, microbatch)

    def _forward(self, index: int, microbatch: int) -> None:
        """Receive an input while the last gradient is sent, run the chunk, keep the tensors for its backward pass."""
        chunk = self.chunks[index]
        self.sent_output = None
        if chunk.embeddings is None:
            received = self._activation().requires_grad_()
        else:
            received = torch.empty(self.shapes.tokens, dtype=torch.int64)
        self.sent_gradient = None
        out = chunk(received)
        box: list[Tensor] = []
        if chunk.head is None:
            self.waiting[index, microbatch] = received, hop(out, box), box
            self.sent_output = out
        else:
            self.waiting[index, microbatch] = received, out, box
        if not self.held_bytes:
            sent = 0 if chunk.head is not None or out is received else self.storages.size_of(out)
            self.held_bytes = self.storages.live_bytes - self.static_bytes - sent

    def _backward(self, index: int, microbatch: int) -> None:
        """Receive a gradient while the last output is sent, run the chunk backward, keep the gradient to send."""
        received, out, box = self.waiting.pop((index, microbatch))
        if self.chunks[index].head is None:
            box.append(self._activation())
        self.sent_output = None
        out.backward()  # type: ignore[no-untyped-call]
        self.sent_gradient = received.grad

    def _activation(self) -> Tensor:
        return torch.empty(self.shapes.sharded_tokens, self.shapes.hidden, dtype=self.dtype)
