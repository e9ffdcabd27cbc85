"""Named alternatives to NCCL's ring, against hand counts."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_random_cluster
from learned import TICKS, learned

from pipette_opt.base.errors import InputError, MissingLinkError
from pipette_opt.base.types import Collective
from pipette_opt.base.units import GB, GIB
from pipette_opt.costs.collectives import all_reduce_traffic, tree_edges
from pipette_opt.costs.links import EachLink, RingShape
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.specs import Instance


def reduction_s(job: Instance, one: ParallelConfig, algorithm: Collective) -> float:
    """Reduction of the first stage on hosts in order."""
    hosts = np.arange(one.world_size // job.cluster.gpus_per_node)
    placement = identity_placement(one, job.cluster.gpus_per_node, hosts, "tp-cp-ep-dp-pp")
    return float(placed_times(replace(job, allreduce=algorithm), one, placement).reduction_s[0])


@pytest.mark.parametrize("num_hosts", range(2, 34))
def test_trees_span_the_hosts(num_hosts: int) -> None:
    """Both trees reach every host, are at most two levels deeper than need be, and have up to two children a host."""
    edges = tree_edges(num_hosts)
    for tree in (edges[: num_hosts - 1], edges[num_hosts - 1 :]):
        above = dict(tree.tolist())
        (root,) = set(range(num_hosts)) - set(above)
        for place in range(num_hosts):
            depth = 0
            while place != root:
                place, depth = above[place], depth + 1
            assert depth <= np.log2(num_hosts) + 1
        assert np.bincount(tree[:, 1]).max() <= 2


def test_first_tree_of_eight() -> None:
    """Odd places are leaves; 4 is below the root, 2 and 6 are below 4."""
    assert dict(tree_edges(8)[:7].tolist()) == {1: 2, 2: 4, 3: 2, 4: 0, 5: 6, 6: 4, 7: 6}
    assert dict(tree_edges(8)[7:].tolist()) == {6: 5, 5: 3, 4: 5, 3: 7, 2: 1, 1: 3, 0: 1}


def test_tree_of_equal_links() -> None:
    """
    Eight hosts of one GPU at 10 GB/s: the busiest host sends up and to two children in one tree, and up in the other.

    That is twice the message, where the ring sends 14/8 of it.
    """
    job = make_job(make_cluster(8, 10.0, gpus=1, nics_per_node=1), LLAMA_8B, seq_length=2048)
    one = make_config(tp=1, pp=1, dp=8, num_layers=32)
    message = stage_parameters(LLAMA_8B, one).own[0] * 4
    assert reduction_s(job, one, "tree") == pytest.approx(2 * message / (10 * GB))
    assert reduction_s(job, one, "ring") == pytest.approx(14 / 8 * message / (10 * GB))


def test_trees_need_fewer_steps() -> None:
    """With slow starts and 32 hosts, five levels up and down against 62 steps."""
    job = make_job(make_cluster(32, 10.0, gpus=1, nics_per_node=1, inter_node_latency_s=1.0), LLAMA_8B, 64, 2048)
    one = make_config(tp=1, pp=1, dp=32, num_layers=32)
    free = replace(job, cluster=replace(job.cluster, inter_node_latency_s=0.0))
    for algorithm, steps in (("tree", 10), ("ring", 62), ("hierarchical", 62)):
        waited = reduction_s(job, one, algorithm) - reduction_s(free, one, algorithm)  # type: ignore[arg-type]
        assert waited == pytest.approx(steps)


def test_hierarchy_by_hand() -> None:
    """
    Two hosts of four GPUs at 100 GB/s inside, 40 GB/s between them in sum: 3/4 of the message inside, twice.

    Each of the four rings has a quarter of the message and of the pair.
    """
    job = make_job(make_cluster(2, 10.0, gpus=4, intra_node_bytes_per_s=100 * GB), LLAMA_8B, seq_length=2048)
    one = make_config(tp=1, pp=1, dp=8, num_layers=32)
    message = stage_parameters(LLAMA_8B, one).own[0] * 4
    expected = 2 * 3 / 4 * message / (100 * GB) + 2 * 1 / 2 * message / (40 * GB)
    assert reduction_s(job, one, "hierarchical") == pytest.approx(expected)
    assert reduction_s(job, one, "ring") == pytest.approx(2 * 7 / 8 * message / (40 * GB))


@pytest.mark.parametrize("algorithm", ["hierarchical", "tree"])
def test_on_one_host_there_is_only_the_ring(algorithm: Collective) -> None:
    """Without hosts to cross all algorithms are NCCL's ring inside."""
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=2048)
    one = make_config(tp=1, pp=1, dp=8, num_layers=32)
    assert reduction_s(job, one, algorithm) == reduction_s(job, one, "ring")


@pytest.mark.parametrize("missing", [(0, 1), (1, 2), (3, 1), (3, 0), (2, 0)])
def test_missing_links(missing: tuple[int, int]) -> None:
    """A tree of four is refused if one of its edges was not measured, a ring if one of its hops was not."""
    values = np.full((4, 4), 10.0)
    values[missing] = np.nan
    job = make_job(make_cluster(4, values, gpus=1, nics_per_node=1), LLAMA_8B, seq_length=2048)
    one = make_config(tp=1, pp=1, dp=4, num_layers=32)
    edges = {tuple(edge) for edge in tree_edges(4).tolist()}
    assert _refused(job, one, "tree") == (missing in edges or missing[::-1] in edges)
    assert _refused(job, one, "ring") == (missing in {(0, 1), (1, 2), (2, 3), (3, 0)})


def _refused(job: Instance, one: ParallelConfig, algorithm: Collective) -> bool:
    try:
        reduction_s(job, one, algorithm)
    except MissingLinkError:
        return True
    return False


def test_the_distributed_optimizer_has_rings() -> None:
    """NCCL scatters and gathers over rings, whatever its all-reduce does."""
    job = make_job(make_cluster(4, 10.0, gpus=2), LLAMA_8B, seq_length=2048)
    one = make_config(tp=1, pp=1, dp=8, num_layers=32, use_distributed_optimizer=True)
    assert reduction_s(job, one, "tree") == reduction_s(job, one, "ring")


@pytest.mark.parametrize("inside", [200.0, 5.0])
def test_solver_and_simulator_agree_on_hierarchies(inside: float) -> None:
    """
    Critical paths in ticks are the simulated time with hierarchical reductions too; trees are for the simulator.

    With a network faster than the fabric, the phases inside hosts take less than a ring there.
    """
    rng = np.random.default_rng(0)
    spec = make_random_cluster(rng, 9, inter_node_latency_s=1e-5, intra_node_bytes_per_s=inside * GB)
    job = replace(make_job(spec, LLAMA_8B, seq_length=4096), allreduce="hierarchical")
    shapes = [make_config(tp=2, pp=2, dp=16, num_layers=32), make_config(tp=8, pp=1, dp=8, num_layers=32)]
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB)) for one in shapes
    ]
    data = build_problem_data(job, fitting, np.full(9, 80 * GIB))
    for candidate in data.candidates:
        nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
        assert 1 - TICKS < learned(job, data, candidate, nodes) <= 1 + 1e-9
    with pytest.raises(InputError, match="allreduce"):
        build_problem_data(replace(job, allreduce="tree"), fitting, np.full(9, 80 * GIB))


def test_ring_hop_by_algorithm() -> None:
    """The matrices that the solver looks up know the hierarchy, too."""
    spec = make_cluster(2, 10.0, gpus=4)
    ring, phases = (
        EachLink(spec).ring_s(RingShape(4, 2, 4), all_reduce_traffic(1e9, 8), one)[0, 1]
        for one in ("ring", "hierarchical")
    )
    assert ring == pytest.approx(1.75e9 / (40 * GB))
    assert phases == pytest.approx(1.5e9 / (200 * GB) + 1e9 / (40 * GB))
