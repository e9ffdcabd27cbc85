"""
Linear layers in space and time, run by processes of this machine over gloo, with every sent byte counted.

The scheme of :mod:`benchmarks.squares.costs`. Rank ``(r, c)`` of a ``q x q`` square holds these blocks (indices modulo
``q``; the first is the block of tokens, or of inputs for weights):

==========  ===============  ===============
layer       plain            skewed
==========  ===============  ===============
``X``       ``(r, c)``       ``(r, r + c)``
``W``       ``(c, r + c)``   ``(r + c, c)``
``Y``       ``(r, r + c)``   ``(r, c)``
==========  ===============  ===============

The output of a plain layer is where a skewed layer needs its input, and vice versa. In step ``t``, the summed index of
a pass is ``t`` further than in storage. So operands come from the neighbour that had them one step before.
"""

import math
import multiprocessing
import queue
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist

from benchmarks.squares.costs import SquareProduct, SquareTraffic
from pipette_opt.base.errors import InputError

TIMEOUT_S = 120
"""Seconds without a message after which the run ends with an error. Chosen."""

Products = tuple[SquareProduct, ...]

RankResult = tuple[dict[str, float], tuple[SquareTraffic, ...]]
"""Errors of a rank by name, and elements that it sent in the passes of each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareCheck:
    """
    Result of a run on a square.

    Parameters
    ----------
    errors
        Largest difference to the unpartitioned layers over the largest value, by name: output, gradient of the input,
        and of each layer's weights.
    sent
        Elements that every rank sent in the passes of each layer; all ranks sent equally many.
    """

    side: int
    products: tuple[SquareProduct, ...]
    errors: dict[str, float]
    sent: tuple[SquareTraffic, ...]

    @property
    def worst(self) -> float:
        """Largest of the errors."""
        return max(self.errors.values())


class Messages(Protocol):
    """Exchange of blocks between ranks."""

    def exchange(self, block: torch.Tensor, to: int, source: int) -> Callable[[], torch.Tensor]:
        """Send a block and request another; return a function that waits for both and returns the latter."""
        ...


class GlooMessages:
    """Exchange of blocks between processes, by torch.distributed."""

    def exchange(self, block: torch.Tensor, to: int, source: int) -> Callable[[], torch.Tensor]:
        """Send a block and request another; return a function that waits for both and returns the latter."""
        received = torch.empty_like(block)
        works = dist.isend(block, to), dist.irecv(received, source)

        def wait() -> torch.Tensor:
            for work in works:
                assert work is not None
                work.wait()
            return received

        return wait


class ThreadMessages:
    """Exchange of blocks between threads of this process, for tests of the scheme."""

    def __init__(self, rank: int, queues: dict[tuple[int, int], "queue.SimpleQueue[torch.Tensor]"]) -> None:
        self.rank, self.queues = rank, queues

    def exchange(self, block: torch.Tensor, to: int, source: int) -> Callable[[], torch.Tensor]:
        """Send a block and request another; return a function that waits for the latter and returns it."""
        self.queues[self.rank, to].put(block.clone())
        return lambda: self.queues[source, self.rank].get(timeout=TIMEOUT_S)


class _Rank:
    """Rank of the square: its place, its messages, and the number of elements that it sent."""

    def __init__(self, rank: int, side: int, messages: Messages) -> None:
        self.row, self.column, self.side = rank // side, rank % side, side
        self.messages, self.sent = messages, 0

    def shift(self, block: torch.Tensor, rows: int, columns: int) -> Callable[[], torch.Tensor]:
        """
        Send a block to the rank ``rows`` and ``columns`` before this one; return a function for the block from the
        other side.
        """
        self.sent += block.numel()
        return self.messages.exchange(block, self._at(-rows, -columns), self._at(rows, columns))

    def _at(self, rows: int, columns: int) -> int:
        q = self.side
        return (self.row + rows) % q * q + (self.column + columns) % q

    def accumulate(
        self,
        left: torch.Tensor,
        right: torch.Tensor,
        left_from: tuple[int, int],
        right_from: tuple[int, int],
        transposed: tuple[bool, bool] = (False, False),
    ) -> torch.Tensor:
        """
        Return the sum of the products of ``side`` pairs of blocks; the next pair travels while one is multiplied.

        Parameters
        ----------
        left_from, right_from
            Rows and columns from this rank to the rank that has the next block.
        transposed
            Whether left and right are multiplied transposed.
        """
        total: torch.Tensor | None = None
        for step in range(self.side):
            moving = None
            if step < self.side - 1:
                moving = self.shift(left, *left_from), self.shift(right, *right_from)
            product = (left.T if transposed[0] else left) @ (right.T if transposed[1] else right)
            total = product if total is None else total.add_(product)
            if moving is not None:
                left, right = moving[0](), moving[1]()
        assert total is not None
        return total

    def forward(self, x: torch.Tensor, w: torch.Tensor, skewed: bool) -> torch.Tensor:
        """Return ``Y = X W``; the block of inputs that both operands share moves on by one each step."""
        return self.accumulate(x, w, (0, 1), (1, 0) if skewed else (-1, 1))

    def input_gradient(self, dy: torch.Tensor, w: torch.Tensor, skewed: bool) -> torch.Tensor:
        """Return ``dX = dY W^T``; the block of outputs moves on each step."""
        return self.accumulate(dy, w, (0, 1), (-1, 1) if skewed else (1, 0), (False, True))

    def weight_gradient(self, x: torch.Tensor, dy: torch.Tensor, skewed: bool) -> torch.Tensor:
        """Return ``dW = X^T dY``; the block of tokens moves on each step."""
        if skewed:
            return self.accumulate(x, dy, (1, -1), (1, 0), (True, False))
        return self.accumulate(x, dy, (1, 0), (1, -1), (True, False))

    def own(self, whole: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Return the block of a whole tensor at a row and column of blocks, modulo the side."""
        height, width = whole.shape[0] // self.side, whole.shape[1] // self.side
        top, start = rows % self.side * height, columns % self.side * width
        return whole[top : top + height, start : start + width].contiguous()


def check_squares(
    tokens: int, widths: Sequence[int], side: int, seed: int = 0, *, threads: bool = False
) -> SquareCheck:
    """
    Run layers with GELU between them on ``side^2`` ranks, and compare the results with those of one rank.

    Parameters
    ----------
    widths
        Inputs of the first layer, then the outputs of each; at least two.
    threads
        Whether ranks are threads of this process instead of processes over gloo.

    Raises
    ------
    InputError
        If sizes do not divide, or there is no layer.
    """
    if len(widths) < 2:
        raise InputError("widths", f"must be at least two, got {list(widths)}.")
    products = tuple(
        SquareProduct(tokens=tokens, inputs=inputs, outputs=outputs, side=side) for inputs, outputs in pairwise(widths)
    )
    found = (_in_threads if threads else _in_processes)(side, products, seed)
    if failed := [text for text in found if isinstance(text, str)]:
        raise RuntimeError(f"a rank of the square failed:\n{failed[0]}")
    results = [result for result in found if not isinstance(result, str)]
    errors = {name: max(result[0][name] for result in results) for name in results[0][0]}
    counts = {result[1] for result in results}
    if len(counts) > 1:
        raise AssertionError(f"ranks sent unequal amounts: {counts}.")
    return SquareCheck(side=side, products=products, errors=errors, sent=counts.pop())


def _in_processes(side: int, products: Products, seed: int) -> "list[RankResult | str]":
    """Run the ranks as processes; return the result of each, or its error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        ranks = [
            context.Process(target=_run, args=(rank, side, products, seed, folder, results), daemon=True)
            for rank in range(side**2)
        ]
        for process in ranks:
            process.start()
        found = [results.get() for _ in ranks]
        for process in ranks:
            process.join()
    return found


def _in_threads(side: int, products: Products, seed: int) -> "list[RankResult | str]":
    """Run the ranks as threads; return the result of each."""
    ranks = range(side**2)
    queues = {(a, b): queue.SimpleQueue[torch.Tensor]() for a in ranks for b in ranks}
    with ThreadPoolExecutor(side**2) as pool:
        return list(
            pool.map(lambda rank: _check_rank(_Rank(rank, side, ThreadMessages(rank, queues)), products, seed), ranks)
        )


def _run(rank: int, side: int, products: Products, seed: int, folder: str, results: Any) -> None:
    """Run one rank in its process; put its result, or its error, into ``results``."""
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=side**2,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
        found: RankResult | str = _check_rank(_Rank(rank, side, GlooMessages()), products, seed)
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        found = traceback.format_exc()
    results.put(found)


def _check_rank(rank: _Rank, products: Products, seed: int) -> RankResult:
    """Run all passes on this rank's blocks; return the errors against the whole layers, and the sent elements."""
    maker = torch.Generator().manual_seed(seed)
    x = torch.randn(products[0].tokens, products[0].inputs, generator=maker)
    weights = [
        torch.randn(product.inputs, product.outputs, generator=maker) / math.sqrt(product.inputs)
        for product in products
    ]
    dy = torch.randn(products[-1].tokens, products[-1].outputs, generator=maker)
    whole = _unpartitioned(x, weights, dy)

    r, c = rank.row, rank.column
    skews = [bool(index % 2) for index in range(len(products))]
    places = [(r + c, c) if skewed else (c, r + c) for skewed in skews]
    held = [rank.own(w, *place) for w, place in zip(weights, places, strict=True)]
    block, inputs, before, sent = rank.own(x, r, c), [], [], []
    for index, (w, skewed) in enumerate(zip(held, skews, strict=True)):
        inputs.append(block)
        rank.sent = 0
        block = rank.forward(block, w, skewed)
        sent.append([rank.sent])
        before.append(block)
        if index < len(held) - 1:
            block = torch.nn.functional.gelu(block)
    output = r + c if not skews[-1] else c
    errors = {"output": _error(block, rank.own(whole["output"], r, output), whole["output"])}
    gradient = rank.own(dy, r, output)
    for index in reversed(range(len(held))):
        skewed, name = skews[index], f"weights {index + 1}"
        rank.sent = 0
        of_weights = rank.weight_gradient(inputs[index], gradient, skewed)
        count = rank.sent
        rank.sent = 0
        gradient = rank.input_gradient(gradient, held[index], skewed)
        sent[index] += [rank.sent, count]
        errors[name] = _error(of_weights, rank.own(whole[name], *places[index]), whole[name])
        if index:
            gradient = _gelu_gradient(before[index - 1], gradient)
    errors["input"] = _error(gradient, rank.own(whole["input"], r, c), whole["input"])
    return errors, tuple(SquareTraffic(*counts) for counts in sent)


def _unpartitioned(x: torch.Tensor, weights: list[torch.Tensor], dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return output and gradients of the whole layers, by autograd."""
    x = x.clone().requires_grad_()
    weights = [w.clone().requires_grad_() for w in weights]
    y = x
    for index, w in enumerate(weights):
        y = y @ w
        if index < len(weights) - 1:
            y = torch.nn.functional.gelu(y)
    torch.autograd.backward(y, dy)
    assert x.grad is not None
    found = {"output": y.detach(), "input": x.grad}
    for index, w in enumerate(weights):
        assert w.grad is not None
        found[f"weights {index + 1}"] = w.grad
    return found


def _gelu_gradient(before: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient before a GELU, for one block."""
    before = before.clone().requires_grad_()
    torch.autograd.backward(torch.nn.functional.gelu(before), gradient)
    assert before.grad is not None
    return before.grad


def _error(found: torch.Tensor, expected: torch.Tensor, whole: torch.Tensor) -> float:
    """Return the largest difference over the largest value of the whole tensor."""
    return float((found - expected).abs().max() / whole.abs().max())
