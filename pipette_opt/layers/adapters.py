"""
Low-rank adapters on frozen matrices (LoRA, Hu et al., arXiv 2106.09685), and the format of what is frozen.

An adapter of rank ``r`` beside a matrix of ``n`` outputs and ``k`` inputs adds the product of two matrices, ``n x r``
and ``r x k``; only these are trained. A frozen matrix keeps no input for a gradient of its own: the input stays only
where an adapter, or another operation, needs it. QLoRA (Dettmers et al., arXiv 2305.14314) stores the frozen matrices
in 4 bits and restores each to 16 bits for its product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from pipette_opt.layers.branch import Branch, Kept, OnRank, Parameters, Product

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec

BaseFormat = Literal["16-bit", "fp8", "int8", "nf4", "nf4-double"]

BASE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "16-bit": 2.0,
        "fp8": 1.0,
        "int8": 1.0,
        "nf4": 0.5 + 4 / 64,
        "nf4-double": 0.5 + (1 + 4 / 256) / 64,
    }
)
"""
Bytes of a frozen weight by format.

NF4 has an fp32 scale for each 64 weights; with double quantisation these scales have 8 bits, and an fp32 scale for each
256 of them (arXiv 2305.14314, section 3).
"""

ATTENTION_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Matrices of attention."""

LATENT_TARGETS = ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj")
"""Matrices of latent attention, beside ``o_proj`` and, without a latent of queries, ``q_proj``."""

MLP_TARGETS = ("gate_proj", "up_proj", "down_proj")
"""Matrices of an MLP, and of a routed expert."""

RECURRENT_TARGETS = ("in_proj", "out_proj")
"""Matrices of a layer with a state."""

TARGETS = (*ATTENTION_TARGETS, *LATENT_TARGETS, *MLP_TARGETS, *RECURRENT_TARGETS)
"""Matrices that may have an adapter, by the names that PEFT finds in models of Hugging Face."""

BRIDGE_TARGETS: Mapping[str, str] = MappingProxyType(
    {
        "q_proj": "linear_q",
        "k_proj": "linear_k",
        "v_proj": "linear_v",
        "o_proj": "linear_proj",
        "gate_proj": "linear_fc1_gate",
        "up_proj": "linear_fc1_up",
        "down_proj": "linear_fc2",
    }
)
"""Name of a matrix with an adapter of its own in Megatron-Bridge (``peft/canonical_lora.py``)."""

TARGET_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all-linear": TARGETS,
        "attention": (*ATTENTION_TARGETS, *LATENT_TARGETS),
        "mlp": MLP_TARGETS,
        "linear_qkv": ATTENTION_TARGETS[:3],
        **{name: (target,) for target, name in BRIDGE_TARGETS.items()},
        "linear_fc1": MLP_TARGETS[:2],
        "qkv_proj": ATTENTION_TARGETS[:3],
        "output_proj": ("o_proj",),
        "gate_up_proj": MLP_TARGETS[:2],
        **{name: (name,) for name in TARGETS},
        **{name[0]: (name,) for name in ATTENTION_TARGETS},
        **{name.removesuffix("_proj"): (name,) for name in MLP_TARGETS},
    }
)
"""Matrices by the words that people have for them: PEFT's (``q_proj``), Megatron-Bridge's (``linear_qkv``)."""

KERNELS_OF_ADAPTER = 4
"""Kernel launches of an adapter in a forward pass: two products, a scaling and an addition. Counted in PEFT's code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """
    Adapters of a model whose other parameters are frozen.

    Parameters
    ----------
    rank
        Rank ``r`` of each adapter.
    targets
        Matrices with an adapter, by PEFT's names.
    base
        Format of the frozen matrices of layers; embeddings, head, norms and routers stay in 16 bits.
    dropout
        Probability of dropping an input of an adapter; above 0 each adapter keeps a copy in place of its input.
    flat_gradients
        Whether ZeRO 3 flattens 16-bit weights of a layer with its adapters into one tensor, which has whole gradients
        between micro-batches: PyTorch's first FSDP with ``use_orig_params`` ("gradient memory usage will be higher than
        expected (namely, equivalent to not freezing those parameters)", its documentation says).
    keeps_inputs
        Whether products with quantised matrices keep their inputs, which their backward passes do not need: older
        releases of bitsandbytes (``MatMul4Bit`` in ``autograd/_functions.py``, until it saved ``(None, B)``).
    """

    rank: int = 8
    targets: tuple[str, ...]
    base: BaseFormat = "16-bit"
    dropout: float = 0.0
    flat_gradients: bool = False
    keeps_inputs: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or not 1 <= self.rank < 2**16:
            raise ValueError(f"rank of adapters must be a whole number from 1 to 65,535, got {self.rank!r}.")
        if not self.targets or set(self.targets) - set(TARGETS) or len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets must be different ones of {', '.join(TARGETS)}, got {self.targets!r}.")
        if self.base not in BASE_BYTES:
            raise ValueError(f"base must be one of {', '.join(BASE_BYTES)}, got {self.base!r}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout of adapters must be >= 0 and < 1, got {self.dropout!r}.")

    @property
    def base_bytes(self) -> float:
        """Bytes of a frozen weight of a layer's matrix."""
        return BASE_BYTES[self.base]

    @property
    def is_quantised(self) -> bool:
        """Return whether frozen matrices are restored to 16 bits for each product."""
        return self.base != "16-bit"


class Adapted(NamedTuple):
    """Matrix with an adapter, and the number of such matrices in a layer: 1, or the routed experts."""

    product: Product
    number: int = 1


def adapted(branch: Branch) -> list[Adapted]:
    """Return the matrices of a branch that have an adapter, those of routed experts last."""
    adapters = branch.model.adapters
    if adapters is None:
        return []
    own = [Adapted(product) for name, product in branch.linears.items() if name in adapters.targets]
    experts = branch.model.num_experts or 0
    return own + [
        Adapted(product, experts) for name, product in branch.expert_linears.items() if name in adapters.targets
    ]


def adapter_parameters(branch: Branch) -> Parameters:
    """Return the parameters of a branch's adapters: the half on the side that tensor ranks split is split, too."""
    adapters, total = branch.model.adapters, [0, 0, 0]
    for product, number in adapted(branch):
        assert adapters is not None
        inner, outer = adapters.rank * product.inputs, adapters.rank * product.outputs
        if number > 1:
            total[2] += number * (inner + outer)
        elif product.split == "columns":
            total[0], total[1] = total[0] + outer, total[1] + inner
        elif product.split == "rows":
            total[0], total[1] = total[0] + inner, total[1] + outer
        else:
            total[1] += inner + outer
    return Parameters(*total)


def linears_of(model: "ModelSpec") -> tuple[str, ...]:
    """Return the matrices of a model that may have an adapter, by PEFT's names."""
    branches = [branch for kind in dict.fromkeys(model.layers) for branch in model.branches(kind)]
    found = {name for branch in branches for name in (*branch.linears, *branch.expert_linears)}
    return tuple(name for name in TARGETS if name in found)


def check_targets(model: "ModelSpec") -> None:
    """Raise ``ValueError`` for adapters at matrices that no layer of the model has."""
    known = linears_of(model)
    for name in () if model.adapters is None else model.adapters.targets:
        if name not in known:
            raise ValueError(f"adapters have the target {name}, which {model.name} lacks; it has {', '.join(known)}.")


def needed(branch: Branch, tensor: Kept) -> bool:
    """
    Return whether a kept tensor is needed.

    An input of frozen matrices only is not, unless one of these has an adapter without a dropped copy of its own.
    """
    adapters = branch.model.adapters
    if adapters is None or (adapters.keeps_inputs and adapters.is_quantised) or not tensor.input_of:
        return True
    return not adapters.dropout and any(name in adapters.targets for name in tensor.input_of)


def adapter_kept(branch: Branch, rank: OnRank) -> tuple[Kept, ...]:
    """Return what a branch's adapters keep: outputs of their first products, and dropped copies of their inputs."""
    adapters = branch.model.adapters
    if adapters is None:
        return ()
    found = []
    for product, number in adapted(branch):
        tokens = rank.tokens if number == 1 else rank.own_tokens * branch.model.moe_router_topk * rank.imbalance
        inputs = product.inputs / rank.tp if product.split == "rows" else product.inputs
        copies = (rank.element + 1) * inputs * (adapters.dropout > 0)
        found.append(Kept(tokens * (rank.element * adapters.rank + copies), freed_by=("mlp",) * (not branch.core)))
    return tuple(found)
