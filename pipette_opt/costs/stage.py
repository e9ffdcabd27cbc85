"""A stage is a count of layers: sums of parameters over its layers, embeddings and head."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.costs.layer_kinds import REMEMBERED, held_of_kinds
from pipette_opt.layers.parameters import RankParameters, rank_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec


class StageParameters(NamedTuple):
    """
    Number of parameters on one rank of each stage, shape ``(pp,)`` each.

    Parameters
    ----------
    own
        All but routed experts.
    matrices
        Parameters in matrix products of the layers, without routed experts and adapters.
    """

    own: FloatArray
    experts: FloatArray
    matrices: FloatArray

    @property
    def total(self) -> FloatArray:
        """All parameters."""
        total: FloatArray = self.own + self.experts
        return total


def expert_block(config: ParallelConfig) -> int:
    """Return the number of consecutive ranks of a stage that together hold every expert once (a block)."""
    return config.expert_tensor_size * config.expert_model_parallel_size


def parts_on_rank(model: ModelSpec, config: ParallelConfig, *, trained: bool = False) -> RankParameters:
    """Return the parameters of each part of a model on one rank; ``trained``: without frozen ones."""
    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    return _rank_parameters(model, tp, pp, expert_block(config), trained=trained)


_rank_parameters = lru_cache(maxsize=REMEMBERED)(rank_parameters)


@lru_cache(maxsize=REMEMBERED)
def stage_parameters(model: ModelSpec, config: ParallelConfig, *, trained: bool = False) -> StageParameters:
    """Return the number of parameters on one rank of each stage; ``trained``: without frozen ones."""
    parts = parts_on_rank(model, config, trained=trained)
    sums = np.zeros((3, config.pipeline_model_parallel_size))
    for kind, layers in held_of_kinds(model, config).items():
        each = parts.layers[kind], parts.experts[kind], parts.matrices[kind]
        sums += np.outer(each, layers.sum(axis=0))
    sums[0, 0] += parts.embeddings
    sums[0, -1] += parts.head
    return StageParameters(*(read_only(values, np.float64) for values in sums))
