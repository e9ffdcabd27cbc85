"""
Products in space and time: blocks pass around the rings of a square of ranks during compute, without all-reduce.

The spatial-temporal primitive of PrimePar (Wang et al., ASPLOS 2024, DOI 10.1145/3620666.3651357) for a linear layer
``Y = X W``, on ``q x q`` ranks, ``q`` a power of two. Each rank holds one block of each of ``X``, ``W``, ``Y`` and of
their gradients, ``1 / q^2`` of each, and nothing twice. A pass has ``q`` steps. In each step a rank multiplies its two
blocks, adds to its block of the result, and passes both on to a neighbour. Every pass keeps its result in place and
moves its two operands:

====================  ==================  ==================
pass                  moves               keeps
====================  ==================  ==================
forward               ``X``, ``W``        ``Y`` gradient of inputs    ``dY``, ``W``       ``dX`` gradient of weights
``X``, ``dY``       ``dW``
====================  ==================  ==================

Operands start where they are stored, so each moves ``q - 1`` times. In the three passes, a rank sends ``2 (q - 1) /
q^2`` of ``|X| + |W| + |Y|``. Layers alternate between two orders of blocks, plain and skewed, so that the output of one
layer is where the next one needs its input (:mod:`benchmarks.squares.processes` runs this scheme).

No launcher runs this scheme: it is priced, and *planned only*.
"""

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.slowest import slowest_pair
from pipette_opt.base.errors import InputError
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s
from pipette_opt.costs.products import ProductFormat, matmul_time_s
from pipette_opt.specs import ClusterSpec, GpuSpec, ModelSpec, StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareProduct:
    """
    Linear layer on ``side x side`` ranks.

    Parameters
    ----------
    tokens, inputs, outputs
        Rows of ``X``, columns of ``X``, columns of ``Y``; each a multiple of ``side``.
    side
        Side of the square, a power of two; 1 is a single rank.
    """

    tokens: int
    inputs: int
    outputs: int
    side: int

    def __post_init__(self) -> None:
        if self.side < 1 or self.side & (self.side - 1):
            raise InputError("side", f"must be a power of two, got {self.side}.")
        for name in ("tokens", "inputs", "outputs"):
            if (size := getattr(self, name)) < 1 or size % self.side:
                raise InputError(name, f"must be a multiple of the square's side {self.side}, got {size}.")

    @property
    def input_block(self) -> int:
        """Elements of ``X`` on a rank."""
        return self.tokens * self.inputs // self.side**2

    @property
    def weight_block(self) -> int:
        """Elements of ``W`` on a rank."""
        return self.inputs * self.outputs // self.side**2

    @property
    def output_block(self) -> int:
        """Elements of ``Y`` on a rank."""
        return self.tokens * self.outputs // self.side**2


class SquareTraffic(NamedTuple):
    """Elements that a rank sends in each pass."""

    forward: int
    inputs: int
    weights: int

    @property
    def total(self) -> int:
        """Elements sent in the three passes."""
        return sum(self)


def square_traffic(product: SquareProduct) -> SquareTraffic:
    """Return the elements that a rank sends: both operands of a pass, ``side - 1`` times."""
    shifts = product.side - 1
    x, w, y = product.input_block, product.weight_block, product.output_block
    return SquareTraffic(forward=shifts * (x + w), inputs=shifts * (y + w), weights=shifts * (x + y))


def square_buffer(product: SquareProduct) -> int:
    """
    Return the elements of moving blocks: those that a step multiplies and those that arrive during it.

    The first step multiplies the stored blocks, so a square of side 2 only has blocks that arrive.
    """
    x, w, y = product.input_block, product.weight_block, product.output_block
    return min(2, product.side - 1) * max(x + w, y + w, x + y)


def square_products(model: ModelSpec, tokens: int, side: int) -> tuple[SquareProduct, ...]:
    """
    Return the products of a dense layer: queries, keys and values; output projection; up; down.

    Raises
    ------
    InputError
        If heads, widths or tokens do not divide, or with latent attention.
    """
    if model.num_recurrent_layers or model.attention_output_gate:
        raise InputError("model", "has layers with a state or gates, which are not built here; they are counted.")
    if model.multi_latent_attention is not None:
        raise InputError("multi_latent_attention", "has no squares of ranks; its products are of other shapes.")
    for name, count in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.num_query_groups),
    ):
        if count % side:
            raise InputError(name, f"must be a multiple of the square's side {side}, got {count}.")
    query, up = model.query_projection_size, model.ffn_hidden_size * (2 if model.gated_linear_unit else 1)
    widths = (
        (model.hidden_size, query + 2 * model.kv_projection_size),
        (query, model.hidden_size),
        (model.hidden_size, up),
        (model.ffn_hidden_size, model.hidden_size),
    )
    return tuple(SquareProduct(tokens=tokens, inputs=inputs, outputs=outputs, side=side) for inputs, outputs in widths)


def square_shift_s(cluster: ClusterSpec, side: int, row_bytes: float, column_bytes: float, rates: StackSpec) -> float:
    """
    Return the seconds of one step's messages: a block to the neighbour in the row, and one to the next row.

    Rows are ranks of one host. If all rows are on one host, both messages share a GPU's links. Otherwise a row's
    ``side`` messages to the next host share that host's links, the slowest pair counts, and both kinds run at the same
    time. Links reach the bandwidth of rings.

    Raises
    ------
    InputError
        If a row has more ranks than a host has GPUs.
    """
    if side == 1:
        return 0.0
    if side > cluster.gpus_per_node:
        raise InputError("side", f"must be at most the {cluster.gpus_per_node} GPUs of a host, got {side}.")
    if side**2 <= cluster.gpus_per_node:
        return intra_node_message_s(cluster, (row_bytes + column_bytes) / rates.intra_node)
    inside = row_bytes + (column_bytes if cluster.gpus_per_node > side else 0.0)
    across = slowest_pair(inter_node_message_s(cluster, column_bytes / rates.inter_node, side))
    return max(intra_node_message_s(cluster, inside / rates.intra_node), across)


class SquareTime(NamedTuple):
    """Seconds of one pass: its products, its messages, and the part of the messages that products do not hide."""

    compute: float
    messages: float
    exposed: float

    @property
    def total(self) -> float:
        """Seconds of products and exposed messages."""
        return self.compute + self.exposed


def square_product_s(
    product: SquareProduct,
    cluster: ClusterSpec,
    *,
    form: ProductFormat,
    gpu: GpuSpec,
    rates: StackSpec,
    gradient_bytes: int,
) -> tuple[SquareTime, SquareTime, SquareTime]:
    """
    Return the times of the three passes of a product: forward, gradient of the inputs, gradient of the weights.

    All steps but the last move blocks during their product; the longer of both counts. Steps after the first add to
    earlier sums in the result's format; weight gradients add to those of earlier micro-batches.
    """
    q, element = product.side, form.operand_bytes
    m, k, n = product.tokens // q, product.inputs // q, product.outputs // q
    x, w, y = (element * block for block in (product.input_block, product.weight_block, product.output_block))
    result = form.result_bytes

    def square_time(sizes: tuple[int, int, int], moved: tuple[float, float], sums: tuple[int, int]) -> SquareTime:
        first, later = (matmul_time_s(*sizes, form=form, gpu=gpu, rates=rates, sum_bytes=size) for size in sums)
        shift = square_shift_s(cluster, q, *moved, rates)
        compute = first + (q - 1) * later
        exposed = sum(max(0.0, shift - step) for step in [first, *[later] * (q - 1)][: q - 1])
        return SquareTime(compute, (q - 1) * shift, exposed)

    return (
        square_time((m, n, k), (x, w), (0, result)),
        square_time((m, k, n), (y, w), (0, result)),
        square_time((k, n, m), (0, x + y), (gradient_bytes, gradient_bytes)),
    )
