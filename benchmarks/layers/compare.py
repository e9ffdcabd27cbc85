"""Comparison of Galvatron's decision with ours within equal budgets: one row for each batch and budget."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.layers.profile import LayerProfile
from benchmarks.layers.programme import Decision, decide
from benchmarks.layers.proven import own_searches, prove
from benchmarks.layers.space import Search, usable_mb
from pipette_opt.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """
    Galvatron's and our decision within one budget.

    Parameters
    ----------
    usable_mb
        Megabytes of the budget that both may use.
    galvatron_s, ours_s
        Iteration time on Galvatron's costs, including changes of layout; ``None`` if nothing fits.
    bound_s, gap
        Proven lower bound over all strategies of the space, and its gap; ``None`` if it is proven that nothing fits.
    galvatron, ours
        Chosen strategies as text.
    galvatron_search_s
        Seconds of Galvatron's search, for all budgets of the batch together.
    ours_search_s
        Seconds of our search for this budget.
    solved, searches
        Number of searches solved by CP-SAT, and number of all searches.
    """

    batch: int
    budget_gb: float
    usable_mb: int
    galvatron_s: float | None
    ours_s: float | None
    bound_s: float | None
    gap: float
    galvatron: str
    ours: str
    galvatron_search_s: float
    ours_search_s: float
    solved: int
    searches: int

    @property
    def faster(self) -> float:
        """Time that ours saves, as a fraction of Galvatron's time."""
        return 0.0 if self.galvatron_s is None or self.ours_s is None else 1.0 - self.ours_s / self.galvatron_s


def compare_layers(
    profile: LayerProfile,
    batches: Sequence[int],
    budgets_gb: Sequence[float],
    stages: int | None = None,
    seconds: float = 10.0,
    workers: int = 1,
    seed: int = 0,
) -> Iterator[LayerRow]:
    """
    Yield the rows as they are found. Raises ``InputError`` for a budget below the smallest layer.

    Parameters
    ----------
    stages
        Only number of pipeline stages; by default all numbers.
    seconds
        Time limit of our search for each budget.
    """
    for batch in batches:
        known = own_searches(profile, batch, stages)
        _check_budgets(known, budgets_gb)
        began = time.perf_counter()
        theirs = decide(profile, batch, budgets_gb, stages)
        their_s = time.perf_counter() - began
        for budget in budgets_gb:
            proven, galvatron = prove(known, budget, seconds, workers, seed), theirs[budget]
            yield LayerRow(
                batch=batch,
                budget_gb=budget,
                usable_mb=usable_mb(budget),
                galvatron_s=None if galvatron is None else galvatron.seconds,
                ours_s=None if proven.best is None else proven.best.seconds,
                bound_s=proven.bound_s if proven.bound_s < float("inf") else None,
                gap=proven.gap,
                galvatron=described(galvatron),
                ours=described(proven.best),
                galvatron_search_s=their_s,
                ours_search_s=proven.seconds,
                solved=proven.solved,
                searches=proven.num_searches,
            )


def _check_budgets(known: Sequence[Search], budgets_gb: Sequence[float]) -> None:
    least_mb = min(int(search.layer_mb.min()) for search in known)
    for budget in budgets_gb:
        if usable_mb(budget) < least_mb:
            raise InputError("--budgets", f"must be at least {least_mb} MB, the smallest layer, got {budget:g} GB.")


def described(decision: Decision | None) -> str:
    """
    Return a decision as text, such as ``pp2, 16 micro-batches; 16 tp2 | 12 tp2, 4 tp2 recomputed; vocabulary tp2``.

    Equal stages are written once.
    """
    if decision is None:
        return "nothing fits"
    pipeline, strategies = decision.search.pipeline, decision.search.strategies
    stages = []
    for stage in decision.layers:
        counts = Counter(str(strategies[strategy]) for strategy in stage)
        stages.append(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    times = {stage: stages.count(stage) for stage in stages}
    layers = " | ".join(f"{count} x ({stage})" if count > 1 else stage for stage, count in times.items())
    micro_batches = f"{pipeline.micro_batches} micro-batch{'es' * (pipeline.micro_batches > 1)}"
    return f"pp{pipeline.stages}, {micro_batches}; {layers}; vocabulary {decision.search.options[decision.option]}"
