"""The joint solver against enumeration, and its certificate when it stops early."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from instances import (
    SMALL_SHAPES,
    SPANNING_SHAPES,
    Spans,
    Variant,
    best_by_enumeration,
    one_candidate_cluster,
    random_problem,
)

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver import model
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve

PARAMS = SolverParams(time_limit_s=60.0, workers=2)
"""Nothing is annealed: what is found is found by proofs."""

VARIANTS = {
    "usual": Variant(),
    "undirected": Variant(directed=False),
    "missing links": Variant(missing_share=0.3),
    "missing links undirected": Variant(missing_share=0.3, directed=False),
    "missing links kinds": Variant(missing_share=0.25, num_kinds=2),
    "kinds": Variant(num_kinds=2),
    "capacities": Variant(num_capacities=2),
    "capacities kinds": Variant(num_capacities=3, num_kinds=3),
    "missing links capacities kinds": Variant(missing_share=0.2, num_kinds=2, num_capacities=2),
    "few levels": Variant(levels=2),
    "few levels undirected": Variant(directed=False, levels=2, num_capacities=2),
    "large times": Variant(scale=10_000_000),
}


def check(data: ProblemData, result: Result) -> None:
    """The result is the enumerated optimum, and no bound is above what it bounds."""
    optima = [best_by_enumeration(data, candidate) for candidate in data.candidates]
    best = min(optima)
    if best >= UNUSABLE_TICKS:
        assert result.status == "INFEASIBLE"
        assert result.solution is None
        return
    assert result.status == "OPTIMAL"
    assert result.solution is not None
    assert result.solution.objective_ticks == result.lower_bound_ticks == best
    chosen = data.candidates[result.solution.candidate]
    assert objective_ticks(data, chosen, result.solution.nodes) == best
    assert len(np.unique(result.solution.nodes)) == chosen.num_cells
    assert data.allowed(chosen)[np.arange(chosen.grid[0])[:, None, None], result.solution.nodes].all()
    for bound, optimum in zip(result.candidate_bounds.tolist(), optima, strict=True):
        assert min(bound, best) <= optimum


@pytest.mark.search
@pytest.mark.parametrize("name", VARIANTS)
def test_one_candidate_against_enumeration(name: str) -> None:
    """Every shape of at most five hosts on five hosts: P=1, D=1, two columns, tensor groups, blocks of both kinds."""
    rng = np.random.default_rng(list(VARIANTS).index(name))
    for shape in SMALL_SHAPES:
        data = random_problem(rng, [shape], 5, VARIANTS[name])
        check(data, solve(data, PARAMS))


@pytest.mark.search
@pytest.mark.parametrize("spans", ["context", "both"])
def test_context_groups_over_hosts_against_enumeration(spans: Spans) -> None:
    """Rings of gradients go through the parts of a context group; inside a slot tensor rings count, else context's."""
    rng = np.random.default_rng(31)
    for trial, shape in enumerate(SPANNING_SHAPES * 2):
        variant = Variant(spans=spans, missing_share=0.1 * (trial % 2), num_kinds=2)
        data = random_problem(rng, [shape], 5, variant)
        check(data, solve(data, PARAMS))
    data = random_problem(rng, list(SPANNING_SHAPES), 5, Variant(spans=spans))
    check(data, solve(data, PARAMS))


@pytest.mark.search
@pytest.mark.parametrize("name", VARIANTS)
def test_joint_choice_against_enumeration(name: str) -> None:
    """Two to four candidates of several shapes, in one model or in batches of two."""
    rng = np.random.default_rng(100 + list(VARIANTS).index(name))
    for trial in range(8):
        shapes = [SMALL_SHAPES[one] for one in rng.integers(len(SMALL_SHAPES), size=rng.integers(2, 5))]
        data = random_problem(rng, shapes, 5, VARIANTS[name])
        params = replace(PARAMS, batch_size=2 + 2 * (trial % 2), workers=1 + trial % 2)
        check(data, solve(data, params))


def test_more_hosts_than_cells() -> None:
    """Four of six hosts."""
    rng = np.random.default_rng(7)
    for shape in ((2, 2, 1), (4, 1, 1), (1, 4, 1), (1, 2, 2)):
        data = random_problem(rng, [shape], 6, Variant())
        check(data, solve(data, PARAMS))


def two_kinds_of_memory(needs: Sequence[int]) -> ProblemData:
    """
    Two A100-40 and two A100-80, the small ones on the fast links.

    Two candidates of two stages: the first, faster one needs ``needs`` per stage, the second fits everywhere.
    """
    fast = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 5], [9, 9, 5, 0]])
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 1, 1), num_nodes=4, compute=10)
    candidate = replace(data.candidates[0], p2p_ticks=fast, memory_need_mib=np.array(needs))
    paths = replace(candidate.paths, work_ticks=candidate.paths.work_ticks + candidate.num_microbatches)
    slower = replace(candidate, paths=paths, memory_need_mib=np.array([30, 30]))
    return ProblemData(
        candidates=(candidate, slower),
        p2p="blocking",
        tick_s=1.0,
        kind_of_node=np.zeros(4),
        capacity_mib=np.array([40, 40, 80, 80]),
    )


def test_memory_changes_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A stage that needs 60 GiB may not be on an A100-40; without the constraint it would be, on the faster links.

    With it the second candidate wins: each stage takes a tick more for each micro-batch, and links 1 instead of 5.
    """
    data = two_kinds_of_memory((30, 60))
    kept = solve(data, PARAMS)
    assert kept.solution is not None
    assert kept.solution.candidate == 1
    roomy = solve(two_kinds_of_memory((30, 40)), PARAMS)
    assert roomy.solution is not None
    assert roomy.solution.candidate == 0
    assert roomy.solution.objective_ticks < kept.solution.objective_ticks

    def everything(data: ProblemData, candidate: CandidateData) -> np.ndarray:
        return np.ones((candidate.grid[0], data.num_nodes), dtype=np.bool_)

    monkeypatch.setattr(ProblemData, "allowed", everything)
    with_rule = solve(data, PARAMS)
    assert with_rule.solution is not None
    assert with_rule.solution.objective_ticks == kept.solution.objective_ticks, "the linear rule alone is enough"
    rules = tuple(rule for rule in model.CONSTRAINTS if rule.__name__ != "add_memory_capacity")
    monkeypatch.setattr(model, "CONSTRAINTS", rules)
    without = solve(data, PARAMS)
    assert without.solution is not None
    assert without.solution.candidate == 0
    assert without.solution.objective_ticks == roomy.solution.objective_ticks


def test_nothing_fits() -> None:
    """No host has room: infeasible, no solution, no exception."""
    data = two_kinds_of_memory((81, 81))
    data = replace(data, candidates=data.candidates[:1])
    result = solve(data, PARAMS)
    assert (result.status, result.solution, result.lower_bound_ticks) == ("INFEASIBLE", None, 0)


def test_no_candidates() -> None:
    """An empty problem is infeasible."""
    data = replace(two_kinds_of_memory((30, 30)), candidates=())
    assert solve(data, PARAMS).status == "INFEASIBLE"


def test_hints_are_checked() -> None:
    """A good hint is kept; one with a wrong shape, a host twice, no memory or a wrong objective does no harm."""
    data = two_kinds_of_memory((30, 60))

    def hint(candidate: int, hosts: Sequence[int]) -> Solution:
        return Solution(candidate=candidate, nodes=np.array(hosts).reshape(-1, 1, 1), objective_ticks=1)

    bad = [hint(0, [0, 1]), hint(1, [0, 0]), hint(1, [0, 1, 2]), hint(1, [0, 7])]
    stopped = threading.Event()
    stopped.set()
    assert solve(data, PARAMS, hint=bad, stop=stopped).solution is None
    result = solve(data, PARAMS, hint=[*bad, hint(1, [1, 0])], stop=stopped)
    assert result.solution is not None
    assert result.solution.candidate == 1
    assert result.solution.objective_ticks == objective_ticks(data, data.candidates[1], result.solution.nodes)


def hard(seed: int = 0) -> ProblemData:
    """Thirty-two hosts without structure, too much for a tenth of a second."""
    return one_candidate_cluster(np.random.default_rng(seed), "unif", (8, 4, 1), p2p="async")


@pytest.mark.search
@pytest.mark.parametrize("time_limit_s", [0.0, 0.3])
def test_bound_is_valid_when_time_is_up(time_limit_s: float) -> None:
    """However early it ends, the bound is positive and not above what longer search finds."""
    data = hard()
    early = solve(data, replace(PARAMS, time_limit_s=time_limit_s))
    late = anneal(data, AnnealingParams(time_limit_s=2.0))
    assert late.solution is not None
    assert 0 < early.lower_bound_ticks <= late.solution.objective_ticks
    assert early.wall_time_s < time_limit_s + 2.0
    assert early.status in ("UNKNOWN", "FEASIBLE")


@pytest.mark.search
def test_stop_event_ends_the_search() -> None:
    """Set from another thread, the best so far comes back soon."""
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    result = solve(hard(), replace(PARAMS, time_limit_s=60.0), stop=stop)
    timer.join()
    assert result.wall_time_s < 10.0
    assert result.lower_bound_ticks > 0


@pytest.mark.search
def test_what_is_proven_elsewhere_ends_a_model() -> None:
    """A batch that a search closes meanwhile is not modelled for the rest of its slice of an hour."""
    known = Incumbent(hard(), replace(PARAMS, time_limit_s=7200.0, first_slice_s=3600.0))
    nodes = np.arange(32).reshape(8, 4, 1)
    known.offer(Solution(candidate=0, nodes=nodes, objective_ticks=0))
    timer = threading.Timer(0.5, lambda: known.prove(0, known.upper))
    timer.start()
    started = time.perf_counter()
    assert model.CpSatModel(known).solve([0])
    timer.join()
    assert time.perf_counter() - started < 30.0
    assert known.lower == known.upper


def test_what_is_too_large_for_a_model_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many hosts listed that no model can be built in the time left: it ends with bounds without a search."""
    monkeypatch.setattr(model, "PAIRS_PER_S", 0)
    data = random_problem(np.random.default_rng(3), [(2, 2, 1)], 6, Variant())
    result = solve(data, PARAMS)
    assert lower_bounds(data)[0] <= result.lower_bound_ticks <= best_by_enumeration(data, data.candidates[0])


def test_gap_limit_ends_the_search() -> None:
    """A gap that the cheap bound already proves needs no model at all."""
    data = hard()
    nodes = np.arange(32).reshape(8, 4, 1)
    hint = Solution(candidate=0, nodes=nodes, objective_ticks=objective_ticks(data, data.candidates[0], nodes))
    result = solve(data, replace(PARAMS, gap_limit=0.9), hint=[hint])
    assert result.status == "FEASIBLE"
    assert result.num_pruned == 1


def test_progress_only_improves() -> None:
    """Incumbents fall, bounds rise, and the last report is the result."""
    rng = np.random.default_rng(8)
    data = random_problem(rng, [(2, 2, 1), (4, 1, 1), (1, 4, 1)], 6, Variant())
    log: list[tuple[float, int | None, int]] = []
    result = solve(data, replace(PARAMS, batch_size=1), on_progress=lambda *one: log.append(one))
    assert result.solution is not None
    seconds, uppers, lowers = zip(*log, strict=True)
    known = [upper for upper in uppers if upper is not None]
    assert list(seconds) == sorted(seconds)
    assert known == sorted(known, reverse=True)
    assert list(lowers) == sorted(lowers)
    assert log[-1][1:] == (result.solution.objective_ticks, result.lower_bound_ticks)


def test_pruned_candidates_are_not_modelled() -> None:
    """A candidate whose bound is above the hint never enters a model, and the certificate still covers it."""
    data = random_problem(np.random.default_rng(9), [(2, 2, 1)], 5, Variant())
    slow = replace(data.candidates[0], optimizer_ticks=10**6)
    data = replace(data, candidates=(data.candidates[0], slow))
    first = solve(replace(data, candidates=data.candidates[:1]), PARAMS)
    assert first.solution is not None
    result = solve(data, PARAMS, hint=[first.solution])
    check(data, result)
    assert result.num_pruned >= 1
    assert result.candidate_bounds[1] >= 10**6


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_limit_s", -1.0),
        ("gap_limit", 1.0),
        ("workers", 0),
        ("batch_size", 0),
        ("first_slice_s", 0.0),
    ],
)
def test_params_are_checked(field: str, value: float) -> None:
    """A setting that makes no sense names itself and its value."""
    with pytest.raises(ValueError, match=f"{field} must be .* got {value}"):
        replace(PARAMS, **{field: value})


@pytest.mark.search
@pytest.mark.parametrize("kind", ["unif", "tree"])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_eight_hosts_are_closed(kind: str, p2p: str) -> None:
    """Every shape of eight hosts is proven optimal, with and without spares."""
    for grid, num_nodes in (((4, 2, 1), 8), ((2, 4, 1), 8), ((8, 1, 1), 8), ((1, 8, 1), 8), ((4, 2, 1), 10)):
        data = one_candidate_cluster(np.random.default_rng(2), kind, grid, p2p=p2p, num_nodes=num_nodes)  # type: ignore[arg-type]
        assert solve(data, PARAMS).status == "OPTIMAL"
