"""Bounds from patterns of classes: never above an enumerated optimum, and the optimum itself in the end."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from instances import (
    SMALL_SHAPES,
    Variant,
    best_by_enumeration,
    candidate_over,
    one_candidate_cluster,
    random_problem,
)

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import largest_ticks, objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.class_assignment.problem import merge
from pipette_opt.solver.class_assignment.search import (
    FIRST_CLASSES,
    MAX_ALIKE,
    MergedSearch,
    alike_classes,
    first_classes,
)
from pipette_opt.solver.class_assignment.symmetry import interchangeable
from pipette_opt.solver.class_assignment.twins import HostClasses

pytestmark = pytest.mark.search

VARIANTS = [
    Variant(
        directed=directed,
        missing_share=missing,
        num_kinds=kinds,
        num_capacities=kinds,
        levels=levels,
        spans=spans,
    )
    for directed, spans in ((False, "both"), (True, "context"), (True, "tensor"))
    for missing, kinds, levels in ((0.0, 1, 0), (0.2, 1, 2), (0.0, 2, 3), (0.2, 2, 0))
]


def given(seconds: float, stop: threading.Event | None = None) -> Clock:
    """Return a clock that is over after some seconds, or once stopped."""
    return Clock(watcher=Watcher() if stop is None else Watcher(stop=stop)).after(seconds)


def random_classes(rng: np.random.Generator, data: ProblemData, candidate: CandidateData) -> HostClasses:
    """Any partition of hosts with the same kind of GPU and room for the same rows."""
    alike = np.vstack([data.kind_of_node, data.allowed(candidate), rng.integers(0, 2, data.num_nodes)])
    return HostClasses(of_host=np.unique(alike, axis=1, return_inverse=True)[1].ravel(), tolerance=0.0)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_it_ends_with_the_optimum(variant: Variant) -> None:
    """
    Enumeration of every placement: tensor groups over hosts, stages and replicas in blocks.

    All bounds on the way are valid, whatever hosts are merged at first.
    """
    rng = np.random.default_rng(VARIANTS.index(variant))
    for shape in [*SMALL_SHAPES, (3, 2, 1), (2, 3, 1)]:
        cells = int(np.prod(shape))
        data = random_problem(rng, [shape], min(6, cells + int(rng.integers(2))), variant)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        bounds: list[int] = []
        least = [largest_ticks(candidate)]

        def on_pattern(
            nodes: IntArray,
            data: ProblemData = data,
            candidate: CandidateData = candidate,
            least: list[int] = least,
        ) -> int:
            least[0] = min(least[0], objective_ticks(data, candidate, nodes) - 1)
            return least[0]

        search = MergedSearch(data, candidate, 0, least[0], random_classes(rng, data, candidate))
        found = search.run(given(60.0), on_bound=bounds.append, on_pattern=on_pattern)
        assert search.ended
        assert all(bound <= optimum for bound in bounds)
        assert bounds == sorted(bounds)
        assert found == optimum if optimum < UNUSABLE_TICKS else found > largest_ticks(candidate)


@pytest.mark.parametrize("most_far", [0, 80], ids=["small steps", "large steps"])
def test_it_ends_with_the_optimum_without_minimising(most_far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hosts to spare stay merged: the last pattern names its hosts, and nothing is below it."""
    monkeypatch.setattr("pipette_opt.solver.class_assignment.search.MAX_MINIMISED", 0)
    monkeypatch.setattr("pipette_opt.solver.class_assignment.search.MAX_FAR", most_far)
    rng = np.random.default_rng(17)
    for number in range(4):
        shape = [(2, 1, 1), (2, 2, 1), (3, 1, 1), (1, 3, 1)][number % 4]
        data = random_problem(rng, [shape], 6, Variant(directed=False, scale=10_000))
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)

        def on_pattern(nodes: IntArray, data: ProblemData = data, candidate: CandidateData = candidate) -> int:
            return objective_ticks(data, candidate, nodes) - 1

        classes = random_classes(rng, data, candidate)
        search = MergedSearch(data, candidate, 0, largest_ticks(candidate), classes)
        assert search.run(given(60.0), on_pattern=on_pattern) == optimum


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_it_sees_more_than_single_links(p2p: P2PMode) -> None:
    """Slow hosts have to be somewhere: the bound of 32 hosts in racks is the better one."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000, p2p=p2p)
    candidate = data.candidates[0]
    classes = first_classes(data, candidate)
    assert classes is not None
    annealed = anneal(data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
    assert annealed is not None
    bound, stop = candidate_bound(data, candidate), threading.Event()
    search = MergedSearch(data, candidate, bound, annealed.objective_ticks - 1, classes)
    assert search.run(given(60.0, stop), on_bound=lambda bound: stop.set()) > bound


def test_it_goes_on_and_stops() -> None:
    """In slices as far as in one; with what it has when told to stop."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1))
    candidate = data.candidates[0]
    classes = first_classes(data, candidate)
    assert classes is not None
    stop = threading.Event()
    stop.set()
    search = MergedSearch(data, candidate, 17, 10**12, classes)
    assert search.run(given(60.0, stop)) == 17
    assert search.run(given(0.0)) == 17
    before = search.run(given(1.0))
    assert before > 17
    search.narrow(before + 3, 10**11)
    assert search.bound == before + 3
    assert search.ceiling == 10**11


def test_it_looks_in_the_middle_once_a_model_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of large grids the first round refutes a tenth of what is open; whoever gets no answer there tries the middle."""
    monkeypatch.setattr("pipette_opt.solver.class_assignment.search.MAX_MINIMISED", 0)
    monkeypatch.setattr("pipette_opt.solver.class_assignment.search.MAX_FAR", 0)
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1))
    classes = first_classes(data, data.candidates[0])
    assert classes is not None
    probes, stop = [], threading.Event()

    def no_answer(ceiling: int, *_: object) -> tuple[int, None]:
        probes.append(ceiling)
        if len(probes) > 20:
            stop.set()
        return 0, None

    search = MergedSearch(data, data.candidates[0], 0, 1_000_000, classes)
    search.slice_s = 0.01
    monkeypatch.setattr(search, "_solve", no_answer)
    search.run(given(60.0, stop))
    assert probes[0] == 100_000
    rounds = np.flatnonzero(np.diff(probes) > 0) + 1  # within a round each probe is below the one before
    assert [probes[number] for number in rounds] == [500_000] * len(rounds)
    assert len(rounds) >= 2


def test_it_has_nothing_to_do_above_the_ceiling() -> None:
    """What is known already ends it."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1))
    classes = first_classes(data, data.candidates[0])
    assert classes is not None
    assert MergedSearch(data, data.candidates[0], 11, 10, classes).run(given(60.0)) == 11


def test_hosts_without_classes() -> None:
    """Links without structure give no few classes."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    assert first_classes(data, data.candidates[0]) is None


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_equal_racks(p2p: P2PMode) -> None:
    """Racks of two hosts, some with a slow one: what may change places is told apart without losing the optimum."""
    rng = np.random.default_rng(9)
    rack, used = np.repeat(np.arange(3), 2), 0
    for number in range(16):
        shape = [(3, 2, 1), (2, 3, 1), (2, 2, 1), (5, 1, 1)][number % 4]
        base = one_candidate_cluster(rng, "unif", shape, num_nodes=6, p2p=p2p, compute=int(rng.integers(10, 2_000)))
        slow = np.isin(np.arange(6), [0, 2, 4][: int(rng.integers(0, 4))])
        inside, across, factor = int(rng.integers(50, 400)), int(rng.integers(50, 400)), int(rng.integers(1, 4))
        link = np.where(np.equal.outer(rack, rack), inside, across) * np.where(
            np.logical_or.outer(slow, slow), factor, 1
        )
        candidate = replace(base.candidates[0], p2p_ticks=link, ring_ticks=int(rng.integers(1, 9)) * link[None])
        data = replace(base, candidates=(candidate,))
        of_host = np.unique(np.vstack([rack, slow]), axis=1, return_inverse=True)[1].ravel()
        classes = HostClasses(of_host=of_host, tolerance=0.0)
        used += bool(interchangeable(merge(data, candidate, classes)))
        optimum = best_by_enumeration(data, candidate)
        search = MergedSearch(data, candidate, 0, optimum, classes)
        assert search.run(given(60.0)) == optimum
        search = MergedSearch(data, candidate, 0, optimum - 1, classes)
        assert search.run(given(60.0)) == optimum
    assert used > 8


def test_hosts_that_are_alike_have_more_classes() -> None:
    """Four units with hosts that are slow in their own ways; elsewhere a few classes are told apart."""
    link_gb_per_s = pytest.importorskip("benchmarks.placement.clusters").link_gb_per_s
    data = candidate_over(link_gb_per_s("rail", 128, 0), (16, 8, 1), p2p="async")
    classes = alike_classes(data, data.candidates[0])
    assert classes is not None
    assert FIRST_CLASSES < classes.number <= MAX_ALIKE
    assert np.sort(classes.sizes)[-4:].sum() > 100
    assert (first_classes(data, data.candidates[0]).of_host == classes.of_host).all()  # type: ignore[union-attr]
    cases: tuple[tuple[str, int, tuple[int, int, int], P2PMode], ...] = (
        ("rail", 128, (16, 8, 1), "blocking"),
        ("rail", 64, (8, 8, 1), "async"),
        ("tree", 128, (16, 8, 1), "async"),
        ("unif", 128, (16, 8, 1), "async"),
    )
    for cluster, hosts, grid, sends in cases:
        other = candidate_over(link_gb_per_s(cluster, hosts, 0), grid, p2p=sends)
        assert alike_classes(other, other.candidates[0]) is None
