"""The clock of a run that people see."""

import time

import numba

from pipette_opt.plans.watcher import Progress, Watcher


def test_the_clock_that_people_see_never_runs_back() -> None:
    """Compiling kernels does not count against the time limit, but the seconds shown go on."""
    seen: list[Progress] = []
    watcher = Watcher(on_progress=seen.append)
    with watcher.loading_kernels():
        time.sleep(0.05)
        watcher.report("compiling")
    watcher.report("annealing")
    seconds = [one.elapsed_s for one in seen]
    assert seconds == sorted(seconds)
    assert seconds[-1] >= 0.05
    assert watcher.elapsed_s < 0.05


def test_it_counts_from_the_start_of_the_command() -> None:
    """What a command did before the search, such as reading, is in it."""
    seen: list[Progress] = []
    Watcher(on_progress=seen.append, begun=time.perf_counter() - 100).report("enumerating candidates")
    assert seen[0].elapsed_s >= 100


def test_compiling_is_said_only_of_kernels_that_are_compiled() -> None:
    """Once for several; not of a function that was compiled before."""
    seen: list[Progress] = []
    watcher = Watcher(on_progress=seen.append)
    kernels = [numba.njit(lambda value, step=step: value + step) for step in range(2)]
    for _ in range(2):
        with watcher.loading_kernels():
            for kernel in kernels:
                kernel(1)
    steps = [one.step for one in seen]
    assert steps == ["compiling kernels, once per installation"]
