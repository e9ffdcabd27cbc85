"""
Compilation of a search's kernels before its time counts: once per installation, in parallel processes.

The processes fill the cache (:mod:`pipette_opt.base.jit`), from which the search's process loads the kernels.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.backends import JoblibBackend, end_joblib_workers
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.jit import is_cached
from pipette_opt.base.types import IntArray
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared
from pipette_opt.problem.data import ProblemData
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.specs import Instance

logger = logging.getLogger(__name__)

COMPILED_WITH = 8
"""Number of candidate configurations on which kernels are run. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """
    Problem of a single candidate configuration, on which kernels are run.

    Parameters
    ----------
    given
        Job with the links of single GPUs; equal to ``instance`` if they are not known.
    """

    instance: Instance
    given: Instance
    data: ProblemData

    @property
    def nodes(self) -> IntArray:
        """Hosts in their listed order, as an array with the shape of the grid."""
        grid = self.data.candidates[0].grid
        return np.arange(int(np.prod(grid))).reshape(grid)


def compile_kernels(prepared: Prepared, clock: Clock) -> None:
    """Load all kernels that a search of these candidate configurations calls; compile them if needed."""
    from pipette_opt.annealing.kernels import anneal_tuned

    samples = list(_samples(prepared))
    compiles = hasattr(anneal_tuned, "py_func")  # not with NUMBA_DISABLE_JIT
    if samples and compiles and not is_cached(anneal_tuned):
        clock.watcher.report_compiling()
        try:
            _compile_beside(samples, clock.stop)
        except OSError as error:
            logger.info("kernels are compiled in this process, as no others can be started: %s", error)
    for part in PARTS:
        _compile((part, samples, clock.stop))


def _samples(prepared: Prepared) -> Iterator[Sample]:
    data = prepared.problem
    for candidate in data.candidates[:: -(-len(data.candidates) // COMPILED_WITH) or 1]:
        sample_data = replace(data, candidates=(candidate,))
        yield Sample(instance=prepared.instance, given=prepared.given, data=sample_data)


def _compile_beside(samples: list[Sample], stop: threading.Event) -> None:
    """Compile the kernels of each use in a process of its own."""
    backend = JoblibBackend(min(len(PARTS), os.cpu_count() or 1))
    if backend.num_workers > 1:
        for _ in backend.run(_compile, [(part, samples, None) for part in PARTS], stop):
            pass
        end_joblib_workers()


def _compile(piece: tuple[Callable[[Sample], None], list[Sample], threading.Event | None]) -> None:
    part, samples, stop = piece
    for sample in samples:
        if stop is not None and stop.is_set():
            return
        part(sample)


def _bound(sample: Sample) -> None:
    from pipette_opt.solver.bounds import candidate_bound

    candidate_bound(sample.data, sample.data.candidates[0])


def _anneal(sample: Sample) -> None:
    once = AnnealingParams(time_limit_s=None, max_moves=1)
    anneal(sample.data, once, start=anneal(sample.data, once).solutions)  # a known placement needs another kernel


def _simulate(sample: Sample) -> None:
    from pipette_opt.simulate.longest_paths import critical_counts

    candidate = sample.data.candidates[0]
    placement = tile_placement(candidate.config, candidate.tile, sample.nodes)
    try:
        times = placed_times(sample.instance, candidate.config, placement)
        if sample.given is not sample.instance:
            placed_times(sample.given, candidate.config, placement)
    except MissingLinkError:
        return
    simulate_times(times, candidate.num_microbatches, sample.data.p2p)
    critical_counts(times, candidate.num_microbatches, sample.data.p2p)


PARTS = (_anneal, _simulate, _bound)
"""Uses of kernels, slowest to compile first."""
