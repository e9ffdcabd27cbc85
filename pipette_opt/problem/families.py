"""
Families: configurations that differ only in the layers of their pipeline stages, with linear times.

A stage of ``n`` layers takes ``fixed + n * layer`` on each GPU kind, and so every path through the schedule is linear
in the layers of the stages. This is what lets a model choose them. Memory of a stage grows with its layers, so each GPU
kind limits their number.

With block recomputation, the number of recomputed layers is open, too: a stage of ``n`` layers with ``r`` recomputed
ones takes ``fixed + n * layer + r * recompute``, and fits if ``r`` is as large as its memory requires.

A model whose first layers are not of its pattern has a family for each way in which these fill the first stages
(:mod:`~pipette_opt.problem.layer_patterns`). :mod:`~pipette_opt.problem.family_times` makes families.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.overlap import exposed
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import NodeBlock, ParallelConfig
from pipette_opt.problem.family_room import RecomputedUnits
from pipette_opt.problem.layer_patterns import beyond
from pipette_opt.problem.path_counts import PathCounts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerFamily:
    """
    Configurations with one tiling of the hosts that differ only in the layers of their stages.

    Parameters
    ----------
    config
        Configuration with the fewest layers on each stage, and with the family's overlap.
    block
        Host tile: stages and replicas of one host.
    num_microbatches
        Number ``m`` of micro-batches per replica.
    num_units
        Units to partition among the stages, at least one to each. A unit is one layer in each chunk of a stage; the
        first unit is all that ``config`` has there.
    layer_s
        Forward and backward of one layer on each GPU kind, communication inside the layer over the best links, shape
        ``(2, num_kinds)``.
    fixed_s
        Forward and backward of each chunk without its units, shape ``(2, num_kinds, num_chunks, pp)``; may be negative
        where the first unit is no layer like the others.
    link_s
        One transfer between stages on different hosts over the best link of each pair of kinds, shape ``(num_kinds,
        num_kinds)``; infinite where there is none.
    inside_s
        One transfer between stages of one host.
    reduction_s
        Additional reduction of a stage per unit, over the best ring.
    fixed_reduction_s
        Reduction of a stage without its layers, shape ``(pp,)``.
    gather_s, fixed_gather_s
        Parameter gather per unit, and of a stage without its layers, if it overlaps with the forwards; else zero.
    embedding_s
        Reduction of tied word embeddings of the first and the last stage, after their own, over the best link.
    slowdown
        Relative slowdown of compute by overlapped collectives.
    step_s
        Additional optimizer step of a stage per unit; the largest stage decides.
    fixed_step_s
        Least optimizer step of a stage without its units, shape ``(pp,)``; may be negative, as ``fixed_s``.
    optimizer_s
        Optimizer time beside its step.
    most_units
        Units that fit into a stage on each GPU kind, shape ``(num_kinds, pp)``.
    recompute_s
        Additional backward time of a recomputed unit in each chunk on each GPU kind, shape ``(num_kinds,)``; the first
        one of each stage is in ``fixed_s``. Zero without block recomputation.
    recomputed
        Number of units that have to be recomputed; ``None`` without block recomputation.
    far_after, far_s
        Row of the grid whose transfer to the next one crosses groups of hosts, and its additional time beyond
        ``link_s``; -1 and zero where some group is large enough for all rows.
    has_far_rings
        Whether the reductions of all stages cross such groups.
    is_far
        Whether some communication of the family must cross such groups.
    """

    config: ParallelConfig
    block: NodeBlock
    num_microbatches: int
    num_units: int
    layer_s: FloatArray
    fixed_s: FloatArray
    link_s: FloatArray
    inside_s: float
    reduction_s: float
    fixed_reduction_s: FloatArray
    gather_s: float
    fixed_gather_s: FloatArray
    embedding_s: float
    slowdown: float
    step_s: float
    fixed_step_s: FloatArray
    optimizer_s: float
    most_units: IntArray
    recompute_s: FloatArray
    recomputed: RecomputedUnits | None = None
    far_after: int = -1
    far_s: float = 0.0
    has_far_rings: bool = False
    is_far: bool = False

    def __post_init__(self) -> None:
        for name in (
            "layer_s",
            "fixed_s",
            "link_s",
            "fixed_reduction_s",
            "fixed_gather_s",
            "fixed_step_s",
            "recompute_s",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))
        object.__setattr__(self, "most_units", read_only(self.most_units, np.int64))

    @property
    def far_stage(self) -> int:
        """Stage whose transfers to the next cross groups of hosts; -1 if none must."""
        return -1 if self.far_after < 0 else (self.far_after + 1) * self.block.stages - 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of hosts of the pipeline, data and tensor dimension."""
        return self.block.node_grid(self.config)

    @property
    def hosts_per_row(self) -> int:
        """Number of hosts that hold the same stages."""
        _, data, tensor = self.grid
        return data * tensor

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Stages, micro-batches and chunks: families with equal values have the same paths."""
        return self.config.pipeline_model_parallel_size, self.num_microbatches, self.config.num_chunks

    @property
    def least_optimizer_s(self) -> float:
        """Lower bound on the optimizer time of any partition: some stage has at least the mean number of units."""
        units = ceil_div(self.num_units, self.config.pipeline_model_parallel_size)
        return self.optimizer_s + max(self.step_s * units + min(float(self.fixed_step_s.min()), 0.0), 0.0)

    def with_units(self, units: Sequence[int], recomputed: int = 1) -> ParallelConfig:
        """
        Return the configuration with the given units of each stage; ``recomputed`` of each with block
        recomputation.
        """
        sized = beyond(self.config, units)
        return sized if self.recomputed is None else replace(sized, recompute_num_layers=recomputed)

    def units_of(self, layers: Sequence[int]) -> list[int] | None:
        """Return the units of each stage of a layer partition; ``None`` if the family cannot express it."""
        chunks, own = self.config.num_chunks, self.config.layers_per_stage
        if len(layers) != len(own):
            return None
        if any(count < least or count % chunks for count, least in zip(layers, own, strict=True)):
            return None
        return [1 + (count - least) // chunks for count, least in zip(layers, own, strict=True)]

    def times(self, units: FloatArray, kind_of_row: IntArray) -> PlacedTimes:
        """
        Times for the simulator with the best links between kinds, in a single replica.

        Parameters
        ----------
        units
            Units of each stage, whole or not, shape ``(pp,)``.
        kind_of_row
            GPU kind of each grid row, shape ``(rows,)``.
        """
        pp, stages = self.config.pipeline_model_parallel_size, np.arange(self.config.pipeline_model_parallel_size)
        rows = stages // self.block.stages
        kinds, after = kind_of_row[rows], np.roll(rows, -1)
        forward, backward = (
            np.maximum(self.fixed_s[way][kinds, :, stages].T + units * self.layer_s[way][kinds], 0.0)[..., None]
            for way in range(2)
        )
        links = self.link_s[kind_of_row[rows], kind_of_row[after]]
        sends = np.where(rows == after, self.inside_s, np.where(np.isfinite(links), links, 0.0))[:, None] * (pp > 1)
        if self.far_after >= 0:
            sends[self.far_stage] += self.far_s
        reduction = np.maximum(self.fixed_reduction_s + units * self.reduction_s, 0.0)
        gather = (
            np.maximum(self.fixed_gather_s + units * self.gather_s, 0.0) if self.config.overlap_param_gather else None
        )
        beside: dict[str, Any] = {}
        if self.config.overlap_grad_reduce:
            none, one_bucket = np.zeros((1, 2, pp)), np.ones((1, pp), dtype=np.int64)
            shown = exposed(
                one_bucket, forward[None], backward[None], reduction[None], None if gather is None else gather[None],
                none, self.slowdown,
            )  # fmt: skip
            beside = {name: None if value is None else value[0] for name, value in shown._asdict().items()}
        return PlacedTimes(
            forward_s=forward,
            backward_s=backward,
            tensor_forward_s=np.zeros_like(forward),
            tensor_backward_s=np.zeros_like(backward),
            send_forward_s=sends,
            send_backward_s=sends,
            reduction_s=reduction,
            optimizer_s=self.least_optimizer_s,
            gather_s=gather,
            **beside,
        )

    def path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        Seconds of each path on each GPU kind and stage: without layers, and for each unit of the stage.
        Both of shape ``(num_paths, num_kinds, pp)``. Overlapped communication counts as in ``costs/overlap.py``, as a
        lower bound that is linear in the layers: a minimum of two times becomes the minimum of their parts.
        """
        gathers, chunks = self.config.overlap_param_gather, self.config.num_chunks
        forward = counts.without_begun(counts.forward) if gathers else counts.forward
        passes = (forward, counts.backward)
        fixed = np.asarray(sum(np.einsum("rcs,kcs->rks", each, self.fixed_s[way]) for way, each in enumerate(passes)))
        unit = np.asarray(sum(np.einsum("rcs,k->rks", each, self.layer_s[way]) for way, each in enumerate(passes)))
        if gathers:
            first = counts.without_begun(counts.first)
            if chunks == 1:  # all but the first stage wait for all of their parameters
                waiting = first[:, 0] * (np.arange(first.shape[2]) > 0)
                fixed += (waiting * self.fixed_gather_s)[:, None]
                unit += (waiting * self.gather_s)[:, None]
            else:
                slow_fixed, slow_unit = self._slowed_s(0, self.fixed_gather_s, self.gather_s)
                fixed += (first[:, 1:] * slow_fixed[1:]).sum(axis=1)[:, None]
                unit += (first[:, 1:] * slow_unit).sum(axis=1)[:, None]
                self._add_gathers(counts, fixed, unit)
        if self.config.overlap_grad_reduce and chunks > 1:
            slow_fixed, slow_unit = self._slowed_s(1, self.fixed_reduction_s, self.reduction_s)
            fixed += (counts.last[:, :-1] * slow_fixed[:-1]).sum(axis=1)[:, None]
            unit += (counts.last[:, :-1] * slow_unit).sum(axis=1)[:, None]
        return fixed, unit

    def _slowed_s(self, way: int, fixed_ring_s: FloatArray, ring_s: float) -> tuple[FloatArray, float]:
        """
        Slowdown of ``pp`` passes of a chunk by a part of a ring: fixed, shape ``(chunks, pp)``, and per
        unit, seconds.
        """
        pp, chunks = self.config.pipeline_model_parallel_size, self.config.num_chunks
        fixed = np.minimum(fixed_ring_s / chunks, pp * self.fixed_s[way].min(axis=0))
        return self.slowdown * fixed, self.slowdown * min(ring_s / chunks, pp * float(self.layer_s[way].min()))

    def _add_gathers(self, counts: PathCounts, fixed: FloatArray, unit: FloatArray) -> None:
        """Add the start of paths that wait for parameters: the gathers of all chunks so far, then the forward."""
        waiting_paths = np.flatnonzero(counts.begun >= 0)
        chunk, stage = np.divmod(counts.begun[waiting_paths], fixed.shape[2])
        gathered = (chunk + 1) / self.config.num_chunks
        whole = counts.begun[waiting_paths] > 0  # the first stage's first chunk comes in buckets
        forward = self.fixed_s[0].min(axis=0)[chunk, stage]
        fixed[waiting_paths, :, stage] += (gathered * self.fixed_gather_s[stage] + whole * forward)[:, None]
        unit[waiting_paths, :, stage] += (gathered * self.gather_s + whole * self.layer_s[0].min())[:, None]

    def after_s(self, counts: PathCounts) -> FloatArray:
        """Reduction of tied embeddings after each path's reduction, seconds, shape ``(num_paths,)``."""
        tied = (counts.stage == 0) | (counts.stage == self.config.pipeline_model_parallel_size - 1)
        after: FloatArray = self.embedding_s * tied.astype(np.float64)
        return after

    def reduced_path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        Seconds of each path with the reduction that follows it, as of :meth:`path_s`.

        With overlap and interleaving, the path says how many parts of the reduction follow; otherwise all of it.
        Without interleaving, the first stage's reduction starts with the last backward.
        """
        overlaps, chunks, paths = self.config.overlap_grad_reduce, self.config.num_chunks, np.arange(len(counts.stage))
        parts = counts.parts / chunks if overlaps and chunks > 1 else np.ones(len(paths))
        fixed, unit = self.path_s(self.before_reduction(counts))
        fixed[paths, :, counts.stage] += (parts * self.fixed_reduction_s[counts.stage] + self.after_s(counts))[:, None]
        unit[paths, :, counts.stage] += (parts * self.reduction_s)[:, None]
        return fixed, unit

    def before_reduction(self, counts: PathCounts) -> PathCounts:
        """Return the paths up to the start of the reduction; without interleaving, that is during the last backward."""
        if not self.config.overlap_grad_reduce or self.config.num_chunks > 1:
            return counts
        backward = counts.backward.copy()
        backward[counts.stage == 0, 0, 0] -= 1
        return replace(counts, backward=backward)

    def recompute_path_s(self, counts: PathCounts) -> FloatArray:
        """
        Additional seconds of paths per recomputed unit of a stage beyond its first, shape ``(num_paths,
        num_kinds, pp)``.
        """
        added: FloatArray = np.einsum("rcs,k->rks", counts.backward, self.recompute_s)
        return added
