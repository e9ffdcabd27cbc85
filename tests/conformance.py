"""
What every engine of the solver keeps, as tests: an engine's own test file inherits them by subclassing.

    class TestClassAssignment(EngineConformance):
        engine = ClassAssignment
"""

import threading
import time
from collections.abc import Iterator

import numpy as np
from instances import Variant, best_by_enumeration, one_candidate_cluster, placements, random_problem

from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.stoppable import TimeSlice

VARIANTS = (
    Variant(),
    Variant(directed=False, levels=2),
    Variant(num_kinds=2, missing_share=0.2),
    Variant(num_capacities=2, levels=3),
    Variant(num_kinds=2),
)
"""Random problems: one-way links, few levels, missing links, two kinds of hosts and of memory."""

MAX_SLICES = 12
"""Slices after which an engine that closes what it says it closes has closed a problem of six hosts."""


FEW_SLICES = 2
"""Slices of an engine that only bounds."""


def known_of(data: ProblemData, **params: object) -> Incumbent:
    """Nothing but bounds that need no search."""
    settings = SolverParams(time_limit_s=60.0, workers=1, **params)  # type: ignore[arg-type]
    incumbent = Incumbent(data, settings)
    incumbent.bounds = lower_bounds(data)
    return incumbent


def given(seconds: float, stop: threading.Event | None = None) -> TimeSlice:
    """A slice of time with one thread."""
    watcher = Watcher() if stop is None else Watcher(stop=stop)
    return TimeSlice(clock=Clock(watcher=watcher).after(seconds))


class EngineConformance:
    """
    Tests that every engine inherits.

    Attributes
    ----------
    engine
        What is tested.
    shapes
        Grids of few hosts that it suits, the last with tensor groups over two hosts.
    closes
        Whether its end on them is the optimum.
    large, kind
        A grid that takes it longer than a moment, and the cluster it is on.
    """

    engine: type[Engine]
    shapes: tuple[tuple[int, int, int], ...] = ((2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 1, 2))
    closes = False
    large: tuple[int, int, int] = (8, 6, 1)
    kind = "tree"

    def problems(self) -> Iterator[ProblemData]:
        """Problems of one candidate that can be enumerated, and that the engine suits."""
        for number, variant in enumerate(VARIANTS):
            rng = np.random.default_rng(number)
            for shape in self.shapes:
                yield random_problem(rng, [shape], min(6, shape[0] * shape[1] + number % 2), variant)

    def made(self, incumbent: Incumbent) -> Engine:
        """The engine; what it takes for good is offered as it is."""
        return self.engine(incumbent)

    def large_problem(self) -> ProblemData:
        """A problem that takes the engine longer than a moment."""
        return one_candidate_cluster(np.random.default_rng(2), self.kind, self.large, compute=2_000)

    def large_known(self) -> Incumbent:
        """The same, with some placement known."""
        incumbent = known_of(self.large_problem())
        incumbent.offer_hosts(0, np.arange(int(np.prod(self.large))))
        return incumbent

    def run_to_its_end(self, engine: Engine, seconds: float = 10.0) -> int:
        """Slices until it can do no more; how many it took."""
        number = 0
        most = MAX_SLICES if self.closes else FEW_SLICES
        while number < most and engine.incumbent.is_open(0) and engine.suits(0):
            engine.run(0, given(seconds))
            number += 1
        return number

    def test_bounds_hold_and_ends_are_as_promised(self) -> None:
        """No bound is above the enumerated optimum of the candidate, nor above what was offered."""
        worked = 0
        for data in self.problems():
            optimum = best_by_enumeration(data, data.candidates[0])
            incumbent = known_of(data)
            engine = self.made(incumbent)
            worked += self.run_to_its_end(engine) > 0
            assert min(int(incumbent.bounds[0]), incumbent.upper) <= optimum <= incumbent.upper
            if self.closes:
                assert incumbent.lower == incumbent.upper == optimum or optimum >= UNUSABLE_TICKS <= incumbent.bounds[0]
        assert worked >= 4

    def test_the_optimum_is_never_refuted(self) -> None:
        """With the optimum known, the bound is at most the optimum, and at most one tick above what it looked for."""
        for data in self.problems():
            optimum = best_by_enumeration(data, data.candidates[0])
            if optimum >= UNUSABLE_TICKS:
                continue
            above = known_of(data)
            above.offer(Solution(candidate=0, nodes=best_hosts(data), objective_ticks=0))
            assert above.upper == optimum
            self.run_to_its_end(self.made(above))
            assert above.bounds[0] <= optimum

    def test_bounds_only_rise(self) -> None:
        """From slice to slice, and as they are told meanwhile; what becomes known elsewhere is kept."""
        told: list[int] = []
        incumbent = self.large_known()
        incumbent._on_progress = lambda seconds, upper, lower: told.append(lower)
        engine = self.made(incumbent)
        after = int(incumbent.bounds[0])
        for _ in range(2):
            if engine.suits(0) and incumbent.is_open(0):
                before = after
                risen = engine.run(0, given(0.5))
                after = int(incumbent.bounds[0])
                assert risen == (after > before)
                assert after >= before
        assert told == sorted(told)
        incumbent.prove(0, after + 1)
        if engine.suits(0) and incumbent.is_open(0):
            engine.run(0, given(0.2))
        assert incumbent.bounds[0] >= after + 1

    def test_it_ends_soon_after_its_slice(self) -> None:
        """On a large grid, and at once when it is told to stop."""
        incumbent = self.large_known()
        engine = self.made(incumbent)
        assert engine.suits(0)
        started = time.perf_counter()
        engine.run(0, given(0.3))
        assert time.perf_counter() - started < 20.0
        stop = threading.Event()
        stop.set()
        if engine.suits(0) and incumbent.is_open(0):
            started = time.perf_counter()
            engine.run(0, given(120.0, stop))
            assert time.perf_counter() - started < 20.0

    def test_it_goes_on_where_it_was(self) -> None:
        """Many short slices end as one long one does; each is counted as a visit."""
        compared = 0
        for data in list(self.problems())[:4]:
            whole, parts = known_of(data), known_of(data)
            self.run_to_its_end(self.made(whole))
            engine = self.made(parts)
            number = self.run_to_its_end(engine, seconds=1.0)
            assert engine.visits[0] == number
            if self.closes:
                assert parts.upper == whole.upper
                assert parts.lower == whole.lower
                compared += 1
        assert compared or not self.closes


def best_hosts(data: ProblemData) -> np.ndarray:
    """Hosts of the enumerated optimum."""
    candidate = data.candidates[0]
    return min(placements(data, candidate), key=lambda nodes: objective_ticks(data, candidate, nodes))
