"""Groups of near hosts, and what crosses them: against all choices of hosts, rows and placements."""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from all_placements import least_s
from factories import LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.candidates import SearchSpace
from pipette_opt.costs.best_rings import far_bytes_per_s, near_groups
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.prepare import Question, prepare, prunes
from pipette_opt.problem.family_groups import all_rows_cross
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance
from pipette_opt.specs.levels import Level

REGIONS = ([0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 2, 0])


def job(region: list[int], seed: int = 0) -> Instance:
    """Regions of hosts of two GPUs: 20 GB/s and 12 us inside, about 0.2 GB/s and 30 ms between; batches of 16."""
    values = np.random.default_rng(seed).uniform(0.1, 0.3, (len(region), len(region)))
    of_host = np.array(region)
    spec = replace(
        make_cluster(len(region), 20.0, gpus=2),
        link_matrices=(make_links(np.where(of_host[:, None] == of_host, np.nan, values), len(region)),),
        inter_node_latency_s=30e-3,
        levels=(Level(name="region", group_of_node=of_host, bytes_per_s=20e9, latency_s=12e-6),),
    )
    return make_job(spec, replace(LLAMA_8B, num_layers=4), 16, 512)


@pytest.mark.parametrize("num_hosts", [2, 3, 4, 5])
def test_so_many_hosts_are_in_no_group(num_hosts: int) -> None:
    """Of any so many hosts some link between groups joins them, however they are joined; and it is no faster."""
    rng = np.random.default_rng(num_hosts)
    for _ in range(20):
        values = rng.uniform(1.0, 20.0, (5, 5))
        spec = make_cluster(5, values, gpus=2)
        groups = near_groups(spec, 1, num_hosts)
        most = far_bytes_per_s(spec, groups, 1)
        both = np.maximum(spec.pair_bytes_per_s(1), spec.pair_bytes_per_s(1).T)
        for hosts in combinations(range(5), num_hosts):
            chosen = list(hosts)
            assert len(set(groups[chosen].tolist())) > 1
            far = [both[one, other] for one in hosts for other in hosts if groups[one] != groups[other]]
            assert max(far) <= most
        assert num_hosts == 2 or len(set(groups.tolist())) < 5


@pytest.mark.parametrize("sizes", [(2, 2), (4, 2), (3, 3), (2, 2, 2), (5, 1), (4, 4)])
def test_rows_that_cross(sizes: tuple[int, ...]) -> None:
    """Every way to deal hosts to rows: unless all rows cross or none, some way has both sorts."""
    of_host = [group for group, size in enumerate(sizes) for _ in range(size)]
    for width in (2, 3):
        rows = len(of_host) // width
        if rows < 2 or len(of_host) > 8:
            continue
        found = set()
        for order in set(permutations(of_host, rows * width)):
            grid = np.array(order).reshape(rows, width)
            found.add(int((grid.min(axis=1) < grid.max(axis=1)).sum()))
        crossing = found - {0}
        assert all_rows_cross(sizes, rows, width) == (crossing <= {rows})


@pytest.mark.search
@pytest.mark.parametrize("region", REGIONS)
def test_no_placement_is_below_a_bound(region: list[int]) -> None:
    """Of every configuration; and of some that cross the bound is far above what the best links alone would say."""
    given = job(region)
    space = SearchSpace(micro_batch_size=(1,), virtual_pipeline=(1, 2), recompute=(None,), tensor_parallel=(1, 2))
    given_space = replace(space, num_gpus=8)
    near = replace(given, cluster=replace(given.cluster, levels=(), inter_node_latency_s=12e-6))
    near = replace(near, cluster=replace(near.cluster, link_matrices=(make_links(np.full((4, 4), 20.0), 4),)))
    bounds, before = (
        prepare(Question(one, given_space, 0.01, keep=prunes, joint=JointLimits(time_limit_s=60.0))).pruned
        for one in (given, near)
    )
    assert bounds is not None
    assert before is not None
    by_base: dict[ParallelConfig, float] = {}
    for base in bounds.bounds_s:
        variants = [one.config for one in bounds.kept if without_overlap(one.config) == base]
        for seconds in least_s(given, variants or [base]).values():
            by_base[base] = min(seconds, by_base.get(base, np.inf))
    assert by_base
    assert all(bounds.bounds_s[base] <= seconds * (1 + 1e-9) for base, seconds in by_base.items())
    raised = [bounds.bounds_s[base] / before.bounds_s[base] for base in by_base if base in before.bounds_s]
    assert max(raised) > 2.0
