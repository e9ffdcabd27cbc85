"""
Models and training steps of `benchmarks.silicon.five_jobs` in plain PyTorch, without ``torch.compile``.

Products and activations are in bf16, attention is torch's fused one, and every product is a module of its own. Tokens
go to the experts in turn: as balanced as predictions assume, with the router's weights.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of all tensors; the CPU only tests that the jobs run."""

NORM_EPSILON, ROTARY_BASE, INIT_STD, LEARNING_RATE, LARGEST_NORM = 1e-5, 500_000.0, 0.02, 1e-4, 1.0
"""Usual constants of Llama's training; no time or memory depends on them."""

LORA_RANK, LORA_SCALE = 16, 2.0
"""Inner size of the adapters, and the factor on their output."""

Linear = Callable[[int, int], nn.Module]
"""Function that makes a product of an input and an output size."""


def plain_linear(inputs: int, outputs: int) -> nn.Module:
    """Return a product without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def four_bit_linear(inputs: int, outputs: int) -> nn.Module:
    """Return a product whose weight bitsandbytes keeps in four bits (NF4, scales quantised again)."""
    from bitsandbytes import nn as bnb

    made = bnb.Linear4bit(
        inputs, outputs, bias=False, compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4"
    )
    nn.init.normal_(made.weight, std=INIT_STD)
    return made.to(DEVICE)  # quantises the weight


class LoRA(nn.Module):
    """Frozen product beside a trained product of rank ``LORA_RANK``."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = plain_linear(inputs, LORA_RANK), plain_linear(LORA_RANK, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both products."""
        return self.base(x) + LORA_SCALE * self.up(self.down(x))


def lora_of(base: Linear) -> Linear:
    """Return the function that makes a frozen product with an adapter."""
    return lambda inputs, outputs: LoRA(base(inputs, outputs), inputs, outputs)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return heads of shape ``(batch, heads, tokens, channels)`` with rotary positions."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped queries and rotary positions."""

    def __init__(self, sizes: Mapping[str, int], linear: Linear) -> None:
        super().__init__()
        hidden, self.channels = sizes["hidden_size"], sizes["kv_channels"]
        queries, keys = (sizes[name] * self.channels for name in ("num_attention_heads", "num_query_groups"))
        self.query, self.out = linear(hidden, queries), linear(queries, hidden)
        self.key, self.value = linear(hidden, keys), linear(hidden, keys)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attention's output, shape ``(batch, tokens, hidden)``."""
        split = [each(x).unflatten(-1, (-1, self.channels)).transpose(1, 2) for each in (self.query, self.key)]
        query, key = (rotated(each, cos, sin) for each in split)
        value = self.value(x).unflatten(-1, (-1, self.channels)).transpose(1, 2)
        grouped = query.size(1) != key.size(1)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.out(found.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Gated MLP."""

    def __init__(self, sizes: Mapping[str, int], linear: Linear) -> None:
        super().__init__()
        hidden, width = sizes["hidden_size"], sizes["ffn_hidden_size"]
        self.gate, self.up, self.down = linear(hidden, width), linear(hidden, width), linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP's output."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def grouped_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the products of consecutive equal groups of rows with a matrix each: one kernel if torch has it."""
    kernel = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if kernel is None:
        return torch.cat([rows @ weight for rows, weight in zip(x.chunk(len(weights)), weights, strict=True)])
    return kernel(x, weights, offs=ends)


class Experts(nn.Module):
    """Routed gated MLPs, all on this GPU; every expert gets the same number of tokens."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        hidden, width = sizes["hidden_size"], sizes["ffn_hidden_size"]
        self.experts, self.topk = sizes["num_experts"], sizes["moe_router_topk"]
        self.router = plain_linear(hidden, self.experts)
        self.up = nn.Parameter(torch.empty(self.experts, hidden, 2 * width))
        self.down = nn.Parameter(torch.empty(self.experts, width, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts; tokens must divide evenly."""
        tokens = x.flatten(0, 1)
        rows = len(tokens) * self.topk
        if rows % self.experts:
            raise ValueError(f"{rows} copies of tokens do not divide over {self.experts} experts.")
        weights = self.router(tokens).float().softmax(-1).topk(self.topk).values.to(x.dtype).flatten()
        order = (torch.arange(rows, device=x.device) % self.experts).argsort(stable=True)
        ends = torch.arange(1, self.experts + 1, device=x.device, dtype=torch.int32) * (rows // self.experts)
        gate, up = grouped_product(tokens[order // self.topk], self.up, ends).chunk(2, dim=-1)
        out = grouped_product(functional.silu(gate) * up, self.down, ends) * weights[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.topk, out).view_as(x)


class Layer(nn.Module):
    """Norm, attention, residual; norm, MLP or experts, residual."""

    def __init__(self, sizes: Mapping[str, int], linear: Linear) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(sizes["hidden_size"], eps=NORM_EPSILON) for _ in range(2))
        self.attention = Attention(sizes, linear)
        self.mlp: nn.Module = Experts(sizes) if sizes.get("num_experts") else MLP(sizes, linear)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's output."""
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Decoder with one table for embedding and head, and the mean loss in fp32."""

    def __init__(self, sizes: Mapping[str, int], seq_length: int, linear: Linear = plain_linear) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(sizes["vocab_size"], sizes["hidden_size"]))
        self.layers = nn.ModuleList(Layer(sizes, linear) for _ in range(sizes["num_layers"]))
        self.norm = nn.RMSNorm(sizes["hidden_size"], eps=NORM_EPSILON)
        half = sizes["kv_channels"] // 2
        frequencies = ROTARY_BASE ** -(torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(seq_length, dtype=torch.float32), frequencies)
        self.register_buffer("cos", angles.cos().to(torch.bfloat16), persistent=False)
        self.register_buffer("sin", angles.sin().to(torch.bfloat16), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():  # weights in four bits are bytes
                nn.init.normal_(parameter, std=INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of the next tokens; ``tokens`` has one more token a sequence than the model sees."""
        x = functional.embedding(tokens[:, :-1], self.table)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = functional.linear(self.norm(x), self.table).flatten(0, 1).float()
        return functional.cross_entropy(logits, tokens[:, 1:].flatten())


def built(job: Mapping[str, Any]) -> nn.Module:
    """Return the model of a job: in fp32 for ``fsdp2``, which casts it, else in bf16."""
    linear = {"lora": lora_of(plain_linear), "qlora": lora_of(four_bit_linear)}.get(job["method"], plain_linear)
    dtype = torch.float32 if job["method"] == "fsdp2" else torch.bfloat16
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            model = Model(job["sizes"], job["seq_length"], linear)
    finally:
        torch.set_default_dtype(before)
    if job["method"] in ("lora", "qlora"):
        model.requires_grad_(False)
        for adapter in (module for module in model.modules() if isinstance(module, LoRA)):
            adapter.down.requires_grad_(True)
            adapter.up.requires_grad_(True)
    return model


def adam(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return torch's fused Adam."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)


class MainParameters:
    """Optimizer of bf16 parameters: fp32 copies, fp32 gradients and fp32 moments, as Megatron-Core keeps them."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = [each for each in parameters if each.requires_grad]
        self.main = [each.detach().float().clone() for each in self.parameters]
        for parameter, main in zip(self.parameters, self.main, strict=True):
            main.grad = torch.zeros_like(main)
            parameter.register_post_accumulate_grad_hook(self._add_to(main.grad))
        self.adam = adam(self.main)

    @staticmethod
    def _add_to(total: Tensor) -> Callable[[Tensor], None]:
        def add(parameter: Tensor) -> None:
            total.add_(parameter.grad)
            parameter.grad = None

        return add

    def step(self) -> None:
        """Clip, step, copy back to bf16, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.main, LARGEST_NORM)
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.main)
            torch._foreach_zero_([each.grad for each in self.main])


def sharded(model: nn.Module) -> Callable[[], None]:
    """Shard the model over one rank with FSDP2, as torchtitan does, and return its optimizer's step."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not distributed.is_initialized():
        backend, store = "nccl" if DEVICE == "cuda" else "gloo", distributed.HashStore()
        distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(DEVICE, (1,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    optimizer = adam(model.parameters())

    def step() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def training_step(job: Mapping[str, Any], model: nn.Module) -> Callable[[], float]:
    """Return the function that runs one iteration on random tokens and returns the last micro-batch's loss."""
    update = sharded(model) if job["method"] == "fsdp2" else MainParameters(model.parameters()).step
    num_microbatches = job["global_batch_size"] // job["micro_batch_size"]
    shape = (num_microbatches, job["micro_batch_size"], job["seq_length"] + 1)
    tokens = torch.randint(job["sizes"]["vocab_size"], shape, device=DEVICE)

    def step() -> float:
        for micro_batch in tokens:
            loss = model(micro_batch)
            (loss / num_microbatches).backward()
        update()
        return loss.item()

    return step
