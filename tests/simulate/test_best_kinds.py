"""The simulator over the best links between kinds of GPU, against every placement."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_config, make_job, make_random_cluster
from simulated_cases import least_s, placements

from pipette_opt.base.types import P2PMode
from pipette_opt.base.units import GIB, TFLOP
from pipette_opt.parallel import tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import ProblemData
from pipette_opt.simulate.best_kinds import best_kinds, columns_of_kinds
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.specs import GpuSpec, Instance, NodeSpec

pytestmark = pytest.mark.search

SLOW = GpuSpec(
    name="slow-32gb",
    memory_bytes=32 * GIB,
    peak_flops={"bf16": 125 * TFLOP, "fp16": 125 * TFLOP, "fp32": 15 * TFLOP},
    memory_bytes_per_s=0.9e12,
)
"""A made-up kind of GPU, two and a half times slower than an A100."""


def mixed(seed: int, kinds: tuple[int, ...], p2p: P2PMode, need_gib: int = 1) -> tuple[Instance, ProblemData]:
    """Lower forms of four configurations on hosts of two kinds; the last stage needs so much memory."""
    rng = np.random.default_rng(seed)
    hosts = make_random_cluster(rng, len(kinds), inter_node_latency_s=1e-5)
    nodes = tuple(NodeSpec(host=f"n{i}", gpu=(A100_80, SLOW)[kind], num_gpus=8) for i, kind in enumerate(kinds))
    job = make_job(replace(hosts, nodes=nodes), LLAMA_8B, seq_length=4096, p2p=p2p)
    sharded = {"sequence_parallel": True, "use_distributed_optimizer": True}
    configs = [
        make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True),
        make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True, virtual_pipeline_model_parallel_size=2),
        make_config(tp=8, pp=2, dp=2, num_layers=32, **sharded, layers_per_stage=(20, 12)),
        make_config(tp=8, pp=2, dp=2, num_layers=32, **sharded, virtual_pipeline_model_parallel_size=2)
        if p2p == "blocking"
        else make_config(
            tp=8, pp=2, dp=2, num_layers=32, **sharded, overlap_grad_reduce=True, overlap_param_gather=True
        ),
    ]
    needs = [np.array([1] * (one.pipeline_model_parallel_size - 1) + [need_gib]) * GIB for one in configs]
    fitting = [FittingCandidate(config=one, need_bytes=need) for one, need in zip(configs, needs, strict=True)]
    capacity = np.array([80 * GIB, 30 * GIB])[list(kinds)]
    return job, build_problem_data(job, fitting, capacity)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(
    ("kinds", "need_gib"), [((0, 1, 0, 0), 1), ((1, 0, 1, 0), 40), ((0, 1, 1, 1), 1), ((0, 1, 0, 1, 0), 40)]
)
def test_no_placement_is_simulated_faster(kinds: tuple[int, ...], need_gib: int, p2p: P2PMode) -> None:
    """Of any configuration, with memory that binds and hosts to spare; and it knows that slow hosts are used."""
    job, data = mixed(kinds.count(1), kinds, p2p, need_gib)
    for index, one in enumerate(data.candidates):
        fastest = min(
            (
                estimate(job, one.config, tile_placement(one.config, one.tile, nodes)).iteration_time_s
                for nodes in placements(data, index)
                if all(
                    data.allowed(one)[row, node] for row, hosts in enumerate(nodes) for node in hosts.ravel().tolist()
                )
            ),
            default=float("inf"),
        )
        found = best_kinds(job, data, one)
        assert found is not None
        assert 0.85 * fastest < found.seconds <= fastest * (1 + 1e-9)
        assert found.seconds > least_s(replace(data, candidates=(one,)))
        again = simulate_times(found.times[0], one.num_microbatches, p2p).iteration_time_s
        assert again == pytest.approx(found.seconds, rel=1e-12)


def test_some_column_of_every_placement_is_listed() -> None:
    """In each of the sets, for grids of one column and of two."""
    _, data = mixed(0, (0, 1, 1, 0, 1), "async")
    kind_of_node = data.kind_of_node
    for index, one in enumerate(data.candidates):
        sets = [{tuple(kinds) for kinds in some.tolist()} for some in columns_of_kinds(data, one)]
        assert sets
        for nodes in placements(data, index):
            columns = {tuple(kinds) for kinds in kind_of_node[nodes].reshape(one.grid[0], -1).T.tolist()}
            assert all(columns & some for some in sets)
    every = set(itertools.product((0, 1), repeat=4))
    few = [{tuple(kinds) for kinds in some.tolist()} for some in columns_of_kinds(data, data.candidates[0])]
    assert few[0] == {kinds for kinds in every if 2 <= sum(kinds) <= 3}  # two hosts are fast
