"""Among equally fast plans the one that people would choose."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.ties import in_order, settle_ties
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import Prepared, Question, prepare
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, simplicity, simulate_solution
from pipette_opt.specs import Instance

SPACE = SearchSpace(
    num_gpus=32,
    tensor_parallel=(8,),
    pipeline_parallel=(2,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    recompute=(None,),
    uneven_layers=False,
)
"""Two stages of two hosts."""


def prepared_for(job: Instance) -> Prepared:
    """Every candidate of the space."""
    return prepare(Question(job, SPACE, 0.01))


def simulated_on(prepared: Prepared, hosts: list[int]) -> SimulatedSolution:
    """The first candidate on hosts in grid order."""
    nodes = np.array(hosts).reshape(prepared.problem.candidates[0].grid)
    solution = Solution(candidate=0, nodes=nodes, objective_ticks=0)
    return simulate_solution(prepared.instance, prepared.problem, solution)


def ordered(prepared: Prepared, hosts: list[int], order: list[int]) -> list[int]:
    """Hosts of the plan that takes the place of one on these hosts."""
    simulated = simulated_on(prepared, hosts)
    limit_s = simulated.estimate.iteration_time_s * (1 + 1e-6)
    found: list[int] = in_order(prepared, simulated, order, limit_s, Clock()).ravel().tolist()
    assert simulated_on(prepared, found).estimate.iteration_time_s <= limit_s
    return found


@pytest.mark.parametrize("hosts", [[5, 2, 0, 4], [3, 2, 1, 0], [0, 1, 2, 3]])
def test_listed_order_where_links_are_alike(hosts: list[int]) -> None:
    """The first hosts in their order; or the order of those that run today."""
    prepared = prepared_for(make_job(make_cluster(6), LLAMA_8B, 32, 4096))
    assert ordered(prepared, hosts, [0, 1, 2, 3, 4, 5]) == [0, 1, 2, 3]
    assert ordered(prepared, hosts, [4, 2, 5, 0, 1, 3]) == [4, 2, 5, 0]


def test_only_what_is_as_fast_changes_places() -> None:
    """Two pairs of near hosts: each pair stays together, and hosts that are twins are put in order."""
    links = np.full((4, 4), 2.0)
    links[0, 2] = links[2, 0] = links[1, 3] = links[3, 1] = 20.0
    prepared = prepared_for(make_job(make_cluster(4, links), LLAMA_8B, 32, 4096))
    assert ordered(prepared, [3, 1, 2, 0], [0, 1, 2, 3]) == [0, 2, 1, 3]


def test_links_that_all_differ_leave_the_order() -> None:
    """Nothing that is slower is taken for being listed first."""
    prepared = prepared_for(make_job(make_random_cluster(np.random.default_rng(1), 4), LLAMA_8B, 32, 4096))
    fastest = min(permutations(range(4)), key=lambda one: simulated_on(prepared, [*one]).estimate.iteration_time_s)
    seconds = simulated_on(prepared, [*fastest]).estimate.iteration_time_s
    found = ordered(prepared, [*fastest], [0, 1, 2, 3])
    assert simulated_on(prepared, found).estimate.iteration_time_s == pytest.approx(seconds, rel=2e-6)
    assert found <= [*fastest]


def test_simpler_of_equally_fast_configurations() -> None:
    """Fewer GPUs, less recomputation, fewer chunks; what is slower than ticks show stays behind."""
    prepared = prepared_for(make_job(make_cluster(4), LLAMA_8B, 32, 4096))
    one = simulated_on(prepared, [0, 1, 2, 3])
    seconds, config = one.estimate.iteration_time_s, one.candidate.config

    def like(factor: float, **changes: object) -> SimulatedSolution:
        changed = replace(one.candidate, config=replace(config, **changes))
        return replace(one, candidate=changed, estimate=replace(one.estimate, iteration_time_s=seconds * factor))

    full = like(1 - 5e-7, recompute_granularity="full")
    chunks = like(1 - 5e-7, virtual_pipeline_model_parallel_size=2)
    assert best_first([full, chunks, one])[0] is one
    assert best_first([like(1 - 1e-5, recompute_granularity="full"), one])[0].candidate.config != config
    assert simplicity(config) < simplicity(full.candidate.config)


def test_ties_of_what_overlaps() -> None:
    """A choice of overlap that changes nothing is not made."""
    prepared = prepared_for(make_job(make_cluster(4), LLAMA_8B, 32, 4096))
    times = {
        index: simulate_solution(
            prepared.instance,
            prepared.problem,
            Solution(candidate=index, nodes=np.arange(4).reshape(2, 2, 1), objective_ticks=0),
        )
        for index, one in enumerate(prepared.problem.candidates)
        if one.grid == (2, 2, 1)
    }
    best = best_first(list(times.values()))[0]
    found = best_first([*times.values(), *settle_ties(prepared, [best], best, range(4), Clock().after(5.0))])[0]
    assert found.candidate.config == best.candidate.config


def solved(num_nodes: int, space: SearchSpace, host_order: Sequence[int] = ()) -> Plan:
    """A small model on hosts with equal links."""
    job = make_job(make_cluster(num_nodes, gpus=4), TINY, 64, 2048)
    return optimize(job, space, OptimizeParams(time_limit_s=20.0, workers=1, host_order=host_order))


@pytest.mark.search
def test_a_uniform_fabric_is_proven_in_listed_order() -> None:
    """All hosts and fewer, every degree: optimal, and the hosts as they are listed."""
    space = SearchSpace(micro_batch_size=(1, 2), recompute=(None,))
    plan = solved(6, space)
    hosts = list(dict.fromkeys(plan.placement.node.tolist()))
    assert plan.certificate.status == "OPTIMAL"
    assert hosts == list(range(len(hosts)))
    today = solved(6, space, host_order=(5, 4, 3, 2, 1, 0))
    assert list(dict.fromkeys(today.placement.node.tolist())) == [5, 4, 3, 2, 1, 0][: len(hosts)]
