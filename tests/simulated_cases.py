"""Two configurations on four hosts, small enough to simulate every placement."""

import itertools

import numpy as np
from factories import LLAMA_8B, make_config, make_job, make_random_cluster

from pipette_opt.base.units import GIB
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.specs import Instance


def small(seed: int = 0, num_nodes: int = 4, p2p: str = "blocking") -> tuple[Instance, ProblemData]:
    """Two configurations of a model on four of the hosts, plain and interleaved."""
    rng = np.random.default_rng(seed)
    job = make_job(make_random_cluster(rng, num_nodes, inter_node_latency_s=1e-5), LLAMA_8B, seq_length=4096, p2p=p2p)
    configs = [
        make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True),
        make_config(tp=8, pp=2, dp=2, num_layers=32, sequence_parallel=True, use_distributed_optimizer=True),
        make_config(tp=8, pp=4, num_layers=32, sequence_parallel=True, virtual_pipeline_model_parallel_size=2),
    ]
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB)) for one in configs
    ]
    capacity = np.full(num_nodes, 80 * GIB)
    return job, build_problem_data(job, fitting, capacity)


def placements(data: ProblemData, index: int) -> list[np.ndarray]:
    """Every placement of a candidate."""
    candidate = data.candidates[index]
    return [
        np.array(hosts).reshape(candidate.grid)
        for hosts in itertools.permutations(range(data.num_nodes), candidate.num_cells)
    ]


def least_s(lower: ProblemData) -> float:
    """Lower bound of the relaxations of all candidates over the best hosts and links, seconds."""
    bounds = (optimistic_ticks(lower, candidate) for candidate in lower.candidates)
    return min(ticks for ticks in bounds if ticks < UNUSABLE_TICKS) * lower.tick_s
