"""Annealing as an engine: it proves nothing, and finds most of the good placements."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event

from pipette_opt.annealing.anneal import Annealer, AnnealingParams
from pipette_opt.annealing.threads import SEED_STEP
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import POLL_S, TimeSlice

OTHERS_SEED = 7
"""What the seeds of the threads that also prove are beyond that of the thread that anneals all the time. Chosen."""

DETERMINISTIC_MOVES = 2_000_000
"""Moves in all before a deterministic proof. Chosen."""


class Annealing(Engine):
    """
    Simulated annealing with replica exchange (:mod:`pipette_opt.annealing`), on all candidates together or on one.

    One thread anneals from the beginning to the end, as annealing alone would with the same seed; it shares the
    processor with the proof, so that it may get less far. The others anneal first, with other seeds, then prove, and go
    on with their annealing, from the incumbent, when no more can be proven.
    """

    name = "annealing"
    searches = False

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent)
        self.begun: dict[tuple[tuple[int, ...], int], Annealer] = {}

    def suits(self, index: int) -> bool:
        """Whether a candidate can be placed over the best links, and is not annealed to the best that it can be."""
        begun = self.begun.get(((index,), self.incumbent.params.seed))
        if begun is not None:
            return not begun.has_ended
        data = self.incumbent.given
        return optimistic_ticks(data, data.candidates[index]) < UNUSABLE_TICKS

    def _go_on(self, index: int, given: TimeSlice) -> int:
        self.annealer(self.incumbent.params.seed, [index]).run(given.ends, given.stop)
        return int(self.incumbent.bounds[index])

    def annealer(self, seed: int, indices: Sequence[int] | None = None) -> Annealer:
        """The annealing of some candidates, of all by default, with a seed: where it was, or begun anew."""
        data = self.incumbent.given
        chosen = tuple(range(len(data.candidates)) if indices is None else indices)
        if (chosen, seed) not in self.begun:
            moves = DETERMINISTIC_MOVES if self.incumbent.params.deterministic else None
            params = AnnealingParams(max_moves=moves, seed=seed)
            self.begun[chosen, seed] = Annealer(data, params, chosen, offer=self.incumbent.offer)
        return self.begun[chosen, seed]

    def run_first(self) -> None:
        """Anneal before anything is proven, on all threads that are free; so many moves on one if all must repeat."""
        incumbent = self.incumbent
        if incumbent.params.deterministic:
            self.annealer(incumbent.params.seed).run(None, incumbent.stop)
            return
        seconds = incumbent.params.first_annealing_s(incumbent.given.num_nodes)
        if seconds > 0:
            self._run_threads(min(time.perf_counter() + seconds, incumbent.ends))

    def run_beside(self, ended: Event) -> None:
        """Anneal in the calling thread until the proof has ended."""
        annealer = self.annealer(self.incumbent.params.seed)
        for solution in list(self.incumbent.found.values()):
            annealer.add(solution)
        annealer.run(self.incumbent.ends, ended)

    def run_after(self) -> None:
        """Go on from the incumbent on all threads that have nothing to prove any more, until the time is over."""
        if not self.incumbent.is_over:
            self._run_threads(self.incumbent.ends, start=True)

    def _run_threads(self, ends: float, *, start: bool = False) -> None:
        """Go on with all candidates on each free thread, with a seed of its own; an interrupt sets the stop."""
        incumbent, ended = self.incumbent, Event()
        first, threads = incumbent.params.seed + OTHERS_SEED * (incumbent.helpers > 0), incumbent.workers
        annealers = [self.annealer(first + SEED_STEP * number) for number in range(threads)]
        best = incumbent.best
        for annealer in annealers:
            if start and best is not None:
                annealer.add(best)
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(annealer.run, ends, ended) for annealer in annealers]
            until_over(incumbent, running)
            ended.set()
        for one in running:
            one.result()


def until_over(incumbent: Incumbent, running: Sequence["Future[None]"]) -> None:
    """Wait until all have ended or the search is over; an interrupt from the keyboard sets the stop."""
    while not incumbent.is_over and not all(one.done() for one in running):
        try:
            wait(running, POLL_S)
        except KeyboardInterrupt:
            incumbent.stop.set()
