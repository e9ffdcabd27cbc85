"""
Layers that mix tokens through a recurrent state: Mamba-2 and the gated delta net.

Both begin with an input product (queries, keys, values, gates) and a short convolution over earlier tokens. A scan over
chunks of the sequence, a gated norm and an output product follow. Tensor parallelism splits heads and groups. Mamba-2
(Dao and Gu, arXiv 2405.21060) is ``core/ssm/mamba_mixer.py`` of Megatron-Core. The gated delta net (Yang et al., arXiv
2412.06464; Qwen3-Next) is its ``core/ssm/gated_delta_net.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pipette_opt.layers.adapters import RECURRENT_TARGETS
from pipette_opt.layers.branch import Branch, Kept, OnRank, Product, Work

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec

SCAN_KERNELS = 8
"""Approximate number of kernel launches of convolution, scan and norm in one pass."""

MAMBA_CHUNK, DELTA_CHUNK = 128, 64
"""Tokens per chunk of the scan: ``chunk_size`` of ``MambaMixer``, and the chunk of flash-linear-attention."""


class Recurrent(Protocol):
    """Interface of a recurrent mixer (Mamba-2, gated delta net): sizes of a layer for costs, memory, legality."""

    @property
    def in_size(self) -> int:
        """Outputs of the input product."""

    @property
    def out_size(self) -> int:
        """Channels of all heads, the inputs of the output product."""

    @property
    def conv_size(self) -> int:
        """Channels of the convolution."""

    @property
    def conv_kernel_dim(self) -> int:
        """Tokens in the window of the convolution."""

    @property
    def split_vectors(self) -> int:
        """Parameters that tensor ranks split, without the input and output products."""

    @property
    def whole_vectors(self) -> int:
        """Parameters that every tensor rank holds whole."""

    @property
    def parts(self) -> Mapping[str, int]:
        """Numbers that the tensor-parallel size must divide, by their fields."""

    @property
    def model_flops(self) -> float:
        """Multiplications of the recurrence per token, as counted in the model's FLOPs (MFU)."""

    @property
    def scan_flops(self) -> float:
        """FLOPs of the forward scan per token."""

    @property
    def scan_bytes(self) -> float:
        """Bytes that the forward scan reads and writes per token."""

    def kept_bytes(self, element: int) -> float:
        """
        Return the bytes of activations per token that the layer keeps for the backward pass, without its input.

        Numbers have ``element`` bytes.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """
    Sizes of a Mamba-2 layer, with megatron-core's names and defaults (``TransformerConfig.mamba_...``).

    Parameters
    ----------
    state_dim
        State channels for each channel of a head.
    head_dim
        Channels per head.
    num_groups
        Groups of heads; the heads of a group share the projections that write and read the state.
    num_heads
        Number of heads.
    conv_kernel_dim
        Tokens in the window of the convolution.
    """

    state_dim: int = 128
    head_dim: int = 64
    num_groups: int = 8
    num_heads: int
    conv_kernel_dim: int = 4

    def __post_init__(self) -> None:
        check_sizes("mamba", self)
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_groups of mamba must divide num_heads={self.num_heads}, got {self.num_groups}.")

    @property
    def out_size(self) -> int:
        """Channels of all heads, the inputs of the output product."""
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: values, plus the write and read projections of the state."""
        return self.out_size + 2 * self.num_groups * self.state_dim

    @property
    def in_size(self) -> int:
        """Outputs of the input product: channels of the convolution, a gate per head channel, a step per head."""
        return self.conv_size + self.out_size + self.num_heads

    @property
    def split_vectors(self) -> int:
        """Parameters that tensor ranks split, without products: convolution, step, decay, skip of heads; norm."""
        return self.conv_size * (self.conv_kernel_dim + 1) + 3 * self.num_heads + self.out_size

    @property
    def whole_vectors(self) -> int:
        """Parameters that every tensor rank holds whole: none."""
        return 0

    @property
    def parts(self) -> Mapping[str, int]:
        """Numbers that the tensor-parallel size must divide: heads and groups."""
        return {"num_heads": self.num_heads, "num_groups": self.num_groups}

    @property
    def model_flops(self) -> float:
        """Multiplications of the recurrence per token (Megatron's ``mamba_layer_flops``): 7 / 2 per state channel."""
        return 3.5 * self.out_size * self.state_dim

    @property
    def scan_flops(self) -> float:
        """
        FLOPs of the chunked scan per token, forward (arXiv 2405.21060, section 6).

        Inside a chunk: scores of each group, and their product with the values of each head. Between chunks: writing to
        the state and reading from it.
        """
        inside = 2.0 * MAMBA_CHUNK * (self.num_groups * self.state_dim + self.out_size)
        return inside + 4.0 * self.state_dim * self.out_size

    @property
    def scan_bytes(self) -> float:
        """Bytes of the forward scan per token: inputs and outputs in 16 bits, chunk states in fp32 three times."""
        states = 3 * 4.0 * self.out_size * self.state_dim / MAMBA_CHUNK
        return 2.0 * (2 * self.out_size + 2 * self.num_groups * self.state_dim) + states

    def kept_bytes(self, element: int) -> float:
        """
        Return the bytes of activations per token that the layer keeps for the backward pass, without its input.

        Kept are the outputs of the input product, of the scan and of the gated norm;
        ``mamba_split_conv1d_scan_combined`` recomputes the rest.
        """
        return element * (self.in_size + 2.0 * self.out_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """
    Sizes of a gated delta net, with megatron-core's names and defaults (``TransformerConfig.linear_...``).

    Parameters
    ----------
    conv_kernel_dim
        Tokens in the window of the convolution.
    key_head_dim, value_head_dim
        Channels per head of queries and keys, and of values.
    num_key_heads, num_value_heads
        Heads of queries and keys, and heads of values; equally many value heads share each key head.
    """

    conv_kernel_dim: int = 4
    key_head_dim: int = 128
    value_head_dim: int = 128
    num_key_heads: int = 16
    num_value_heads: int = 32

    def __post_init__(self) -> None:
        check_sizes("gated_delta_net", self)
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_key_heads of gated_delta_net must divide num_value_heads={self.num_value_heads}, "
                f"got {self.num_key_heads}."
            )

    @property
    def out_size(self) -> int:
        """Channels of all values, the inputs of the output product."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_head_dim + self.out_size

    @property
    def in_size(self) -> int:
        """Outputs of the input product: channels of the convolution, a gate per value channel, two per value head."""
        return self.conv_size + self.out_size + 2 * self.num_value_heads

    @property
    def split_vectors(self) -> int:
        """Parameters that tensor ranks split, without both products: convolution; step and decay per value head."""
        return self.conv_size * self.conv_kernel_dim + 2 * self.num_value_heads

    @property
    def whole_vectors(self) -> int:
        """Parameters that every tensor rank holds whole: the gated norm, which all heads share."""
        return self.value_head_dim

    @property
    def parts(self) -> Mapping[str, int]:
        """Numbers that the tensor-parallel size must divide: key heads and value heads."""
        return {"num_key_heads": self.num_key_heads, "num_value_heads": self.num_value_heads}

    @property
    def model_flops(self) -> float:
        """Multiplications of the recurrence per token: decay, delta, update, query, each over all heads' states."""
        return 4.0 * self.out_size * self.key_head_dim

    @property
    def scan_flops(self) -> float:
        """
        FLOPs of the chunked scan per token, forward (arXiv 2412.06464, section 3.3).

        Inside a chunk: keys times keys, queries times keys, both sides of the triangular solve, scores times values.
        Between chunks: the state is read twice and written once.
        """
        keys = self.num_value_heads * self.key_head_dim
        inside = 2.0 * DELTA_CHUNK * (3 * keys + 2 * self.out_size)
        return inside + 6.0 * self.key_head_dim * self.out_size

    @property
    def scan_bytes(self) -> float:
        """Bytes of the forward scan per token: tensors between its kernels and, twice, chunk states; 16 bits."""
        keys = self.num_value_heads * self.key_head_dim
        states = 2.0 * self.out_size * self.key_head_dim / DELTA_CHUNK
        return 2.0 * (2 * self.num_key_heads * self.key_head_dim + 5 * self.out_size + 2 * keys + states)

    def kept_bytes(self, element: int) -> float:
        """
        Return the bytes of activations per token that the layer keeps for the backward pass, without its input.

        Kept are the outputs of the input product, convolution, scan and gated norm. In addition: queries and keys
        repeated for every value head, the triangular solution of each chunk, two fp32 numbers per value head.
        """
        repeated = 2 * self.num_value_heads * self.key_head_dim
        rows = self.in_size + self.conv_size + repeated + self.num_value_heads * DELTA_CHUNK + 2 * self.out_size
        return element * rows + 8.0 * self.num_value_heads


def check_sizes(name: str, sizes: object, names: Sequence[str] | None = None) -> None:
    """Raise ``ValueError`` unless the named sizes of a mixer, by default all fields, are whole numbers from 1 on."""
    for field in names or [field.name for field in fields(sizes)]:  # type: ignore[arg-type]
        value = getattr(sizes, field)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise ValueError(f"{field} of {name} must be a whole number >= 1, got {value!r}.")


class RecurrentMixer(NamedTuple):
    """
    Type of recurrent mixer.

    Parameters
    ----------
    letter
        Letter of the type in hybrid layer patterns.
    kernels
        Kernel launches of one pass, without those of convolution, scan and gated norm.
    """

    letter: str
    kernels: int


RecurrentName = Literal["mamba", "gated_delta_net"]
"""Name of a recurrent mixer: the field of :class:`~pipette_opt.specs.ModelSpec` that has its sizes."""

RECURRENT_MIXERS: Mapping[RecurrentName, RecurrentMixer] = MappingProxyType(
    {
        "mamba": RecurrentMixer(letter="M", kernels=4),
        "gated_delta_net": RecurrentMixer(letter="G", kernels=8),
    }
)
"""All types of recurrent mixers, by name."""


class RecurrentBranch(Branch):
    """Branch that mixes tokens by a state: its sizes are the model's field of the mixer's name."""

    graph_module = "mamba"
    core = "scan"
    context_types = ()

    @property
    def sizes(self) -> Recurrent:
        """Sizes of the mixer."""
        sizes: Recurrent = getattr(self.model, self.kind.mixer)
        return sizes

    @property
    def products(self) -> tuple[Product, ...]:
        """Input product and output product."""
        h, sizes = self.model.hidden_size, self.sizes
        return Product(sizes.in_size, h, "columns"), Product(h, sizes.out_size, "rows")

    @property
    def split_vectors(self) -> int:
        """Parameters beside the products, and the bias of the input product."""
        return self.sizes.split_vectors + self.model.add_bias_linear * self.sizes.in_size

    @property
    def whole_vectors(self) -> int:
        """Parameters that every tensor rank holds whole, and the bias of the output product."""
        return self.sizes.whole_vectors + self.bias

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """Heads and groups (``core/ssm``)."""
        return {f"{self.kind.mixer}.{name}": size for name, size in self.sizes.parts.items()}

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the width of the first product."""
        return {f"width into {self.kind.mixer} on a rank": self.sizes.in_size // tp}

    @property
    def multiplications_beside(self) -> float:
        """Multiplications of convolution and recurrence per token."""
        return self.sizes.conv_size * self.sizes.conv_kernel_dim + self.sizes.model_flops

    @property
    def linears(self) -> Mapping[str, Product]:
        """Input and output product."""
        return dict(zip(RECURRENT_TARGETS, self.products, strict=True))

    def kept(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the tensors of norms, the input of the first product, and the tensors inside the mixer."""
        inside = rank.tokens / rank.tp * self.sizes.kept_bytes(rank.element)
        layer_input = rank.stored * rank.own_tokens * self.model.hidden_size
        return *super().kept(rank), Kept(layer_input, input_of=RECURRENT_TARGETS[:1]), Kept(inside)

    def work(self, rank: OnRank) -> Work:
        """Return the gradients of outputs of product and convolution, and of the scan's input and output."""
        sizes = self.sizes
        return Work(rank.tokens / rank.tp * rank.element * (sizes.in_size + sizes.conv_size + 2 * sizes.out_size))

    def kernels(self, training: "TrainingSpec") -> int:
        """Return the kernel launches of a pass."""
        return RECURRENT_MIXERS[self.kind.mixer].kernels + SCAN_KERNELS  # type: ignore[index]
