"""The integer problem says the same as the costs in seconds."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job, make_random_cluster

from pipette_opt.base.units import GIB
from pipette_opt.costs.collectives import end_traffic
from pipette_opt.costs.links import EachLink, RingShape
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks, place
from pipette_opt.simulate.analytical import analytical_s
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
    Every time of every packing on random hosts: ticks are the seconds, rounded up for a closed form, else down.

    Blocking transfers of a schedule with a closed form take the slower direction. Embeddings and head of tensor groups
    over hosts have the best links.
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
        forth, back = times.send_forward_s[links, columns], times.send_backward_s[links, columns]
        if p2p == "blocking" and candidate.has_analytical_model:
            forth = back = np.maximum(forth, back)
        tolerance = 3 + 2 * max(candidate.config.layers_per_stage)
        if candidate.tile.tensor_nodes > 1:
            tolerance += ends_on_slowest_links_s(job, candidate) / data.tick_s
        for exact, rounded in [
            (times.forward_s.sum(axis=0)[:, columns], ticks.forward),
            (times.backward_s.sum(axis=0)[:, columns], ticks.backward),
            (forth, ticks.send_forward),
            (back, ticks.send_backward),
            (times.reduction_s, ticks.ring),
        ]:
            excess = (rounded - exact / data.tick_s) * (1 if candidate.has_analytical_model else -1)
            assert (excess > -1e-3).all()
            assert (excess < tolerance).all()
        excess = candidate.optimizer_ticks - times.optimizer_s / data.tick_s
        assert 0 <= (excess if candidate.has_analytical_model else -excess) < 1


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
def test_the_integer_objective_is_the_solvers_form(p2p: str, tied: bool) -> None:
    """Directed links, slow and fast: ticks exceed the closed form by their rounding at most, and never fall short."""
    model = replace(LLAMA_8B, untie_embeddings_and_output_weights=not tied)
    rng = np.random.default_rng(7)
    for _ in range(20):
        values = rng.uniform(1.0, 25.0, (9, 9)) ** rng.uniform(0.2, 1.5)
        job = make_job(make_cluster(9, values, kinds=(A100_80, A100_40)), model, seq_length=4096, p2p=p2p)
        data = problem_of(job, CONFIGS)
        for candidate in data.candidates:
            if not candidate.has_analytical_model:
                continue
            nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
            times = placed_times(job, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
            excess = (
                objective_ticks(data, candidate, nodes)
                - analytical_s(times, candidate.num_microbatches, job.p2p) / data.tick_s
            )
            assert -1e-3 < excess < candidate.rounding_ticks
