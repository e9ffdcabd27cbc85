"""Peak memory of one pipeline stage, counted while the real transformer runs on tensors without data."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pipette_opt.memory.layers import DTYPES, Chunk, Embeddings, Head, Layer, hop
from pipette_opt.memory.schedule import Pass, stage_passes
from pipette_opt.memory.shapes import LocalShapes
from pipette_opt.memory.storage import LiveStorages
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.schedule import build_schedule
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrace:
    """
    Bytes of one rank of a stage.

    Parameters
    ----------
    num_parameters
        Parameters that the rank holds.
    weight_bytes, gradient_bytes, optimizer_bytes
        What is there all the time.
    activation_bytes
        The most that forward and backward passes need on top.
    held_bytes
        What the first forward pass leaves behind for its backward pass, and the stage's output gone.
    step_bytes
        What the optimizer step needs on top.
    """

    num_parameters: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    held_bytes: int
    step_bytes: int

    @property
    def static_bytes(self) -> int:
        """Weights, gradients and optimizer state."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at once."""
        return self.static_bytes + max(self.activation_bytes, self.step_bytes)


def trace_stage(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    stage: int,
    num_microbatches: int | None = None,
    *,
    rounding_bytes: int = 512,
) -> StageTrace:
    """
    Run one stage of the model, forward and backward, and count what it allocates.

    Parameters
    ----------
    stage
        Pipeline stage, from 0.
    num_microbatches
        Per replica and iteration; from the batch sizes if ``None``.
    rounding_bytes
        Sizes are rounded up to a multiple of this, as the CUDA allocator does.
    """
    if num_microbatches is None:
        num_microbatches = config.num_microbatches(training.global_batch_size)
    if not 0 <= stage < config.pipeline_model_parallel_size:
        raise ValueError(f"stage must be in 0..{config.pipeline_model_parallel_size - 1}, got {stage}.")
    shapes = LocalShapes.of(model, training, config)
    with FakeTensorMode(), LiveStorages(rounding_bytes) as storages:
        chunks = _build_stage(model, training, config, shapes, stage)
        weight_bytes = storages.live_bytes
        gradients = [torch.empty(p.numel(), dtype=_gradient_dtype(training)) for p in chunks.parameters()]
        gradient_bytes = storages.live_bytes - weight_bytes
        num_parameters = sum(p.numel() for p in chunks.parameters())
        sharers = config.data_parallel_size * config.context_parallel_size if config.use_distributed_optimizer else 1
        owned = ceil_div(num_parameters, sharers)
        state = torch.empty(owned * training.optimizer_bytes, dtype=torch.uint8)
        static_bytes = storages.live_bytes
        workspace = _score_workspace(training, shapes)
        run = _StageRun(chunks, training, shapes, storages)
        schedule = build_schedule(config.pipeline_model_parallel_size, num_microbatches, config.num_chunks)
        run.go(stage_passes(schedule, stage))
        del gradients, state, workspace
    return StageTrace(
        num_parameters=num_parameters,
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
        optimizer_bytes=static_bytes - weight_bytes - gradient_bytes,
        activation_bytes=storages.peak_bytes - static_bytes,
        held_bytes=run.held_bytes,
        step_bytes=4 * owned if training.gradient_bytes < 4 else 0,  # gradients copied to fp32 for the update
    )


def _gradient_dtype(training: TrainingSpec) -> torch.dtype:
    return torch.float32 if training.gradient_bytes == 4 else DTYPES[training.precision]


def _build_stage(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, shapes: LocalShapes, stage: int
) -> nn.ModuleList:
    """The model chunks of a stage; embeddings before the first chunk of all, head after the last."""
    num_chunks, last_stage = config.num_chunks, config.pipeline_model_parallel_size - 1
    layers_per_chunk = config.layers_per_stage[stage] // num_chunks
    selective = config.recompute_granularity == "selective"
    embeddings = Embeddings(model, training, shapes) if stage == 0 else None
    shared = None
    if embeddings is not None and last_stage == 0 and not model.untie_embeddings_and_output_weights:
        shared = embeddings.tables[0]
    head = Head(model, training, shapes, shared) if stage == last_stage else None
    return nn.ModuleList(
        Chunk(
            [Layer(model, training, shapes, selective) for _ in range(layers_per_chunk)],
            embeddings if chunk == 0 else None,
            head if chunk == num_chunks - 1 else None,
            config.recompute_granularity,
        )
        for chunk in range(num_chunks)
    )


def _score_workspace(training: TrainingSpec, shapes: LocalShapes) -> Tensor | None:
    """The buffer of one score matrix that Megatron-Core's unfused attention keeps (``get_global_memory_buffer``)."""
    if training.attention_kernel == "flash":
        return None
    scores = (shapes.heads * shapes.micro_batch_size, shapes.seq_length, shapes.seq_length)
    return torch.empty(scores, dtype=DTYPES[training.precision])


class _StageRun:
    """The passes of one stage, and the tensors that wait for their backward pass or for being sent."""

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
        """Receive an input while the last gradient is sent, run the chunk, keep what its backward needs."""
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
