"""
Operations that `benchmarks.silicon.on_gpu` times, with their sizes: micro-batches of one sequence, bf16, random data.

Sizes of sparse attention are DeepSeek-V3.2's, with the heads of one of 1, 2 or 8 tensor ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of all tensors; the CPU only tests that operations run."""

HIDDEN, Q_LATENT, KV_LATENT, KEY, ROTARY, VALUE = 7168, 1536, 512, 128, 64, 128
"""Channels of DeepSeek-V3.2: hidden state, both latents, and of a head's key, rotary key and value."""

INDEX_WIDTH, TOPK = 128, 2048
"""Channels of a head of the indexer, and the chosen tokens."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """
    Operation on tensors that exist.

    Parameters
    ----------
    run
        The forward pass; returns its outputs.
    inputs
        Tensors whose gradients the backward pass makes; none for operations without a backward pass.
    """

    run: Callable[[], tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """
    Kind of operation.

    Parameters
    ----------
    build
        Function that makes the tensors of one size.
    sizes
        Arguments of ``build`` to time.
    is_profiled
        Whether the kernels are counted as well.
    """

    build: Callable[..., Made]
    sizes: Sequence[Mapping[str, Any]]
    is_profiled: bool = False


def random(*shape: int, grad: bool = True, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return random numbers; ``grad`` asks for their gradient."""
    return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_(grad)


class Whole(nn.Linear):
    """Projection that a tensor rank holds whole, with the constructor that Megatron-Core calls."""

    def __init__(self, inputs: int, outputs: int, **_: Any) -> None:
        super().__init__(inputs, outputs, bias=False, device=DEVICE, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return the product, and no bias."""
        return super().forward(x), None


class Norm(nn.LayerNorm):
    """LayerNorm with the constructor that Megatron-Core calls."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, device=DEVICE, dtype=torch.bfloat16)


def hadamard(x: Tensor, scale: float) -> Tensor:
    """Return the Hadamard transform of the last channels, as a product; stands in for ``fast_hadamard_transform``."""
    return functional.linear(x, hadamard_matrix(x.size(-1)).to(x.dtype) * scale)


@cache
def hadamard_matrix(size: int) -> Tensor:
    """Return the Hadamard matrix of a power of two."""
    matrix = torch.ones(1, 1, device=DEVICE)
    while matrix.size(0) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@cache
def groups() -> Any:
    """Return Megatron-Core's groups of one process."""
    from megatron.core.process_groups_config import ProcessGroupCollection
    from torch import distributed

    if not distributed.is_initialized():
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        distributed.init_process_group(backend, init_method="tcp://127.0.0.1:29533", rank=0, world_size=1)
    found = ProcessGroupCollection()
    found.tp = found.cp = distributed.group.WORLD
    return found


def sparse_config(heads: int, index_heads: int, backend: str, loss: bool) -> Any:
    """Return Megatron-Core's configuration of a layer with sparse attention."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    return MLATransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=heads,
        multi_latent_attention=True,
        q_lora_rank=Q_LATENT,
        kv_lora_rank=KV_LATENT,
        qk_head_dim=KEY,
        qk_pos_emb_head_dim=ROTARY,
        v_head_dim=VALUE,
        rope_type="rope",
        experimental_attention_variant="dsa",
        dsa_indexer_n_heads=index_heads,
        dsa_indexer_head_dim=INDEX_WIDTH,
        dsa_indexer_topk=TOPK,
        dsa_indexer_loss_coeff=0.01 if loss else 0.0,
        dsa_indexer_use_sparse_loss=True,
        dsa_kernel_backend=backend,
        add_bias_linear=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=DEVICE == "cpu",
    )


def indexer_parts() -> Any:
    """Return the modules that Megatron-Core builds its indexer from."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    dsa.hadamard_transform = dsa.hadamard_transform or hadamard
    return dsa.DSAIndexerSubmodules(linear_wq_b=Whole, linear_wk=Whole, k_norm=Norm, linear_weights_proj=Whole)


def sparse_module(seq: int, heads: int, backend: str = "tilelang", loss: bool = False, index_heads: int = 64) -> Made:
    """Build Megatron-Core's module: indexer, choice of tokens, attention on the latents, product to the values."""
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.experimental_attention_variant import dsa
    from megatron.core.transformer.spec_utils import ModuleSpec

    config = sparse_config(heads, index_heads, backend, loss)
    module = dsa.DSAttention(
        config,
        dsa.DSAttentionSubmodules(indexer=ModuleSpec(module=dsa.DSAIndexer, submodules=indexer_parts())),
        layer_number=1,
        attn_mask_type=AttnMaskType.causal,
        attention_type="self",
        softmax_scale=(KEY + ROTARY) ** -0.5,
        cp_comm_type="allgather",
        pg_collection=groups(),
    )
    query, key = random(seq, 1, heads, KV_LATENT + ROTARY), random(seq, 1, 1, KV_LATENT + ROTARY)
    up, x, latent = random(heads, VALUE, KV_LATENT), random(seq, 1, HIDDEN), random(seq, 1, Q_LATENT)

    def run() -> tuple[Tensor, ...]:
        out = module(query, key, None, None, x, latent, attn_mask_type=AttnMaskType.causal, up_v_weight=up)
        return (out,)

    return Made(run=run, inputs=(query, key, up, *(module.parameters() if loss else ())))


def indexer_inputs(seq: int, index_heads: int = 64) -> Made:
    """Build the indexer's queries, key and weights of heads: products, norm, positions, rotation."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    indexer = dsa.DSAIndexer(sparse_config(128, index_heads, "none", loss=True), indexer_parts(), groups())
    x, latent = random(seq, 1, HIDDEN, grad=False), random(seq, 1, Q_LATENT, grad=False)
    return Made(run=lambda: indexer.forward_before_topk(x, latent), inputs=tuple(indexer.parameters()))


def causal_ends(seq: int) -> tuple[Tensor, Tensor]:
    """Return the first token, and the one after the last, that each token may choose."""
    ends = torch.arange(1, seq + 1, device=DEVICE, dtype=torch.int32)
    return torch.zeros_like(ends), ends


def index_scores(seq: int, index_heads: int = 64) -> Made:
    """Build the fused kernel of the indexer's scores; it has no backward pass of its own."""
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_indexer_fwd

    query = random(seq, index_heads, INDEX_WIDTH, grad=False)
    key, weights = random(seq, INDEX_WIDTH, grad=False), random(seq, index_heads, grad=False, dtype=torch.float32)
    ends = causal_ends(seq)
    return Made(run=lambda: (tilelang_indexer_fwd.indexer_fwd_interface(query, key, weights, *ends),))


def index_scores_written(seq: int, index_heads: int = 64) -> Made:
    """Build the indexer's scores as Megatron-Core writes them out without fused kernels, and their backward pass."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    query, key = random(seq, 1, index_heads, INDEX_WIDTH), random(seq, 1, INDEX_WIDTH)
    weights = random(seq, 1, index_heads)
    return Made(run=lambda: (dsa._compute_index_scores(query, weights, key),), inputs=(query, key, weights))


def choice(seq: int) -> Made:
    """Build the choice of the best tokens from scores."""
    scores = random(min(seq, 8192), seq, grad=False, dtype=torch.float32)
    return Made(run=lambda: (torch.topk(scores, min(TOPK, seq), dim=-1, sorted=False).indices,))


def chosen_tokens(seq: int) -> Tensor:
    """Return random earlier tokens that each token attends to, -1 where there are fewer."""
    ends = torch.arange(1, seq + 1, device=DEVICE)[:, None]
    found = (torch.rand(seq, min(TOPK, seq), device=DEVICE) * ends).to(torch.int32)
    return found.masked_fill(torch.arange(found.size(1), device=DEVICE)[None] >= ends, -1)


def sparse_attention(seq: int, heads: int) -> Made:
    """Build the fused attention on latents of chosen tokens; its backward pass computes the forward pass anew."""
    from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA

    query, key = random(1, seq, heads, KV_LATENT + ROTARY), random(1, seq, 1, KV_LATENT + ROTARY)
    tokens = chosen_tokens(seq)[None, :, None].contiguous()
    return Made(run=lambda: (SparseMLA.apply(query, key, tokens, (KEY + ROTARY) ** -0.5)[0],), inputs=(query, key))


def index_gradients(seq: int, index_heads: int = 64) -> Made:
    """Build the fused scores of the chosen tokens with the backward pass that the indexer's loss needs."""
    from megatron.core.transformer.experimental_attention_variant.ops import indexer

    query, key = random(seq, index_heads, INDEX_WIDTH), random(seq, INDEX_WIDTH)
    weights, ends = random(seq, index_heads, dtype=torch.float32), causal_ends(seq)
    return Made(
        run=lambda: (indexer.lighting_indexer(query, key, weights, *ends, min(TOPK, seq))[0].nan_to_num(neginf=0.0),),
        inputs=(query, key, weights),
    )


def dense_attention(seq: int, heads: int, key: int = 128, value: int = 128, backend: str = "") -> Made:
    """Build torch's fused causal attention; ``backend`` forces its kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    given = random(1, heads, seq, key), random(1, heads, seq, key), random(1, heads, seq, value)
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    chosen = [getattr(SDPBackend, backend)] if backend else kernels

    def run() -> tuple[Tensor, ...]:
        with sdpa_kernel(chosen):
            return (functional.scaled_dot_product_attention(*given, is_causal=True),)

    return Made(run=run, inputs=given)


def absorbed_up(seq: int, heads: int) -> Made:
    """Build the product of each head's query with the up projection of the keys."""
    query, up = random(seq, 1, heads, KEY), random(heads, KEY, KV_LATENT)
    return Made(run=lambda: (torch.einsum("...nd,ndk->...nk", query, up).contiguous(),), inputs=(query, up))


def delta_scan(seq: int, heads: int) -> Made:
    """Build the scan of a gated delta net."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    query, key = random(1, seq, heads, 128), random(1, seq, heads, 128)
    value = random(1, seq, heads, 128)
    decay = functional.logsigmoid(random(1, seq, heads, grad=False, dtype=torch.float32)).requires_grad_()
    beta = random(1, seq, heads, grad=False).sigmoid().requires_grad_()
    inputs = query, key, value, decay, beta

    def run() -> tuple[Tensor, ...]:
        out, _ = chunk_gated_delta_rule(query, key, value, decay, beta, use_qk_l2norm_in_kernel=True)
        return (out,)

    return Made(run=run, inputs=inputs)


def mamba_scan(seq: int, heads: int, width: int, state: int, in_groups: int) -> Made:
    """Build the scan of Mamba-2 with chunks of 128 tokens."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    x, step = random(1, seq, heads, width), random(1, seq, heads)
    decay = -torch.rand(heads, device=DEVICE).exp()
    into, out_of = random(1, seq, in_groups, state), random(1, seq, in_groups, state)
    skip, bias = random(heads, dtype=torch.float32), random(heads, dtype=torch.float32)
    decay.requires_grad_()

    def run() -> tuple[Tensor, ...]:
        return (mamba_chunk_scan_combined(x, step, decay, into, out_of, 128, D=skip, dt_bias=bias, dt_softplus=True),)

    return Made(run=run, inputs=(x, step, decay, into, out_of, skip, bias))


def norm(seq: int, vectors: int, width: int, how: str) -> Made:
    """Build RMSNorm of ``vectors`` vectors of each token: torch's kernel, written out, or compiled."""
    weight = random(width)
    x = random(seq, 1, vectors, width)

    def fused(given: Tensor, scale: Tensor) -> Tensor:
        return functional.rms_norm(given, (width,), scale, 1e-6)

    def written(given: Tensor, scale: Tensor) -> Tensor:
        wide = given.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(given.dtype) * scale

    function = {"fused": fused, "written": written, "compiled": torch.compile(written)}[how]
    return Made(run=lambda: (function(x, weight),), inputs=(x, weight))


def product(tokens: int, outputs: int, inputs: int) -> Made:
    """Build a matrix product and both of its backward pass."""
    x, weight = random(tokens, inputs), random(outputs, inputs)
    return Made(run=lambda: (functional.linear(x, weight),), inputs=(x, weight))


def launches(number: int) -> Made:
    """Build ``number`` tiny kernels in a row, which only the launches bound."""
    x = random(128, grad=False)

    def run() -> tuple[Tensor, ...]:
        for _ in range(number):
            x.add_(1.0)
        return (x,)

    return Made(run=run)


def launches_in_graph(number: int) -> Made:
    """Build the replay of a CUDA graph of ``number`` tiny kernels."""
    run, graph = launches(number).run, torch.cuda.CUDAGraph()
    run()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return out

    return Made(run=replay)


def copies(mebibytes: int) -> Made:
    """Build a copy in memory."""
    source = random(mebibytes * 2**19, grad=False)
    target = torch.empty_like(source)
    return Made(run=lambda: (target.copy_(source),))


def dense_layer(model: str, seq: int, tp: int) -> Made:
    """Build a layer as `pipette-opt profile compute` times it."""
    from pipette_opt.measure.layer import build_layer
    from pipette_opt.read.model import read_model

    layer: Any = build_layer(read_model(model), tp).to_empty(device=DEVICE).to(torch.bfloat16)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.02)
    x = random(1, seq, layer.norm1.weight.numel())
    return Made(run=lambda: (layer(x),), inputs=(x, *layer.parameters()))


SEQUENCES = (4096, 8192, 16384, 32768)
"""Lengths of sequences."""

OPERATIONS: Mapping[str, Operation] = {
    "sparse module": Operation(
        build=sparse_module,
        sizes=(
            {"seq": 4096, "heads": 16, "loss": False},
            {"seq": 4096, "heads": 128, "loss": False},
            {"seq": 4096, "heads": 16, "loss": True},
            *({"seq": seq, "heads": 128, "loss": True} for seq in SEQUENCES),
            *({"seq": seq, "heads": 128, "loss": False} for seq in SEQUENCES[1:]),
            *({"seq": seq, "heads": 16, "loss": True} for seq in SEQUENCES[1:]),
            {"seq": 4096, "heads": 64, "loss": True, "index_heads": 32},
            {"seq": 16384, "heads": 64, "loss": True, "index_heads": 32},
        ),
        is_profiled=True,
    ),
    "sparse cuDNN module": Operation(
        build=sparse_module,
        sizes=tuple(
            {"seq": seq, "heads": heads, "backend": "cudnn", "loss": loss}
            for seq, heads, loss in (
                (4096, 128, True),
                (4096, 64, True),
                (4096, 64, False),
                (8192, 128, True),
                (16384, 64, True),
                (16384, 128, True),
            )
        ),
        is_profiled=True,
    ),
    "sparse attention": Operation(
        build=sparse_attention,
        sizes=tuple({"seq": seq, "heads": heads} for seq in SEQUENCES for heads in (128, 64, 16)),
    ),
    "sparse indexer inputs": Operation(
        build=indexer_inputs, sizes=tuple({"seq": seq} for seq in SEQUENCES), is_profiled=True
    ),
    "sparse indexer scores": Operation(
        build=index_scores,
        sizes=tuple({"seq": seq, "index_heads": heads} for seq in SEQUENCES for heads in (64, 32)),
        is_profiled=True,
    ),
    "sparse indexer gradients": Operation(
        build=index_gradients, sizes=tuple({"seq": seq} for seq in SEQUENCES), is_profiled=True
    ),
    "sparse choice": Operation(build=choice, sizes=tuple({"seq": seq} for seq in SEQUENCES), is_profiled=True),
    "sparse unfused module": Operation(
        build=sparse_module,
        sizes=(
            {"seq": 4096, "heads": 16, "backend": "none", "loss": False},
            {"seq": 4096, "heads": 16, "backend": "none", "loss": True},
            {"seq": 8192, "heads": 16, "backend": "none", "loss": True},
            {"seq": 4096, "heads": 64, "backend": "none", "loss": False},
        ),
        is_profiled=True,
    ),
    "sparse unfused scores": Operation(build=index_scores_written, sizes=({"seq": 4096},)),
    "sparse absorbed product": Operation(
        build=absorbed_up, sizes=({"seq": 4096, "heads": 128}, {"seq": 16384, "heads": 128}, {"seq": 4096, "heads": 16})
    ),
    "norm": Operation(
        build=norm,
        sizes=(
            *(
                {"seq": seq, "vectors": vectors, "width": width, "how": how}
                for seq, how in ((4096, "fused"), (8192, "fused"), (4096, "compiled"))
                for vectors, width in ((32, 128), (8, 128), (64, 128), (1, 4096))
            ),
            {"seq": 4096, "vectors": 32, "width": 128, "how": "written"},
        ),
        is_profiled=True,
    ),
    "scan of gated delta net": Operation(
        build=delta_scan,
        sizes=(
            {"seq": 8192, "heads": 32},
            {"seq": 8192, "heads": 16},
            {"seq": 4096, "heads": 32},
        ),
        is_profiled=True,
    ),
    "scan of Mamba-2": Operation(
        build=mamba_scan,
        sizes=(
            {"seq": 8192, "heads": 128, "width": 64, "state": 128, "in_groups": 8},
            {"seq": 8192, "heads": 64, "width": 64, "state": 128, "in_groups": 8},
            {"seq": 4096, "heads": 128, "width": 64, "state": 128, "in_groups": 8},
        ),
        is_profiled=True,
    ),
    "dense attention": Operation(
        build=dense_attention,
        sizes=(
            *({"seq": seq, "heads": 32} for seq in SEQUENCES[:3]),
            *({"seq": seq, "heads": 32, "backend": "CUDNN_ATTENTION"} for seq in SEQUENCES[:3]),
            *(
                {"seq": seq, "heads": 128, "key": 192, "value": 128, "backend": "CUDNN_ATTENTION"}
                for seq in SEQUENCES[:3]
            ),
        ),
    ),
    "product": Operation(
        build=product,
        sizes=tuple(
            {"tokens": tokens, "outputs": outputs, "inputs": inputs}
            for tokens in (2048, 4096, 8192)
            for outputs, inputs in (
                (6144, 4096),
                (4096, 4096),
                (28672, 4096),
                (4096, 14336),
                (8192, 8192),
                (57344, 8192),
                (1280, 8192),
                (7168, 8192),
                (8192, 1024),
                (4096, 512),
                (24576, 1536),
            )
        ),
    ),
    "launches": Operation(build=launches, sizes=({"number": 1000},)),
    "launches in a graph": Operation(build=launches_in_graph, sizes=({"number": 1000},)),
    "copy": Operation(build=copies, sizes=({"mebibytes": 1024}, {"mebibytes": 64})),
    "dense layer": Operation(
        build=dense_layer,
        sizes=(
            {"model": "llama-3-8b", "seq": 8192, "tp": 1},
            {"model": "llama-3-8b", "seq": 4096, "tp": 1},
            {"model": "llama-3-70b", "seq": 4096, "tp": 8},
        ),
        is_profiled=True,
    ),
}
"""Operations by name, those first that have never been measured."""
