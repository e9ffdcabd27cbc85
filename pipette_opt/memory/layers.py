"""
The transformer of one tensor-parallel rank, in torch.

Every operation allocates what the kernels behind Megatron-Core allocate, keeps for the backward pass what they
keep, and computes nothing: the numbers in the tensors are never looked at, so a fused kernel is an empty output of
the right size. Weight gradients are accumulated into the main gradient by the matrix product itself (Megatron's
gradient accumulation fusion), so weights take no part in autograd here; only the embeddings make a gradient of
their own first. Communication inside the tensor-parallel group shows as the buffers it needs.

Activations are two-dimensional: tokens of one micro-batch, times width.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from pipette_opt.memory.shapes import ExpertShapes, LocalShapes
from pipette_opt.specs import ModelSpec, TrainingSpec

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def _product(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``x @ weight``; where there is nothing to compute, or no fp8 at hand, an output of the right size."""
    if x.is_meta or x.dtype != weight.dtype:
        return x.new_empty(x.shape[0], weight.shape[1], dtype=dtype)
    return x @ weight


class _Linear(Function):
    """
    ``x @ weight`` of one rank; ``gather`` and ``scatter`` say what sequence parallelism does before and after.

    Gathering: the input is one shard of the sequence, collected for the product and again for the weight gradient;
    only the shard is kept. Scattering: the output is reduced into one shard. In fp8 (Transformer Engine's ``Linear``)
    an fp8 copy of the input is kept in its place, what is gathered is fp8, and so are the gradient's two copies, by
    rows and by columns.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gather: int, scatter: int, fp8: bool) -> Tensor:
        kept = torch.empty_like(x, dtype=torch.uint8) if fp8 else x
        ctx.save_for_backward(kept, weight)
        ctx.gather, ctx.scatter, ctx.dtype, ctx.fp8 = gather, scatter, x.dtype, fp8
        total = kept if gather == 1 else kept.new_empty(x.shape[0] * gather, x.shape[1])
        out = _product(total, weight, x.dtype)
        return out if scatter == 1 else out.new_empty(out.shape[0] // scatter, out.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        if ctx.fp8:
            grad = grad.new_empty(grad.shape[0] * ctx.scatter, 2 * grad.shape[1], dtype=torch.uint8)
        elif ctx.scatter > 1:
            grad = grad.new_empty(grad.shape[0] * ctx.scatter, grad.shape[1])
        if ctx.gather == 1:
            return _product(grad, weight.t(), ctx.dtype), None, None, None, None
        gathered = x.new_empty(x.shape[0] * ctx.gather, x.shape[1])  # for the weight gradient, until the end
        grad_total = _product(grad, weight.t(), ctx.dtype)
        grad_shard = torch.empty_like(x, dtype=ctx.dtype)
        del gathered, grad_total
        return grad_shard, None, None, None, None


class _Norm(Function):
    """LayerNorm (two statistics a row) or RMSNorm (one) over rows of ``width``: keeps input and fp32 statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, num_statistics: int) -> Tensor:
        statistics = torch.empty(num_statistics, x.numel() // width, dtype=torch.float32)
        ctx.save_for_backward(x, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return torch.empty_like(grads[0]), None, None


class _SplitQueryKeyValue(Function):
    """Query, key and value out of one product; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, query: int, key_value: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens = mixed.shape[0]
        return mixed.new_empty(tokens, query), mixed.new_empty(tokens, key_value), mixed.new_empty(tokens, key_value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(grads, dim=1), None, None


class _Rotate(Function):
    """Rotary position embedding: a new tensor each way, nothing kept but the shared angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class _FlashAttention(Function):
    """
    Attention without a stored score matrix: keeps query, key, value, output and the fp32 log-sum-exp of every row.

    The backward pass works with an fp32 query gradient, the row sums of grad * output, and with key and value
    gradients for every query head before they are summed over the group (FlashAttention-2's ``mha_bwd``).
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
    Flash attention over a sequence that is split among ``ranks``, keys and values going round.

    Transformer Engine's ``AttnFuncWithCPAndKVP2P``: keys and values are joined; the forward pass lists a received copy
    and an output of every step until the outputs are combined, the backward pass has two buffers of keys, values and
    their gradients. The last rank is meant, for which a causal mask leaves whole outputs in every step.
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
    """Keys or values copied for every query head of their group, as unfused attention needs them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        ctx.shape = x.shape
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_empty(ctx.shape), None


class _Scores(Function):
    """Query times key, shape ``(heads of all sequences, s, s)``; keeps both factors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, shape: tuple[int, int, int]) -> Tensor:
        ctx.save_for_backward(q, k)
        return q.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), None


class _Softmax(Function):
    """Scaled masked softmax: keeps its output."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        out = torch.empty_like(scores)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class _Dropout(Function):
    """Dropout: keeps one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class _Context(Function):
    """Probabilities times value; keeps both factors."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(probabilities, v)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, v = ctx.saved_tensors
        return torch.empty_like(probabilities), torch.empty_like(v)


class _Activation(Function):
    """Fused bias and GELU, or SwiGLU when the output is half as wide: keeps the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return torch.empty_like(x), None


class _DropoutAdd(Function):
    """Fused bias, dropout and residual sum: keeps the dropout mask, if there is dropout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, dropout: bool) -> Tensor:
        ctx.dropout = dropout
        if dropout:
            ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (torch.empty_like(grad) if ctx.dropout else grad), grad, None


class _Route(Function):
    """
    The router: fp32 logits, scores and the chosen experts of every token (``TopKRouter`` with a balancing loss).

    Keeps its input, the fp32 scores of all experts for the balancing loss, and weights and numbers of the chosen ones.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, experts: int, topk: int) -> Tensor:
        tokens = x.shape[0]
        logits = torch.empty(tokens, experts, dtype=torch.float32)
        scores = torch.empty_like(logits)
        chosen = torch.empty(tokens, topk, dtype=torch.float32)
        ctx.save_for_backward(x, scores, chosen, torch.empty(tokens, topk, dtype=torch.int64))
        return torch.empty_like(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scores, _, _ = ctx.saved_tensors
        work = [torch.empty_like(scores), torch.empty_like(scores)]
        grad = torch.empty_like(x)
        del work
        return grad, None, None


class _Move(Function):
    """
    Rows that go elsewhere or come back: ``rows`` of them afterwards, as many as before on the way back.

    Permutations (Transformer Engine's fused ones), all-to-all, gathering and scattering over the ranks of an expert.
    Keeps the int32 map of a permutation, ``map_width`` numbers for each row of the smaller side's tokens.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, map_rows: int, map_width: int) -> Tensor:
        ctx.rows = x.shape[0]
        if map_rows:
            ctx.save_for_backward(torch.empty(map_rows, map_width, dtype=torch.int32))
        return x.new_empty(rows, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return grad.new_empty(ctx.rows, *grad.shape[1:]), None, None, None


class _Pick(Function):
    """The weight of each routed token out of those of all experts; keeps nothing of its own."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: int) -> Tensor:
        ctx.shape = weights.shape
        return weights.new_empty(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_empty(ctx.shape), None


class _Grouped(Function):
    """The products of all local experts at once (``TEGroupedLinear``): keeps its input, in fp8 a copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, fp8: bool) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.uint8) if fp8 else x)
        ctx.dtype, ctx.fp8 = x.dtype, fp8
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (x,) = ctx.saved_tensors
        if ctx.fp8:
            grad = grad.new_empty(grad.shape[0], 2 * grad.shape[1], dtype=torch.uint8)
        return x.new_empty(x.shape, dtype=ctx.dtype), None, None


class _Sum(Function):
    """In-place sum of two tensors: keeps nothing, and both get the same gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], grads[0]


class _WeightedActivation(Function):
    """SwiGLU or GELU times the router's weight, fused: keeps input and weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weights), None


class _Embedding(Function):
    """
    Vocabulary-parallel look-up, reduced over the group; keeps the token numbers.

    ``anchor`` is an empty tensor that makes autograd call the backward pass, where the gradient of each whole
    table exists for a moment before it is added to the main gradient.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor, tables: "nn.ParameterList", shards: int) -> Tensor:
        ctx.tables, ctx.shards = tables, shards
        outside = torch.empty_like(tokens, dtype=torch.bool)
        masked = torch.empty_like(tokens)
        ctx.save_for_backward(masked)
        width = tables[0].shape[1]
        found = tables[0].new_empty(tokens.shape[0], width)
        del outside
        out = torch.empty_like(found)  # batch first becomes sequence first
        if len(tables) > 1:
            found = torch.empty_like(out)  # plus positions
            out = torch.empty_like(out)
        return out if shards == 1 else out.new_empty(out.shape[0] // shards, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if ctx.shards > 1:
            grad = grad.new_empty(grad.shape[0] * ctx.shards, grad.shape[1])
        ordered = torch.empty_like(grad)
        for table in ctx.tables:
            torch.empty_like(table)
        del ordered
        return None, None, None, None


class _CrossEntropy(Function):
    """Vocabulary-parallel cross entropy: an fp32 copy of the logits becomes the softmax and then the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        softmax = torch.empty_like(logits, dtype=torch.float32) if logits.dtype != torch.float32 else logits
        loss = torch.empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(
            softmax, torch.empty_like(loss, dtype=torch.bool), torch.empty_like(loss, dtype=torch.int64)
        )
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        softmax = ctx.saved_tensors[0]
        return (softmax.to(ctx.dtype),)


class _Recompute(Function):
    """Keeps the inputs of ``run`` and runs it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*inputs)
        torch.autograd.backward((out,), grads)
        return (None, *(tensor.grad for tensor in inputs))


class _Hop(Function):
    """
    The end of a stage: the output goes to the next one, the gradient comes back into ``box`` before the backward.

    Stands for Megatron's freeing of a sent output: what remains is an empty tensor that holds the graph.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, box: list[Tensor]) -> Tensor:
        ctx.box = box
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.box.pop(), None


def hop(x: Tensor, box: list[Tensor]) -> Tensor:
    """Send the output of a chunk; what comes back is to be run backward once ``box`` has the gradient."""
    return _apply(_Hop, x, box)


def _apply(function: Any, *inputs: Any) -> Tensor:
    """Apply an operation; torch leaves ``Function.apply`` untyped."""
    out: Tensor = function.apply(*inputs)
    return out


class _Part(nn.Module):
    """Common to the parts below: weights that take no part in autograd."""

    def weight(self, *shape: int, dtype: torch.dtype) -> nn.Parameter:
        """An empty weight."""
        return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class Attention(_Part):
    """Self-attention of one rank: column-parallel input product, core, row-parallel output product."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, selective: bool) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.model, self.selective = shapes, model, selective
        self.flash, self.fp8 = training.attention_kernel == "flash", training.fp8
        mixed = shapes.query + 2 * shapes.key_value
        self.input_weight = self.weight(shapes.hidden, mixed, dtype=dtype)
        self.output_weight = self.weight(shapes.query, shapes.hidden, dtype=dtype)
        if model.add_qkv_bias:
            self.input_bias = self.weight(mixed, dtype=dtype)
        if model.add_bias_linear:
            self.output_bias = self.weight(shapes.hidden, dtype=dtype)
        if model.qk_layernorm:
            self.query_norm = self.weight(model.kv_channels, dtype=dtype)
            self.key_norm = self.weight(model.kv_channels, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of one micro-batch."""
        shapes = self.shapes
        mixed = _apply(_Linear, x, self.input_weight, shapes.sequence_shards, 1, self.fp8)
        q, k, v = cast(Any, _SplitQueryKeyValue).apply(mixed, shapes.query, shapes.key_value)
        del mixed
        if self.model.qk_layernorm:
            q, k = _apply(_Norm, q, self.model.kv_channels, 1), _apply(_Norm, k, self.model.kv_channels, 1)
        if self.model.position_embedding_type == "rope":
            q, k = _apply(_Rotate, q), _apply(_Rotate, k)
        context = _apply(_Recompute, self._core, q, k, v) if self.selective else self._core(q, k, v)
        del q, k, v
        return _apply(_Linear, context, self.output_weight, 1, shapes.sequence_shards, self.fp8)

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes = self.shapes
        if shapes.context > 1:
            return _apply(_RingAttention, q, k, v, shapes.heads, shapes.context)
        if self.flash:
            return _apply(_FlashAttention, q, k, v, shapes.heads)
        if k.shape != q.shape:
            k, v = _apply(_RepeatHeads, k, shapes.query), _apply(_RepeatHeads, v, shapes.query)
        shape = (shapes.heads * shapes.micro_batch_size, shapes.seq_length, shapes.seq_length)
        probabilities = _apply(_Softmax, _apply(_Scores, q, k, shape))
        if self.model.attention_dropout > 0:
            probabilities = _apply(_Dropout, probabilities)
        return _apply(_Context, probabilities, v)


class FeedForward(_Part):
    """MLP of one rank: column-parallel, activation, row-parallel; widths from outside, since shared experts are one."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, up: int, down: int) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.fp8, self.width = shapes, training.fp8, down
        self.up_weight = self.weight(shapes.hidden, up, dtype=dtype)
        self.down_weight = self.weight(down, shapes.hidden, dtype=dtype)
        if model.add_bias_linear:
            self.up_bias = self.weight(up, dtype=dtype)
            self.down_bias = self.weight(shapes.hidden, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """MLP of one micro-batch."""
        up = _apply(_Linear, x, self.up_weight, self.shapes.sequence_shards, 1, self.fp8)
        down = _apply(_Activation, up, self.width)
        del up
        return _apply(_Linear, down, self.down_weight, 1, self.shapes.sequence_shards, self.fp8)


class Experts(_Part):
    """
    Router, dispatch, experts, combination: Megatron-Core's ``MoELayer`` with the all-to-all dispatcher.

    Tokens are routed evenly and none is dropped. Its steps are those of ``MoEAlltoAllTokenDispatcher`` and
    ``TEGroupedMLP`` (megatron-core 0.16.1) with fused permutations and a weighted fused activation.
    """

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, sizes: ExpertShapes) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.sizes, self.fp8 = shapes, sizes, training.fp8
        self.router_weight = self.weight(sizes.num_experts, shapes.hidden, dtype=dtype)
        self.up_weights = nn.ParameterList(
            self.weight(shapes.hidden, sizes.up, dtype=dtype) for _ in range(sizes.local)
        )
        self.down_weights = nn.ParameterList(
            self.weight(sizes.down, shapes.hidden, dtype=dtype) for _ in range(sizes.local)
        )
        self.shared = None
        if sizes.shared_down:
            self.shared = FeedForward(model, training, shapes, sizes.shared_up, sizes.shared_down)

    def forward(self, x: Tensor) -> Tensor:
        """One micro-batch through the experts."""
        sizes = self.sizes
        shared = None if self.shared is None else self.shared(x)
        tokens, routed = x.shape[0], x.shape[0] * sizes.topk
        weights = _apply(_Route, x, sizes.num_experts, sizes.topk)
        chosen = _apply(_Pick, weights, routed)
        moved = _apply(_Move, x, routed, tokens, 2 * sizes.num_experts + 1)
        del weights
        for rows in self._journey(routed):
            moved, chosen = _apply(_Move, moved, rows, 0, 0), _apply(_Move, chosen, rows, 0, 0)
        up = _apply(_Grouped, moved, sizes.up, self.fp8)
        del moved
        down = _apply(_WeightedActivation, up, chosen, sizes.down)
        del up, chosen
        out = _apply(_Grouped, down, self.shapes.hidden, self.fp8)
        del down
        for rows in self._way_back(routed):
            out = _apply(_Move, out, rows, 0, 0)
        out = _apply(_Move, out, tokens, 0, 0)
        return out if shared is None else _apply(_Sum, out, shared)

    def _journey(self, routed: int) -> list[int]:
        """Rows after each step from the permuted tokens to the experts."""
        sizes = self.sizes
        rows = [routed] if sizes.ranks > 1 else []
        if sizes.tensor > 1:
            rows.append(routed * sizes.tensor)
        if sizes.local > 1:
            rows.append(routed * sizes.tensor)
        return rows

    def _way_back(self, routed: int) -> list[int]:
        """The same from the experts to the permuted tokens."""
        sizes = self.sizes
        rows = [routed * sizes.tensor] if sizes.local > 1 else []
        if sizes.tensor > 1:
            rows.append(routed)
        if sizes.ranks > 1:
            rows.append(routed)
        return rows


class Norm(_Part):
    """LayerNorm or RMSNorm over the hidden size."""

    def __init__(self, model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = model.hidden_size
        self.num_statistics = 2 if model.normalization == "LayerNorm" else 1
        self.scale = self.weight(model.norm_parameters, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise one micro-batch."""
        return _apply(_Norm, x, self.width, self.num_statistics)


class Layer(_Part):
    """One transformer layer: norm, attention, residual; norm, MLP or experts, residual."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        shapes: LocalShapes,
        selective: bool,
        experts: ExpertShapes | None = None,
    ) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.dropout = model.hidden_dropout > 0
        self.attention_norm = Norm(model, dtype)
        self.attention = Attention(model, training, shapes, selective)
        self.feed_forward_norm = Norm(model, dtype)
        self.feed_forward: nn.Module
        if experts is None:
            self.feed_forward = FeedForward(model, training, shapes, shapes.up, shapes.down)
        else:
            self.feed_forward = Experts(model, training, shapes, experts)

    def forward(self, x: Tensor) -> Tensor:
        """One micro-batch through the layer."""
        x = _apply(_DropoutAdd, self.attention(self.attention_norm(x)), x, self.dropout)
        return _apply(_DropoutAdd, self.feed_forward(self.feed_forward_norm(x)), x, self.dropout)


class Embeddings(_Part):
    """Word (and learned position) embeddings of the first stage."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.dropout = shapes, model.hidden_dropout > 0
        self.tables = nn.ParameterList([self.weight(shapes.vocab, shapes.hidden, dtype=dtype)])
        if model.position_embedding_type == "learned_absolute":
            self.tables.append(self.weight(model.max_position_embeddings, shapes.hidden, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        """Activations of one micro-batch from its token numbers."""
        anchor = torch.empty(0, requires_grad=True)
        out = _apply(_Embedding, anchor, tokens, self.tables, self.shapes.sequence_shards)
        return _apply(_Dropout, out) if self.dropout else out


class Head(_Part):
    """Final norm, output product over this rank's vocabulary, and the loss."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, table: Tensor | None) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes = shapes
        self.norm = Norm(model, dtype)
        self.table = self.weight(shapes.vocab, shapes.hidden, dtype=dtype) if table is None else table

    def forward(self, x: Tensor) -> Tensor:
        """Loss of one micro-batch."""
        x = self.norm(x)
        logits = _apply(_Linear, x, self.table.t(), self.shapes.sequence_shards, 1, False)
        return _apply(_CrossEntropy, logits).mean()


class Chunk(nn.Module):
    """
    Consecutive layers of one stage, with the embeddings before and the head after where they belong.

    Parameters
    ----------
    recomputed
        How many layers, from the first, are recomputed.
    at_once
        Layers that one recomputation brings back.
    """

    def __init__(
        self, layers: list[Layer], embeddings: Embeddings | None, head: Head | None, recomputed: int, at_once: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.embeddings, self.head = embeddings, head
        self.recomputed, self.at_once = recomputed, at_once

    def forward(self, x: Tensor) -> Tensor:
        """Output of the chunk for one micro-batch: activations, or the loss."""
        if self.embeddings is not None:
            x = self.embeddings(x)
        layers = list(self.layers)
        for start in range(0, self.recomputed, max(self.at_once, 1)):
            x = _apply(_Recompute, _in_turn(layers[start : min(start + self.at_once, self.recomputed)]), x)
        for layer in layers[self.recomputed :]:
            x = layer(x)
        return x if self.head is None else self.head(x)


def _in_turn(layers: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    """One layer after the other."""

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run
