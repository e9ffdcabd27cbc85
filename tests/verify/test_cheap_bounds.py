"""Bounds that need no search, against every placement simulated one by one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import A100_40, A100_80, TINY, make_cluster, make_config, make_job, make_random_cluster

from pipette_opt.base.units import GB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import MemoryCheck, keep_fitting
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.parallel import without_overlap
from pipette_opt.problem.build import FittingCandidate
from pipette_opt.solver.pruning import BoundedCandidates
from pipette_opt.specs import Instance
from pipette_opt.verify.bounds import (
    busiest_host_s_per_byte,
    cheap_bounds_s,
    connecting_bytes_per_s,
    fastest_placement_s,
)
from pipette_opt.verify.common import REPRODUCED

SPACE = SearchSpace(micro_batch_size=(1,), recompute=(None,), context_parallel=(1,))


def checked(job: Instance) -> MemoryCheck:
    """Every legal configuration of a few that fits."""
    return keep_fitting(job, enumerate_candidates(job, SPACE)[::7], stack_predictor(job.stack))


def made_job(seed: int, experts: bool) -> Instance:
    """A job of four hosts with one or two GPUs; odd seeds have a slow link to each second host."""
    rng, num, gpus = np.random.default_rng(seed), 4, 1 + seed // 2 % 2
    rates = rng.uniform(2.0, 40.0, (num, num))
    if seed % 2:
        far = np.arange(num) % 2 == 0
        rates[far[:, None] != far] /= rng.uniform(3.0, 50.0)
    sizes = {"num_layers": 4, "hidden_size": 768, "num_attention_heads": 12, "num_query_groups": 12}
    sizes |= {"num_experts": 8, "moe_router_topk": 2} if experts else {}
    model = replace(TINY, ffn_hidden_size=3072, **sizes)
    return make_job(make_cluster(num, rates, gpus=gpus, nics_per_node=1), model, 12, 1024)


@pytest.mark.search
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_claims_no_stronger_cheap_bound(seed: int, experts: bool) -> None:
    """
    Tensor groups, context groups and all-to-alls over hosts are bounded at least as well as by the search, so it never
    counts more configurations as ruled out; and no placement is below.
    """
    job = made_job(seed, experts)
    found = enumerate_candidates(job, replace(SPACE, context_parallel=(1, 2)))
    over_hosts = [c for c in found if max(c.tensor_model_parallel_size, c.expert_model_parallel_size) > 2]
    assert over_hosts
    memory = keep_fitting(job, [*over_hosts[::7], *found[::23]], stack_predictor(job.stack))
    configs = [fits.config for fits in memory.fitting]
    bounds = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes)
    least = least_s(job, configs)
    assert (bounds <= [least[config] * (1 + 1e-9) for config in configs]).all()
    bounds = np.maximum(bounds, cheap_bounds_s(job, memory.fitting, memory.capacity_bytes, both_ways=True))
    bases = {
        base: FittingCandidate(config=base, need_bytes=fits.need_bytes)
        for fits in memory.fitting
        for base in [without_overlap(fits.config)]
    }
    searched = BoundedCandidates(WorkBounds(job), list(bases.values()), memory.capacity_bytes)
    assert list(searched)
    assert (bounds >= [searched.bounds_s[without_overlap(config)] * (1 - REPRODUCED) for config in configs]).all()


def test_connected_hosts_bound_rings() -> None:
    """Fast links join hosts 0 and 1, and 2 and 3; a ring of three hosts crosses a slow link between the pairs."""
    links = np.full((4, 4), 2.0)
    links[0, 1], links[3, 2], links[1, 2] = 40.0, 30.0, 5.0
    cluster = make_cluster(4, links, gpus=1, nics_per_node=1)
    assert connecting_bytes_per_s(cluster, 1) == pytest.approx([0.0, 0.0, 40.0 * GB, 5.0 * GB, 5.0 * GB])


def test_the_busiest_host_bounds_exchanges() -> None:
    """Host 3 has only slow links, so three hosts do without it: host 1 is the busiest of the others."""
    links = np.array([[0, 10, 5, 1], [10, 0, 4, 1], [5, 4, 0, 1], [1, 1, 1, 0]], dtype=float)
    found = busiest_host_s_per_byte(make_cluster(4, links, gpus=1, nics_per_node=1), 1) * GB
    assert found == pytest.approx([0, 0, 0.1, 0.2 + 0.25, 3.0])


@pytest.mark.parametrize("seed", range(3))
def test_no_placement_is_below_the_cheap_bound(seed: int) -> None:
    """Links differ by direction; all placements of few hosts give the bound that the simulator would find."""
    job = make_job(make_random_cluster(np.random.default_rng(seed), 3, gpus=4), TINY, 24, 2048)
    memory = checked(job)
    assert len(memory.fitting) > 10
    bounds = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes)
    fastest = least_s(job, [one.config for one in memory.fitting])
    for one, bound in zip(memory.fitting, bounds.tolist(), strict=True):
        least = fastest[one.config]
        assert 0 < bound <= least * (1 + 1e-12)
        simulated = fastest_placement_s(job, one, memory.capacity_bytes, most=10_000)
        assert simulated is not None
        assert simulated[0] == pytest.approx(least, rel=1e-12)


def test_a_uniform_fabric_needs_no_search() -> None:
    """Where all links are alike the bound is the time of any placement."""
    job = make_job(make_cluster(3, 20.0, gpus=4), TINY, 24, 2048)
    memory = checked(job)
    bounds = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes)
    assert bounds == pytest.approx(list(least_s(job, [one.config for one in memory.fitting]).values()), rel=1e-12)


def test_the_fastest_kind_bounds_a_mixed_cluster() -> None:
    """A slower memory makes the 40 GiB card slower in everything: the other one bounds."""
    job = make_job(make_cluster(3, 20.0, gpus=4, kinds=(A100_80, A100_40)), TINY, 24, 2048)
    memory = checked(job)
    bounds = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes)
    least = np.array(list(least_s(job, [one.config for one in memory.fitting]).values()))
    assert (bounds > 0).all()
    assert (bounds <= least * (1 + 1e-12)).all()
    assert (bounds < least).any()


def test_without_room_there_is_no_placement() -> None:
    """No host has the memory: nothing is below infinity, and all of no placements are known."""
    job = make_job(make_cluster(3, 20.0, gpus=4), TINY, 24, 2048)
    memory = checked(job)
    nothing = np.zeros(3, dtype=np.int64)
    assert np.isinf(cheap_bounds_s(job, memory.fitting, nothing)).all()
    assert fastest_placement_s(job, memory.fitting[0], nothing, most=10) == (math.inf, 0)


def test_too_many_placements_are_not_tried() -> None:
    """Six orders of three hosts."""
    job = make_job(make_cluster(3, 20.0, gpus=4), TINY, 24, 2048)
    memory = keep_fitting(job, [make_config(dp=12, mbs=1)], stack_predictor(job.stack))
    assert fastest_placement_s(job, memory.fitting[0], memory.capacity_bytes, most=5) is None
    assert fastest_placement_s(job, memory.fitting[0], memory.capacity_bytes, most=6) is not None


def test_stages_wait_for_the_slower_direction() -> None:
    """Two hosts, one direction four times as fast: the fastest link is below what pipelines over both take."""
    job = make_job(make_cluster(2, np.array([[0.0, 20.0], [5.0, 0.0]]), gpus=4), TINY, 24, 2048)
    memory = checked(job)
    bounds = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes)
    both = cheap_bounds_s(job, memory.fitting, memory.capacity_bytes, both_ways=True)
    assert (both >= bounds * (1 - 1e-12)).all()
    pipelines = [number for number, one in enumerate(memory.fitting) if one.config.data_parallel_size == 1]
    assert pipelines
    fastest = least_s(job, [one.config for one in memory.fitting])
    for number in pipelines:
        least = fastest[memory.fitting[number].config]
        assert bounds[number] < least <= both[number] * (1 + 1e-9)
        assert both[number] == pytest.approx(least, rel=0.01)  # tied embeddings are reduced over a ring


def test_a_pair_with_one_direction_is_no_way_for_stages() -> None:
    """The same with a third host, to which a fast link leads and from which none comes back."""
    nan = np.nan
    links = np.array([[nan, 5.0, 40.0], [5.0, nan, nan], [nan, nan, nan]])
    slow, all_of_it = (make_job(make_cluster(num, links[:num, :num], gpus=4), TINY, 24, 2048) for num in (2, 3))
    memory = keep_fitting(slow, [make_config(tp=4, pp=2)], stack_predictor(slow.stack))
    times = [
        cheap_bounds_s(job, memory.fitting, memory.capacity_bytes[:1].repeat(job.cluster.num_nodes), both_ways=True)
        for job in (slow, all_of_it)
    ]
    assert times[1] == pytest.approx(times[0], rel=1e-12)
