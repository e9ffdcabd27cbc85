"""AMP: its formula by hand, its choice by its own cost, its annealing on its own view."""

from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, one_candidate_cluster, pipeline_paths, placements, random_problem

from pipette_opt.base.types import IntArray
from pipette_opt.baselines.amp import AmpParams, amp, amp_cost, amp_view
from pipette_opt.baselines.megatron import identity_nodes
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks

LISTED = AmpParams(placement="listed")


def two_by_two(times: IntArray | None = None, num_microbatches: int = 5) -> ProblemData:
    """Four hosts as 2 x 2; work 10 and 30 of the two stages, links of 1 tick, 7 on and to host 3."""
    if times is None:
        times = np.ones((4, 4), dtype=np.int64)
        times[3] = times[:, 3] = 7
    np.fill_diagonal(times, UNUSABLE_TICKS)
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), num_microbatches=num_microbatches)
    forward, backward = np.array([[4, 10]]), np.array([[6, 20]])
    candidate = replace(
        data.candidates[0],
        forward_ticks=forward,
        backward_ticks=backward,
        paths=pipeline_paths(forward, backward, num_microbatches),
        p2p_ticks=times,
        ring_ticks=np.stack([times * 100]),
    )
    return replace(data, candidates=(candidate,))


def test_cost_by_hand() -> None:
    """(m - 1) max e + sum e + mean transfer, once, + the slowest ring; host 3's median link is slow, others' not."""
    data = two_by_two()
    view = amp_view(data, data.candidates[0])
    assert view.send.tolist() == [1, 1, 1, 7]
    # Columns 0 - 2 and 1 - 3: transfers 1 and 7, mean 4; ring of row 1 holds host 3: 700.
    assert amp_cost(view, np.array([[0, 1], [2, 3]])) == 4 * 30 + 40 + 4 + 700


def test_number_of_micro_batches_does_not_weigh_transfers() -> None:
    """The hidden critical path: AMP counts a transfer once, ours in every period."""
    few, many = two_by_two(), two_by_two(num_microbatches=105)
    nodes = np.array([[0, 1], [2, 3]])
    costs = [amp_cost(amp_view(data, data.candidates[0]), nodes) for data in (few, many)]
    assert costs[1] - costs[0] == 100 * 30
    ours = [objective_ticks(data, data.candidates[0], nodes[:, :, None]) for data in (few, many)]
    assert ours[1] - ours[0] == 100 * (30 + 7)


def test_single_slow_link_is_invisible() -> None:
    """A slow link between two good hosts leaves both medians as they are."""
    times = np.ones((4, 4), dtype=np.int64)
    times[0, 1] = times[1, 0] = 50
    data = two_by_two(times)
    assert amp_view(data, data.candidates[0]).send.tolist() == [1, 1, 1, 1]


def plainly(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> float:
    """AMP's cost again, host by host."""
    D = candidate.grid[1]
    pp, stages = candidate.num_stages, candidate.tile.stages

    def median(ticks: IntArray, host: int) -> float:
        both = [*ticks[host], *ticks[:, host]]
        return float(np.median([value for value in both if value < UNUSABLE_TICKS]))

    work, send, ring = [], 0.0, 0.0
    for s in range(pp):
        hosts = [int(nodes[s // stages, d, 0]) for d in range(D)]
        kinds = [int(data.kind_of_node[host]) for host in hosts]
        times = [int(candidate.forward_ticks[k, s] + candidate.backward_ticks[k, s]) for k in kinds]
        work.append(sum(times) / D)
        slowest = float(candidate.ring_floor_ticks[s])
        if D > 1:
            matrix = candidate.ring_ticks[int(candidate.ring_class[s])]
            slowest = max(slowest, *(median(matrix, host) for host in hosts))
        ring = max(ring, slowest)
        if s + 1 < pp and (s + 1) // stages == s // stages:
            send += candidate.intra_p2p_ticks
        elif s + 1 < pp:
            after = [int(nodes[(s + 1) // stages, d, 0]) for d in range(D)]
            pairs = zip(hosts, after, strict=True)
            send += sum(max(median(candidate.p2p_ticks, h) for h in pair) for pair in pairs) / D
    return (candidate.num_microbatches - 1) * max(work) + sum(work) + send + ring


@pytest.mark.parametrize("seed", range(12))
def test_least_cost_in_listed_order(seed: int) -> None:
    """Without annealing, the choice is the least of AMP's costs over the candidates, whatever our objective says."""
    rng = np.random.default_rng(seed)
    data = random_problem(
        rng, [(2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 1, 2)], 5, Variant(num_kinds=2, interleaved_share=0.0)
    )
    result = amp(data, LISTED)
    assert result.solution is not None
    known = [index for index, one in enumerate(data.candidates) if one.grid[2] == 1]
    costs = {index: plainly(data, data.candidates[index], identity_nodes(data.candidates[index])) for index in known}
    assert costs[result.solution.candidate] == pytest.approx(min(costs.values()))
    chosen = data.candidates[result.solution.candidate]
    assert result.solution.objective_ticks == objective_ticks(data, chosen, result.solution.nodes)


@pytest.mark.search
@pytest.mark.parametrize("seed", range(8))
def test_annealing_finds_the_least_of_its_own_cost(seed: int) -> None:
    """On four of five hosts annealing reaches what enumeration of AMP's cost gives."""
    rng = np.random.default_rng(seed)
    data = random_problem(rng, [(2, 2, 1)], 5, Variant(num_kinds=2, interleaved_share=0.0))
    candidate = data.candidates[0]
    view = amp_view(data, candidate)
    least = min(amp_cost(view, nodes[:, :, 0]) for nodes in placements(data, candidate))
    result = amp(data, AmpParams(moves=3_000, hot=0.05))
    assert result.solution is not None
    assert amp_cost(view, result.solution.nodes[:, :, 0]) == pytest.approx(least)


def test_annealing_leaves_slow_hosts_out() -> None:
    """Of six hosts for four, the one with slow links on all sides is a spare."""
    times = np.ones((6, 6), dtype=np.int64)
    times[1] = times[:, 1] = 9
    np.fill_diagonal(times, UNUSABLE_TICKS)
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), num_nodes=6)
    slow = replace(data.candidates[0], p2p_ticks=times, ring_ticks=np.stack([times]))
    found = amp(replace(data, candidates=(slow,)), AmpParams(moves=500)).solution
    assert found is not None
    assert 1 not in found.nodes
    listed = amp(replace(data, candidates=(slow,)), LISTED).solution
    assert listed is not None
    assert listed.nodes.ravel().tolist() == [0, 1, 2, 3]


def test_same_seed_same_choice() -> None:
    """Nothing but the seed decides as long as time does not run out."""
    data = random_problem(np.random.default_rng(3), [(2, 2, 1), (4, 1, 1)], 6, Variant(interleaved_share=0.0))
    first, second = (amp(data, AmpParams(moves=300, time_limit_s=60, seed=5)) for _ in range(2))
    assert first.solution is not None
    assert second.solution is not None
    assert first.solution.nodes.tolist() == second.solution.nodes.tolist()


def test_what_does_not_fit_is_left_out() -> None:
    """The cheapest by AMP's cost needs more memory than the hosts have: the next one is taken; none: no solution."""
    data = random_problem(np.random.default_rng(1), [(2, 2, 1), (2, 2, 1)], 4, Variant(interleaved_share=0.0))
    first = amp(data, LISTED).solution
    assert first is not None
    too_big = [
        replace(one, memory_need_mib=np.full(one.num_stages, 10**6)) if index == first.candidate else one
        for index, one in enumerate(data.candidates)
    ]
    second = amp(replace(data, candidates=tuple(too_big)), LISTED).solution
    assert second is not None
    assert second.candidate != first.candidate
    nothing = amp(replace(data, candidates=(too_big[first.candidate],)), AmpParams(moves=50))
    assert nothing.solution is None
    assert nothing.status == "INFEASIBLE"


@pytest.mark.parametrize("field", ["num_annealed", "moves", "time_limit_s", "hot"])
def test_parameters_are_checked(field: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ValueError, match=f"{field} must be >= .*, got -1"):
        AmpParams(**{field: -1})
