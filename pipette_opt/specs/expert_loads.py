"""
Loads of single experts, and the imbalance between expert-parallel ranks that follows from them.

The load of an expert is its share of the token copies that the router sends. Each of ``ep`` ranks holds equally many
experts, and every layer waits for its busiest rank. Imbalance is the busiest rank's load over the mean load, averaged
over the layers.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RankImbalance:
    """
    Imbalance of the expert loads for one expert-parallel size.

    Parameters
    ----------
    ranks
        Expert-parallel size.
    imbalance
        Load of the busiest rank over the mean, at least 1 and at most ``ranks``.
    """

    ranks: int
    imbalance: float

    def __post_init__(self) -> None:
        if self.ranks < 1 or not 1.0 <= self.imbalance <= self.ranks * (1 + 1e-9):
            raise ValueError(f"imbalance of {self.ranks} ranks must be from 1 to {self.ranks}, got {self.imbalance}.")


def zipf_loads(num_experts: int, topk: int, exponent: float) -> FloatArray:
    """
    Return expert loads that fall as ``1 / rank ** exponent``, shuffled over the experts, shape ``(1, num_experts)``.

    No expert can get a token twice: loads above ``1 / topk`` are cut to that, and the excess goes to the other experts.
    """
    loads = 1.0 / np.arange(1, num_experts + 1, dtype=np.float64) ** exponent
    loads /= loads.sum()
    most = 1.0 / topk
    for _ in range(num_experts):
        over = loads > most
        if not over.any() or over.sum() >= topk:
            break
        loads[over] = most
        rest = ~over & (loads < most)
        loads[rest] *= (1.0 - loads[~rest].sum()) / loads[rest].sum()
    shuffled: FloatArray = np.random.default_rng(0).permutation(np.minimum(loads, most))[None]
    return shuffled


def listed_imbalance(loads: FloatArray, ranks: int) -> float:
    """
    Return the mean imbalance if rank ``r`` holds experts ``r * n`` to ``(r + 1) * n - 1``, as launchers place them.

    Parameters
    ----------
    loads
        Load of each expert in each layer, shape ``(layers, num_experts)``, >= 0, with a positive sum in each layer.
    ranks
        Expert-parallel size; divides the number of experts.
    """
    of_ranks = loads.reshape(len(loads), ranks, -1).sum(axis=2)
    return float((of_ranks.max(axis=1) / of_ranks.mean(axis=1)).mean())
