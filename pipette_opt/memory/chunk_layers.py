"""Layers of the model chunks of each pipeline stage, and the number of micro-batches in flight of each chunk."""

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
    Return the micro-batches in flight of each chunk at the fullest moment, and layers that the last stage adds later.

    The fullest moment is the one when most layers hold activations. On the last stage, it is the first time that the
    output head works. Forward passes take ``pp`` micro-batches of each chunk in turn, backward passes likewise with the
    chunks in reverse. After the warm-up, the total in flight stays constant after each forward pass, but the chunks
    change. Between multiples of ``pp`` passes, the number of held layers changes linearly. With equal chunks, the first
    moment counts.

    Parameters
    ----------
    of_chunk
        Layers of each chunk, shape ``(max_chunks, num_rows)``.
    in_flight
        Forward passes whose activations are held at once, shape ``(num_rows,)``, as are the following ones.
    pp, chunks, microbatches
        Pipeline stages, chunks of a stage, micro-batches of a replica.
    last
        Mask of last stages.

    Returns
    -------
    tuple
        Micro-batches in flight, shape ``(max_chunks, num_rows)``. Layers that the last stage later holds beyond
        the fullest moment, shape ``(num_rows,)``.
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
    """
    Return the layers of each chunk of each row's stage, and the number of layers before the chunk.

    Both have shape ``(max_chunks, num_rows)``; 0 where a stage has fewer chunks.
    """
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
