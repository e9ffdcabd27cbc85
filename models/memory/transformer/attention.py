"""Self-attention: query, key and value, rotary positions, attention cores with and without stored scores."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from models.memory.shapes import LocalShapes
from models.memory.stand_ins import DTYPES, Normalise, apply
from models.memory.transformer.operations import Dropout, Linear, Part, Recompute
from pipette_opt.specs import ModelSpec, TrainingSpec


class _SplitQueryKeyValue(Function):
    """Query, key and value cut from one product; keeps nothing for the backward pass."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, query: int, key_value: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens = mixed.shape[0]
        return mixed.new_empty(tokens, query), mixed.new_empty(tokens, key_value), mixed.new_empty(tokens, key_value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(grads, dim=1), None, None


class _Rotate(Function):
    """Rotary position embedding: a new tensor in each direction; keeps nothing, because the angles are shared."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class _FlashAttention(Function):
    """
    Attention without a stored score matrix: keeps query, key, value, output and the fp32 log-sum-exp of every row.

    The backward pass allocates an fp32 query gradient, the row sums of grad * output, and key and value gradients for
    every query head, which are then summed over the group (FlashAttention-2's ``mha_bwd``).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        out = torch.empty_like(q)
        log_sum_exp = torch.empty(q.shape[0], heads, dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, log_sum_exp = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        work = [torch.empty_like(q, dtype=torch.float32), torch.empty_like(log_sum_exp)]
        if k.shape != q.shape:
            work += [torch.empty_like(q), torch.empty_like(q)]
        del work
        return dq, dk, dv, None


class _RingAttention(Function):
    """
    Flash attention over a sequence split among ``ranks`` that pass keys and values around a ring.

    Models Transformer Engine's ``AttnFuncWithCPAndKVP2P`` with joined keys and values. The forward pass holds a
    received copy and an output of every step until the outputs are combined. The backward pass has two buffers of keys,
    values and their gradients. The rank is the last one: with a causal mask it computes whole outputs in every step.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: int, ranks: int) -> Tensor:
        received = [q.new_empty(q.shape[0], 2 * k.shape[1])]
        outputs, sums = [], []
        for step in range(ranks):
            if step < ranks - 1:
                received.append(torch.empty_like(received[0]))
            outputs.append(torch.empty_like(q))
            sums.append(torch.empty(q.shape[0], heads, dtype=torch.float32))
        log_sum_exp = torch.empty_like(sums[0])
        out = torch.empty_like(q)
        ctx.save_for_backward(q, received[-1], out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, _, log_sum_exp = ctx.saved_tensors
        buffers = [kv.new_empty(2 * kv.shape[0], kv.shape[1]) for _ in range(2)]
        dq = torch.empty_like(q)
        step = [torch.empty_like(q), torch.empty_like(kv)]
        work = [torch.empty_like(q, dtype=torch.float32), torch.empty_like(log_sum_exp)]
        if kv.shape[1] != 2 * q.shape[1]:
            work += [torch.empty_like(q), torch.empty_like(q)]
        del step, work
        half = kv.shape[1] // 2
        dk, dv = kv.new_empty(kv.shape[0], half), kv.new_empty(kv.shape[0], half)
        del buffers
        return dq, dk, dv, None, None


class _RepeatHeads(Function):
    """Keys or values copied to every query head of their group, for unfused attention."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        ctx.shape = x.shape
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_empty(ctx.shape), None


class _Scores(Function):
    """Product of query and key, shape ``(heads of all sequences, s, s)``; keeps both factors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, shape: tuple[int, int, int]) -> Tensor:
        ctx.save_for_backward(q, k)
        return q.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), None


class _Softmax(Function):
    """Scaled masked softmax; keeps its output."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        out = torch.empty_like(scores)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class _Context(Function):
    """Product of attention probabilities and value; keeps both factors."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(probabilities, v)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, v = ctx.saved_tensors
        return torch.empty_like(probabilities), torch.empty_like(v)


class Attention(Part):
    """Self-attention of one rank: column-parallel input product, core, row-parallel output product."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, selective: bool) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.model, self.selective = shapes, model, selective
        self.flash, self.fp8 = training.attention_kernel == "flash", training.fp8
        self.norm_vectors = 2 if model.normalization == "LayerNorm" else 1  # as many statistics of a head
        mixed = shapes.query + 2 * shapes.key_value
        self.input_weight = self.weight(shapes.hidden, mixed, dtype=dtype)
        self.output_weight = self.weight(shapes.query, shapes.hidden, dtype=dtype)
        if model.add_qkv_bias:
            self.input_bias = self.weight(mixed, dtype=dtype)
        if model.add_bias_linear:
            self.output_bias = self.weight(shapes.hidden, dtype=dtype)
        if model.qk_layernorm:
            self.query_norm = self.weight(self.norm_vectors * model.kv_channels, dtype=dtype)
            self.key_norm = self.weight(self.norm_vectors * model.kv_channels, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output of one micro-batch."""
        shapes = self.shapes
        mixed = apply(Linear, x, self.input_weight, shapes.sequence_shards, 1, self.fp8)
        q, k, v = cast(Any, _SplitQueryKeyValue).apply(mixed, shapes.query, shapes.key_value)
        del mixed
        if self.model.qk_layernorm:
            q, k = (apply(Normalise, heads, self.model.kv_channels, self.norm_vectors) for heads in (q, k))
        if self.model.has_rotary_positions:
            q, k = apply(_Rotate, q), apply(_Rotate, k)
        context = apply(Recompute, self._core, q, k, v) if self.selective else self._core(q, k, v)
        del q, k, v
        return apply(Linear, context, self.output_weight, 1, shapes.sequence_shards, self.fp8)

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes = self.shapes
        if shapes.context > 1:
            return apply(_RingAttention, q, k, v, shapes.heads, shapes.context)
        if self.flash:
            return apply(_FlashAttention, q, k, v, shapes.heads)
        if k.shape != q.shape:
            k, v = apply(_RepeatHeads, k, shapes.query), apply(_RepeatHeads, v, shapes.query)
        shape = (shapes.heads * shapes.micro_batch_size, shapes.seq_length, shapes.seq_length)
        probabilities = apply(_Softmax, apply(_Scores, q, k, shape))
        if self.model.attention_dropout > 0:
            probabilities = apply(Dropout, probabilities)
        return apply(_Context, probabilities, v)
