"""
What one rank of nanotron allocates and frees, in its order, for a Llama without a pipeline; nothing is fitted.

Read from huggingface/nanotron: ``models/llama.py``, ``parallel/tensor_parallel/functional.py`` and ``nn.py``,
``optim/gradient_accumulator.py``, ``optim/zero.py``, ``distributed.py``, ``trainer.py``. Tensor ranks split the
sequence between layers; linear layers gather asynchronously into buffers that stay (``MemoryBuffer``), and what is to
be scattered is freed while its collective runs. Gates, their activation and their product are kept, the loss has two
fp32 copies of the logits, 16-bit gradients live until the backward pass ends. Replicas have buckets of their size
(DDP), but not where they share the optimizer's state: they sum fp32 gradients where these are, and gather what was
updated into one buffer for each of them (``all_gather_coalesced``), which NCCL's all-gather of a list fills from one
more of all together (``ProcessGroupNCCL.cpp``). Adam is fused. Norms' weights are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.memory_training.late import QUEUE, LateAllocator
from pipette_opt.memory_training.shapes import LocalShapes
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.specs import ModelSpec, TrainingSpec

MICROBATCHES, ITERATIONS = 3, 2
"""Replayed: later ones meet what these have left, and the state that the first step brings."""

_ATTENTION_LAUNCHES, _LOSS_LAUNCHES = 8, 15
"""Small kernels: cumulative lengths of sequences, and masks, maxima and sums of the loss with their reductions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Bytes of one micro-batch on a rank: whole and split hidden states, projections, statistics, and logits."""

    whole: int
    part: int
    query: int
    key_value: int
    up: int
    down: int
    statistics: int
    softmax: int
    tokens: int
    logits: int

    @classmethod
    def of(cls, shapes: LocalShapes) -> "_Sizes":
        tokens = shapes.tokens
        return cls(
            whole=2 * tokens * shapes.hidden,
            part=2 * shapes.sharded_tokens * shapes.hidden,
            query=2 * tokens * shapes.query,
            key_value=2 * tokens * shapes.key_value,
            up=2 * tokens * shapes.up,
            down=2 * tokens * shapes.down,
            statistics=4 * shapes.sharded_tokens,
            softmax=4 * tokens * shapes.heads,
            tokens=tokens,
            logits=tokens * shapes.vocab,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """What a layer keeps for its backward pass, by key."""

    entering: int
    first_norm: tuple[int, int]
    attention: tuple[int, ...]
    between: int
    second_norm: tuple[int, int]
    gates: int
    activated: int
    product: int


def replay_nanotron(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    queue: int = QUEUE,
    capacity_bytes: int | None = None,
) -> LateAllocator:
    """
    The allocator after two iterations; raises ``DeviceFullError`` if they do not fit.

    Parameters
    ----------
    queue
        Launches that the host is ahead.
    capacity_bytes
        What tensors may have; ``None`` for no limit.
    """
    if config.pipeline_model_parallel_size > 1:
        raise ValueError(f"pipeline_model_parallel_size must be 1, got {config.pipeline_model_parallel_size}.")
    rank = _Rank(LateAllocator(capacity_bytes, queue=queue), model, training, config)
    microbatches = microbatches_of(training, config)
    for iteration in range(ITERATIONS):
        for _ in range(min(microbatches, MICROBATCHES)):
            rank.micro_batch()
        rank.step(first=iteration == 0)
    return rank.allocator


class _Rank:
    """One rank: its parameters, and the pieces of an iteration."""

    def __init__(
        self, allocator: LateAllocator, model: ModelSpec, training: TrainingSpec, config: ParallelConfig
    ) -> None:
        shapes = LocalShapes.of(model, training, config)
        self.allocator, self.sizes, self.num_layers = allocator, _Sizes.of(shapes), model.num_layers
        self.splits = config.tensor_model_parallel_size > 1
        self.replicas = config.data_parallel_size
        self.owners = self.replicas if config.sharding_stage else 1
        hidden = shapes.hidden
        self.projections = hidden * (shapes.query + 2 * shapes.key_value), hidden * shapes.query
        self.mlp = hidden * shapes.up, hidden * shapes.down
        self.table = hidden * shapes.vocab
        own_head = [self.table] if model.untie_embeddings_and_output_weights else []
        self.parameters = [self.table, *own_head, *((*self.projections, *self.mlp) * model.num_layers)]
        self.buffers: dict[str, int] = {}
        self.gradients: list[int] = []
        self._keys = 0
        total = sum(self.parameters)
        for size in self.parameters:
            self.new(2 * size)
        self.new(4 * total)  # gradients in fp32, and the master copy
        self.new(4 * total // self.owners)
        if self.replicas > 1 and self.owners == 1:
            self.new(2 * total)

    def new(self, size: int, launches: int = 1) -> int:
        """Allocate what so many launches write, and give its key."""
        self._keys += 1
        self.allocator.allocate(self._keys, size)
        self.allocator.launch(launches)
        return self._keys

    def free(self, *keys: int) -> None:
        """Free at once."""
        for key in keys:
            self.allocator.release(key)

    def gather(self, buffer: str = "allgather") -> None:
        """Into a buffer that stays."""
        if self.splits:
            if buffer not in self.buffers:
                self.buffers[buffer] = self.new(self.sizes.whole, 0)
            self.allocator.launch()

    def scatter(self, whole: int) -> int:
        """The sum over the ranks of it, split; it is freed while that runs."""
        if not self.splits:
            return whole
        part = self.new(self.sizes.part)
        self.allocator.release_late(whole)
        return part

    def micro_batch(self) -> None:
        """Forward and backward pass."""
        inputs = [self.new(8 * self.sizes.tokens, 0) for _ in range(2)]
        hidden = self.scatter(self.new(self.sizes.whole, 3))
        layers = []
        for _ in range(self.num_layers):
            layer, hidden = self.forward(hidden)
            layers.append(layer)
        gradient = self.head(hidden)
        for layer in reversed(layers):
            gradient = self.backward(layer, gradient)
        if self.splits:
            self.allocator.release_late(self.new(self.sizes.whole, 3))
        self.gradients.append(self.new(2 * self.table))
        self.allocator.launch(len(self.gradients))
        self.free(gradient, *self.gradients, *inputs)
        self.gradients.clear()

    def forward(self, entering: int) -> tuple[_Layer, int]:
        """A layer, and what leaves it."""
        s, pair = self.sizes, 2 * self.sizes.key_value
        first_norm = self.norm()
        self.gather()
        projected = self.new(s.query + pair, 2)
        copied = self.new(s.query + pair)
        joined = self.new(pair)
        keys = self.new(pair)
        self.free(joined)
        queries = self.new(s.query, 2)
        self.free(copied)
        self.allocator.launch(_ATTENTION_LAUNCHES)
        context, sums = self.new(s.query), self.new(s.softmax)
        transposed = self.new(s.query)
        out = self.new(s.whole)
        self.free(transposed)
        attended = self.scatter(out)
        self.free(projected)
        between = self.new(s.part)
        second_norm = self.norm()
        self.gather()
        gates = self.new(s.up, 2)
        activated, product = self.new(s.down), self.new(s.down)
        added = self.scatter(self.new(s.whole))
        leaving = self.new(s.part)
        self.free(attended, added)
        layer = _Layer(
            entering=entering,
            first_norm=first_norm,
            attention=(queries, keys, context, sums),
            between=between,
            second_norm=second_norm,
            gates=gates,
            activated=activated,
            product=product,
        )
        return layer, leaving

    def norm(self) -> tuple[int, int]:
        """Its output and its statistics."""
        return self.new(self.sizes.part), self.new(self.sizes.statistics, 0)

    def head(self, entering: int) -> int:
        """Norm, logits, loss, and back; the gradient of what entered."""
        s = self.sizes
        normed, statistics = self.norm()
        self.gather()
        logits = self.new(2 * s.logits, 2)
        exact = self.new(4 * s.logits)
        self.free(logits)
        maxima = [self.new(4 * s.tokens), self.new(8 * s.tokens)]
        softmax = self.new(4 * s.logits, _LOSS_LAUNCHES)
        self.free(*maxima, exact)
        gradient = self.new(2 * s.logits, _LOSS_LAUNCHES)
        self.free(softmax)
        returned = self.column_backward((gradient, normed), self.table)
        leaving = self.new(s.part, 2)
        self.free(returned, entering, statistics)
        return leaving

    def column_backward(self, used: Sequence[int], weight: int) -> int:
        """Of a product that gathers: gradients of its input, split, and of its weight; what it used is freed."""
        self.gather()
        part = self.scatter(self.new(self.sizes.whole))
        self.gradients.append(self.new(2 * weight))
        self.free(*used)
        return part

    def norm_backward(self, norm: tuple[int, int], entering: int, arrived: int, gradient: int) -> int:
        """Of a norm and the sum around it; the output of the norm is gone already."""
        own = self.new(self.sizes.part, 2)
        self.free(arrived, entering, norm[1])
        total = self.new(self.sizes.part)
        self.free(own, gradient)
        return total

    def backward(self, layer: _Layer, gradient: int) -> int:
        """A layer; the gradient of what entered it."""
        s, pair = self.sizes, 2 * self.sizes.key_value
        self.gather("allgather2")
        product = self.new(s.down, 3)
        self.gradients.append(self.new(2 * self.mlp[1]))
        self.free(layer.product)
        of_activated, of_other = self.new(s.down), self.new(s.down)
        self.free(product, layer.activated)
        of_gate = self.new(s.down)
        self.free(of_activated)
        gates = self.new(s.up)
        self.free(of_gate, of_other, layer.gates)
        arrived = self.column_backward((gates, layer.second_norm[0]), self.mlp[0])
        gradient = self.norm_backward(layer.second_norm, layer.between, arrived, gradient)
        self.gather("allgather2")
        context, transposed = self.new(s.query, 3), self.new(s.query)
        self.gradients.append(self.new(2 * self.projections[1]))
        self.free(transposed)
        copied = self.new(s.query)
        self.free(context)
        parts = [self.new(s.query), self.new(s.key_value), self.new(s.key_value)]
        work = [self.new(2 * s.query), self.new(s.softmax, 3)]
        self.free(*work, copied, *layer.attention)
        keys = self.new(pair)
        self.free(*parts[1:])
        queries = self.new(s.query)
        self.free(parts[0])
        permuted = self.new(pair, 2)
        self.free(keys)
        stacked = self.new(s.query + pair, 3)
        self.free(queries, permuted)
        projected = self.new(s.query + pair)
        arrived = self.column_backward((stacked, projected, layer.first_norm[0]), self.projections[0])
        return self.norm_backward(layer.first_norm, layer.entering, arrived, gradient)

    def step(self, *, first: bool) -> None:
        """The optimizer step, after which the host waits: Adam's moments come with the first, then copies go around."""
        self.allocator.catch_up()
        if first:
            for size in self.parameters:
                self.new(4 * size // self.owners)
                self.new(4 * size // self.owners)
        if self.owners > 1:
            total = 2 * sum(self.parameters)
            pieces = [self.new(total // self.owners) for _ in range(1 + self.owners)]
            self.free(*pieces, self.new(total))
