"""The simulator's certificate against the simulator on every placement of every candidate."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.types import P2PMode
from pipette_opt.base.units import GIB
from pipette_opt.candidates import Enumeration
from pipette_opt.certify import rounds
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.placing import is_relaxation_exact
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.state import SearchState
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import MemoryCheck
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import ANNEALING, FEW_ORDERS, PROVERS, Step
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared
from pipette_opt.problem.build import FittingCandidate, build_problem_data, with_paths
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.specs import Instance

QUICK = OptimizeParams(time_limit_s=90.0)

CONFIGS = [
    make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True),
    make_config(tp=8, pp=2, dp=2, num_layers=32, sequence_parallel=True, use_distributed_optimizer=True),
    make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True, virtual_pipeline_model_parallel_size=2),
    make_config(tp=8, pp=2, dp=2, num_layers=32, sequence_parallel=True, virtual_pipeline_model_parallel_size=4),
    make_config(tp=4, pp=4, dp=2, num_layers=32, sequence_parallel=True, virtual_pipeline_model_parallel_size=4),
    make_config(tp=16, pp=2, num_layers=32, virtual_pipeline_model_parallel_size=2),
]


def prepared_for(job: Instance, configs: Sequence[ParallelConfig]) -> Prepared:
    """What is before the search, with memory that fits everywhere."""
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB)) for one in configs
    ]
    capacity = np.full(job.cluster.num_nodes, 40 * GIB)
    return Prepared(
        instance=job,
        enumeration=Enumeration.__new__(Enumeration),
        predictor=MemoryPredictor.__new__(MemoryPredictor),
        memory=MemoryCheck.__new__(MemoryCheck),
        problem=build_problem_data(job, fitting, capacity),
        work=WorkBounds(job),
    )


def random_job(
    rng: np.random.Generator, num_nodes: int, p2p: P2PMode, *, kinds: int = 1, missing: float = 0.0
) -> Instance:
    """Links that differ up to twentyfold, directed, some of them not measured; a model with many short chunks."""
    values = 25.0 * rng.uniform(0.05, 1.0, (num_nodes, num_nodes)) ** rng.uniform(0.3, 1.5)
    values[rng.random(values.shape) < missing] = np.nan
    np.fill_diagonal(values, np.nan)
    gpus = (A100_80, A100_40)[:kinds]
    return make_job(
        make_cluster(num_nodes, values, kinds=gpus), LLAMA_8B, seq_length=4096, global_batch_size=16, p2p=p2p
    )


def certified(
    prepared: Prepared, params: OptimizeParams, clock: Clock | None = None, known: Sequence[SimulatedSolution] = ()
) -> SearchState:
    """The search after its certificate."""
    state = SearchState(prepared, known, params, clock or Clock().after(90.0))
    certify(state)
    return state


def fastest_by_enumeration(prepared: Prepared) -> float:
    """The simulator's least time over every placement of every candidate; infinite if none has all its links."""
    placed = [
        (one.config, tile_placement(one.config, one.tile, np.array(hosts).reshape(one.grid)))
        for one in prepared.problem.candidates
        for hosts in itertools.permutations(range(prepared.problem.num_nodes), one.num_cells)
    ]
    return float(estimate_many(prepared.instance, placed).min(initial=np.inf))


VARIANTS: list[tuple[P2PMode, int, int, float]] = [
    ("blocking", 4, 1, 0.0),
    ("async", 4, 1, 0.0),
    ("blocking", 5, 1, 0.0),
    ("blocking", 4, 2, 0.0),
    ("async", 5, 1, 0.25),
    ("blocking", 5, 1, 0.25),
]


@pytest.mark.search
@pytest.mark.parametrize(("p2p", "num_nodes", "kinds", "missing"), VARIANTS)
def test_bound_is_the_fastest_time(p2p: P2PMode, num_nodes: int, kinds: int, missing: float) -> None:
    """Each candidate alone, and all together: the bound is never above the enumerated optimum, and closes on it."""
    rng = np.random.default_rng(50 + VARIANTS.index((p2p, num_nodes, kinds, missing)))
    for trial in range(2):
        job = random_job(rng, num_nodes, p2p, kinds=kinds, missing=missing)
        chosen = CONFIGS if trial == 0 else [CONFIGS[one] for one in rng.permutation(len(CONFIGS))[:2]]
        prepared = prepared_for(job, chosen)
        fastest = fastest_by_enumeration(prepared)
        result = certified(prepared, replace(QUICK, seed=trial))
        if not np.isfinite(fastest):
            assert not result.simulated
            continue
        assert result.bound_s <= fastest * (1 + 1e-9)
        assert result.bound_s >= fastest * (1 - 7e-6)  # of which ticks are 5e-6 with tensor groups over hosts
        assert min(one.estimate.iteration_time_s for one in result.simulated) == pytest.approx(fastest, rel=2e-6)


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_paths_of_one_placement_are_below_the_simulator_at_every_other(p2p: P2PMode) -> None:
    """In ticks, every candidate, links up to twentyfold apart; where exact, the simulated time of their placement."""
    rng = np.random.default_rng(60)
    for kinds in (1, 2, 1, 2):
        prepared = prepared_for(random_job(rng, 5, p2p, kinds=kinds), CONFIGS)
        for one in prepared.problem.candidates:
            grown = one
            for _ in range(12):
                nodes = rng.permutation(5)[: one.num_cells].reshape(one.grid)
                placement = tile_placement(one.config, one.tile, nodes)
                seconds = estimate(prepared.instance, one.config, placement).iteration_time_s
                form = objective_ticks(prepared.problem, grown, nodes) * prepared.problem.tick_s
                assert form <= seconds * (1 + 1e-9)
                times = placed_times(prepared.instance, one.config, placement)
                counts = critical_counts(times, one.num_microbatches, p2p)
                grown = with_paths(prepared.instance, prepared.problem, grown, [counts])
                form = objective_ticks(prepared.problem, grown, nodes) * prepared.problem.tick_s
                if is_relaxation_exact(prepared.instance, one):
                    assert form == pytest.approx(seconds, rel=5e-6)  # every link in every round is rounded down


@pytest.mark.search
@pytest.mark.parametrize("seconds", [0.02, 0.3])
def test_bound_holds_however_early_it_ends(seconds: float) -> None:
    """Out of time, stopped, or with plans known before: below the enumerated optimum, above nothing."""
    rng = np.random.default_rng(70)
    prepared = prepared_for(random_job(rng, 5, "blocking"), CONFIGS)
    fastest = fastest_by_enumeration(prepared)
    solution = Solution(candidate=0, nodes=np.arange(4).reshape(4, 1, 1), objective_ticks=0)
    known = simulate_solution(prepared.instance, prepared.problem, solution)
    for plans in ([], [known]):
        stopped = Clock()
        early = certified(prepared, QUICK, Clock().after(seconds), plans)
        stopped.stop.set()
        at_once = certified(prepared, QUICK, stopped, plans)
        for result in (early, at_once):
            assert 0.5 * fastest < result.bound_s <= fastest * (1 + 1e-9)
            assert all(one.estimate.iteration_time_s >= fastest * (1 - 1e-9) for one in result.simulated)


def test_gap_limit_and_progress() -> None:
    """It stops where it may, and what it tells is the fastest time and a bound below."""
    rng = np.random.default_rng(80)
    prepared = prepared_for(random_job(rng, 5, "blocking"), CONFIGS)
    told: list[tuple[float | None, float | None]] = []
    watcher = Watcher(on_progress=lambda step: told.append((step.objective_s, step.lower_bound_s)))
    result = certified(prepared, replace(QUICK, gap_limit=0.05), Clock(watcher=watcher).after(90.0))
    fastest = min(one.estimate.iteration_time_s for one in result.simulated)
    assert fastest - result.bound_s <= 0.05 * fastest
    assert all(bound is None or best is None or bound <= best for best, bound in told)


@pytest.mark.parametrize(("field", "value"), [("time_limit_s", 0.0), ("gap_limit", 1.0)])
def test_params_are_checked(field: str, value: float) -> None:
    """A setting that makes no sense names itself and its value."""
    with pytest.raises(ValueError, match=f"{field} must be .* got {value}"):
        replace(QUICK, **{field: value})


def test_it_goes_on_as_long_as_a_round_brings_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proving that raises the bound twice and then no more: three rounds, each with annealing before."""
    rng, steps = np.random.default_rng(70), list[str]()
    prepared = prepared_for(random_job(rng, 5, "blocking"), CONFIGS[:2])

    def proving(state: SearchState, clock: Clock) -> None:
        steps.append("prove")
        if steps.count("prove") < 3:
            entry = state.could_win()[0]
            state.raise_ticks(entry, int(1.0001 * entry.bound_ticks))

    def annealing(state: SearchState, clock: Clock) -> None:
        steps.append("anneal")

    runs = {ANNEALING: annealing, PROVERS: proving, FEW_ORDERS: lambda state, clock: None}
    moves = tuple(replace(move, run=runs.get(move.step, move.run)) for move in rounds.ROUND)
    monkeypatch.setattr(rounds, "ROUND", moves)
    certified(prepared, QUICK)
    assert steps == ["anneal", "prove"] * 3


@pytest.mark.search
@pytest.mark.parametrize("step", [move.step for move in rounds.ROUND], ids=lambda step: step.words[:20])
def test_a_stop_in_any_step_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    """Whatever step is interrupted, the plans so far stay and the bound holds."""
    rng = np.random.default_rng(70)
    prepared = prepared_for(random_job(rng, 5, "blocking"), CONFIGS[:2])
    known = simulate_solution(
        prepared.instance,
        prepared.problem,
        Solution(candidate=0, nodes=np.arange(4).reshape(4, 1, 1), objective_ticks=0),
    )

    def stopped(state: SearchState, clock: Clock) -> None:
        state.clock.stop.set()
        move.run(state, clock)

    move = next(move for move in rounds.ROUND if move.step == step)
    moves = tuple(replace(other, run=stopped) if other is move else other for other in rounds.ROUND)
    monkeypatch.setattr(rounds, "ROUND", moves)
    state = certified(prepared, QUICK, known=[known])
    fastest_s = fastest_by_enumeration(prepared)
    assert state.bound_s <= fastest_s * (1 + 1e-9)
    assert fastest_s * (1 - 1e-9) <= state.fastest_s <= known.estimate.iteration_time_s
    assert state.simulated
