"""Waiting for the replica with the longest documents: by hand, in order of its causes, and below every bound."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.replicas import replica_waits, share_of_longest
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.specs.documents import Documents

HALVES = Documents(lengths=(64, 2048), counts=(1, 1))


def mean_wait(given: Instance, config: ParallelConfig) -> float:
    """Mean work of the slowest replica over that of all."""
    return float(replica_waits(given, config).mean())


def job(documents: Documents | None, *, packed: bool = False, batch: int = 32) -> Instance:
    """Four hosts of two GPUs."""
    given = make_job(make_cluster(4, 25.0, gpus=2), TINY, batch, 2048)
    return replace(given, training=replace(given.training, documents=documents, packed=packed))


def test_equal_documents_wait_for_nobody() -> None:
    """One length, padded or packed; and no lengths."""
    same = Documents(lengths=(2048,), counts=(9,))
    for given in (job(None), job(same), job(same, packed=True)):
        assert mean_wait(given, make_config(dp=4)) == pytest.approx(1.0)


def test_the_longest_of_two_documents_by_hand() -> None:
    """Two replicas with a document each, long or short: three of four iterations have a long one."""
    given = job(HALVES, batch=2)
    short, long = (length * TINY.flops_per_token(length) for length in HALVES.lengths)
    expected = (0.25 * short + 0.75 * long) / (0.5 * (short + long))
    waits = replica_waits(given, make_config(dp=2))
    assert len(waits) == 256
    assert waits.mean() == pytest.approx(expected, rel=0.05)
    assert set(np.round(waits / waits.max(), 6)) == {1.0, round(short / long, 6)}


def test_what_makes_replicas_wait() -> None:
    """More replicas, fewer micro-batches, more stages, and waiting at every micro-batch."""
    given = job(HALVES)
    once = [mean_wait(given, make_config(dp=dp)) for dp in (1, 2, 4, 8)]
    assert once[0] == pytest.approx(1.0, abs=0.05)
    assert once == sorted(once)
    sharded = make_config(dp=4, use_distributed_optimizer=True, zero_stage=3)
    assert mean_wait(given, sharded) > once[2]
    assert mean_wait(given, make_config(dp=1, pp=4, num_layers=4)) > 1.05
    packed = mean_wait(job(HALVES, packed=True), make_config(dp=4))
    assert 1 < packed < once[2]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shorter", [1, 64, 1000])
def test_times_lie_between_those_of_the_mean_and_of_whole_sequences(shorter: int, packed: bool) -> None:
    """However skewed the lengths: a mean micro-batch costs more than its work says, and none more than a whole one."""
    documents = Documents(lengths=(shorter, 2048), counts=(1000, 10))
    config = make_config(dp=8, num_layers=32, use_distributed_optimizer=True, zero_stage=3)
    given = make_job(make_cluster(1, 25.0, gpus=8), LLAMA_8B, 64, 2048)
    whole = stage_compute(given, config).forward_s.sum()
    given = replace(given, training=replace(given.training, documents=documents, packed=packed))
    share, waits = share_of_longest(given, config), replica_waits(given, config).mean()
    slowest = stage_compute(given, config).forward_s.sum()
    assert 0 < share < 1 < waits
    assert slowest < whole
    equal = Documents(lengths=(2047, 2048), counts=(1, 1000))
    given = replace(given, training=replace(given.training, documents=equal, packed=packed))
    assert stage_compute(given, config).forward_s.sum() == pytest.approx(whole, rel=1e-2)


def test_packed_documents_take_the_attention_of_their_own_squares() -> None:
    """Two documents of half the length in each sequence: half the attention, all other work."""
    given = make_job(make_cluster(1, 25.0, gpus=2), LLAMA_8B, 8, 8192)
    times = [
        float(
            stage_compute(
                replace(given, training=replace(given.training, documents=found, packed=True)), config
            ).forward_s.sum()
        )
        for found in (None, Documents(lengths=(4096,), counts=(5,)), Documents(lengths=(8192,), counts=(5,)))
        for config in [make_config(num_layers=32)]
    ]
    assert times[2] == pytest.approx(times[0])
    attention = 1 - LLAMA_8B.flops_per_token(4096) / LLAMA_8B.flops_per_token(8192)
    assert 1 - times[1] / times[0] == pytest.approx(attention, rel=0.5)


@pytest.mark.search
@pytest.mark.parametrize("packed", [False, True])
def test_bounds_hold_with_documents(packed: bool) -> None:
    """Bounds by work are at most the simulated time, whatever was asked before."""
    given = make_job(make_random_cluster(np.random.default_rng(3), 4, gpus=4), TINY, 32, 2048)
    given = replace(given, training=replace(given.training, documents=HALVES, packed=packed))
    found = enumerate_candidates(given, SearchSpace(micro_batch_size=(1, 2)))
    chosen = np.random.default_rng(1).choice(len(found), 40, replace=False)
    work, closest = WorkBounds(given), 0.0
    for config in (found[index] for index in chosen):
        for block in host_tiles(config, 4, given.launcher):
            grid = block.node_grid(config)
            nodes = np.random.default_rng(0).permutation(4)[: int(np.prod(grid))].reshape(grid)
            simulated_s = estimate(given, config, tile_placement(config, block, nodes)).iteration_time_s
            assert work(config) <= simulated_s
            assert work(config) == WorkBounds(given)(config)
            closest = max(closest, work(config) / simulated_s)
    assert closest > 0.3
