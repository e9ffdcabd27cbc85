"""The plainest of the plans within reach of the fastest, against every configuration on every placement, simulated."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import all_placements
from factories import A100_80, LLAMA_8B, make_cluster, make_job

import pipette_opt.certify.beside
import pipette_opt.certify.preference
import pipette_opt.verify.preference
from pipette_opt.base.types import Prefer
from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_candidates, with_data_parallelism_alone
from pipette_opt.certify.beside import look_beside
from pipette_opt.certify.compared import as_most_run_it
from pipette_opt.certify.finish import finish_plan
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.state import SearchState
from pipette_opt.memory.fewest import check_memory
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plainness import is_in_order, kind_of, plainness, risk_levels
from pipette_opt.plans.plan import Plan, Usual
from pipette_opt.prepare import Question, load_predictor, prepare, prunes
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.specs import Instance
from pipette_opt.verify import verify_content
from pipette_opt.verify.alternatives import alternatives_are_reproduced
from pipette_opt.verify.preference import preference_holds

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    num_gpus=6,
    tensor_parallel=(1, 2),
    context_parallel=(1,),
    micro_batch_size=(1, 2),
    virtual_pipeline=(1, 2),
    recompute=(None, "full"),
    uneven_layers=False,
    overlap_grad_reduce=False,
)
"""Three hosts of two GPUs; two dozen configurations."""

RISK = 0.1


def job(seed: int) -> Instance:
    """Three hosts with random directed links, a model that fills their memory, more or less."""
    rng = np.random.default_rng(seed)
    gpu = replace(A100_80, memory_bytes=int(rng.uniform(8.0, 11.0) * GIB))
    spec = make_cluster(3, rng.uniform(6.0, 20.0, (3, 3)), gpus=2, kinds=(gpu,))
    model = replace(LLAMA_8B, num_layers=6, hidden_size=1024, ffn_hidden_size=4096, vocab_size=32_000)
    return make_job(spec, model, 12, 4096)


def solved(given: Instance, prefer: Prefer, space: SearchSpace = SPACE) -> Plan:
    """The plan by a preference, with time enough for each step."""
    prepared = prepare(Question(given, space, RISK, keep=prunes))
    params = OptimizeParams(time_limit_s=60.0, max_oom_risk=RISK, prefer=prefer)
    state = SearchState(prepared, simulate_first_plan(prepared), params, Clock().after(60.0))
    certify(state)
    look_beside(state, Clock().after(60.0))
    inputs = {"max_oom_risk": RISK, "prefer": prefer}
    return finish_plan(state, inputs)


def risk_of(given: Instance, one: ParallelConfig) -> float:
    """Of running out of memory, wherever it is."""
    stages = stage_memory(given, one, all_placements(given, one)[0], load_predictor(RISK, given), RISK)
    return max(stage.oom_probability for stage in stages)


def all_times(given: Instance, space: SearchSpace) -> dict[tuple[ParallelConfig, bool], float]:
    """The least time of every configuration that is legal and fits: on any hosts, and with hosts as listed."""
    listed = enumerate_candidates(given, with_data_parallelism_alone(given, space))
    memory = check_memory(given, listed, load_predictor(RISK, given), RISK)
    found: dict[tuple[ParallelConfig, bool], float] = {}
    for one in memory.fitting:
        placements = all_placements(given, one.config)
        times = estimate_many(given, [(one.config, placement) for placement in placements])
        for placement, seconds in zip(placements, times.tolist(), strict=True):
            for in_order in {False, is_in_order(placement.node)}:
                found[one.config, in_order] = min(seconds, found.get((one.config, in_order), float("inf")))
    return found


def least_times(given: Instance, space: SearchSpace) -> dict[ParallelConfig, float]:
    """The least time of every configuration that is legal and fits."""
    return {one: seconds for (one, in_order), seconds in all_times(given, space).items() if not in_order}


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> float:
    """How much slower than the fastest a plan may be: more than in earnest, so that more plans are within it."""
    for module in (pipette_opt.certify.beside, pipette_opt.certify.preference, pipette_opt.verify.preference):
        monkeypatch.setattr(module, "WITHIN", request.param)
    return float(request.param)


@pytest.mark.parametrize(("seed", "reach"), [(0, 0.03), (1, 0.05), (2, 0.1), (3, 0.2)], indirect=["reach"])
def test_the_plainest_within_reach_of_all(seed: int, reach: float) -> None:
    """Brute force over every placement of every configuration gives the same rank and time."""
    given = job(seed)
    times = all_times(given, SPACE)
    limit_s = (1 + reach) * min(times.values())
    ranks = {
        (one, in_order): plainness(one, risk_of(given, one), RISK, in_order=in_order)
        for (one, in_order), seconds in times.items()
        if seconds <= limit_s
    }
    best = min(ranks.values())
    right_s = min(times[one] for one, rank in ranks.items() if rank == best)
    plan = solved(given, "simple")
    proof = plan.certificate
    risk, in_order = max(one.oom_probability for one in plan.memory), is_in_order(plan.placement.node)
    assert plainness(plan.config, risk, RISK, in_order=in_order) == best
    assert plan.estimate.iteration_time_s == pytest.approx(right_s, rel=1e-5)
    assert proof.best_s == pytest.approx(min(times.values()), rel=1e-5)
    assert proof.shown_gap >= proof.gap - 1e-12
    assert proof.gap < 1e-5
    assert proof.objective_s <= (1 + reach) * proof.best_s * (1 + 1e-6)
    verify_content(given, plan)
    again = plan_from_dict(plan_to_dict(plan))
    assert (again.fastest, again.risks, again.certificate) == (plan.fastest, plan.risks, proof)


@pytest.mark.parametrize("prefer", ["simple", "fastest"])
def test_equal_links_give_the_listed_order(prefer: Prefer) -> None:
    """Where no order of the hosts brings anything, ranks fill the hosts as listed."""
    given = job(0)
    equal = make_cluster(3, np.full((3, 3), 12.0), gpus=2, kinds=given.cluster.gpu_kinds)
    plan = solved(replace(given, cluster=equal), prefer)
    assert is_in_order(plan.placement.node)
    assert plan.listed is None


def test_an_order_that_pays_says_what_it_brings() -> None:
    """One slow link between neighbours as listed: another order is more than 1 % faster, and the listed is recorded."""
    given = job(0)
    links = np.full((3, 3), 20.0)
    links[0, 1] = links[1, 0] = 0.4
    given = replace(given, cluster=make_cluster(3, links, gpus=2, kinds=given.cluster.gpu_kinds))
    plan = solved(given, "simple")
    assert not is_in_order(plan.placement.node)
    assert plan.listed is not None
    times = all_times(given, replace(SPACE, pipeline_parallel=(plan.config.pipeline_model_parallel_size,)))
    assert plan.listed.iteration_time_s == pytest.approx(times[plan.config, True], rel=1e-6)
    assert plan.listed.iteration_time_s > 1.01 * plan.estimate.iteration_time_s


@pytest.mark.parametrize("seed", range(2))
def test_data_parallelism_alone_is_the_fastest_of_its_kind(seed: int) -> None:
    """ZeRO 1 or 3 on all GPUs, every placement in listed order simulated; the record is reproduced."""
    given = job(seed)
    plan = solved(given, "fastest", replace(SPACE, tensor_parallel=(2,)))
    space = SearchSpace(
        num_gpus=6,
        tensor_parallel=(1,),
        pipeline_parallel=(1,),
        context_parallel=(1,),
        data_parallel_sharding_strategy=("optim", "optim_grads_params"),
    )
    times = all_times(given, space)
    assert plan.usual is not None
    assert plan.usual.plan is not None
    right_s = min(seconds for (_, in_order), seconds in times.items() if in_order)
    assert plan.usual.plan.iteration_time_s == pytest.approx(right_s, rel=1e-6)
    assert not list(alternatives_are_reproduced(given, plan))
    wrong = replace(plan, usual=Usual(plan=replace(plan.usual.plan, iteration_time_s=0.5 * right_s)))
    assert any("usual.plan" in problem for problem in alternatives_are_reproduced(given, wrong))


@pytest.mark.parametrize(("gib", "batch", "problem"), [(2.0, 12, "does not fit: needs"), (80.0, 8, "a batch of 8")])
def test_why_data_parallelism_alone_cannot_run(gib: float, batch: int, problem: str) -> None:
    """Too little memory for any sharding; a batch that six GPUs cannot share."""
    given = job(0)
    kinds = (replace(A100_80, memory_bytes=int(gib * GIB)),)
    tight = replace(given, cluster=make_cluster(3, 12.0, gpus=2, kinds=kinds))
    tight = replace(tight, training=replace(given.training, global_batch_size=batch))
    prepared = prepare(Question(tight, replace(SPACE, pipeline_parallel=(3,)), 1.0, keep=prunes))
    usual = as_most_run_it(prepared, simulate_first_plan(prepared)[0], (), RISK)
    assert usual is not None
    assert usual.plan is None
    assert usual.problem.startswith(problem)


@pytest.mark.parametrize("seed", range(2))
def test_next_best_kinds_are_proven(seed: int) -> None:
    """The next best are the fastest of each kind of configuration, in the order of their times."""
    given = job(seed)
    plan = solved(given, "fastest")
    kinds: dict[tuple[object, ...], float] = {}
    for one, seconds in least_times(given, SPACE).items():
        kinds[kind_of(one)] = min(seconds, kinds.get(kind_of(one), float("inf")))
    assert plan.fastest is None
    assert plan.estimate.iteration_time_s == pytest.approx(kinds.pop(kind_of(plan.config)), rel=1e-5)
    expected = sorted(kinds.values())[:5]
    assert [one.iteration_time_s for one in plan.alternatives] == pytest.approx(expected, rel=1e-5)
    assert len({kind_of(one.config) for one in plan.alternatives}) == len(plan.alternatives)
    for one in plan.alternatives:
        assert one.lower_bound_s is not None
        assert one.lower_bound_s <= kinds[kind_of(one.config)] * (1 + 1e-9)


def test_the_trade_between_time_and_risk() -> None:
    """The fastest of all that have at most a risk, at each of three levels that any has."""
    given = job(0)
    times = least_times(given, SPACE)
    plan = solved(given, "simple")
    assert len(plan.risks) > 1
    assert {one.max_oom_risk for one in plan.risks} <= set(risk_levels(RISK))
    for one in plan.risks:
        right_s = min(seconds for config, seconds in times.items() if risk_of(given, config) <= one.max_oom_risk)
        assert one.plan.iteration_time_s == pytest.approx(right_s, rel=1e-5)


def test_a_plan_that_the_preference_does_not_choose_is_named() -> None:
    """More than 1 % slower; a plainer one recorded; a fastest plan that is not said."""
    given = job(1)
    plan = solved(given, "fastest")
    other = plan.alternatives[-1]
    assert not list(preference_holds(given, plan))
    said = replace(plan, certificate=replace(plan.certificate, fastest_s=0.9 * plan.estimate.iteration_time_s))
    assert any("no fastest plan" in one for one in preference_holds(given, said))
    fastest = replace(other, iteration_time_s=0.9 * plan.estimate.iteration_time_s)
    slow = replace(said, fastest=fastest, inputs={**plan.inputs, "prefer": "simple"})
    assert any("more than 1%" in one for one in preference_holds(given, slow))
    assert any("inputs.prefer" in one for one in preference_holds(given, replace(slow, inputs=plan.inputs)))
