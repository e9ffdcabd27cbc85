"""The listed order, and Megatron's rule of thumb."""

from dataclasses import replace

import numpy as np
from instances import one_candidate_cluster, pipeline_paths

from pipette_opt.baselines.megatron import identity_nodes, identity_order, megatron_rule
from pipette_opt.parallel import HostTile, ParallelConfig, identity_placement, tile_placement
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks


def listed(*shapes: tuple[int, int, int], capacity: tuple[int, ...] = (2,) * 8) -> ProblemData:
    """Eight hosts of eight GPUs; one candidate for each (tp, pp, dp)."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 4, 1), num_nodes=8)
    return replace(
        data,
        candidates=tuple(candidate_of(data.candidates[0], *shape) for shape in shapes),
        capacity_mib=np.array(capacity),
    )


def candidate_of(like: CandidateData, tp: int, pp: int, dp: int) -> CandidateData:
    """As many whole replicas of a stage on a host as fit."""
    replicas = 8 // tp
    forward, backward = np.full((1, pp), 100 * 8 // tp), np.full((1, pp), 200 * 8 // tp)
    return replace(
        like,
        config=ParallelConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            micro_batch_size=1,
            layers_per_stage=(1,) * pp,
        ),
        tile=HostTile(stages=1, replicas=replicas, nodes_per_slot=1, order="tp-cp-ep-dp-pp", contiguous=True),
        grid=(pp, dp // replicas, 1),
        forward_ticks=forward,
        backward_ticks=backward,
        paths=pipeline_paths(forward, backward, like.num_microbatches),
        ring_class=np.zeros(pp),
        ring_floor_ticks=np.zeros(pp),
        memory_need_mib=np.full(pp, 1),
    )


def test_identity_nodes_are_the_ranks_in_order() -> None:
    """The packing that the grid stands for puts rank r on host r // 8, in both rank orders."""
    data = listed((4, 2, 8))
    candidate = data.candidates[0]
    assert identity_nodes(candidate)[:, :, 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    other = replace(
        candidate, tile=replace(candidate.tile, order="tp-cp-ep-pp-dp", replicas=1, stages=2), grid=(1, 8, 1)
    )
    for one in (candidate, other):
        nodes = identity_nodes(one)
        by_grid = tile_placement(one.config, one.tile, nodes)
        by_rank = identity_placement(one.config, 8, np.arange(8), one.tile.order)
        assert (by_grid.node == by_rank.node).all()


def test_identity_order_takes_the_best_candidate() -> None:
    """Of the two, the one that is faster in the listed order; the other is in the pool."""
    data = listed((8, 2, 4), (8, 4, 2))
    result = identity_order(data)
    values = [objective_ticks(data, one, identity_nodes(one)) for one in data.candidates]
    assert result.solution is not None
    assert result.solution.objective_ticks == min(values)
    assert [one.objective_ticks for one in result.pool] == [max(values)]
    assert result.lower_bound_ticks <= min(values)


def test_identity_order_does_not_look_for_other_hosts() -> None:
    """No plan if a listed host is too small, or a link that the order needs is missing."""
    assert identity_order(listed((8, 2, 4), capacity=(2, 2, 2, 0, 2, 2, 2, 2))).solution is None
    data = listed((8, 2, 4))
    link = data.candidates[0].p2p_ticks.copy()
    link[0, 4] = UNUSABLE_TICKS
    assert identity_order(replace(data, candidates=(replace(data.candidates[0], p2p_ticks=link),))).solution is None


def test_rule_uses_tensor_parallelism_first() -> None:
    """
    Of what fits: the least GPUs for one replica, and of these the most tensor parallelism.

    (4, 1, 16) would be smaller still, but is not among the candidates, as if it had run out of memory.
    """
    data = listed((8, 2, 4), (8, 1, 8), (4, 2, 8), (4, 4, 4))
    result = megatron_rule(data)
    assert result.solution is not None
    assert result.solution.candidate == 1
    assert result.pool == ()
    smaller = megatron_rule(listed((8, 2, 4), (4, 1, 16)))
    assert smaller.solution is not None
    assert smaller.solution.candidate == 1
