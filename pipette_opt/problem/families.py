"""
Partition families: configurations that differ only in the layers of their stages, with linear stage times.

A stage of ``n`` layers takes ``fixed + n * layer`` seconds on each GPU type. So every path through the schedule is
linear in the layers per stage, and a CP-SAT model can choose them. Memory of a stage grows with its layers, so each GPU
type limits their number.

With block recomputation, the model also chooses the number of recomputed layers. A stage of ``n`` layers with ``r``
recomputed ones takes ``fixed + n * layer + r * recompute`` seconds. It fits if ``r`` is as large as its memory
requires.

If the first layers of a model differ from its repeated pattern, each way in which they fill the first stages is a
family of its own (:mod:`~pipette_opt.problem.layer_patterns`). :mod:`~pipette_opt.problem.family_times` builds
families.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.overlap import exposed
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.problem.family_room import RecomputedUnits
from pipette_opt.problem.layer_patterns import beyond
from pipette_opt.problem.path_counts import PathCounts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerFamily:
    """
    Configurations with one host tile that differ only in the layers of their stages.

    A unit is one layer in each chunk of a stage; the first unit of a stage is everything that ``config`` has on it.

    Parameters
    ----------
    config
        Configuration with the fewest layers on each stage, and with the family's overlap.
    tile
        Host tile: stages and replicas of one host.
    num_microbatches
        Number ``m`` of micro-batches per replica.
    num_units
        Number of units to partition among the stages, at least one for each stage.
    layer_s
        Forward and backward seconds of one layer on each GPU type, communication inside the layer over the best links,
        shape ``(2, num_kinds)``.
    fixed_s
        Forward and backward seconds of each chunk with zero units, shape ``(2, num_kinds, num_chunks, pp)``. May be
        negative where the first unit differs from the other layers.
    link_s
        Seconds of one transfer between stages on different hosts, over the best link of each pair of GPU types, shape
        ``(num_kinds, num_kinds)``; infinite without a link.
    inside_s
        Seconds of one transfer between stages of one host.
    reduction_s
        Seconds that a unit adds to the gradient reduction of its stage, over the best ring.
    fixed_reduction_s
        Seconds of each stage's gradient reduction with zero units, shape ``(pp,)``.
    gather_s, fixed_gather_s
        Parameter gather: seconds per unit, and of each stage with zero units. Zero if it does not overlap with
        forwards.
    embedding_s
        Seconds of the reduction of tied word embeddings over the best link, after the gradient reductions.
    slowdown
        Relative slowdown of compute while a collective overlaps with it.
    step_s
        Seconds that a unit adds to the optimizer step of its stage; the slowest stage decides.
    fixed_step_s
        Seconds of each stage's optimizer step with zero units, shape ``(pp,)``; may be negative, as ``fixed_s``.
    optimizer_s
        Seconds of an iteration that do not depend on parameters, added to the optimizer step.
    most_units
        Number of units that fit into each stage on each GPU type, shape ``(num_kinds, pp)``.
    recompute_s
        Backward seconds that one recomputed unit adds to a chunk on each GPU type, shape ``(num_kinds,)``. The first
        unit's share is in ``fixed_s``. Zero without block recomputation.
    recomputed
        Number of units that memory forces to be recomputed; ``None`` without block recomputation.
    far_after, far_s
        Grid row whose transfer to the next row crosses groups of hosts, and the seconds it takes beyond ``link_s``. -1
        and zero if one group has hosts for all rows.
    has_far_rings
        Whether the reductions of all stages cross groups of hosts.
    is_far
        Whether a transfer or ring of the family must cross groups of hosts.
    """

    config: ParallelConfig
    tile: HostTile
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
        """Stage whose transfers to the next stage cross groups of hosts; -1 if no transfer must."""
        return -1 if self.far_after < 0 else (self.far_after + 1) * self.tile.stages - 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of hosts in the pipeline, data and tensor dimension."""
        return self.tile.node_grid(self.config)

    @property
    def hosts_per_row(self) -> int:
        """Number of hosts that hold the same stages."""
        _, data, tensor = self.grid
        return data * tensor

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Number of stages, micro-batches and chunks; families with equal numbers have equal paths."""
        return self.config.pipeline_model_parallel_size, self.num_microbatches, self.config.num_chunks

    @property
    def least_optimizer_s(self) -> float:
        """Lower bound on optimizer seconds of any partition: the largest stage has at least the mean units."""
        units = ceil_div(self.num_units, self.config.pipeline_model_parallel_size)
        return self.optimizer_s + max(self.step_s * units + min(float(self.fixed_step_s.min()), 0.0), 0.0)

    def with_units(self, units: Sequence[int], recomputed: int = 1) -> ParallelConfig:
        """
        Return the configuration with the given number of units (layers in each chunk) on each stage.

        With block recomputation, each chunk recomputes ``recomputed`` layers.
        """
        sized = beyond(self.config, units)
        return sized if self.recomputed is None else replace(sized, recompute_num_layers=recomputed)

    def units_of(self, layers: Sequence[int]) -> list[int] | None:
        """Return the units of each stage for the given layers per stage; ``None`` if the family lacks them."""
        chunks, own = self.config.num_chunks, self.config.layers_per_stage
        if len(layers) != len(own):
            return None
        if any(count < least or count % chunks for count, least in zip(layers, own, strict=True)):
            return None
        return [1 + (count - least) // chunks for count, least in zip(layers, own, strict=True)]

    def times(self, units: FloatArray, kind_of_row: IntArray) -> PlacedTimes:
        """
        Return stage times for the simulator: one replica, with the best links between GPU types.

        Parameters
        ----------
        units
            Number of units (layers in each chunk) of each stage, may be fractional, shape ``(pp,)``.
        kind_of_row
            GPU type of each grid row, shape ``(rows,)``.
        """
        pp, stages = self.config.pipeline_model_parallel_size, np.arange(self.config.pipeline_model_parallel_size)
        rows = stages // self.tile.stages
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
            one_bucket = np.ones((1, pp), dtype=np.int64)
            shown = exposed(
                one_bucket, forward[None], backward[None], reduction[None], None if gather is None else gather[None],
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
        Return the seconds of each path as a linear function of the units (layers in each chunk): constant and slope of
        each GPU type and stage.

        Both have shape ``(num_paths, num_kinds, pp)``. Overlapped communication enters as a linear lower bound: the
        minimum of two sums becomes the sum of the minima of their constants and slopes.
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
        Return the seconds by which a chunk's ring slows ``pp`` passes: constant of shape ``(chunks, pp)``, and per unit
        (layer in each chunk).
        """
        pp, chunks = self.config.pipeline_model_parallel_size, self.config.num_chunks
        fixed = np.minimum(fixed_ring_s / chunks, pp * self.fixed_s[way].min(axis=0))
        return self.slowdown * fixed, self.slowdown * min(ring_s / chunks, pp * float(self.layer_s[way].min()))

    def _add_gathers(self, counts: PathCounts, fixed: FloatArray, unit: FloatArray) -> None:
        """Add to paths that begin with a wait for parameters the gathers up to their chunk, and then its forward."""
        waiting_paths = np.flatnonzero(counts.begun >= 0)
        chunk, stage = np.divmod(counts.begun[waiting_paths], fixed.shape[2])
        gathered = (chunk + 1) / self.config.num_chunks
        whole = counts.begun[waiting_paths] > 0  # the first stage's first chunk comes in buckets
        forward = self.fixed_s[0].min(axis=0)[chunk, stage]
        fixed[waiting_paths, :, stage] += (gathered * self.fixed_gather_s[stage] + whole * forward)[:, None]
        unit[waiting_paths, :, stage] += (gathered * self.gather_s + whole * self.layer_s[0].min())[:, None]

    def after_s(self, counts: PathCounts) -> FloatArray:
        """Return the seconds of the tied-embedding reduction that ends each path, shape ``(num_paths,)``."""
        tied = (counts.stage == 0) | (counts.stage == self.config.pipeline_model_parallel_size - 1)
        after: FloatArray = self.embedding_s * tied.astype(np.float64)
        return after

    def reduced_path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        Return the seconds of each path and of the reduction that follows it, constant and slope as in :meth:`path_s`.

        With overlap and interleaving, the path has the number of chunks whose reduction follows; otherwise the whole
        reduction follows. With overlap but no interleaving, the first stage's reduction starts with the last backward.
        """
        overlaps, chunks, paths = self.config.overlap_grad_reduce, self.config.num_chunks, np.arange(len(counts.stage))
        parts = counts.parts / chunks if overlaps and chunks > 1 else np.ones(len(paths))
        fixed, unit = self.path_s(self.before_reduction(counts))
        fixed[paths, :, counts.stage] += (parts * self.fixed_reduction_s[counts.stage] + self.after_s(counts))[:, None]
        unit[paths, :, counts.stage] += (parts * self.reduction_s)[:, None]
        return fixed, unit

    def before_reduction(self, counts: PathCounts) -> PathCounts:
        """
        Return the paths up to the start of the gradient reduction.

        With overlap but no interleaving, the reduction of the first stage starts before its last backward.
        """
        if not self.config.overlap_grad_reduce or self.config.num_chunks > 1:
            return counts
        backward = counts.backward.copy()
        backward[counts.stage == 0, 0, 0] -= 1
        return replace(counts, backward=backward)

    def recompute_path_s(self, counts: PathCounts) -> FloatArray:
        """
        Return the seconds that each recomputed unit of a stage, beyond the first, adds to a path.

        Shape ``(num_paths, num_kinds, pp)``.
        """
        added: FloatArray = np.einsum("rcs,k->rks", counts.backward, self.recompute_s)
        return added
