"""Layers of the model chunks of each stage, and the number of their micro-batches in flight."""

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
    On the last stage, the moment when its head first works; the number of layers that it holds more later is the second
    result, shape ``(num_rows,)``. Forwards take ``pp`` micro-batches of each chunk in turn, backwards likewise with the
    chunks in reverse. From the end of the warm-up on, the number in flight after each forward stays constant, but their
    chunks change. Between multiples of ``pp`` forwards or backwards, their layers change evenly. Where chunks are
    equal, the first moment counts.

    Parameters
    ----------
    of_chunk
        Layers of each chunk, shape ``(most chunks, num_rows)``.
    """
    every_chunk = np.arange(len(of_chunk))[:, None]

    def begun(number: IntArray, chunk: IntArray) -> IntArray:
        groups, rest = np.divmod(number, pp * chunks)
        first: IntArray = groups * pp + np.clip(rest - chunk * pp, 0, pp)
        return first

    later = np.maximum(microbatches * chunks - in_flight, 0)
    held = begun(in_flight, every_chunk)
    most = (held * of_chunk).sum(axis=0)
    at_head = last & (most > 0)
    if len(of_chunk) > 1 and (of_chunk != of_chunk[0]).any():
        for turn, start in product(range(len(of_chunk)), (np.zeros_like(pp), -in_flight % pp)):
            done = np.minimum(turn * pp + start, later)
            other = begun(in_flight + done, every_chunk) - begun(done, chunks - 1 - every_chunk)
            layers = (other * of_chunk).sum(axis=0)
            held, most = np.where((layers > most) & ~at_head, other, held), np.maximum(layers, most)
    return held, most - (held * of_chunk).sum(axis=0)


def layers_of_chunks(
    configs: Sequence[ParallelConfig], config_of_row: IntArray, stages: IntArray
) -> tuple[IntArray, IntArray]:
    """Layers of each chunk of each row's stage, and all layers before it, shape ``(most chunks, num_rows)`` each."""
    splits = [(config.layers_per_stage, config.num_chunks, config.pipeline_model_parallel_layout) for config in configs]
    dealt: dict[Any, IntArray] = {}
    for split, config in zip(splits, configs, strict=True):
        if split not in dealt:  # few differ
            dealt[split] = np.array(config.layers_per_chunk)
    number = {split: index for index, split in enumerate(dealt)}
    most, widest = np.max([layers.shape for layers in dealt.values()], axis=0, initial=1)
    held = np.zeros((most, len(number), widest), dtype=np.int64)
    before = np.zeros_like(held)
    for split, index in number.items():
        layers = dealt[split]
        held[: len(layers), index, : layers.shape[1]] = layers
        before[: len(layers), index, : layers.shape[1]] = np.cumsum(layers).reshape(layers.shape) - layers
    row = np.array([number[split] for split in splits], dtype=np.int64)[config_of_row]
    return held[:, row, stages], before[:, row, stages]
