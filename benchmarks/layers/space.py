"""
Galvatron's search space: its decision tree of strategies, and the pipelines that it tries one after the other.

Each search fixes the number of micro-batches, the stages, the least and most GPUs over which a sample is spread, and
whether by tensor parallelism, by sequence parallelism or by either. Strategies are the leaves of the tree: pipeline,
then tensor or sequence, then data, sharded or not, recomputed or not; all degrees are powers of two
(``generate_dp_tp_pp_sdp``). Groups of tensor parallelism are neighbours (``disable_tp_consec``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np

from benchmarks.layers.costs import (
    Pipeline,
    Strategy,
    Vocabulary,
    change_s,
    layer_mb,
    layer_s,
    vocabulary_mb,
    vocabulary_s,
)
from benchmarks.layers.profile import LayerProfile
from pipette_opt.base.types import FloatArray, IntArray

Mode = Literal["tensor", "sequence", "either"]

CACHE_SHARE, CACHE_FROM_GB = 0.2, 20
"""Fraction of the memory left to PyTorch's cache, and the budget in GB above which it is left (``mem_cache``)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """Search for the strategies of all layers."""

    pipeline: Pipeline
    most_degree: int
    mode: Mode

    @cached_property
    def strategies(self) -> tuple[Strategy, ...]:
        """Strategies that each layer may have."""
        found = []
        for recomputed in (False, True):
            for degree in _powers(self.pipeline.least_degree, self.most_degree):
                for sequence in (False, True):
                    if sequence and (degree == 1 or self.mode == "tensor"):
                        continue
                    if not sequence and degree > 1 and self.mode == "sequence":
                        continue
                    for sharded in (False, True)[: 2 if degree < self.pipeline.gpus else 1]:
                        found.append(
                            Strategy(degree=degree, is_sequence=sequence, is_sharded=sharded, is_recomputed=recomputed)
                        )
        return tuple(found)

    @cached_property
    def options(self) -> tuple[Vocabulary, ...]:
        """Options for embedding, head and loss."""
        sequences = {"tensor": (False,), "sequence": (True,), "either": (False, True)}[self.mode]
        return tuple(
            Vocabulary(degree=degree, is_sequence=sequence, is_sharded=sharded)
            for degree in _powers(self.pipeline.least_degree, self.most_degree)
            for sequence in sequences
            for sharded in (False, True)
        )

    @property
    def buffer_mb(self) -> int:
        """Megabytes of Megatron-Core's buffer for gathered activations, at the largest tensor-parallel degree."""
        if self.mode == "sequence":
            return 0
        pipeline = self.pipeline
        return int(pipeline.group_samples / pipeline.least_degree * self.most_degree * pipeline.profile.sample_mb)

    @cached_property
    def layer_s(self) -> FloatArray:
        """Seconds of a layer without and with the gradient reduction, shape ``(2, strategies)``."""
        return np.array(
            [[layer_s(self.pipeline, strategy, reduces) for strategy in self.strategies] for reduces in (False, True)]
        )

    @cached_property
    def option_s(self) -> FloatArray:
        """Seconds of embedding, head and loss, shape ``(options, stages)``."""
        return np.array([vocabulary_s(self.pipeline, option) for option in self.options])

    @cached_property
    def layer_mb(self) -> IntArray:
        """Megabytes of a layer on each stage, shape ``(stages, strategies)``."""
        stages = range(self.pipeline.stages)
        return np.array(
            [[layer_mb(self.pipeline, strategy, stage) for strategy in self.strategies] for stage in stages]
        )

    @cached_property
    def option_mb(self) -> IntArray:
        """Megabytes of embedding, head, loss, context and buffer, shape ``(options, stages)``."""
        return np.array([vocabulary_mb(self.pipeline, option) for option in self.options]) + self.buffer_mb

    @cached_property
    def layouts(self) -> IntArray:
        """Index of each strategy's degree among the degrees of the search."""
        least = self.pipeline.least_degree.bit_length()
        return np.array([strategy.degree.bit_length() - least for strategy in self.strategies])

    @cached_property
    def change_s(self) -> FloatArray:
        """Seconds of a change from degree to degree."""
        degrees = _powers(self.pipeline.least_degree, self.most_degree)
        return np.array([[change_s(self.pipeline, before, after) for after in degrees] for before in degrees])


def searches(profile: LayerProfile, batch: int, only: int | None = None) -> Iterator[Search]:
    """
    Yield all searches for one global batch whose micro-batches divide it; ``only`` is the number of stages, or
    ``None``.
    """
    for micro_batches in range(1, batch + 1):
        for stages in _powers(1, min(profile.num_gpus, profile.num_layers)) if only is None else [only]:
            gpus = profile.num_gpus // stages
            for least in _powers(1, gpus):
                if batch % micro_batches or batch % (gpus // least * micro_batches):
                    continue
                pipeline = Pipeline(
                    profile=profile, batch=batch, micro_batches=micro_batches, stages=stages, least_degree=least
                )
                for most in _powers(least, gpus):
                    for mode in ("tensor", "sequence", "either"):
                        yield Search(pipeline=pipeline, most_degree=most, mode=mode)


def usable_mb(budget_gb: float) -> int:
    """Return the megabytes of a GPU's memory that the search uses."""
    budget = int(budget_gb * 1024)
    return budget - int(budget * CACHE_SHARE) if budget // 1024 > CACHE_FROM_GB else budget


def _powers(least: int, most: int) -> list[int]:
    """Return the powers of two from ``least`` to ``most``."""
    return [least << step for step in range(ceil(most / least).bit_length()) if least << step <= most]
