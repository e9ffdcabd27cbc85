"""What jobs take wherever they are placed, simulated many at once: ``simulate/test_many.py`` has it as one by one."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import numpy as np
from factories import A100_40, LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.parallel import ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance


def all_placements(job: Instance, chosen: ParallelConfig) -> list[Placement]:
    """Every way to put a configuration on hosts."""
    return [
        tile_placement(chosen, block, np.array(hosts).reshape(block.node_grid(chosen)))
        for block in host_tiles(chosen, job.cluster.gpus_per_node, job.launcher)
        for hosts in permutations(range(job.cluster.num_nodes), math.prod(block.node_grid(chosen)))
    ]


def least_s(job: Instance, configs: Iterable[ParallelConfig]) -> dict[ParallelConfig, float]:
    """The simulator's least time of each configuration over all its placements; none that has no placement."""
    placed = [(one, placement) for one in configs for placement in all_placements(job, one)]
    found: dict[ParallelConfig, float] = {}
    for (one, _), seconds in zip(placed, estimate_many(job, placed).tolist(), strict=True):
        found[one] = min(seconds, found.get(one, math.inf))
    return found


def tight_job(memory_gib: float, num_layers: int, batch: int = 24, seq_length: int = 4096) -> Instance:
    """Layers of Llama 3 8B on two hosts of two GPUs with so much memory."""
    small = replace(A100_40, name="a100-small", memory_bytes=int(memory_gib * GIB))
    values = np.random.default_rng(0).uniform(6.0, 25.0, (2, 2))
    hosts = make_cluster(2, gpus=2, kinds=(small,), link_matrices=(make_links(values, 2),))
    return make_job(hosts, replace(LLAMA_8B, num_layers=num_layers), batch, seq_length)


def every_fitting_s(job: Instance, space: SearchSpace) -> dict[ParallelConfig, float]:
    """Least times of every split in two stages, number of recomputed layers and choice that fits."""
    layers = job.model.num_layers
    splits = tuple((units, layers - units) for units in range(1, layers))
    listed = enumerate_candidates(job, replace(space, layers_per_stage=splits))
    numbers = [
        replace(one, recompute_num_layers=number)
        for one in listed
        for number in (range(1, max(one.layers_per_stage) + 1) if one.recomputation == "block" else (1,))
    ]
    fitting = keep_fitting(job, numbers, load_predictor(0.01, job), 0.01).fitting
    return least_s(job, [one.config for one in fitting])
