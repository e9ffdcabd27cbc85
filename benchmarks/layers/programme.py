"""
Galvatron's decision: a dynamic programme over layers and megabytes for each search and stage, then the best pipeline.

``f[v, s]`` is the least time of the layers so far in at most ``v`` megabytes, the last of them with strategy ``s``
(``dynamic_programming_core`` in its C++ core). Each stage is optimised alone, by the time of a micro-batch that also
reduces its gradients. The pipeline's time then decides between searches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.layers.costs import pipeline_terms
from benchmarks.layers.profile import LayerProfile
from benchmarks.layers.space import Search, searches, usable_mb
from pipette_opt.base.jit import njit
from pipette_opt.base.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """
    Strategies of all layers, and their time.

    Parameters
    ----------
    layers
        Index of the strategy of each layer, for each stage.
    option
        Index of the vocabulary's option.
    reported_s
        Galvatron's iteration time, which leaves changes of layout out.
    seconds
        Iteration time including changes of layout.
    memory_mb
        Megabytes of the fullest stage.
    """

    search: Search
    layers: tuple[tuple[int, ...], ...]
    option: int
    reported_s: float
    seconds: float
    memory_mb: int


@njit(cache=True)
def layer_programme(
    memory: IntArray, times: FloatArray, layouts: IntArray, change: FloatArray, num_layers: int, most: int
) -> tuple[FloatArray, NDArray[np.int8]]:
    """
    Run the dynamic programme for equal layers.

    Parameters
    ----------
    memory, times, layouts
        Megabytes, seconds and layout of each strategy, shape ``(strategies,)``.
    change
        Seconds from layout to layout.
    most
        Largest budget, megabytes.

    Returns
    -------
    The least time by megabytes and last strategy, shape ``(most + 1, strategies)``, and for each layer but the first
    the strategy before it, shape ``(num_layers, most + 1, strategies)``.
    """
    strategies, kinds = len(memory), len(change)
    before = np.zeros((num_layers, most + 1, strategies), dtype=np.int8)
    time = np.zeros((most + 1, strategies))
    fastest = np.zeros((most + 1, kinds))
    which = np.zeros((most + 1, kinds), dtype=np.int8)
    for layer in range(num_layers):
        if layer:
            for size in range(most + 1):
                for kind in range(kinds):
                    fastest[size, kind] = np.inf
                for strategy in range(strategies):
                    if time[size, strategy] < fastest[size, layouts[strategy]]:
                        fastest[size, layouts[strategy]] = time[size, strategy]
                        which[size, layouts[strategy]] = strategy
        for size in range(most, -1, -1):
            for strategy in range(strategies):
                left = size - memory[strategy]
                time[size, strategy] = np.inf
                if left < 0:
                    continue
                if not layer:
                    time[size, strategy] = times[strategy]
                    continue
                for kind in range(kinds):
                    total = fastest[left, kind] + change[kind, layouts[strategy]] + times[strategy]
                    if total < time[size, strategy]:
                        time[size, strategy] = total
                        before[layer, size, strategy] = which[left, kind]
    return time, before


def decide(
    profile: LayerProfile, batch: int, budgets_gb: Iterable[float], stages: int | None = None
) -> dict[float, Decision | None]:
    """
    Return Galvatron's decision within each budget; ``None`` if nothing fits.

    ``stages`` is the only number of pipeline stages to search; by default all numbers.
    """
    budgets = list(budgets_gb)
    best: dict[float, Decision | None] = dict.fromkeys(budgets)
    for search in searches(profile, batch, stages):
        for budget, found in _within(search, budgets):
            known = best[budget]
            if known is None or found.reported_s < known.reported_s:
                best[budget] = found
    return best


def _within(search: Search, budgets: list[float]) -> Iterator[tuple[float, Decision]]:
    """Yield the decisions of one search, for each budget and option that fits."""
    limits = {budget: usable_mb(budget) for budget in budgets}
    layers = search.pipeline.layers()
    most = max(limits.values()) - int(search.option_mb.min())
    if most < max(search.layer_mb.min(axis=1) * layers):
        return
    programmes = [
        layer_programme(sizes, search.layer_s[1], search.layouts, search.change_s, number, most)
        for sizes, number in zip(search.layer_mb, layers, strict=True)
    ]
    for budget, limit in limits.items():
        for option, sizes in enumerate(search.option_mb):
            chosen = []
            for (time, before), of_layer, left in zip(programmes, search.layer_mb, limit - sizes, strict=True):
                if left < 0 or not np.isfinite(time[left]).any():
                    break
                chosen.append(_traced(time[left], before, of_layer, int(left)))
            else:
                yield budget, decision(search, tuple(chosen), option)


def _traced(last: FloatArray, before: NDArray[np.int8], memory: IntArray, left: int) -> tuple[int, ...]:
    """Return the strategies of the layers in order, traced back from the last layer."""
    found = [int(last.argmin())]
    for layer in range(len(before) - 1, 0, -1):
        strategy = found[-1]
        found.append(int(before[layer, left, strategy]))
        left -= int(memory[strategy])
    return tuple(reversed(found))


def decision(search: Search, layers: tuple[tuple[int, ...], ...], option: int) -> Decision:
    """Return the decision with these strategies: its time and memory."""
    plain = np.array([search.layer_s[:, list(stage)].sum(axis=1) for stage in layers]).T
    plain[0] += search.option_s[option]
    of_layer = [search.layouts[list(stage)] for stage in layers]
    changes = np.array([search.change_s[path[:-1], path[1:]].sum() for path in of_layer])
    memory = [sizes[list(stage)].sum() for sizes, stage in zip(search.layer_mb, layers, strict=True)]
    return Decision(
        search=search,
        layers=layers,
        option=option,
        reported_s=_pipeline_s(search, plain),
        seconds=_pipeline_s(search, plain + changes),
        memory_mb=int((memory + search.option_mb[option]).max()),
    )


def _pipeline_s(search: Search, times: FloatArray) -> float:
    terms = pipeline_terms(search.pipeline.stages, search.pipeline.micro_batches)
    return float(sum((term * times).sum(axis=(1, 2)).max() for term in terms))
