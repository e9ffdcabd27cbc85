"""
Proven strategies on Galvatron's costs: all its searches are bounded, and the promising ones solved by CP-SAT.

A search is bounded by the linear relaxation of each stage alone: layers may take fractions of strategies, separately
for each time of the stage. A pipeline's time does not fall when a stage's times grow, so the stages' bounds give a
bound of the pipeline. Searches are solved in ascending order of their bounds, each only for times below the best so
far, until a bound shows that no other search can be faster.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.layers.costs import pipeline_terms
from benchmarks.layers.profile import LayerProfile
from benchmarks.layers.programme import Decision, decision
from benchmarks.layers.space import Search, searches, usable_mb
from benchmarks.layers.strategies import (
    StageTables,
    StrategyChoice,
    StrategyProblem,
    choose_strategies,
    objective_s,
)
from pipette_opt.base.types import FloatArray
from pipette_opt.plans.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """
    Best strategies within a budget, and their proof.

    Parameters
    ----------
    best
        Best decision; ``None`` if nothing fits.
    bound_s
        Lower bound on the time of any strategies of any search; infinite if none fits.
    solved
        Number of searches solved by CP-SAT; bounds ruled out the others.
    """

    best: Decision | None
    bound_s: float
    num_searches: int
    solved: int
    seconds: float

    @property
    def gap(self) -> float:
        """Fraction of the time by which other strategies might be faster."""
        return 0.0 if self.best is None else max(0.0, 1.0 - self.bound_s / self.best.seconds)


def own_searches(profile: LayerProfile, batch: int, stages: int | None = None) -> list[Search]:
    """Return searches that contain all choices of Galvatron; those for either way contain those for tensors alone."""
    return [search for search in searches(profile, batch, stages) if search.mode != "tensor"]


def prove(known: Sequence[Search], budget_gb: float, seconds: float = 10.0, workers: int = 1, seed: int = 0) -> Proven:
    """
    Return the fastest strategies of several searches within a budget.

    Parameters
    ----------
    known
        Searches of one model and batch; their costs of layers are computed once.
    seconds
        Time limit; the bound shows what is not proven by then.
    """
    began = time.perf_counter()
    clock = Clock().after(seconds)
    problems = {search: problem_of(search, usable_mb(budget_gb)) for search in known}
    bounds = {search: relaxed_s(problem) for search, problem in problems.items()}
    best: Decision | None = None
    best_s = proven_s = float("inf")
    solved = 0
    for search in sorted(problems, key=lambda search: bounds[search]):
        if bounds[search] >= best_s:
            break
        if clock.is_over:
            proven_s = min(proven_s, bounds[search])
            break
        found = choose_strategies(problems[search], clock, best_s, workers, seed)
        solved += 1
        proven_s = min(proven_s, max(found.bound_s, bounds[search]))
        if found.option is not None and found.seconds < best_s:
            best = decision(search, layers_of(found), found.option)
            best_s = best.seconds
    return Proven(
        best=best,
        bound_s=min(proven_s, best_s),
        num_searches=len(problems),
        solved=solved,
        seconds=time.perf_counter() - began,
    )


def problem_of(search: Search, limit_mb: int) -> StrategyProblem:
    """Return a search in the solver's form; its times are a micro-batch without and with the gradient reduction."""
    stages = []
    for stage, layers in enumerate(search.pipeline.layers()):
        option_s = np.array([search.option_s[:, stage], np.zeros(len(search.options))])
        stages.append(
            StageTables(
                num_layers=np.array([layers]),
                times_s=search.layer_s[:, None],
                memory=search.layer_mb[stage][None],
                option_s=option_s,
                option_memory=search.option_mb[:, stage],
                budget=limit_mb,
            )
        )
    return StrategyProblem(
        stages=tuple(stages),
        layouts=search.layouts,
        change_s=search.change_s,
        terms=pipeline_terms(search.pipeline.stages, search.pipeline.micro_batches),
    )


def layers_of(found: StrategyChoice) -> tuple[tuple[int, ...], ...]:
    """Return the index of the strategy of each layer, for each stage."""
    return tuple(tuple(strategy for _, strategy, count in stage.blocks for _ in range(count)) for stage in found.stages)


def relaxed_s(problem: StrategyProblem) -> float:
    """Return a lower bound on all choices with one run of equal layers, seconds; ``inf`` if none fits."""
    best = float("inf")
    bounds = np.array([_relaxed_stage_s(stage) for stage in problem.stages])  # (stages, options, parts)
    for option in range(bounds.shape[1]):
        times = bounds[:, option].T
        if np.isfinite(times).all():
            best = min(best, objective_s(problem, times))
    return best


def _relaxed_stage_s(stage: StageTables) -> FloatArray:
    """
    Return the least time of each kind with each option in the linear relaxation, shape ``(options, parts)``.

    It is the minimum over all strategies that fit on average, and over mixtures of one that fits and one that does not.
    """
    assert stage.num_layers is not None
    layers, memory = int(stage.num_layers[0]), stage.memory[0]
    room = (stage.budget - stage.option_memory) / layers
    found = np.empty((len(room), len(stage.times_s)))
    for option, each in enumerate(room):
        small, large = memory <= each, memory > each
        for part, times in enumerate(stage.times_s[:, 0]):
            least = times[small].min() if small.any() else np.inf
            if small.any() and large.any():
                share = (each - memory[small][:, None]) / (memory[large] - memory[small][:, None])
                mixed = times[small][:, None] * (1.0 - share) + times[large] * share
                least = min(least, mixed.min())
            found[option, part] = layers * least + stage.option_s[part, option]
    return found
