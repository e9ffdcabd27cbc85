"""
Transformer layer of one tensor-parallel rank in torch, for timing.

Shapes are Megatron-Core's: query, key and value in one product, heads and MLP width divided by the tensor size, fused
attention, GPT's or Llama's norm and activation. Communication is left out; the estimator adds it.
"""

from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InputError
from pipette_opt.specs import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


def build_layer(model: ModelSpec, tensor_parallel: int) -> "nn.Module":
    """
    Return the layer on torch's meta device; call ``to_empty`` for the device on which it runs.

    Parameters
    ----------
    tensor_parallel
        Ranks that share the layer; must divide its heads, key-value groups and MLP width.
    """
    if model.num_recurrent_layers or model.attention_output_gate:
        raise InputError(
            "model",
            "has Mamba, gated delta net or gated attention layers, which `profile compute` cannot time; solve without "
            "--profile.",
        )
    if model.multi_latent_attention is not None:
        raise InputError("multi_latent_attention", "`profile compute` cannot time its layers; solve without --profile.")
    import torch
    from torch import nn
    from torch.nn import functional

    tp = tensor_parallel
    heads, groups = model.num_attention_heads // tp, max(1, model.num_query_groups // tp)
    width = model.ffn_hidden_size // tp
    norm: Any = nn.LayerNorm if model.normalization == "LayerNorm" else nn.RMSNorm
    bias = model.add_bias_linear

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            h, d = model.hidden_size, model.kv_channels
            self.norm1, self.norm2 = norm(h), norm(h)
            self.qkv = nn.Linear(h, (heads + 2 * groups) * d, bias=bias or model.add_qkv_bias)
            self.proj = nn.Linear(heads * d, h, bias=bias)
            self.up = nn.Linear(h, width * (2 if model.gated_linear_unit else 1), bias=bias)
            self.down = nn.Linear(width, h, bias=bias)

        def forward(self, x: "Tensor") -> "Tensor":
            batch, tokens, _ = x.shape
            d = model.kv_channels
            mixed = self.qkv(self.norm1(x))
            q, k, v = mixed.split([heads * d, groups * d, groups * d], dim=-1)
            q = q.view(batch, tokens, heads, d).transpose(1, 2)
            k = k.view(batch, tokens, groups, d).transpose(1, 2)
            v = v.view(batch, tokens, groups, d).transpose(1, 2)
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != groups)
            x = x + self.proj(out.transpose(1, 2).reshape(batch, tokens, heads * d))
            hidden = self.up(self.norm2(x))
            if model.gated_linear_unit:
                gate, value = hidden.chunk(2, dim=-1)
                hidden = functional.silu(gate) * value
            else:
                hidden = functional.gelu(hidden, approximate="tanh")
            result: Tensor = x + self.down(hidden)
            return result

    with torch.device("meta"):
        return Layer()
