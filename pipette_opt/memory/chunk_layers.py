"""Layers of the model chunks of each stage, and how many of their micro-batches are in flight."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.parallel import ParallelConfig


def held_of_chunks(
    of_chunk: IntArray, in_flight: IntArray, pp: IntArray, chunks: IntArray, microbatches: IntArray, last: BoolArray
) -> tuple[IntArray, IntArray]:
    """
    Micro-batches in flight of each chunk when they hold most layers, shape ``(most chunks, num_rows)``.

    Of the last stage when its head is first at work; and how many more layers it holds later, shape ``(num_rows,)``.

    Forwards take ``pp`` micro-batches of each chunk in turn, backwards the same of the chunks in reverse. From the end
    of the warm-up on there are as many in flight after each forward, but of other chunks; between multiples of ``pp``
    forwards or backwards their layers change evenly. Where chunks are equal the first time counts.

    Parameters
    ----------
    of_chunk
        Layers of each chunk, shape ``(most chunks, num_rows)``.
    """
    which = np.arange(len(of_chunk))[:, None]

    def begun(number: IntArray, chunk: IntArray) -> IntArray:
        groups, rest = np.divmod(number, pp * chunks)
        first: IntArray = groups * pp + np.clip(rest - chunk * pp, 0, pp)
        return first

    later = np.maximum(microbatches * chunks - in_flight, 0)
    held = begun(in_flight, which)
    most = (held * of_chunk).sum(axis=0)
    at_head = last & (most > 0)
    if len(of_chunk) > 1 and (of_chunk != of_chunk[0]).any():
        for turn, start in product(range(len(of_chunk)), (np.zeros_like(pp), -in_flight % pp)):
            done = np.minimum(turn * pp + start, later)
            other = begun(in_flight + done, which) - begun(done, chunks - 1 - which)
            layers = (other * of_chunk).sum(axis=0)
            held, most = np.where((layers > most) & ~at_head, other, held), np.maximum(layers, most)
    return held, most - (held * of_chunk).sum(axis=0)


def layers_of_chunks(
    configs: Sequence[ParallelConfig], config_of_row: IntArray, stages: IntArray
) -> tuple[IntArray, IntArray]:
    """Layers of each chunk of each row's stage, and all layers before it, shape ``(most chunks, num_rows)`` each."""
    splits = [(config.layers_per_stage, config.num_chunks, config.pipeline_model_parallel_layout) for config in configs]
    dealt: dict[Any, IntArray] = {}
    for split, one in zip(splits, configs, strict=True):
        if split not in dealt:  # few differ
            dealt[split] = np.array(one.layers_per_chunk)
    number = {split: index for index, split in enumerate(dealt)}
    most, widest = np.max([one.shape for one in dealt.values()], axis=0, initial=1)
    held = np.zeros((most, len(number), widest), dtype=np.int64)
    before = np.zeros_like(held)
    for split, index in number.items():
        layers = dealt[split]
        held[: len(layers), index, : layers.shape[1]] = layers
        before[: len(layers), index, : layers.shape[1]] = np.cumsum(layers).reshape(layers.shape) - layers
    row = np.array([number[split] for split in splits], dtype=np.int64)[config_of_row]
    return held[:, row, stages], before[:, row, stages]
