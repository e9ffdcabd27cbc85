"""The integer problem says the same as the costs in seconds."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job, make_random_cluster
from learned import TICKS, learned

from pipette_opt.base.units import GIB
from pipette_opt.costs.collectives import end_traffic
from pipette_opt.costs.links import EachLink, RingShape
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data, links_decide
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks, place
from pipette_opt.problem.path_counts import plain_counts
from pipette_opt.specs import Instance

CONFIGS = [
    make_config(tp=8, pp=4, dp=2, num_layers=32, sequence_parallel=True, use_distributed_optimizer=True),
    make_config(tp=2, pp=4, dp=8, num_layers=32),
    make_config(tp=1, pp=8, dp=8, mbs=2, num_layers=32, recompute_granularity="full"),
    make_config(tp=16, pp=2, dp=2, num_layers=32, sequence_parallel=True),
    make_config(tp=4, pp=4, dp=4, num_layers=32, virtual_pipeline_model_parallel_size=2),
    make_config(tp=16, pp=2, dp=2, layers_per_stage=(16, 16), virtual_pipeline_model_parallel_size=17),
    make_config(tp=8, pp=1, dp=8, num_layers=32),
    make_config(tp=8, pp=8, dp=1, num_layers=32),
]


def problem_of(job: Instance, configs: list) -> ProblemData:
    """Every configuration, with memory that fits everywhere."""
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, 10 * GIB)) for one in configs
    ]
    capacity = np.array([node.gpu.memory_bytes for node in job.cluster.nodes])
    return build_problem_data(job, fitting, capacity)


def ends_on_slowest_links_s(job: Instance, candidate: CandidateData) -> float:
    """The most that embeddings or head of groups over hosts take for a micro-batch, over the slowest pair of hosts."""
    traffic = end_traffic(job.model, job.training, candidate.config)
    members, hosts = (
        candidate.config.tensor_model_parallel_size // candidate.tile.tensor_nodes,
        candidate.tile.tensor_nodes,
    )
    links, shape = EachLink(job.cluster, job.stack), RingShape(members, hosts, members)
    return max(sum(np.nanmax(links.ring_s(shape, both[way])) for both in end) for end in traffic for way in (0, 1))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("chosen", CONFIGS, ids=lambda one: one.label())
def test_ticks_agree_with_seconds(chosen: object, p2p: str) -> None:
    """
    Every time of every packing on random hosts: ticks are the seconds, rounded down.

    Embeddings and head of tensor groups over hosts have the best links, the optimizer step the fastest GPU type.
    """
    rng = np.random.default_rng(1)
    job = make_job(
        make_random_cluster(rng, 9, kinds=(A100_80, A100_40), inter_node_latency_s=1e-5, intra_node_latency_s=5e-6),
        LLAMA_8B,
        seq_length=4096,
        p2p=p2p,
    )
    data = problem_of(job, [chosen])
    assert data.candidates
    for candidate in data.candidates:
        nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
        ticks = place(data, candidate, nodes)
        times = placed_times(job, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
        columns = slice(0, None, candidate.tile.replicas)
        links = slice(candidate.num_links)
        counts = plain_counts(candidate.num_stages, candidate.num_microbatches, candidate.config.num_chunks)
        on_paths = np.einsum("kcs,csd->kd", counts.forward, times.forward_s[:, :, columns])
        on_paths += np.einsum("kcs,csd->kd", counts.backward, times.backward_s[:, :, columns])
        layers = int((candidate.paths.forward_layers + candidate.paths.backward_layers).sum(axis=1).max())
        tolerance = 3 + candidate.num_stages + layers
        if candidate.tile.tensor_nodes > 1:
            passes = int((counts.forward + counts.backward).sum(axis=(1, 2)).max())
            tolerance += passes * ends_on_slowest_links_s(job, candidate) / data.tick_s
        for exact, rounded, most in [
            (on_paths, ticks.path_work, tolerance),
            (times.send_forward_s[links, columns], ticks.send_forward, 1),
            (times.send_backward_s[links, columns], ticks.send_backward, 1),
            (times.reduction_s, ticks.ring, 3),
        ]:
            lacking = exact / data.tick_s - rounded
            assert (lacking > -1e-3).all()
            assert (lacking < most + 1e-3).all()
        assert candidate.optimizer_ticks <= times.optimizer_s / data.tick_s


def test_ticks_are_fine() -> None:
    """A tick is at most a millionth of any round trip."""
    job = make_job(make_cluster(8), LLAMA_8B, seq_length=4096)
    data = problem_of(job, CONFIGS[:3])
    for candidate in data.candidates:
        assert (candidate.forward_ticks + candidate.backward_ticks).sum(axis=1).min() >= 1_000_000


def test_unmeasured_links_are_unusable() -> None:
    """A placement over a missing link costs more than any real one; reversed it is fine."""
    values = np.full((2, 2), 10.0)
    values[0, 1] = np.nan
    job = make_job(make_cluster(2, values), LLAMA_8B)
    data = problem_of(job, [make_config(tp=8, pp=2, num_layers=32)])
    (candidate,) = data.candidates
    assert objective_ticks(data, candidate, np.array([0, 1]).reshape(candidate.grid)) >= UNUSABLE_TICKS


def test_identity_of_whole_hosts_is_a_block_placement() -> None:
    """Megatron's order on hosts in order is the packing with one stage per host."""
    one = make_config(tp=2, pp=4, dp=8, num_layers=32)
    job = make_job(make_random_cluster(np.random.default_rng(3), 8), LLAMA_8B)
    data = problem_of(job, [one])
    candidate = next(candidate for candidate in data.candidates if candidate.tile.stages == 1)
    blocks = tile_placement(one, candidate.tile, np.arange(8).reshape(candidate.grid))
    identity = identity_placement(one, 8, np.arange(8), "tp-cp-ep-dp-pp")
    np.testing.assert_array_equal(blocks.node, identity.node)
    np.testing.assert_array_equal(blocks.local_rank, identity.local_rank)


@pytest.mark.search
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_critical_paths_in_ticks_are_the_simulated_time(p2p: str, tied: bool) -> None:
    """Directed links, slow and fast: with a placement's critical paths, where hops decide; elsewhere it is not more."""
    model = replace(LLAMA_8B, untie_embeddings_and_output_weights=not tied)
    rng = np.random.default_rng(7)
    exact = 0
    for _ in range(10):
        values = rng.uniform(1.0, 25.0, (9, 9)) ** rng.uniform(0.2, 1.5)
        job = make_job(make_cluster(9, values), model, seq_length=4096, p2p=p2p)
        data = problem_of(job, CONFIGS)
        for candidate in data.candidates:
            nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
            decided = links_decide(job, candidate.config, candidate.tile)
            assert (1 - TICKS if decided else 0.0) < learned(job, data, candidate, nodes) <= 1 + 1e-9
            exact += decided
    assert exact > 50
