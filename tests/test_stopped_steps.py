"""A search that is stopped in any step of its table still gives its best plan, with a bound that holds."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.beside import LOOKS
from pipette_opt.certify.rounds import ROUND
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.steps import BEST_VALUE, STEPS, TIES, Step
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

SPACE = SearchSpace(num_gpus=6, tensor_parallel=(2,), virtual_pipeline=(1,), micro_batch_size=(1,), recompute=(None,))


@pytest.fixture(scope="module")
def job() -> Instance:
    """Three hosts of two GPUs with links of their own, and layers that do not divide by three stages."""
    links = make_links([[6.0, 7.0, 20.0], [9.0, 8.0, 15.0], [19.0, 12.0, 5.0]], 3)
    return make_job(make_cluster(3, gpus=2, link_matrices=(links,)), replace(LLAMA_8B, num_layers=7), 12, 2048)


@pytest.fixture(scope="module")
def optimum(job: Instance) -> Plan:
    """The plan of a whole search."""
    return optimize(job, SPACE, OptimizeParams(time_limit_s=4.0, workers=1, prefer="simple"))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.words[:30])
def test_a_stop_in_any_step_gives_the_best_plan_so_far(
    step: Step, job: Instance, optimum: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never without a plan, and no bound is above the optimum."""
    clock_of_step = Clock.step

    def stopping(clock: Clock, begun: Step) -> Clock:
        if begun is step:
            clock.stop.set()
        return clock_of_step(clock, begun)

    monkeypatch.setattr(Clock, "step", stopping)
    plan = optimize(job, SPACE, OptimizeParams(time_limit_s=4.0, workers=1, prefer="simple"))
    proof = plan.certificate
    assert proof.lower_bound_s <= optimum.certificate.best_s * (1 + 1e-9)
    assert optimum.certificate.lower_bound_s <= proof.best_s * (1 + 1e-9)
    assert verify(job, plan).rules


def test_steps_run_in_the_order_of_the_table() -> None:
    """Rounds, then plans of the best value and beside the fastest, then ties."""
    order = [move.step for move in ROUND] + [BEST_VALUE] + [step for step, _ in LOOKS] + [TIES]
    assert order == sorted(order, key=STEPS.index)
