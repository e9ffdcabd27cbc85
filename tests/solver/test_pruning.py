"""What is left out before anything expensive cannot win, and what is kept is enough."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import LLAMA_8B, TINY, make_cluster, make_job, make_random_cluster

from pipette_opt import prepare as module
from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.certify import rounds
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import tile_placement, without_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.steps import BOUNDS, BOUNDS_AGAIN, JOINT_AGAIN, JOINT_LEAST
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Question, fitting_candidates, load_predictor, prepare, prunes
from pipette_opt.simulate.estimate import estimate
from pipette_opt.solver import pruning
from pipette_opt.solver.pruning import Pruning, prune
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

FEW = SearchSpace(num_gpus=12, tensor_parallel=(1, 4), micro_batch_size=(1,), recompute=(None,), context_parallel=(1,))
"""Some hundred configurations on three hosts of four GPUs."""


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_hold_and_the_winner_is_kept(seed: int, p2p: str) -> None:
    """Every choice of overlap, context size and number of chunks, on every placement of three hosts."""
    rng = np.random.default_rng(seed)
    job = make_job(make_random_cluster(rng, 3, gpus=4), LLAMA_8B, 32, 4096, p2p=p2p)
    space = SearchSpace(
        num_gpus=8, tensor_parallel=(2, 4), micro_batch_size=(1,), virtual_pipeline=(1, 2), uneven_layers=False
    )
    prepared = prepare(Question(job, space, 0.01, keep=prunes))
    pruned = prepared.pruned
    assert pruned is not None
    fastest = least_s(job, enumerate_candidates(job, space))
    fitting = {one.config for one in prepared.memory.fitting}
    for config in fitting:
        assert pruned.bounds_s[without_overlap(config)] <= fastest[config] * (1 + 1e-9)
    kept = {one.config for one in pruned.kept}
    assert {left.config for left in prepared.left_out} == fitting - kept
    assert fitting - kept
    assert min(fitting, key=lambda config: fastest[config]) in kept
    assert pruned.first is not None
    assert pruned.first.seconds >= min(fastest[config] for config in fitting)


def test_memory_is_the_same_whatever_overlaps() -> None:
    """It is predicted once for all of them."""
    job = make_job(make_cluster(2), LLAMA_8B, 32, 4096)
    configs = enumerate_candidates(job, SearchSpace(tensor_parallel=(8,), micro_batch_size=(1,)))
    check = keep_fitting(job, configs, load_predictor(0.01, job), 0.01)
    checked = (*check.fitting, *check.rejected)
    assert {one.config for one in checked} == set(configs)
    needs = {one.config: one.need_bytes.tolist() for one in checked}
    assert all(needs[config] == needs[without_overlap(config)] for config in configs)


def test_a_wider_space_is_never_worse() -> None:
    """Context parallelism and overlap beside what was searched before: as fast or faster, and proven."""
    rng = np.random.default_rng(3)
    model = replace(TINY, num_layers=4, hidden_size=512, ffn_hidden_size=1408)
    job = make_job(make_random_cluster(rng, 3, gpus=2), model, 16, 2048)
    params = OptimizeParams(time_limit_s=60.0, workers=1)
    narrow = SearchSpace(num_gpus=6, context_parallel=(1,), overlap_grad_reduce=False, micro_batch_size=(1,))
    before = optimize(job, narrow, params)
    after = optimize(job, replace(narrow, context_parallel=None, overlap_grad_reduce=None), params)
    assert after.estimate.iteration_time_s <= before.estimate.iteration_time_s * (1 + 1e-9)
    assert before.certificate.status == after.certificate.status == "OPTIMAL"


def test_all_hosts_and_fewer_are_one_problem() -> None:
    """The best number of hosts is found: no count alone is faster."""
    job = make_job(make_cluster(3, gpus=2), replace(TINY, num_layers=6), 32, 2048)
    params = OptimizeParams(time_limit_s=60.0, workers=1)
    space = SearchSpace(tensor_parallel=(1,), micro_batch_size=(1,), recompute=(None,), context_parallel=(1,))
    together = optimize(job, space, params)
    alone = {size: optimize(job, replace(space, num_gpus=size), params).estimate.iteration_time_s for size in (2, 4, 6)}
    assert together.estimate.iteration_time_s == pytest.approx(min(alone.values()), rel=2e-6)
    assert together.certificate.status == "OPTIMAL"
    assert min(alone, key=lambda size: alone[size]) in together.certificate.searched["num_gpus"]


def test_what_was_not_bounded_is_bounded_in_the_time_left(
    three_hosts: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds that had no time at first have some when the search has ended, and then nothing keeps a gap open."""
    monkeypatch.setattr(pruning, "CONFIGURATIONS_AT_ONCE", 1)
    monkeypatch.setattr(pruning, "KEPT", 2)
    monkeypatch.setattr(module, "BOUNDS", replace(BOUNDS, share=0.0))
    job = three_hosts
    steps: list[str] = []
    watcher = Watcher(on_progress=lambda progress: steps.append(progress.step))
    plan = optimize(
        job,
        SearchSpace(num_gpus=12, tensor_parallel=(4,), micro_batch_size=(1,), recompute=(None,)),
        OptimizeParams(time_limit_s=60.0, workers=1),
        watcher,
    )
    assert "bounding the configurations left out for time" in steps
    assert plan.certificate.status == "OPTIMAL"
    assert len(verify(job, plan).rules) > 20


@pytest.fixture(scope="module")
def three_hosts() -> Instance:
    """Six layers on three hosts of four GPUs and random links."""
    links = np.random.default_rng(5).uniform(0.5, 2.0, (3, 3))
    return make_job(make_cluster(3, links, gpus=4), replace(TINY, num_layers=6), 24, 2048)


@pytest.fixture(scope="module")
def optimum(three_hosts: Instance) -> Plan:
    """The best plan of all with micro-batches of one sequence."""
    return optimize(three_hosts, FEW, OptimizeParams(time_limit_s=20.0, workers=1))


MORE = (JOINT_AGAIN, JOINT_LEAST, BOUNDS_AGAIN)
"""Steps that bound configurations which were left out."""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_limit_that_ends_while_configurations_are_bounded(
    three_hosts: Instance, optimum: Plan, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """The best plan so far, and an honest bound over what was not looked at; verify shows all of it again."""
    monkeypatch.setattr(pruning, "CONFIGURATIONS_AT_ONCE", 1)
    monkeypatch.setattr(pruning, "KEPT", 2)
    monkeypatch.setattr(module, "BOUNDS", replace(BOUNDS, share=0.0))
    monkeypatch.setattr(rounds, "ROUND", tuple(move for move in rounds.ROUND if move.step not in MORE))
    watcher = Watcher()
    if stopped:
        watcher.stop.set()
    job = three_hosts
    plan = optimize(job, FEW, OptimizeParams(time_limit_s=6.0, workers=1), watcher)
    proof = plan.certificate
    waiting = [part for part in proof.proof if part.by == "work alone"]
    assert 0 < proof.lower_bound_s <= proof.objective_s
    if stopped:
        assert proof.status == "FEASIBLE"
    else:  # a fast machine may close the gap by the joint model alone
        assert proof.joint_model is not None
        assert waiting
        bounds = [part.bound_s for part in proof.proof if part.bound_s is not None]
        assert proof.lower_bound_s == pytest.approx(min([*bounds, proof.joint_model.bound_s]), rel=1e-6)
    assert len(verify(job, plan).rules) > 20
    assert proof.lower_bound_s <= optimum.certificate.objective_s <= proof.objective_s * (1 + 1e-9)


def test_annealing_gives_a_better_time_to_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many configurations may win, hosts in a better order than listed leave fewer."""
    near, moves = np.arange(8) % 2, AnnealingParams(time_limit_s=None, max_moves=100_000)
    links = np.where(near[:, None] == near[None, :], 4.0, 0.4) + 0.001 * np.random.default_rng(3).random((8, 8))
    job = make_job(make_cluster(8, links, gpus=2), replace(TINY, num_layers=8), 32, 2048)
    space = SearchSpace(
        num_gpus=16,
        tensor_parallel=(2,),
        pipeline_parallel=(4,),
        virtual_pipeline=(1,),
        context_parallel=(1,),
        micro_batch_size=(1,),
        overlap_grad_reduce=False,
    )
    prepared = prepare(Question(job, space, 0.01))
    fitting = fitting_candidates(prepared.memory)
    monkeypatch.setattr(pruning, "MANY", 1)
    monkeypatch.setattr(pruning, "anneal", lambda data, params, start=(): anneal(data, moves))  # not by the clock
    plain = prune(prepared.work, fitting, prepared.memory.capacity_bytes)
    annealed = prune(prepared.work, fitting, prepared.memory.capacity_bytes, pruning=Pruning(annealing_s=1.0))
    assert plain.first is not None
    assert annealed.first is not None
    assert annealed.first.seconds < 0.999 * plain.first.seconds
    assert len(annealed.kept) <= len(plain.kept)
    placement = tile_placement(annealed.first.config, annealed.first.tile, annealed.first.nodes)
    simulated = estimate(prepared.instance, annealed.first.config, placement)
    assert simulated.iteration_time_s == annealed.first.seconds
