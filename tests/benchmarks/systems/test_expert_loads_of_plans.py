"""What loads of experts do to a plan."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job

from benchmarks.systems.experts import chosen_row, load_rows, with_imbalance
from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.collectives import OWN_PART
from pipette_opt.optimize import optimize
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance

MOE = replace(LLAMA_8B, num_layers=2, num_experts=4, moe_router_topk=1, moe_ffn_hidden_size=1024)
LOADS = np.array([[0.5, 0.3, 0.1, 0.1]])


def job() -> Instance:
    """One host of four GPUs."""
    return make_job(make_cluster(1, gpus=4), model=MOE, global_batch_size=8, seq_length=512)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Experts on two ranks."""
    space = SearchSpace(
        tensor_parallel=(1,), pipeline_parallel=(1,), expert_parallel=(2,), micro_batch_size=(1,), recompute=(None,)
    )
    return optimize(job(), space, OptimizeParams(time_limit_s=20.0, workers=1))


@pytest.mark.search
def test_rows(plan: Plan) -> None:
    """Hand counts: 0.8 of 1 on the first rank as listed, 0.6 by load, and equal with one copy more on each."""
    rows = load_rows(job(), plan, LOADS, load_predictor(0.01, job()), 0.01, 1)
    assert [row.imbalance for row in rows] == pytest.approx([1.0, 1.6, 1.2, 1.0])
    assert [row.bound for row in rows] == pytest.approx([1.0, 1.6, 1.2, 1.0], rel=1e-4)
    times = [row.iteration_time_s for row in rows]
    assert times[1] > times[2] > times[0]
    # Two experts have two copies: a rank sends 2 (2 - 1) / 2 of each one's gradients in both layers, 4 bytes, inside.
    moved = 2 * 2 * 3 * 4096 * 1024 * 4 / (job().cluster.intra_node_bytes_per_s * job().stack.intra_node)
    moved *= 1 + OWN_PART / 2  # two steps, and what is added on the rank itself
    assert times[3] - times[0] == pytest.approx(moved, rel=0.02), "but for the latency of the steps"
    assert times[3] > times[2], "copies take longer to reduce than they save"
    assert chosen_row(rows, 0.01) == rows[2]
    cheap = replace(rows[3], iteration_time_s=times[0])
    assert chosen_row([*rows[:3], cheap], 0.01) == cheap
    assert chosen_row([*rows[:3], replace(cheap, oom_probability=0.5)], 0.01) == rows[2]
    assert chosen_row(rows[:2], 0.01) is None
    listed = with_imbalance(job(), 2, 1.6)
    assert times[1] == estimate(listed, plan.config, plan.placement).iteration_time_s
    sizes = [row.predicted_bytes for row in rows]
    assert sizes[1] > sizes[2] > sizes[0]
    # One of two experts of a rank more in two layers: half of their weights, gradients and states, 2 + 4 + 12 bytes.
    assert sizes[3] - sizes[0] == 2 * 3 * 4096 * 1024 * 18


@pytest.mark.search
def test_plans_without_expert_parallelism_are_refused(plan: Plan) -> None:
    """Loads would not matter."""
    config = replace(plan.config, expert_model_parallel_size=1)
    with pytest.raises(InputError, match="no expert parallelism"):
        load_rows(job(), replace(plan, config=config), LOADS, load_predictor(0.01, job()), 0.01, 0)
