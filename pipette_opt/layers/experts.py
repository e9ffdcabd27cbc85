"""Routed experts, with or without shared experts that every token passes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_opt.layers.adapters import MLP_TARGETS
from pipette_opt.layers.branch import Branch, Kept, Matrix, Module, OnRank, Product, Work
from pipette_opt.layers.mlp import MlpBranch

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec


def experts_on_rank(model: "ModelSpec", expert_ranks: Any, expert_tp: Any) -> tuple[Any, Any]:
    """
    Return the number of experts that a rank has a part of, and the width of this part; legal sizes divide evenly.

    Parameters
    ----------
    expert_ranks, expert_tp
        Ranks that the experts are spread over, and ranks that share an expert; numbers, or arrays.
    """
    return (model.num_experts or 0) // expert_ranks, model.expert_ffn_size // expert_tp


class ExpertBranch(MlpBranch):
    """
    Router, routed experts and shared experts.

    The products of the routed experts are grouped products of the tokens that arrive (``costs/expert_layer.py``).
    """

    graph_module = "moe_router"
    has_own_norm = True
    norm_module = "mlp_norm"

    @property
    def width(self) -> int:
        """Width of all shared experts together; 0 without shared experts."""
        return self.model.moe_shared_expert_intermediate_size

    @property
    def matrices(self) -> int:
        """Matrices of one expert: 3 with a gate, else 2."""
        return self.gates + 1

    @property
    def whole_matrices(self) -> tuple[Product, ...]:
        """Router, and projections to the width of the experts and back."""
        h, latent = self.model.hidden_size, self.model.moe_latent_size
        router = Product(self.model.num_experts or 0, h, "whole")
        return (router,) if latent is None else (router, Product(latent, h, "whole"), Product(h, latent, "whole"))

    @property
    def orthogonal(self) -> tuple[Product, ...]:
        """Matrices of the shared experts, router, and projections for the routed experts."""
        return *self.products, *self.whole_matrices

    @property
    def expert_linears(self) -> Mapping[str, Product]:
        """Gate, product to the width of an expert, and back."""
        return self.linears_of(self.model.expert_hidden_size, self.model.expert_ffn_size)

    @property
    def router_parameters(self) -> int:
        """Parameters of the router, and of the projections to the width of the experts and back."""
        return sum(n * k for n, k, _ in self.whole_matrices)

    @property
    def operations(self) -> tuple[Product, ...]:
        """No product: recomputation by operation is not known here."""
        return ()

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """Width of the shared experts (``shared_experts.py``)."""
        return {"moe_shared_expert_intermediate_size": self.width}

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the widths of shared and routed experts."""
        routed = {
            "moe_latent_size": self.model.expert_hidden_size,
            "moe_ffn_hidden_size on a rank": self.model.expert_ffn_size // expert_tp,
        }
        return {**super().product_widths(tp, expert_tp), **routed}

    @property
    def whole_vectors(self) -> int:
        """Router, projections to the experts' width, and the bias of the shared experts."""
        return super().whole_vectors + self.router_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts, which have no biases."""
        model = self.model
        return (model.num_experts or 0) * self.matrices * model.expert_hidden_size * model.expert_ffn_size

    @property
    def multiplications_beside(self) -> float:
        """Multiplications of the experts that a token is sent to, of the router, and of projections for them."""
        model = self.model
        routed = model.moe_router_topk * model.expert_ffn_size * model.expert_hidden_size * self.matrices
        return float(routed + self.router_parameters)

    @property
    def modules(self) -> Mapping[str, Module]:
        """The shared experts; routed experts are repeated as a whole, or their activation is."""
        return MappingProxyType({"shared_experts": self.module} if self.width else {})

    def local_matrices(self, rank: OnRank) -> tuple[Matrix, ...]:
        """Return the matrices of shared and routed experts, and of projections for them; the router stays in fp32."""
        model, whole = self.model, self.whole_matrices[1:]
        count, width = experts_on_rank(model, rank.expert_ranks, rank.expert_tp)
        routed = model.expert_hidden_size
        return (
            *super().local_matrices(rank),
            *(Matrix(*product.on_rank(rank.tp)) for product in whole),
            Matrix(self.gates * width, routed, count),
            Matrix(routed, width, count),
        )

    def kept(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the tensors of norms, router, routed and shared experts."""
        model, tokens = self.model, rank.own_tokens
        experts, topk, latent = model.num_experts or 0, model.moe_router_topk, model.moe_latent_size or 0
        layer_input = tokens * model.hidden_size
        rows = tokens * topk * rank.imbalance * rank.expert_tp
        _, width = experts_on_rank(model, rank.expert_ranks, rank.expert_tp)
        # fp32 scores of all experts, weights and numbers of the chosen ones; the int32 map of the permutation.
        router = tokens * (4 * experts + 12 * topk + 4 * (2 * experts + 1))
        # A projection to the width of the experts, and one back.
        latents = tokens * (latent * rank.stored + (latent > 0) * rank.fp8 * model.hidden_size)
        whole, shared = ("moe",), ("moe", "shared_experts")
        return (
            *Branch.kept(self, rank),
            # Of the router; recomputation of the whole branch begins there.
            Kept(rank.element * layer_input, "rest", ("layernorm",)),
            Kept(router + latents + 4 * rows, freed_by=whole),
            Kept(rank.stored * rows * model.expert_hidden_size, "expert_fc1", whole, input_of=MLP_TARGETS[:2]),
            Kept(rank.element * rows * self.gates * width, "moe_act", whole),
            Kept(rank.stored * rows * width, "rest", ("moe", "moe_act"), input_of=MLP_TARGETS[2:]),
            *self.inside(rank, *shared),
            # The router keeps the input unchanged, so an fp8 copy of it is additional.
            Kept((self.width > 0) * rank.fp8 * layer_input, freed_by=(*shared, "layernorm"), input_of=MLP_TARGETS[:2]),
        )

    def work(self, rank: OnRank) -> Work:
        """Return the working memory of the backward pass of the routed experts; formats as in a dense MLP."""
        model, fp8, kept = self.model, rank.fp8, rank.stored / rank.element
        shard = rank.element * rank.own_tokens * model.hidden_size
        rows = rank.element * rank.own_tokens * model.moe_router_topk * rank.imbalance
        routed, down = rows * model.expert_hidden_size, rows * model.expert_ffn_size
        here, up = routed * rank.expert_tp, self.gates * down
        sorts, gathers = experts_on_rank(model, rank.expert_ranks, rank.expert_tp)[0] > 1, rank.expert_tp > 1
        gone = up + kept * (down + here)
        moments = (
            routed * (1 + (rank.expert_ranks > 1)),
            here + gathers * routed,
            here * (1 + sorts),
            here * (1 + fp8) + down,
            up + down - kept * down,
            here - kept * down + fp8 * up,
            here * (1 + sorts) - gone,
            here + gathers * routed - gone,
        )
        return Work(np.maximum.reduce(moments), gone + (1 + kept) * shard)
