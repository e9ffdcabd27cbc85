"""Routed experts, with or without shared experts that every token passes."""

from collections.abc import Mapping
from types import MappingProxyType

from pipette_opt.layers.branch import Module, OnRank, Product
from pipette_opt.layers.mlp import MlpBranch


class ExpertBranch(MlpBranch):
    """
    Router, routed experts and shared experts.

    The products of the routed experts are grouped products of the tokens that arrive (``costs/expert_layer.py``).
    """

    graph_module = "moe_router"
    has_own_norm = True

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
    def router_parameters(self) -> int:
        """Parameters of the router, and of the projections to the width of the experts and back."""
        return sum(n * k for n, k, _ in self.whole_matrices)

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

    def module_inputs(self, rank: OnRank) -> Mapping[str, float]:
        """Return the bytes of the inputs of norm, router, experts, their activation, and the shared experts."""
        model = self.model
        layer_input = rank.own_tokens * model.hidden_size
        rows = rank.own_tokens * model.moe_router_topk * rank.expert_tp
        width = model.expert_ffn_size / rank.expert_tp
        return {
            "mlp_norm": rank.element * layer_input,
            "expert_fc1": rank.stored * rows * model.hidden_size,
            "moe_act": rank.element * rows * self.gates * width,
            "rest": rank.stored * rows * width + rank.element * layer_input + self.inside_bytes(rank),
        }
