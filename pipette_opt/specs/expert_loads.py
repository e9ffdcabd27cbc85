"""
Loads of single experts: which part of the tokens' copies each gets, and how unequal that makes expert-parallel ranks.

``ep`` ranks hold equally many experts each. Every layer waits for its busiest rank, so what counts is the mean over the
layers of the busiest rank's load over the mean load.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RankImbalance:
    """
    What so many expert-parallel ranks make of the loads.

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


def zipf_loads(num_experts: int, topk: int, exponent: float, seed: int = 0) -> FloatArray:
    """
    Shares that fall as ``1 / rank ** exponent``, in a random order of the experts, shape ``(1, num_experts)``.

    No expert gets a token twice: shares above ``1 / topk`` are cut to it, and the others get what is cut.
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
    shuffled: FloatArray = np.random.default_rng(seed).permutation(np.minimum(loads, most))[None]
    return shuffled


def listed_imbalance(loads: FloatArray, ranks: int) -> float:
    """
    The busiest rank's load over the mean where rank ``r`` holds experts ``r * n`` up to ``(r + 1) * n``, as launched.

    Parameters
    ----------
    loads
        Of each expert in each layer, shape ``(layers, num_experts)``, not negative, some above 0 in each layer.
    ranks
        A divisor of the number of experts.
    """
    of_ranks = loads.reshape(len(loads), ranks, -1).sum(axis=2)
    return float((of_ranks.max(axis=1) / of_ranks.mean(axis=1)).mean())
