"""MLP of two or, with a gate, three matrices."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pipette_opt.layers.adapters import MLP_TARGETS
from pipette_opt.layers.branch import Branch, Kept, Module, OnRank, Product, Work

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec


class MlpBranch(Branch):
    """Dense MLP that every token passes."""

    norm_module = "rest"

    @property
    def width(self) -> int:
        """Width of the MLP that every token passes; 0 if there is none."""
        return self.model.ffn_hidden_size

    @property
    def gates(self) -> int:
        """Matrices of the first product: 2 with a gate, else 1."""
        return 2 if self.model.gated_linear_unit else 1

    @property
    def products(self) -> tuple[Product, ...]:
        """Product to the width (twice with a gate), and back; none without a width."""
        h, width = self.model.hidden_size, self.width
        return (Product(self.gates * width, h, "columns"), Product(h, width, "rows")) if width else ()

    @property
    def operations(self) -> tuple[Product, ...]:
        """Gate and product to the width one by one, and back."""
        h, width = self.model.hidden_size, self.width
        return *self.gates * (Product(width, h, "columns"),), Product(h, width, "rows")

    @property
    def linears(self) -> Mapping[str, Product]:
        """Gate, product to the width, and back; none without a width."""
        return self.linears_of(self.model.hidden_size, self.width)

    def linears_of(self, outer: int, width: int) -> Mapping[str, Product]:
        """Return the matrices of an MLP of this width between ``outer`` channels; none without a width."""
        names = MLP_TARGETS[2 - self.gates :] if width else ()
        shapes = (*self.gates * (Product(width, outer, "columns"),), Product(outer, width, "rows"))
        return dict(zip(names, shapes, strict=bool(width)))

    @property
    def split_vectors(self) -> int:
        """Bias of the first product."""
        return self.gates * self.width if self.model.add_bias_linear else 0

    @property
    def whole_vectors(self) -> int:
        """Bias of the second product."""
        return self.bias if self.width else 0

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """Width of the MLP (``MLP.linear_fc1``, ``linear_fc2``)."""
        return {"ffn_hidden_size": self.width}

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the width of the MLP."""
        return {f"{name} on a rank": size // tp for name, size in self.split_sizes.items()}

    @property
    def streamed(self) -> float:
        """The activation reads what the first product wrote, and writes; its input is also written and read once."""
        return (2.0 * self.gates + 1.0) * self.width

    @property
    def modules(self) -> Mapping[str, Module]:
        """The whole MLP with its norm."""
        return MappingProxyType({"mlp": self.module})

    @property
    def module(self) -> Module:
        """MLP that every token passes, with its norm."""
        return Module(self.products, self.streamed, self.model.hidden_size, kernels=3)

    def kept(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the tensors of norms, and the inputs of both products and of the activation."""
        inputs = rank.stored * rank.own_tokens * self.model.hidden_size
        return *super().kept(rank), Kept(inputs, "rest", ("mlp",), input_of=MLP_TARGETS[:2]), *self.inside(rank, "mlp")

    def inside(self, rank: OnRank, *freed_by: str) -> tuple[Kept, ...]:
        """Return the inputs of the activation and of the second product."""
        channels = rank.tokens * self.width / rank.tp
        return (
            Kept(rank.element * self.gates * channels, "rest", freed_by),
            Kept(rank.stored * channels, "rest", freed_by, input_of=MLP_TARGETS[2:]),
        )

    def work(self, rank: OnRank) -> Work:
        """
        Return the working memory of the backward pass.

        In fp8, both products copy their gradient by rows and by columns, which takes as many bytes as in 16 bits.
        Gathered and freed tensors take half the bytes of 16 bits; in nvfp4, a quarter.
        """
        fp8, kept, gathers = rank.fp8, rank.stored / rank.element, rank.shards > 1
        hidden = rank.element * rank.tokens * self.model.hidden_size
        shard, down = hidden / rank.shards, rank.element * rank.tokens * self.width / rank.tp
        up = self.gates * down
        moments = (
            hidden * np.maximum(gathers, fp8) + down,
            up + down - kept * down,
            hidden * (1 + kept * gathers) + shard * gathers - kept * down + fp8 * up,
        )
        return Work(np.maximum.reduce(moments), up + kept * down + (1 + kept) * shard)

    def kernels(self, training: "TrainingSpec") -> int:
        """Return the kernel launches of a pass: norm, two products, activation, and two more for a gate. Counted."""
        return 4 + (2 if self.model.gated_linear_unit else 0)
