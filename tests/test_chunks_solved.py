"""Interleaved stages in which embedding and head take the place of layers, from candidates to a verified plan."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import TINY, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.verify import verify

pytestmark = pytest.mark.search


@pytest.mark.parametrize(("num_layers", "chunks", "layers"), [(6, 4, (3, 3)), (7, 2, (4, 3))])
def test_plan_is_the_best_of_all_placements(num_layers: int, chunks: int, layers: tuple[int, ...]) -> None:
    """On four hosts of two GPUs, simulated in every order; four chunks of six layers leave the ends without any."""
    job = make_job(
        make_random_cluster(np.random.default_rng(chunks), 4, gpus=2),
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
    best = min(least_s(job, candidates).values())
    plan = optimize(job, space, OptimizeParams(time_limit_s=5.0, workers=1))
    assert plan.estimate.iteration_time_s == pytest.approx(best, rel=2e-6)
    assert plan.certificate.lower_bound_s <= best * (1 + 1e-9)
    verify(job, plan)
