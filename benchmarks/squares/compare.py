"""
Layer on a square of ranks against Megatron's tensor parallelism on as many GPUs: predicted time, messages and memory.

Both spread one micro-batch over the same GPUs. All except products and messages is equal for both: attention, norms,
activations, residuals, each on its share. On a square, a norm sums over the ranks of its row: two numbers for each
token, forward and backward. Tokens of a rank are whole samples, so attention stays local.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.slowest import slowest_pair
from benchmarks.squares.costs import square_buffer, square_product_s, square_products, square_traffic
from pipette_opt.base.errors import InputError
from pipette_opt.costs.beside_products import beside_products, shown_beside_products_s
from pipette_opt.costs.collectives import RingTraffic, all_reduce_traffic, tensor_traffic
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.links import EachLink, NoLinks, RingShape
from pipette_opt.costs.messages import intra_node_message_s
from pipette_opt.costs.products import linear_format, product_times_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance

NORM_SUMS = 2
"""Numbers that a norm sums for each token over a row of the square, fp32, in each pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRow:
    """
    Result for one layer and micro-batch, forward and backward.

    Parameters
    ----------
    ranks
        GPUs of the group; their square root is the square's side.
    micro_batch
        Samples on all GPUs of the group together.
    megatron_s, square_s, mixed_s
        Seconds: Megatron with sequence parallelism; the square; and the faster of both for attention and for the MLP,
        with the all-to-alls between their layouts.
    mixed
        Chosen layouts of ``mixed_s``: attention, MLP.
    megatron_messages_s
        Seconds of Megatron's all-gathers and reduce-scatters, which the layer waits for.
    square_messages_s, square_hidden_s
        Seconds of messages that the square waits for, and of messages hidden by products.
    megatron_sent_bytes, square_sent_bytes
        Bytes that each rank sends for the products.
    megatron_kept_bytes, plain_kept_bytes, square_kept_bytes
        Bytes that a rank keeps for the backward pass, and its largest message buffer: Megatron with and without
        sequence parallelism, and the square. Kept are inputs of products and norms, queries, keys, values, and the
        MLP's activation inputs.
    """

    ranks: int
    micro_batch: int
    megatron_s: float
    square_s: float
    mixed_s: float
    mixed: str
    megatron_messages_s: float
    square_messages_s: float
    square_hidden_s: float
    megatron_sent_bytes: float
    square_sent_bytes: float
    megatron_kept_bytes: float
    plain_kept_bytes: float
    square_kept_bytes: float

    @property
    def speedup(self) -> float:
        """Megatron's time over the square's."""
        return self.megatron_s / self.square_s

    @property
    def hidden(self) -> float:
        """Fraction of the square's message time that products hide."""
        return self.square_hidden_s / (self.square_hidden_s + self.square_messages_s)

    @property
    def memory(self) -> float:
        """Bytes that the square keeps over those of Megatron without sequence parallelism, the paper's baseline."""
        return self.square_kept_bytes / self.plain_kept_bytes


class Claim(NamedTuple):
    """Claim of the paper, the corresponding result of this model, and whether they agree."""

    paper: str
    ours: str
    agrees: bool


PAPER_SPEEDUP, PAPER_MEMORY = 1.68, 0.69
"""Maximum speed-up and peak memory ratio in the paper's abstract (DOI 10.1145/3620666.3651357)."""


def claims(rows: Sequence[SquareRow]) -> tuple[Claim, ...]:
    """Return the paper's claims with the predictions here; at least one row is needed."""
    fastest, least = max(row.speedup for row in rows), min(row.memory for row in rows)
    hidden = [row.hidden for row in rows]
    saving = [row.megatron_kept_bytes > row.square_kept_bytes for row in rows]
    return (
        Claim(
            "products without all-reduce, nothing held twice",
            "each rank holds and sends its blocks only; all-reduces are left in norms",
            True,
        ),
        Claim(
            "messages run beside compute",
            f"{min(hidden):.0%} to {max(hidden):.0%} of their time",
            min(hidden) > 0.5,
        ),
        Claim(
            f"up to {PAPER_SPEEDUP} x the throughput of tensor parallelism",
            f"{min(row.speedup for row in rows):.2f} to {fastest:.2f} x for a layer",
            fastest >= PAPER_SPEEDUP,
        ),
        Claim(
            f"with {PAPER_MEMORY:.0%} of its memory",
            f"{least:.0%} of a layer's activations at least; less than with sequence parallelism in "
            f"{sum(saving)} of {len(rows)} cases",
            least <= PAPER_MEMORY,
        ),
    )


def compare_squares(instance: Instance, micro_batches: tuple[int, ...] = (1, 2, 4, 8)) -> Iterator[SquareRow]:
    """
    Yield the results for squares of 4, 16 and 64 ranks, if cluster, hosts and heads allow.

    Parameters
    ----------
    micro_batches
        Samples for each row of the square; a micro-batch has this number times the square's side.

    Raises
    ------
    InputError
        If no square is possible, or the model has experts or the training fp8, which are not priced.
    """
    model, training, cluster = instance.model, instance.training, instance.cluster
    if model.num_experts is not None:
        raise InputError("--model", f"has {model.num_experts} experts; squares are priced for dense layers only.")
    if training.recipe is not None:
        recipe = "fp4" if training.fp4 else "fp8"
        raise InputError(f"--{recipe}", "cannot be priced on squares; leave it out: in 16 or 32 bits only.")
    sides = [
        side
        for side in (2, 4, 8)
        if side**2 <= cluster.num_nodes * cluster.gpus_per_node and side <= cluster.gpus_per_node
    ]
    if training.seq_length % min((side**2 for side in sides), default=1):
        raise InputError(
            "--seq-length",
            f"must be a multiple of the GPUs of a square, as Megatron's sequence parallelism beside it has parts of "
            f"it: {' or '.join(str(side**2) for side in sides)}, got {training.seq_length}.",
        )
    parts = (model.num_attention_heads, model.ffn_hidden_size, training.seq_length)
    sides = [side for side in sides if not (model.num_query_groups % side or any(part % side**2 for part in parts))]
    if not sides:
        raise InputError(
            "--model",
            f"has {model.num_attention_heads} heads; squares need 4, 16 or 64 GPUs that divide these, "
            f"{cluster.num_nodes} x {cluster.gpus_per_node} are there.",
        )
    for side in sides:
        for samples in micro_batches:
            yield square_row(instance, side, samples * side)


def square_row(instance: Instance, side: int, micro_batch: int) -> SquareRow:
    """Return the result of one layer on a square of this side; it must divide heads, widths and micro-batch."""
    model, training, cluster, stack = instance.model, instance.training, instance.cluster, instance.stack
    ranks, tokens, gpu = side**2, micro_batch * training.seq_length, cluster.gpu_kinds[0]
    config = ParallelConfig(
        tensor_model_parallel_size=ranks,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=micro_batch,
        layers_per_stage=(model.num_layers,),
        sequence_parallel=True,
    )
    form = linear_format(gpu, training, stack)
    products = square_products(model, tokens, side)
    sizes: dict[str, Any] = {"form": form, "gpu": gpu, "rates": stack, "gradient_bytes": training.gradient_bytes}
    passes = [each_pass for product in products for each_pass in square_product_s(product, cluster, **sizes)]
    # Column-parallel where the next product is row-parallel: outputs are split, then inputs.
    splits = ((1, ranks), (ranks, 1)) * 2
    split = [
        sum(product_times_s(tokens, product.outputs // out, product.inputs // into, **sizes))
        for product, (into, out) in zip(products, splits, strict=True)
    ]
    layer_s = sum(layer_times_s(instance, config, gpu))
    rings = tensor_traffic(model, training, config, model.layers[0])
    beside = beside_products(instance, config, model.layers[0], [0])
    norm = all_reduce_traffic(4.0 * NORM_SUMS * tokens / side, side)
    norms_s = 4 * float(NoLinks(cluster, stack).ring_s(RingShape(side), norm)[0])
    messages_s, exposed_s = (sum(getattr(each_pass, name) for each_pass in passes) for name in ("messages", "exposed"))
    hidden = tokens * model.hidden_size
    kept = sum(product.input_block for product in products) + products[0].output_block + products[2].output_block
    kept += 2 * hidden // ranks
    whole = training.parameter_bytes
    message_s = partial(_ring_s, instance, ranks)
    ring_s = float(sum(map(message_s, rings)) + shown_beside_products_s(message_s, beside, stack.overlap_slowdown))
    rest_s = layer_s - sum(split)
    # Attention has the first two products and half of the messages, the MLP the others.
    halves = {
        "tensor": [sum(split[at : at + 2]) + ring_s / 2 for at in (0, 2)],
        "square": [sum(each_pass.total for each_pass in passes[at : at + 6]) + norms_s / 2 for at in (0, 6)],
    }
    moved = training.parameter_bytes * hidden / ranks * (1 - 1 / side) / stack.intra_node
    change_s = 2 * 2 * intra_node_message_s(cluster, moved)  # into the other layout and back, forward and backward
    mixed_s, mixed = min(
        (rest_s + halves[attention][0] + halves[mlp][1] + change_s * (attention != mlp), f"{attention}, {mlp}")
        for attention in halves
        for mlp in halves
    )
    return SquareRow(
        ranks=ranks,
        micro_batch=micro_batch,
        megatron_s=layer_s + ring_s,
        square_s=rest_s + sum(halves["square"]),
        mixed_s=mixed_s,
        mixed=mixed,
        megatron_messages_s=ring_s,
        square_messages_s=exposed_s + norms_s,
        square_hidden_s=messages_s - exposed_s,
        megatron_sent_bytes=sum(ring.hop_bytes for ring in (*rings, *(message.traffic for message in beside))),
        square_sent_bytes=float(whole * sum(square_traffic(product).total for product in products)),
        megatron_kept_bytes=float(whole * (kept + hidden)),
        plain_kept_bytes=float(whole * (kept + 4 * (hidden - hidden // ranks))),
        square_kept_bytes=float(whole * (kept + max(square_buffer(product) for product in products))),
    )


def _ring_s(instance: Instance, ranks: int, ring: RingTraffic) -> float:
    """Return the seconds of a tensor-parallel ring over as many ranks, on full hosts, for the slowest pair of hosts."""
    cluster, stack = instance.cluster, instance.stack
    if ranks <= cluster.gpus_per_node:
        return float(NoLinks(cluster, stack).ring_s(RingShape(ranks), ring)[0])
    flows = cluster.gpus_per_node
    return slowest_pair(EachLink(cluster, stack).ring_s(RingShape(flows, 2, flows), ring))
