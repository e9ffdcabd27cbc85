"""Plans of models with experts: what verify asks of them, against the simulator's own opinion of their links."""

from dataclasses import replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job, plan_on, sound

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.units import GIB
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify import CONTENT_RULES, MAP_RULES

MOE = replace(TINY, name="moe", num_experts=8, add_bias_linear=False, add_qkv_bias=False)


def given(links: np.ndarray | float = 20.0, dispatcher: str = "alltoall") -> Instance:
    """Four hosts of four GPUs."""
    one = make_job(make_cluster(4, links, gpus=4), MOE)
    return replace(one, training=replace(one.training, moe_token_dispatcher_type=dispatcher))


def broken(job: Instance, plan: Plan) -> set[str]:
    """Names of the broken rules."""
    return {rule.__name__ for rule in (*MAP_RULES, *CONTENT_RULES) if any(True for _ in rule(job, plan))}


def planned(job: Instance, chosen: ParallelConfig, node: np.ndarray | None = None) -> Plan:
    """A plan on hosts in order, or on these."""
    ranks = np.arange(16)
    node = ranks // 4 if node is None else node
    local = np.array([(node[:rank] == node[rank]).sum() for rank in ranks])
    return sound(job, plan_on(job, chosen, Placement(order="tp-cp-ep-dp-pp", node=node, local_rank=local)))


CONFIGS = [
    make_config(dp=16, expert_model_parallel_size=4),
    make_config(dp=16, expert_model_parallel_size=8),
    make_config(tp=2, pp=2, dp=4, sequence_parallel=True, expert_model_parallel_size=4),
    make_config(tp=2, pp=2, dp=4, sequence_parallel=True, expert_model_parallel_size=8, expert_tensor_parallel_size=1),
    make_config(tp=2, pp=1, dp=8, sequence_parallel=True, expert_model_parallel_size=2, expert_tensor_parallel_size=2),
]


@pytest.mark.search
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_right_plans_pass_and_links_are_the_simulator_s(number: int, dispatcher: str) -> None:
    """Without one directed link after the other: verify names it exactly where the simulator cannot go without it."""
    rng = np.random.default_rng(number)
    chosen = CONFIGS[number]
    for node in (np.arange(16) // 4, rng.permutation(np.arange(16) // 4)):
        job = given(20.0, dispatcher)
        plan = planned(job, chosen, node)
        assert broken(job, plan) == set()
        for source, target in np.argwhere(~np.eye(4, dtype=bool)).tolist():
            links = np.full((4, 4), 20.0)
            links[source, target] = np.nan
            poorer = given(links, dispatcher)
            try:
                estimate(poorer, chosen, plan.placement)
                needed = False
            except MissingLinkError:
                needed = True
            assert ("links_were_measured" in broken(poorer, plan)) == needed, (source, target)


def test_objective_is_the_simulated_time() -> None:
    """An objective a little off is found either way."""
    job = given()
    for chosen in CONFIGS[:2]:
        plan = planned(job, chosen)
        off = replace(plan.certificate, objective_s=plan.certificate.objective_s * 1.01)
        assert "objective_is_reproduced" in broken(job, replace(plan, certificate=off))


def test_sizes_that_do_not_divide() -> None:
    """Of six experts, four ranks cannot have equally many."""
    job = given()
    plan = planned(job, CONFIGS[0])
    fewer = replace(job, model=replace(MOE, num_experts=6))
    assert "configuration_is_legal" in broken(fewer, plan)


def test_state_of_experts_by_hand() -> None:
    """
    Eight layers: attention 4 h^2, two of eight experts of 2 h 4h each; bf16, fp32 gradients, Adam with a master copy.

    With h = 1024 that is 8 * (4 + 16) * 2^20 parameters of 18 bytes.
    """
    job = given()
    plan = planned(job, CONFIGS[0])
    floor = 8 * (4 + 16) * 2**20 * 18
    for need, fits in ((floor, True), (floor - GIB // 64, False)):
        memory = tuple(replace(one, predicted_bytes=need // 2, upper_bytes=need) for one in plan.memory)
        assert ("memory_fits" not in broken(job, replace(plan, memory=memory))) == fits
