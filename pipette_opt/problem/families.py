"""
Configurations that differ only in how many layers each pipeline stage holds, as one family with linear times.

A stage of ``n`` layers takes ``fixed + n * layer`` on each kind of GPU, and so every path through the schedule is
linear in the layers of the stages; which is what lets a model choose them. Memory of a stage grows with its layers, so
what a kind of GPU has room for is a largest number of layers.

With block recomputation the number of recomputed layers is open, too: a stage of ``n`` layers of which ``r`` are
recomputed takes ``fixed + n * layer + r * recompute``, and has room for ``n`` if ``r`` is as large as its memory asks.

A model whose first layers are not of its pattern has a family for each way in which these fill the first stages
(:mod:`~pipette_opt.problem.layer_patterns`). :mod:`~pipette_opt.problem.family_times` makes them.
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
    Configurations with one packing of the hosts that differ in the layers of their stages only.

    Parameters
    ----------
    config
        The one with the fewest layers on each stage, with what is sent beside compute.
    block
        What one host holds.
    num_microbatches
        ``m``, per replica.
    num_units
        Units to deal to the stages, at least one to each. A unit is one layer in each chunk of a stage; the first one
        is all that ``config`` has there.
    layer_s
        Forward and backward of one layer on each kind of GPU, communication inside the layer over the best links, shape
        ``(2, num_kinds)``.
    fixed_s
        Forward and backward of each chunk beside its units, shape ``(2, num_kinds, num_chunks, pp)``; where the first
        unit is no layer like the others, it may be negative.
    link_s
        One transfer between stages on different hosts over the best link of each pair of kinds, shape ``(num_kinds,
        num_kinds)``; infinite where there is none.
    inside_s
        One transfer between stages of one host.
    reduction_s
        What a unit adds to the reduction of its stage, over the best ring.
    fixed_reduction_s
        The reduction of what a stage has beside its layers, shape ``(pp,)``.
    gather_s, fixed_gather_s
        The same of the parameter gather, if it runs beside the forwards; else zero.
    embedding_s
        What the first and the last stage take after their reductions for tied word embeddings, over the best link.
    slowdown
        Share by which collectives slow down the compute beside them.
    step_s
        What a unit adds to the optimizer's step of its stage; the largest stage decides.
    fixed_step_s
        The step of what a stage has beside its units, at least, shape ``(pp,)``; negative as ``fixed_s``.
    optimizer_s
        What the optimizer takes beside its step.
    most_units
        Units that a stage has room for on each kind of GPU, shape ``(num_kinds, pp)``.
    recompute_s
        What a recomputed unit adds to the backward of each chunk on each kind of GPU, shape ``(num_kinds,)``; the first
        one of each stage is in ``fixed_s``. Zero without block recomputation.
    recomputed
        How many units have to be recomputed; ``None`` without block recomputation.
    far_after, far_s
        A row of the grid, and what a transfer from there to the next takes beyond ``link_s``, as these hosts are of
        different groups; -1 and zero where no group is too small for all rows.
    has_far_rings
        Whether the reductions of all stages cross such groups.
    is_far
        Whether anything of the family is known to cross such groups.
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
        """The stage whose transfers to the next go between groups of hosts; -1 if none is known to."""
        return -1 if self.far_after < 0 else (self.far_after + 1) * self.block.stages - 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Hosts of the pipeline, data and tensor dimension."""
        return self.block.node_grid(self.config)

    @property
    def hosts_per_row(self) -> int:
        """Hosts that hold the same stages."""
        _, data, tensor = self.grid
        return data * tensor

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Stages, micro-batches and chunks: families that agree in these have the same paths."""
        return self.config.pipeline_model_parallel_size, self.num_microbatches, self.config.num_chunks

    @property
    def least_optimizer_s(self) -> float:
        """The optimizer of any split, at least: some stage has as many units as the mean."""
        units = ceil_div(self.num_units, self.config.pipeline_model_parallel_size)
        return self.optimizer_s + max(self.step_s * units + min(float(self.fixed_step_s.min()), 0.0), 0.0)

    def with_units(self, units: Sequence[int], recomputed: int = 1) -> ParallelConfig:
        """The configuration whose stages hold so many units, each with so many recomputed in a family where that is."""
        sized = beyond(self.config, units)
        return sized if self.recomputed is None else replace(sized, recompute_num_layers=recomputed)

    def units_of(self, layers: Sequence[int]) -> list[int] | None:
        """Units of each stage of a split of the layers; ``None`` if the family has no such split."""
        chunks, own = self.config.num_chunks, self.config.layers_per_stage
        if len(layers) != len(own) or any(one < least or one % chunks for one, least in zip(layers, own, strict=True)):
            return None
        return [1 + (one - least) // chunks for one, least in zip(layers, own, strict=True)]

    def times(self, units: FloatArray, kind_of_row: IntArray) -> PlacedTimes:
        """
        What the simulator would be given if all links were the best between their kinds, in a single replica.

        Parameters
        ----------
        units
            Of each stage, whole or not, shape ``(pp,)``.
        kind_of_row
            Kind of GPU of each grid row, shape ``(rows,)``.
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
            none, one = np.zeros((1, 2, pp)), np.ones((1, pp), dtype=np.int64)
            shown = exposed(
                one, forward[None], backward[None], reduction[None], None if gather is None else gather[None], none,
                self.slowdown,
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
        Seconds of each path on each kind of GPU and stage: without layers, and for each unit of the stage.

        Both of shape ``(num_paths, num_kinds, pp)``. What runs beside compute counts as ``costs/overlap.py`` says, at
        least, and linear in the layers: of two times of which the smaller counts, the smaller of their parts.
        """
        gathers, chunks = self.config.overlap_param_gather, self.config.num_chunks
        forward = counts.without_begun(counts.forward) if gathers else counts.forward
        passes = (forward, counts.backward)
        fixed = np.asarray(sum(np.einsum("rcs,kcs->rks", one, self.fixed_s[way]) for way, one in enumerate(passes)))
        unit = np.asarray(sum(np.einsum("rcs,k->rks", one, self.layer_s[way]) for way, one in enumerate(passes)))
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
        """How much longer ``pp`` passes of a chunk take beside a part of a ring: shape ``(chunks, pp)``, and a unit."""
        pp, chunks = self.config.pipeline_model_parallel_size, self.config.num_chunks
        fixed = np.minimum(fixed_ring_s / chunks, pp * self.fixed_s[way].min(axis=0))
        return self.slowdown * fixed, self.slowdown * min(ring_s / chunks, pp * float(self.layer_s[way].min()))

    def _add_gathers(self, counts: PathCounts, fixed: FloatArray, unit: FloatArray) -> None:
        """What paths begin with that wait for parameters: the gathers of all chunks so far, and then the forward."""
        which = np.flatnonzero(counts.begun >= 0)
        chunk, stage = np.divmod(counts.begun[which], fixed.shape[2])
        gathered = (chunk + 1) / self.config.num_chunks
        whole = counts.begun[which] > 0  # the first stage's first chunk comes in buckets
        forward = self.fixed_s[0].min(axis=0)[chunk, stage]
        fixed[which, :, stage] += (gathered * self.fixed_gather_s[stage] + whole * forward)[:, None]
        unit[which, :, stage] += (gathered * self.gather_s + whole * self.layer_s[0].min())[:, None]

    def after_s(self, counts: PathCounts) -> FloatArray:
        """What tied embeddings take after each path's reduction, shape ``(num_paths,)``."""
        tied = (counts.stage == 0) | (counts.stage == self.config.pipeline_model_parallel_size - 1)
        after: FloatArray = self.embedding_s * tied.astype(np.float64)
        return after

    def reduced_path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        The same of each path and then the reduction that it waits for.

        Beside compute and interleaved so many parts of it as the path says; otherwise all of it. Without interleaving
        that of the first stage does not begin before the last backward does.
        """
        overlaps, chunks, paths = self.config.overlap_grad_reduce, self.config.num_chunks, np.arange(len(counts.stage))
        parts = counts.parts / chunks if overlaps and chunks > 1 else np.ones(len(paths))
        fixed, unit = self.path_s(self.before_reduction(counts))
        fixed[paths, :, counts.stage] += (parts * self.fixed_reduction_s[counts.stage] + self.after_s(counts))[:, None]
        unit[paths, :, counts.stage] += (parts * self.reduction_s)[:, None]
        return fixed, unit

    def before_reduction(self, counts: PathCounts) -> PathCounts:
        """The paths up to where the reduction may begin; without interleaving that is beside the last backward."""
        if not self.config.overlap_grad_reduce or self.config.num_chunks > 1:
            return counts
        backward = counts.backward.copy()
        backward[counts.stage == 0, 0, 0] -= 1
        return replace(counts, backward=backward)

    def recompute_path_s(self, counts: PathCounts) -> FloatArray:
        """What each recomputed unit of a stage but its first adds to paths, shape ``(num_paths, num_kinds, pp)``."""
        added: FloatArray = np.einsum("rcs,k->rks", counts.backward, self.recompute_s)
        return added
