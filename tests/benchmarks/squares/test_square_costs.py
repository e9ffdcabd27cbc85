"""Products on squares of ranks: what is sent, kept and waited for, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, TINY, make_cluster

from benchmarks.slowest import slowest_pair
from benchmarks.squares.costs import (
    SquareProduct,
    square_buffer,
    square_product_s,
    square_products,
    square_shift_s,
    square_traffic,
)
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.costs.products import linear_format, matmul_time_s, product_times_s
from pipette_opt.specs import DEFAULT_STACK, TrainingSpec

RATES = replace(DEFAULT_STACK, intra_node=1.0, inter_node=1.0)
TRAINING = TrainingSpec(global_batch_size=8, seq_length=1024)
FORM = linear_format(A100_80, TRAINING, RATES)
SIZES = {"form": FORM, "gpu": A100_80, "rates": RATES}


def test_what_a_rank_sends_and_holds() -> None:
    """A square of 4 x 4: blocks are a sixteenth; both operands of a pass go on three times."""
    product = SquareProduct(tokens=64, inputs=32, outputs=96, side=4)
    assert (product.input_block, product.weight_block, product.output_block) == (128, 192, 384)
    assert square_traffic(product) == (3 * (128 + 192), 3 * (384 + 192), 3 * (128 + 384))
    assert square_traffic(product).total == 2 * 3 * (128 + 192 + 384)
    assert square_buffer(product) == 2 * (384 + 192)


def test_one_rank_sends_nothing() -> None:
    """And takes what a whole product takes, but for the sums of the weights' gradients."""
    product = SquareProduct(tokens=1024, inputs=1024, outputs=2048, side=1)
    assert square_traffic(product).total == square_buffer(product) == 0
    passes = square_product_s(product, make_cluster(1), gradient_bytes=4, **SIZES)
    expected = product_times_s(1024, 2048, 1024, gradient_bytes=4, **SIZES).passes_s
    assert [one.exposed for one in passes] == [0.0] * 3
    assert passes[0].total == pytest.approx(expected[0])
    assert passes[1].total + passes[2].total == pytest.approx(expected[1])


def test_products_of_a_layer() -> None:
    """Queries, keys and values of grouped heads; a gated MLP has two matrices up."""
    found = square_products(LLAMA_8B, 4096, 2)
    assert [(one.inputs, one.outputs) for one in found] == [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)]


@pytest.mark.parametrize(
    ("side", "groups", "message"),
    [(16, 16, None), (32, 16, "num_attention_heads"), (16, 8, "num_query_groups"), (3, 16, "num_attention_heads")],
)
def test_heads_that_do_not_divide(side: int, groups: int, message: str | None) -> None:
    """Both sides of the edge."""
    model = replace(TINY, num_query_groups=groups)
    if message is None:
        assert len(square_products(model, 1024, side)) == 4
        return
    with pytest.raises(InputError, match=message):
        square_products(model, 1024, side)


def test_messages_of_a_step() -> None:
    """On one host both share a GPU's 200 GB/s; a row a host sends two at once to the next over 20 GB/s."""
    assert square_shift_s(make_cluster(1), 2, 1 * GB, 3 * GB, RATES) == pytest.approx(4 / 200)
    assert square_shift_s(make_cluster(2, gpus=2, nics_per_node=1), 2, 1 * GB, 3 * GB, RATES) == pytest.approx(
        2 * 3 / 20
    )
    assert square_shift_s(make_cluster(2, gpus=2), 2, 1 * GB, 0.0, RATES) == pytest.approx(1 / 200)
    assert square_shift_s(make_cluster(2), 1, 1 * GB, 1 * GB, RATES) == 0.0
    with pytest.raises(InputError, match="at most the 2 GPUs"):
        square_shift_s(make_cluster(8, gpus=2), 4, 1.0, 1.0, RATES)


def test_messages_beside_products() -> None:
    """With fast links a pass takes its products; with slow ones its messages, and the last product."""
    product = SquareProduct(tokens=4096, inputs=4096, outputs=4096, side=2)
    fast = make_cluster(1, intra_node_bytes_per_s=1e15)
    forward, *_ = square_product_s(product, fast, gradient_bytes=4, **SIZES)
    first, later = (matmul_time_s(2048, 2048, 2048, sum_bytes=size, **SIZES) for size in (0, 2))
    assert forward.total == forward.compute == pytest.approx(first + later)
    slow = make_cluster(1, intra_node_bytes_per_s=1 * GB)
    forward, *_ = square_product_s(product, slow, gradient_bytes=4, **SIZES)
    message = 2 * (product.input_block + product.weight_block) / GB
    assert forward.messages == pytest.approx(message)
    assert forward.total == pytest.approx(message + later)


def test_the_slowest_pair_of_hosts() -> None:
    """Not a host and itself; no link is infinite."""
    times = np.array([[9.0, 1.0], [2.0, 9.0]])
    assert slowest_pair(times) == 2.0
    assert slowest_pair(times[:1, :1]) == 0.0
    assert slowest_pair(np.array([[0.0, np.nan], [1.0, 0.0]])) == float("inf")
