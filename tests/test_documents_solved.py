"""Jobs with documents and with shards in the hosts' memory: the plan is the optimum of all placements, and verified."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import A100_80, LLAMA_8B, TINY, make_cluster, make_job, make_random_cluster

from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.prepare import load_predictor
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import Instance
from pipette_opt.specs.documents import Documents
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

PARAMS = OptimizeParams(time_limit_s=60, workers=2, max_oom_risk=0.1, gap_limit=1e-6, prefer="fastest")


def check_optimum(job: Instance, space: SearchSpace) -> str:
    """Compare the plan with every placement of every configuration that fits, and return its label."""
    plan = optimize(job, space, PARAMS)
    listed = keep_fitting(job, enumerate_candidates(job, space), load_predictor(0.1, job), 0.1).fitting
    best_s = min(least_s(job, [one.config for one in listed]).values())
    assert plan.estimate.iteration_time_s <= best_s * (1 + 1e-9)
    assert plan.certificate.lower_bound_s <= plan.estimate.iteration_time_s
    assert plan.certificate.status == "OPTIMAL"
    verify(job, plan)
    return plan.config.label()


@pytest.mark.parametrize(("seed", "packed"), [(0, False), (1, True)])
def test_documents_of_random_lengths(seed: int, packed: bool) -> None:
    """On hosts with links of random speed."""
    rng = np.random.default_rng(seed)
    job = make_job(make_random_cluster(rng, 2, gpus=2), replace(TINY, num_layers=2), 8, 1024)
    lengths = np.unique(rng.integers(16, 1024, 6)).tolist()
    documents = Documents(lengths=tuple(lengths), counts=tuple(rng.integers(1, 9, len(lengths)).tolist()))
    job = replace(job, training=replace(job.training, documents=documents, packed=packed))
    check_optimum(job, SearchSpace(micro_batch_size=(1, 2), max_virtual_pipeline=1, num_gpus=4))


@pytest.mark.parametrize(("memory_gib", "is_on_host"), [(20, True), (30, False)])
def test_shards_go_to_the_host_where_nothing_else_fits(memory_gib: int, is_on_host: bool) -> None:
    """A model of two billion parameters on four GPUs: ZeRO 3 with its shards on the host, or a pipeline."""
    gpu = replace(A100_80, memory_bytes=memory_gib * GIB)
    job = make_job(make_cluster(2, 10.0, gpus=2, kinds=(gpu,)), replace(LLAMA_8B, num_layers=8), 8, 1024)
    documents = Documents(lengths=(100, 1000), counts=(3, 1))
    job = replace(job, training=replace(job.training, documents=documents), stack=read_stack("torchtitan"))
    space = SearchSpace(
        **dict.fromkeys(("tensor_parallel", "context_parallel"), (1,)),
        micro_batch_size=(1, 2),
        data_parallel_sharding_strategy=("optim", "optim_grads_params"),
        pipelined_sharding=("optim",),
        offload=(None, "parameters"),
        max_virtual_pipeline=1,
        uneven_layers=False,
        num_gpus=4,
    )
    assert ("offload:parameters" in check_optimum(job, space)) is is_on_host
