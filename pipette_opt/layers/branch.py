"""
Interface of a branch of a layer: the half that mixes tokens, or the MLP.

A branch says what one token needs of it: matrix products, parameters, channels that stream through memory, kernels,
messages between tensor ranks. What these cost on a GPU, with a micro-batch and over links, is asked elsewhere
(``pipette_opt/costs``, ``pipette_opt/memory``), in one way for all kinds of layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from pipette_opt.layers.kinds import LayerKind
    from pipette_opt.specs.model import ModelSpec
    from pipette_opt.specs.training import TrainingSpec


BY_OPERATION = "ops"
"""
Name of recomputation by operation: every second matrix product, and all elementwise operations.

torchtitan's ``selective_ac_option = "op"``. Outputs of the first, third, ... product of a layer, of attention and of
reduce-scatters stay (``_apply_op_sac`` in ``distributed/activation_checkpoint.py``).
"""


class Parameters(NamedTuple):
    """
    Parameters of a part of a model.

    Parameters
    ----------
    sharded
        Parameters that tensor ranks split.
    replicated
        Parameters that every tensor rank holds whole.
    experts
        Parameters of routed experts, split over the ranks of experts and of their tensor parallelism.
    """

    sharded: int = 0
    replicated: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(self)

    def on_rank(self, tp: Any) -> Any:
        """Return the parameters of one tensor rank without routed experts; ``tp`` is a number or an array of them."""
        return self.sharded / tp + self.replicated


class Product(NamedTuple):
    """
    Matrix product of every token with one matrix.

    Parameters
    ----------
    outputs, inputs
        Size of the matrix before tensor ranks split it.
    split
        Split of the matrix over tensor ranks: by its outputs (``columns``), by its inputs (``rows``), or not at all
        (``whole``), and then each rank has the product of its own tokens, or of all tokens (``repeated``).
    """

    outputs: int
    inputs: int
    split: Literal["columns", "rows", "whole", "repeated"]

    def on_rank(self, tp: Any) -> tuple[Any, Any]:
        """Return (outputs, inputs) of the matrix of one tensor rank, rounded down."""
        if self.split == "columns":
            return self.outputs // tp, self.inputs
        return self.outputs, self.inputs // tp if self.split == "rows" else self.inputs


class Matrix(NamedTuple):
    """Matrix of products on one rank: its size, and the number of such matrices."""

    outputs: Any
    inputs: Any
    count: Any = 1


class Module(NamedTuple):
    """
    Part of a branch that selective recomputation can repeat.

    Parameters
    ----------
    streamed
        Channels per token that it reads or writes beside them, split by tensor ranks.
    normed
        Channels per token that its norms write.
    kernels
        Kernel launches beside the products'.
    """

    products: tuple[Product, ...]
    streamed: float
    normed: int
    kernels: int


class OnRank(NamedTuple):
    """
    Part of a micro-batch that one tensor rank works on; numbers, or arrays with a number for each configuration.

    Parameters
    ----------
    tokens, shards
        Tokens of the rank's products, and the ranks that divide them for norms and residuals.
    tp, cp
        Ranks that share a layer, and a sequence.
    expert_ranks, expert_tp
        Ranks that the experts are spread over, and ranks that share an expert.
    imbalance
        Tokens of the busiest of these ranks over their mean.
    """

    training: "TrainingSpec"
    tokens: Any
    shards: Any
    tp: Any
    cp: Any
    expert_ranks: Any
    expert_tp: Any
    imbalance: Any

    @property
    def own_tokens(self) -> Any:
        """Tokens of the rank's norms and residuals."""
        return self.tokens / self.shards

    @property
    def element(self) -> int:
        """Bytes of a number between products."""
        return self.training.parameter_bytes

    @property
    def fp8(self) -> float:
        """Bytes of an operand of products in fewer than 16 bits; 0 without such products."""
        return 0.0 if self.training.recipe is None else self.training.recipe.element_bytes

    @property
    def stored(self) -> float:
        """Bytes of a number in the inputs that products keep."""
        return self.fp8 or self.element


class Kept(NamedTuple):
    """
    Tensors that a branch keeps of a micro-batch for its backward pass.

    Parameters
    ----------
    size
        Bytes on a rank.
    module
        Module of which they are inputs, by the name that offloading has for it; ``rest`` without a name; ``None`` for
        tensors that are never offloaded.
    freed_by
        Modules (Megatron-Core's names) whose selective recomputation frees them.
    in_work
        Whether the working memory of the backward pass includes them once they are recomputed.
    input_of
        Matrices whose gradients alone need them, by PEFT's names (``q_proj``); empty if other operations do, too.
    """

    size: Any
    module: str | None = None
    freed_by: tuple[str, ...] = ()
    in_work: bool = False
    input_of: tuple[str, ...] = ()


class Work(NamedTuple):
    """
    Working memory of the backward pass of a branch.

    Parameters
    ----------
    peak
        Bytes at the fullest moment beyond what the layer keeps and the gradient of its output.
    freed
        Kept bytes that are free after the pass.
    """

    peak: Any = 0.0
    freed: Any = 0.0


@dataclass(frozen=True, slots=True)
class Branch:
    """
    Branch of a layer; a subclass for each kind overrides what differs from a branch without parameters or products.

    Parameters
    ----------
    kind
        Kind of the layer whose branch it is.
    """

    model: "ModelSpec"
    kind: "LayerKind"

    graph_module: ClassVar[str] = "mlp"
    """Name of the branch among the modules of CUDA graphs (``--cuda-graph-scope`` of Megatron-LM)."""

    core: ClassVar[Literal["attention", "scan"] | None] = None
    """Operation that mixes the tokens between the products; ``None`` in an MLP."""

    context_types: ClassVar[tuple[str, ...]] = ("p2p", "a2a", "all_gather")
    """Types of context parallelism (``--cp-comm-type``) that the branch can be computed with."""

    has_own_norm: ClassVar[bool] = False
    """The norm before the branch is a kernel of its own, so recomputation can repeat it."""

    norm_module: ClassVar[str | None] = None
    """Module that has the input of the norm before the branch among its own, see :class:`Kept`."""

    @property
    def bias(self) -> int:
        """Parameters of the bias of the last product, which every tensor rank holds whole."""
        return self.model.hidden_size if self.model.add_bias_linear else 0

    @property
    def products(self) -> tuple[Product, ...]:
        """Matrix products of every token, without those of routed experts."""
        return ()

    @property
    def operations(self) -> tuple[Product, ...]:
        """Matrix products in order, as frameworks without fused products run them; none where that is not known."""
        return ()

    @property
    def linears(self) -> Mapping[str, Product]:
        """Matrices that may have an adapter, by PEFT's names, without those of routed experts."""
        return MappingProxyType({})

    @property
    def expert_linears(self) -> Mapping[str, Product]:
        """Matrices of one routed expert, by PEFT's names."""
        return MappingProxyType({})

    @property
    def orthogonal(self) -> tuple[Product, ...]:
        """Matrices, without those of routed experts, that Muon makes orthogonal one by one."""
        return self.products

    @property
    def split_vectors(self) -> int:
        """Parameters that tensor ranks split, beside the matrices."""
        return 0

    @property
    def whole_vectors(self) -> int:
        """Parameters that every tensor rank holds whole, beside the matrices and the norms of the layer."""
        return 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return 0

    @property
    def multiplications_beside(self) -> float:
        """Multiplications per token, beside the products', that count as the model's FLOPs; without scores."""
        return 0.0

    @property
    def streamed(self) -> float:
        """Channels per token that elementwise kernels inside the branch read or write, split by tensor ranks."""
        return 0.0

    @property
    def normed_inputs(self) -> int:
        """Channels per token that norms write for the first products; 0 without a product."""
        return self.model.hidden_size if self.products else 0

    @property
    def normed_inside(self) -> int:
        """Channels per token that further norms inside the branch write."""
        return 0

    @property
    def normed_heads(self) -> int:
        """Channels per token of the heads of queries and keys that norms write, split by tensor ranks."""
        return 0

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """Numbers that the tensor-parallel size must divide, by their names in messages."""
        return MappingProxyType({})

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the widths of products on a rank, which formats of few bits restrict, by their names in messages."""
        return MappingProxyType({})

    @property
    def gathers(self) -> tuple[int, int]:
        """Channels per token that tensor ranks gather before the first split product, and calls for them."""
        return (self.model.hidden_size, 1) if self.products else (0, 0)

    @property
    def modules(self) -> Mapping[str, Module]:
        """Parts that selective recomputation can repeat, by Megatron-Core's names."""
        return MappingProxyType({})

    def kernels(self, training: "TrainingSpec") -> int:
        """Return the kernel launches of a forward pass, without norms and routed experts."""
        return 0

    @property
    def statistics(self) -> int:
        """Bytes that a norm keeps of a token in fp32: its scale, and in LayerNorm its mean."""
        return 4 * self.model.norm_parameters // self.model.hidden_size

    def local_matrices(self, rank: OnRank) -> tuple[Matrix, ...]:
        """Return the matrices on a rank that take part in products of fewer than 16 bits, with fp8 training."""
        return tuple(Matrix(*product.on_rank(rank.tp)) for product in self.products)

    def kept(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the tensors kept for the backward pass; here inputs and statistics of norms, and dropout's mask."""
        model, norms = self.model, 1 + self.model.more_norms
        masks = model.hidden_size * (model.hidden_dropout > 0)
        norm_input, tokens = rank.element * model.hidden_size, rank.own_tokens
        return (
            Kept(tokens * norm_input, self.norm_module),
            Kept(tokens * (model.more_norms * norm_input + norms * self.statistics + masks)),
        )

    def kept_by_operation(self, rank: OnRank) -> Any:
        """
        Return the bytes that recomputation by operation keeps: outputs of the first, third, ... product.

        With sequence parallelism also the scattered output of the last product. Compiled layers, whose norms are fused,
        keep no output of the branch: no backward pass needs it.
        """
        operations = self.operations[:-1] if rank.training.fused_norm else self.operations
        outputs = sum(product.on_rank(rank.tp)[0] for product in operations[::2])
        scattered = (rank.shards > 1) * self.model.hidden_size / rank.shards
        return rank.element * rank.tokens * (outputs + scattered)

    def gradient_bytes(self, rank: OnRank) -> Any:
        """Return the bytes of the gradient of the layer's output, with and without dropout's mask."""
        return rank.element * rank.own_tokens * self.model.hidden_size * (1 + (self.model.hidden_dropout > 0))

    def work(self, rank: OnRank) -> Work:
        """Return the working memory of the backward pass."""
        return Work()

    def tokens_seen(self, seq_length: float) -> float:
        """Return the mean number of tokens that causal attention of one token sees, itself included; else 0."""
        return 0.0

    def core_flops(self, training: "TrainingSpec") -> tuple[float, float]:
        """Return the FLOPs of attention that kernels compute for a token on all tensor ranks, forward and backward."""
        return 0.0, 0.0

    @property
    def parameters(self) -> Parameters:
        """Parameters with the norms before and after the branch."""
        norms = self.model.norm_parameters * (1 + self.model.more_norms)
        return Parameters(
            sharded=sum(n * k for n, k, split in self.products if split in ("columns", "rows")) + self.split_vectors,
            replicated=sum(n * k for n, k, split in self.products if split in ("whole", "repeated"))
            + self.whole_vectors
            + norms,
            experts=self.expert_parameters,
        )

    @property
    def multiplications(self) -> float:
        """Multiplications per token with matrices; of routed experts only of those that the token is sent to."""
        return sum(n * k for n, k, _ in self.products) + self.multiplications_beside
