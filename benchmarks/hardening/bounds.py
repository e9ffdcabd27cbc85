"""
Bounds of random configurations, each compared with simulated placements.

``python benchmarks/hardening/bounds.py --instances 200`` makes the jobs of ``soak.py``. Half of them get further kinds
of layers (latent attention, windows, Mamba-2, gated delta nets, multi-token prediction) and options (fp8, tensor
overlap, exchanges of context parallelism, unequal micro-batches). Of each job, some legal configurations are placed at
random. No bound that the search uses may be above the fastest placement:

- compute alone, and compute of any layer partition;
- best links without reductions, best links, matched links, and critical paths with each of the two;
- the simulator over the best links, also between kinds of GPU;
- partition families: all partitions, and the configuration's own.

No search runs, so a job takes a second or two. The exit code is 1 if a bound is too high. The seed of a job makes it
again.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from soak import made_instance

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.layers.latent import LatentAttention
from pipette_opt.layers.recurrent import GatedDeltaNet, Mamba
from pipette_opt.parallel import ParallelConfig, tile_placement, without_overlap
from pipette_opt.parallel.config import OVERLAPS, SHARDING_STRATEGIES
from pipette_opt.prepare import load_predictor
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data, build_relaxations, with_paths
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_times import layer_families, with_rings
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.simulate.best_kinds import best_kinds
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.solutions import best_links_times
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.family_bounds import family_bound
from pipette_opt.solver.open_families import MAX_NODES, family_key
from pipette_opt.specs import Instance, ModelSpec

ROUNDING = 2e-6
"""Relative excess of a bound that ticks and doubles may cause. Chosen: twice the rounding of ticks."""

MAX_CONFIGURATIONS = 16
"""Configurations of each job. Chosen."""

MAX_PLACEMENTS = 6
"""Random placements of each configuration and host tile. Chosen."""

NO_MEMORY = 1 << 50
"""Bytes of a GPU, so that memory rules nothing out."""


def varied_instance(seed: int) -> Instance:
    """Return a job of ``soak.py``, half of the time with further kinds of layers and options; equal for equal seeds."""
    rng = np.random.default_rng((seed, 3))
    job = made_instance(seed, small=bool(rng.random() < 0.7), regions=bool(rng.random() < 0.4))
    options: dict[str, Any] = {
        "cp_comm_type": str(rng.choice(["p2p", "a2a", "all_gather"])),
        "tp_comm_overlap": bool(rng.random() < 0.2),
        "unequal_microbatches": bool(rng.random() < 0.2),
        "fp8": bool(rng.random() < 0.2) and all("fp8" in gpu.peak_flops for gpu in job.cluster.gpu_kinds),
        "expert_imbalance": float(rng.choice([1.0, 1.7])),
    }
    stack = replace(
        job.stack,
        host_kernel_s=float(rng.choice([0.0, 8e-6])),
        pipelined_wait_s=float(rng.choice([0.0, 3e-5])),
        micro_batch_s=float(rng.choice([0.0, 1e-3])),
        collective_s=2e-5,
        inter_node=0.7,
    )
    p2p = "async" if rng.random() < 0.5 else "blocking"
    if rng.random() < 0.5:
        return replace(job, p2p=p2p)
    training = replace(job.training, **options)
    return replace(job, model=_varied_model(job.model, rng), training=training, stack=stack, p2p=p2p)


def _varied_model(model: ModelSpec, rng: np.random.Generator) -> ModelSpec:
    """Return the model with another mixer in some or all layers, and perhaps with multi-token prediction."""
    letters = rng.choice(list("M*-E" if model.num_experts else "M*-"), model.num_layers - 1)
    pattern = ("E" if model.num_experts else "M") + "".join(letters)
    mixers: list[dict[str, Any]] = [
        {"multi_latent_attention": LatentAttention(kv_lora_rank=128), "num_query_groups": model.num_attention_heads},
        {"window_size": (256, 0), "window_attn_skip_freq": 2},
        {"linear_attention_freq": 3, "gated_delta_net": GatedDeltaNet()},
        {
            "hybrid_layer_pattern": pattern,
            "num_dense_layers": 0,
            "mamba": Mamba(num_heads=32) if "M" in pattern else None,
        },
        {},
    ]
    fields = mixers[int(rng.integers(len(mixers)))]
    if "hybrid_layer_pattern" not in fields and rng.random() < 0.5:
        fields |= {"mtp_num_layers": int(rng.integers(1, 3))}
    return replace(model, **fields)


def varied_space(rng: np.random.Generator) -> SearchSpace:
    """Return a random search space, often wider than the default one."""
    wider: dict[str, Any] = {"tp_comm_overlap": None}
    if rng.random() < 0.5:
        wider |= {"context_parallel": (1, 2, 4)}
    if rng.random() < 0.4:
        wider |= {"data_parallel_sharding_strategy": SHARDING_STRATEGIES}
    return SearchSpace(**wider)


def too_high(job: Instance, configs: list[ParallelConfig], rng: np.random.Generator) -> Iterator[str]:
    """Yield the bounds above the fastest of some random placements."""
    work, capacity = WorkBounds(job), np.full(job.cluster.num_nodes, NO_MEMORY)
    for config in configs:
        alone = {"compute alone": work(config)}
        if config.has_equal_chunks:
            alone["compute of any partition"] = work.of_any_split(without_overlap(config))
        need_bytes = np.zeros(config.pipeline_model_parallel_size, dtype=np.int64)
        plain = FittingCandidate(config=without_overlap(config), need_bytes=need_bytes)
        pruned = build_problem_data(job, [plain], capacity, reductions=False)
        lower = build_relaxations(job, [FittingCandidate(config=config, need_bytes=need_bytes)], capacity).problem
        families = _families(job, config)
        for candidate, without_reductions in zip(lower.candidates, pruned.candidates, strict=True):
            placed = list(_placed(job, candidate, rng))
            if not placed:
                continue
            fastest_s, paths = min(seconds for seconds, _ in placed), PathCounts.joined([paths for _, paths in placed])
            bounds = alone | {
                "best links without reductions": optimistic_ticks(pruned, without_reductions) * pruned.tick_s,
                **_link_bounds(job, lower, candidate, paths),
                **_simulated_bounds(job, lower, candidate),
                **_family_bounds(job, candidate, families, paths),
            }
            for name, bound_s in bounds.items():
                if bound_s > fastest_s * (1 + ROUNDING):
                    yield f"{name}: {bound_s} s, but {fastest_s} s with {config} and {candidate.tile}"


def _placed(job: Instance, candidate: CandidateData, rng: np.random.Generator) -> Iterator[tuple[float, PathCounts]]:
    """Yield simulated seconds and critical paths of random placements over measured links."""
    if candidate.num_cells > job.cluster.num_nodes:
        return
    for _ in range(MAX_PLACEMENTS):
        nodes = rng.permutation(job.cluster.num_nodes)[: candidate.num_cells].reshape(candidate.grid)
        try:
            times = placed_times(job, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
        except InputError:  # a link that was not measured
            continue
        seconds = simulate_times(times, candidate.num_microbatches, job.p2p).iteration_time_s
        yield seconds, critical_counts(times, candidate.num_microbatches, job.p2p)


def _link_bounds(job: Instance, lower: ProblemData, candidate: CandidateData, paths: PathCounts) -> dict[str, float]:
    """Return the bounds of the relaxation without a search, seconds, before and after it learns critical paths."""
    found = {}
    for when, known in (("", candidate), (" with critical paths", with_paths(job, lower, candidate, [paths]))):
        found[f"best links{when}"] = optimistic_ticks(lower, known) * lower.tick_s
        found[f"matched links{when}"] = candidate_bound(lower, known) * lower.tick_s
    return found


def _simulated_bounds(job: Instance, lower: ProblemData, candidate: CandidateData) -> dict[str, float]:
    """Return the simulated times over ideal links, seconds."""
    if len(job.cluster.gpu_kinds) > 1:
        return {"simulator between kinds": best_kinds(job, lower, candidate).seconds}
    times = best_links_times(job, candidate)
    if times is None:
        return {}
    return {"simulator": simulate_times(times, candidate.num_microbatches, job.p2p).iteration_time_s}


def _families(job: Instance, config: ParallelConfig) -> list[LayerFamily]:
    """Return the partition families that contain the configuration, with its overlap."""
    if (base := family_key(config)) is None:
        return []
    overlap = {name: getattr(config, name) for name in OVERLAPS}
    families = layer_families(job, [base], load_predictor(1.0, job), 1.0)
    with_overlap = (with_rings(job, family, replace(family.config, **overlap)) for family in families)
    return [family for family in with_overlap if family.units_of(config.layers_per_stage) is not None]


def _family_bounds(
    job: Instance, candidate: CandidateData, families: list[LayerFamily], paths: PathCounts
) -> dict[str, float]:
    """Return the bounds of the partition families of the candidate, and of its own partition, seconds."""
    families = [family for family in families if family.tile == candidate.tile]
    if not families:
        return {}
    hosts = np.bincount(job.cluster.kind_of_node, minlength=len(job.cluster.gpu_kinds)).astype(np.int64)
    known = PathCounts.joined([plain_counts(*families[0].schedule), paths])
    units = [family.units_of(candidate.config.layers_per_stage) for family in families]
    own = [
        replace(family, most_units=np.minimum(family.most_units, held))
        for family, held in zip(families, units, strict=True)
        if held is not None
    ]
    return {
        "any partition": min(family_bound(family, hosts).seconds for family in families),
        "any partition with critical paths": min(family_bound(each, hosts, counts=known).seconds for each in families),
        "own partition": min(family_bound(each, hosts, counts=known, nodes=MAX_NODES).seconds for each in own),
    }


def main() -> None:
    """Parse the arguments, test the jobs, and print the bounds that are too high."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first instance")
    given = parser.parse_args()
    compared, wrong = 0, 0
    for seed in range(given.seed, given.seed + given.instances):
        job, rng = varied_instance(seed), np.random.default_rng((seed, 4))
        try:
            listed = enumerate_candidates(job, varied_space(rng))
        except InfeasibleError:
            continue
        chosen = [listed[index] for index in rng.permutation(len(listed))[:MAX_CONFIGURATIONS]]
        compared += len(chosen)
        problems = list(too_high(job, chosen, rng))
        wrong += bool(problems)
        for problem in problems:
            print(f"seed {seed}: {problem}", flush=True)
    print(f"\n{compared:,} configurations of {given.instances:,} jobs; bounds too high in {wrong:,} jobs.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
