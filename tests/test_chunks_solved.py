"""Interleaved stages in which embedding and head take the place of layers, from candidates to a verified plan."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from specs_for_tests import TINY, instance, random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.judge.estimate import estimate
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import block_placement, node_blocks
from pipette_opt.verify import verify


@pytest.mark.parametrize(("num_layers", "chunks", "layers"), [(6, 4, (3, 3)), (7, 2, (4, 3))])
def test_plan_is_the_best_of_all_placements(num_layers: int, chunks: int, layers: tuple[int, ...]) -> None:
    """On four hosts of two GPUs, judged in every order; four chunks of six layers leave the ends without any."""
    job = instance(
        random_cluster(np.random.default_rng(chunks), 4, gpus=2),
        replace(TINY, num_layers=num_layers),
        global_batch_size=16,
    )
    space = SearchSpace(
        num_gpus=8,
        tensor_parallel=(2,),
        pipeline_parallel=(2,),
        virtual_pipeline=(chunks,),
        micro_batch_size=(2,),
        recompute=(None,),
    )
    candidates = enumerate_candidates(job, space)
    assert layers in {one.layers_per_stage for one in candidates}
    best = np.inf
    for chosen in candidates:
        for block in node_blocks(chosen, 2, "slurm"):
            grid = block.node_grid(chosen)
            for hosts in permutations(range(4), int(np.prod(grid))):
                placement = block_placement(chosen, block, np.array(hosts).reshape(grid))
                best = min(best, estimate(job, chosen, placement).iteration_time_s)
    plan = optimize(job, space, OptimizeParams(time_limit_s=5.0, workers=1))
    assert plan.estimate.iteration_time_s == pytest.approx(best, rel=2e-6)
    assert plan.certificate.judge_lower_bound_s <= best * (1 + 1e-9)
    verify(job, plan)
