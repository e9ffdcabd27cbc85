"""Bounds of search and verify on random clusters with NVLink domains, against every placement."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import TINY, make_cluster, make_config, make_job
from levels import domain

from pipette_opt.base.units import GB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import CheckedConfig
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.solutions import best_links_times
from pipette_opt.solver.pruning import FLOAT_MARGIN, BoundedCandidates
from pipette_opt.specs import Instance
from pipette_opt.specs.levels import Level
from pipette_opt.verify.bounds import cheap_bounds_s
from pipette_opt.verify.common import REPRODUCED

pytestmark = pytest.mark.search

MAX_CONFIGS = 16
"""Number of configurations of an instance that are bounded and placed everywhere. Chosen."""


def random_job(rng: np.random.Generator, domain_gb_per_s: float) -> Instance:
    """A job with or without experts on three to five hosts, in domains and perhaps in two leaves."""
    num, gpus = int(rng.integers(3, 6)), int(rng.integers(1, 3))
    of_node = np.sort(rng.integers(0, num - 1, num))
    of_node = np.unique(of_node, return_inverse=True)[1]
    levels = [domain(of_node.tolist(), domain_gb_per_s)]
    if rng.random() < 0.5:
        leaf = np.unique(of_node // 2, return_inverse=True)[1]
        levels.append(
            Level(name="leaf", group_of_node=leaf, bytes_per_s=min(30.0, domain_gb_per_s) * GB, latency_s=5e-6)
        )
    rates = rng.uniform(5.0, 30.0, (num, num))
    measured = bool(rng.random() < 0.5)
    if measured:
        rates[of_node[:, None] == of_node] = np.nan
    cluster = make_cluster(
        num,
        rates,
        gpus=gpus,
        nics_per_node=int(rng.integers(1, gpus + 1)),
        intra_node_latency_s=2e-6,
        inter_node_latency_s=9e-6,
        links_measured=measured,
        levels=tuple(levels),
    )
    sizes = {"num_layers": 4, "untie_embeddings_and_output_weights": bool(rng.random() < 0.5)}
    if rng.random() < 0.7:
        sizes |= {"num_experts": int(rng.choice([4, 6, 8])), "moe_router_topk": int(rng.integers(1, 3))}
    model = replace(TINY, add_bias_linear=False, add_qkv_bias=False, **sizes)
    job = make_job(cluster, model, global_batch_size=60, seq_length=960)
    dispatcher = str(rng.choice(["alltoall", "allgather", "flex"]))
    chosen = {"cp_comm_type": str(rng.choice(["p2p", "all_gather", "a2a"]))}
    chosen |= {"moe_token_dispatcher_type": dispatcher} if model.num_experts else {}
    return replace(job, training=replace(job.training, **chosen))


def some_configs(job: Instance, rng: np.random.Generator) -> list[ParallelConfig]:
    """A few configurations, half of them with groups of experts or of context ranks."""
    sizes = [hosts * job.cluster.gpus_per_node for hosts in (job.cluster.num_nodes, job.cluster.num_nodes - 1)]
    space = SearchSpace(num_gpus=max(int(rng.choice(sizes)), 2), micro_batch_size=(1,), recompute=(None,))
    found = enumerate_candidates(job, space)
    special = [c for c in found if max(c.expert_model_parallel_size, c.context_parallel_size) > 1]
    drawn = [some[index] for some in (special, found) for index in rng.permutation(len(some))[: MAX_CONFIGS // 2]]
    return list(dict.fromkeys(drawn))


def searched_s(job: Instance, configs: list[ParallelConfig]) -> dict[ParallelConfig, float]:
    """The bound of the search without a solver, the highest of those that it computes."""
    anywhere = np.full(job.cluster.num_nodes, 1 << 40)

    def fitting(config: ParallelConfig) -> FittingCandidate:
        need = np.zeros(config.pipeline_model_parallel_size, dtype=np.int64)
        return FittingCandidate(config=config, need_bytes=need)

    bases = list(dict.fromkeys(map(without_overlap, configs)))
    pruned = BoundedCandidates(WorkBounds(job), [fitting(base) for base in bases], anywhere)
    assert list(pruned)
    data = build_problem_data(job, [fitting(config) for config in configs], anywhere)
    of_tiles: dict[ParallelConfig, list[float]] = {}
    for candidate in data.candidates:
        times = best_links_times(job, candidate)
        assert times is not None
        simulated = simulate_times(times, candidate.num_microbatches, job.p2p).iteration_time_s
        ticks_s = optimistic_ticks(data, candidate) * data.tick_s
        of_tiles.setdefault(candidate.config, []).append(max(simulated, ticks_s) * (1 - FLOAT_MARGIN))
    return {config: max(pruned.bounds_s[without_overlap(config)], min(of_tiles[config])) for config in configs}


def verified_s(job: Instance, configs: list[ParallelConfig]) -> np.ndarray:
    """The bounds that verify counts with."""
    anywhere = np.full(job.cluster.num_nodes, 1 << 40)
    checked = [
        CheckedConfig(
            config=config,
            prediction=None,  # type: ignore[arg-type]
            need_bytes=np.zeros(config.pipeline_model_parallel_size, dtype=np.int64),
        )
        for config in configs
    ]
    return cheap_bounds_s(job, checked, anywhere)


@pytest.mark.parametrize("domain_gb_per_s", [20.0, 60.0, 200.0])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_in_domains(seed: int, domain_gb_per_s: float) -> None:
    """
    No bound is above a placement, and verify reproduces all that the search claims.

    The search may claim more where domains are slower than the links between them: it chooses one hop for several rings
    of a stage.
    """
    rng = np.random.default_rng((seed, int(domain_gb_per_s)))
    job = random_job(rng, domain_gb_per_s)
    configs = some_configs(job, rng)
    assert configs
    searched, verified, least = searched_s(job, configs), verified_s(job, configs), least_s(job, configs)
    for config, verified_bound_s in zip(configs, verified.tolist(), strict=True):
        assert max(searched[config], verified_bound_s) <= least[config] * (1 + 1e-9), config.label()
        if domain_gb_per_s > 30.0:
            assert verified_bound_s >= searched[config] * (1 - REPRODUCED), config.label()


@pytest.mark.parametrize("of_node", [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])
def test_a_ring_with_a_host_alone_in_its_domain(of_node: list[int]) -> None:
    """
    Between domains, a ring with several hosts in each is capped at the rate inside hosts, here the slowest; with a host
    alone it is not. So more hosts together are no lower bound.
    """
    options = {"intra_node_bytes_per_s": 5 * GB, "links_measured": False, "levels": (domain(of_node),)}
    job = make_job(make_cluster(6, 40.0, gpus=1, nics_per_node=1, **options), replace(TINY, num_layers=4), 16)
    config = make_config(dp=4, num_layers=4)
    least = least_s(job, [config])[config]
    assert searched_s(job, [config])[config] <= least * (1 + 1e-9)
    assert verified_s(job, [config])[0] <= least * (1 + 1e-9)
