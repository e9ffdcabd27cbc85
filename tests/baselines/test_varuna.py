"""Varuna: its schedule against hand counts and a second simulation, its rules for depth, micro-batch and hosts."""

from dataclasses import replace

import numpy as np
import pytest
from instances import one_candidate_cluster, pipeline_paths

from pipette_opt.baselines.varuna import simulate, varuna, varuna_nodes, varuna_ticks
from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks


def test_one_stage_does_its_work_one_after_the_other() -> None:
    """The only stage is the last one, which never recomputes."""
    assert simulate([3], [5], [], 4, recomputes=True) == 4 * (3 + 5)


def test_two_stages_one_micro_batch_by_hand() -> None:
    """
    One micro-batch with f = 4, b = 6, sends of 1.

    Forward 0-4, sent 5, forward 5-9, backward 9-15; the first stage recomputes from 12, halfway, to 16; the gradient
    is there at 16; backward 16-22. Without recomputation the same here.
    """
    assert simulate([4, 4], [6, 6], [1], 1, recomputes=True) == 22
    assert simulate([4, 4], [6, 6], [1], 1, recomputes=False) == 22
    # A forward of 7 is recomputed from 18 to 25, after the gradient of 22: 7 + 1 + 7 = 15, backward 15-21.
    assert simulate([7, 7], [6, 6], [1], 1, recomputes=True) == 25 + 6


def test_two_stages_two_micro_batches_by_hand() -> None:
    """
    Work of 2 and 4, no transfer time, no recomputation, on both stages.

    First stage: forwards 0-2, 2-4. Second: forward 2-4, then backwards go first: 4-8; forward 8-10, backward 10-14.
    First: backward 8-12, backward 14-18.
    """
    assert simulate([2, 2], [4, 4], [0], 2, recomputes=False) == 18


@pytest.mark.parametrize("recomputes", [True, False])
def test_never_faster_than_its_parts(recomputes: bool) -> None:
    """No stage can end before its own work and the way there and back are done; more work never ends in no time."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        pp, m = int(rng.integers(1, 7)), int(rng.integers(1, 13))
        forward, backward = rng.integers(1, 20, pp).tolist(), rng.integers(1, 20, pp).tolist()
        send = rng.integers(0, 9, pp - 1).tolist()
        total = simulate(forward, backward, send, m, recomputes=recomputes)
        for s in range(pp):
            again = m * forward[s] if recomputes and s < pp - 1 else 0
            way = sum(forward[:s]) + sum(backward[:s]) + 2 * sum(send[:s])
            assert total >= way + m * (forward[s] + backward[s]) + again
        serial = sum(forward) * (1 + recomputes) + sum(backward) + 2 * sum(send)
        assert total <= m * serial


def candidate(
    data: ProblemData,
    pp: int,
    dp: int,
    *,
    tp: int = 1,
    mbs: int = 1,
    stages: int = 1,
    replicas: int = 1,
    **fields: object,
) -> CandidateData:
    """A candidate on the hosts of ``data`` with work 10 a stage and micro-batch, links as they are."""
    given = data.candidates[0]
    P, D = pp // stages, dp // replicas
    forward, backward = (np.full((1, pp), work * mbs * 16 // pp) for work in (10, 20))
    config: dict[str, object] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "data_parallel_size": dp,
        "micro_batch_size": mbs,
        "layers_per_stage": (16 // pp,) * pp,
    }
    options = {key: fields.pop(key) for key in list(fields) if key in ParallelConfig.__dataclass_fields__}
    changed: dict[str, object] = {
        "config": ParallelConfig(**{**config, **options}),  # type: ignore[arg-type]
        "tile": HostTile(stages=stages, replicas=replicas, nodes_per_slot=1, order="tp-cp-ep-pp-dp", contiguous=True),
        "grid": (P, D, 1),
        "num_microbatches": 64 // (dp * mbs),
        "forward_ticks": forward,
        "backward_ticks": backward,
        "paths": pipeline_paths(forward, backward, given.num_microbatches),
        "ring_class": np.zeros(pp),
        "ring_floor_ticks": np.zeros(pp),
        "memory_need_mib": np.ones(pp),
        **fields,
    }
    return replace(given, **changed)  # type: ignore[arg-type]


@pytest.fixture
def hosts() -> ProblemData:
    """Eight hosts without structure."""
    return one_candidate_cluster(np.random.default_rng(0), "unif", (2, 4, 1))


def test_no_tensor_parallelism(hosts: ProblemData) -> None:
    """Candidates with tensor parallelism are not its to choose."""
    result = varuna(replace(hosts, candidates=(candidate(hosts, 2, 4, tp=2),)))
    assert result.solution is None
    both = replace(hosts, candidates=(candidate(hosts, 2, 4, tp=2), candidate(hosts, 4, 2)))
    chosen = varuna(both).solution
    assert chosen is not None
    assert chosen.candidate == 1


def test_largest_micro_batch_that_fits(hosts: ProblemData) -> None:
    """Of one depth the largest micro-batch that fits is taken, even if a smaller one would be faster."""
    free = np.zeros((8, 8), dtype=np.int64)
    small, large = (candidate(hosts, 4, 2, mbs=mbs, p2p_ticks=free) for mbs in (1, 4))
    too_large = candidate(hosts, 4, 2, mbs=8, p2p_ticks=free, memory_need_mib=np.full(4, 99))
    data = replace(hosts, candidates=(small, large, too_large))
    chosen = varuna(data).solution
    assert chosen is not None
    assert chosen.candidate == 1
    assert varuna_ticks(data, small) < varuna_ticks(data, large)


def test_depth_by_simulation(hosts: ProblemData) -> None:
    """Between depths its own estimate decides; the objective reported is ours, on the hosts in order."""
    data = replace(hosts, candidates=tuple(candidate(hosts, pp, 8 // pp) for pp in (1, 2, 4, 8)))
    chosen = varuna(data).solution
    assert chosen is not None
    estimates = [varuna_ticks(data, one) for one in data.candidates]
    assert chosen.candidate == int(np.argmin(estimates))
    one = data.candidates[chosen.candidate]
    assert chosen.nodes.tolist() == varuna_nodes(one).tolist()
    assert chosen.objective_ticks == objective_ticks(data, one, chosen.nodes)


def test_hosts_run_along_the_pipelines(hosts: ProblemData) -> None:
    """The stages of a replica are on hosts that follow each other."""
    assert varuna_nodes(candidate(hosts, 4, 2))[:, :, 0].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_recomputation_equal_stages_and_no_sharded_optimizer_first(hosts: ProblemData) -> None:
    """Of equal micro-batches the one that is made like Varuna's own jobs."""
    kinds = [
        candidate(hosts, 4, 2),
        candidate(hosts, 4, 2, recompute_granularity="full", use_distributed_optimizer=True),
        candidate(hosts, 4, 2, recompute_granularity="full", layers_per_stage=(3, 5, 5, 3)),
        candidate(hosts, 4, 2, recompute_granularity="full"),
    ]
    for left in range(4, 0, -1):
        data = replace(hosts, candidates=tuple(kinds[:left]))
        chosen = varuna(data).solution
        assert chosen is not None
        # 0 lacks recomputation, 1 shards, 2 is uneven: whoever has the fewer faults, in that order of weight.
        assert chosen.candidate == {4: 3, 3: 2, 2: 1, 1: 0}[left]


def test_estimate_knows_two_speeds(hosts: ProblemData) -> None:
    """Sends between hosts take the median link, those inside a host the fabric; one slow link changes nothing."""
    ticks = np.full((8, 8), 100)
    np.fill_diagonal(ticks, UNUSABLE_TICKS)
    slow = ticks.copy()
    slow[0, 1] = 10_000
    values = {}
    for name, matrix in {"even": ticks, "slow link": slow}.items():
        one = candidate(hosts, 4, 4, stages=2, p2p_ticks=matrix, ring_ticks=matrix[None], intra_p2p_ticks=3)
        values[name] = varuna_ticks(replace(hosts, candidates=(one,)), one)
    assert values["even"] == values["slow link"]
    # The pipeline alone, plus one all-reduce over a median link.
    expected = simulate([40] * 4, [80] * 4, [3, 100, 3], 16, recomputes=False) + 100
    assert values["even"] == expected


def test_packings_across_replicas_are_not_known(hosts: ProblemData) -> None:
    """Consecutive ranks are one pipeline: no host has parts of two, though one may have two whole ones."""
    part = candidate(hosts, 4, 4, stages=1, replicas=2)
    assert varuna(replace(hosts, candidates=(part,))).solution is None
    whole = candidate(hosts, 1, 16, stages=1, replicas=2)
    assert varuna(replace(hosts, candidates=(whole,))).solution is not None
