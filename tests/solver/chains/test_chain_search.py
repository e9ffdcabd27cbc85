"""The search of a single column finds every enumerated optimum, and what it refutes does not exist."""

import threading

import numpy as np
import pytest
from instances import (
    SMALL_SHAPES,
    Incumbent,
    Variant,
    best_by_enumeration,
    one_candidate_cluster,
    placements,
    random_problem,
)

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import largest_ticks, objective_ticks
from pipette_opt.solver.chains.rows import chain_rows, num_rows
from pipette_opt.solver.chains.search import MOST_HOSTS, ChainSearch, _split, searches_chain

SHAPES = [(2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1)]

VARIANTS = [
    Variant(
        p2p=p2p,
        directed=directed,
        missing_share=missing,
        num_kinds=kinds,
        num_capacities=kinds,
        exact_share=exact,
        levels=levels,
        scale=scale,
    )
    for p2p in ("blocking", "async")
    for exact in (0.0, 1.0)
    for directed, missing, kinds, levels, scale in (
        (False, 0.0, 1, 0, 100),
        (True, 0.2, 1, 2, 100_000),
        (True, 0.0, 2, 3, 1000),
        (False, 0.2, 2, 0, 100_000),
    )
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_search_is_exact(variant: Variant, workers: int) -> None:
    """
    Enumeration of every placement, closed forms and paths, with as many hosts as cells or one more.

    Below the ceiling the optimum is found and proven, above it the ceiling is refuted.
    """
    rng = np.random.default_rng([VARIANTS.index(variant), workers])
    for shape in 2 * SHAPES:
        data = random_problem(rng, [shape], min(6, shape[0] + int(rng.integers(2))), variant, max_block=3)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        ceiling = largest_ticks(candidate)
        if optimum < UNUSABLE_TICKS and rng.random() < 0.6:
            ceiling = max(1, optimum + int(rng.integers(-2, 4)) * (1 + optimum // 20))
        incumbent = Incumbent(data, candidate, ceiling)
        bound = ChainSearch(data, candidate, 0, ceiling).run(60.0, workers=workers, on_placement=incumbent.take)
        assert bound == (optimum if optimum <= ceiling else ceiling + 1)
        assert incumbent.best == (optimum if optimum <= ceiling else UNUSABLE_TICKS)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_rows_never_exceed_the_objective(variant: Variant) -> None:
    """Of every placement; and where periods are whole ticks and no stage is left out, the longest row is it."""
    rng = np.random.default_rng([VARIANTS.index(variant), 7])
    for shape in SHAPES:
        data = random_problem(rng, [shape], shape[0], variant, max_block=3)
        candidate = data.candidates[0]
        rows = chain_rows(data, candidate)
        assert len(rows.const) == num_rows(data, candidate)
        position = np.arange(shape[0])
        for nodes in placements(data, candidate):
            cost = objective_ticks(data, candidate, nodes)
            hosts, following = nodes.ravel(), np.roll(nodes.ravel(), -1)
            steps = position if rows.closed else position[:-1]
            assert rows.usable[steps, hosts[steps], following[steps]].all() == (cost < UNUSABLE_TICKS)
            if cost == UNUSABLE_TICKS:
                continue
            value = rows.const + rows.node[:, position, hosts].sum(axis=1)
            value += rows.link[:, position, hosts, following].sum(axis=1)
            longest = int((-(-value // rows.scale)).max())
            assert longest <= cost
            if candidate.exact and variant.p2p == "blocking":
                assert longest == cost


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("kind", ["tree", "unif"])
def test_bounds_on_the_way_hold(p2p: str, kind: str) -> None:
    """In slices too short to finish, no bound is ever above what a finished search finds."""
    data = one_candidate_cluster(np.random.default_rng(3), kind, (9, 1, 1), p2p=p2p, compute=100)  # type: ignore[arg-type]
    candidate = data.candidates[0]
    bounds: list[int] = []
    incumbent = Incumbent(data, candidate, largest_ticks(candidate))
    search = ChainSearch(data, candidate, 0, incumbent.ceiling)
    search.most_splits = 1
    for _ in range(400):
        if search.run(0.02, on_bound=bounds.append, on_placement=incumbent.take) > search.ceiling:
            break
    assert search.bound == incumbent.best
    assert bounds == sorted(bounds)
    assert bounds[-1] <= incumbent.best


def test_it_stops_when_told() -> None:
    """With the event set nothing is refuted."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 1, 1), compute=10)
    stop = threading.Event()
    stop.set()
    candidate = data.candidates[0]
    assert ChainSearch(data, candidate, 5, largest_ticks(candidate)).run(10.0, stop=stop) == 5


def test_what_can_be_searched() -> None:
    """Single columns of two hosts or more, with whole tensor-parallel groups, out of a few hosts."""
    rng = np.random.default_rng(1)
    for shape in SMALL_SHAPES:
        data = random_problem(rng, [shape], 5, Variant())
        assert searches_chain(data, data.candidates[0]) is (shape[0] > 1 and shape[1:] == (1, 1))
    many = random_problem(rng, [(3, 1, 1)], MOST_HOSTS + 1, Variant())
    assert not searches_chain(many, many.candidates[0])


@pytest.mark.parametrize("seed", range(20))
def test_a_split_has_smaller_parts(seed: int) -> None:
    """With hosts to spare, some of them needed at their position: each part has fewer links, together all chains."""
    rng = np.random.default_rng(seed)
    hosts = 6
    links = np.broadcast_to(~np.eye(hosts, dtype=np.bool_), (4, hosts, hosts)) & (rng.random((4, hosts, hosts)) < 0.7)
    for position in rng.permutation(4)[: int(rng.integers(3))].tolist():
        links[position, np.arange(hosts) != rng.integers(hosts)] = False
    parts = _split(links)
    assert all(part.sum() < links.sum() for part in parts)
    if parts:
        assert (np.any(parts, axis=0) == links).all()


def test_spare_hosts_do_not_keep_it_going() -> None:
    """Asynchronous sends, two hosts more than needed: every optimum is proven."""
    rng = np.random.default_rng(17)
    for _ in range(12):
        data = random_problem(rng, [(4, 1, 1)], 6, Variant(p2p="async", scale=100))
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        search = ChainSearch(data, candidate, 0, optimum - 1)
        assert search.run(20.0) == optimum
