"""Coordinates of ranks (tensor, context, data, pipeline) in Megatron-Core's two rank orders."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray, RankOrder
from pipette_opt.parallel.config import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """
    Grid of ranks, numbered as by ``megatron.core.parallel_state.RankGenerator``.

    The first dimension of ``order`` varies fastest. Expert parallelism shares the data-parallel dimension and does not
    appear in the grid.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    order: RankOrder = "tp-cp-ep-dp-pp"

    @classmethod
    def of(cls, config: ParallelConfig, order: RankOrder = "tp-cp-ep-dp-pp") -> "RankGrid":
        """Return the rank grid of a configuration."""
        return cls(
            tp=config.tensor_model_parallel_size,
            cp=config.context_parallel_size,
            dp=config.data_parallel_size,
            pp=config.pipeline_model_parallel_size,
            order=order,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def ranks(self) -> IntArray:
        """Return the rank at each coordinate, shape ``(pp, dp, cp, tp)``."""
        numbers = np.arange(self.world_size, dtype=np.int64)
        if self.order == "tp-cp-ep-dp-pp":
            return numbers.reshape(self.pp, self.dp, self.cp, self.tp)
        return numbers.reshape(self.dp, self.pp, self.cp, self.tp).transpose(1, 0, 2, 3)

    def coordinates(self) -> IntArray:
        """Return the coordinates ``(pp, dp, cp, tp)`` of each rank, shape ``(world_size, 4)``."""
        grid = self.ranks()
        coordinates = np.empty((self.world_size, 4), dtype=np.int64)
        coordinates[grid.ravel()] = np.indices(grid.shape).reshape(4, -1).T
        return coordinates
