"""The certificate of a plan: one gap of the simulated time."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_cases import least_s, placements, small

from pipette_opt.certify.finish import joint_model_up_to, make_certificate
from pipette_opt.plans.certificate import JointModel
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.solutions import simulate_solution
from pipette_opt.specs import LinkMatrix


def test_one_gap_of_the_simulator_time() -> None:
    """Objective, bound and gap are of the simulated time; it is optimal up to rounding."""
    job, data = small()
    plain = replace(data, candidates=data.candidates[:2])
    best = min(
        (
            Solution(candidate=i, nodes=nodes, objective_ticks=objective_ticks(plain, plain.candidates[i], nodes))
            for i in range(2)
            for nodes in placements(plain, i)
        ),
        key=lambda one: one.objective_ticks,
    )
    simulated = simulate_solution(job, plain, best)
    seconds = simulated.estimate.iteration_time_s
    certificate = make_certificate(job, plain, simulated, least_s(data), 1.0)
    assert certificate.objective_s == seconds
    assert certificate.lower_bound_s < seconds
    assert certificate.gap == (seconds - certificate.lower_bound_s) / seconds > 1e-3
    assert certificate.status == "FEASIBLE"
    assert certificate.placement_dependent_s > 0
    assert make_certificate(job, plain, simulated, seconds * (1 - 1e-7), 1.0).status == "OPTIMAL"
    assert make_certificate(job, plain, simulated, seconds * (1 - 1e-5), 1.0).status == "FEASIBLE"


def test_certificate_of_an_interleaved_plan() -> None:
    """What depends on the placement is what links between hosts take."""
    job, data = small()
    nodes = np.arange(4).reshape(data.candidates[2].grid)
    simulated = simulate_solution(job, data, Solution(candidate=2, nodes=nodes, objective_ticks=0))
    certificate = make_certificate(job, data, simulated, least_s(data), 1.0)
    links = (LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((4, 4), 1e30)),)
    apart = replace(job, cluster=replace(job.cluster, link_matrices=links, inter_node_latency_s=0.0))
    without = simulate_solution(apart, data, Solution(candidate=2, nodes=nodes, objective_ticks=0)).estimate
    assert certificate.placement_dependent_s == pytest.approx(certificate.objective_s - without.iteration_time_s)


@pytest.mark.parametrize(
    ("bound_s", "objective_s", "status", "said_s"),
    [(3.0, 3.0, "INFEASIBLE", 3.0), (3.5, 3.0, "INFEASIBLE", 3.0), (2.8, 3.0, "FEASIBLE", 2.8)],
)
def test_no_faster_split_is_said_of_the_plan_only(
    bound_s: float, objective_s: float, status: str, said_s: float
) -> None:
    """Compared with a faster plan than that of the certificate, the joint model has not shown that none is faster."""
    model = JointModel(
        families=1, variables=1, constraints=1, solves=1, seconds=0.1, splits=0, status="INFEASIBLE", bound_s=bound_s
    )
    found = joint_model_up_to(model, objective_s)
    assert (found.status, found.bound_s) == (status, said_s)
