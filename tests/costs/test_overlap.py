"""What runs beside compute: hand counts, and the forms that the solver sees against the simulator."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, TINY, make_cluster, make_config, make_job

from pipette_opt.base.units import GIB
from pipette_opt.costs.overlap import num_buckets, shown_gather_s, shown_reduction_s
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.parallel import ParallelConfig, identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance


def overlapped(one: ParallelConfig, *, gather: bool) -> ParallelConfig:
    """The same with gradients, and perhaps parameters, sent beside compute."""
    return replace(one, overlap_grad_reduce=True, overlap_param_gather=gather, use_distributed_optimizer=gather)


CONFIGS = [
    overlapped(make_config(tp=4, pp=4, dp=4, num_layers=32), gather=False),
    overlapped(make_config(tp=4, pp=4, dp=4, num_layers=32), gather=True),
    overlapped(make_config(tp=8, pp=1, dp=8, num_layers=32), gather=True),
    overlapped(make_config(tp=2, pp=2, dp=16, num_layers=32), gather=True),
    overlapped(make_config(tp=16, pp=2, dp=2, num_layers=32), gather=True),
    overlapped(make_config(tp=4, pp=4, dp=4, num_layers=32, virtual_pipeline_model_parallel_size=2), gather=True),
    overlapped(make_config(tp=4, pp=4, dp=4, num_layers=32, virtual_pipeline_model_parallel_size=4), gather=False),
]


def problem_of(job: Instance) -> ProblemData:
    """All packings of all configurations, with room for everything."""
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB)) for one in CONFIGS
    ]
    capacity = np.array([node.gpu.memory_bytes for node in job.cluster.nodes])
    return build_problem_data(job, fitting, capacity)


def test_buckets_are_megatrons() -> None:
    """
    Buckets of 40 million parameters, a million for each rank if that is more, on the first stage only.

    The first of two stages of the small model has 104 million: three buckets, or two of 60 million.
    """
    one = overlapped(make_config(pp=2, dp=8), gather=False)
    first = stage_parameters(TINY, one).own[0]
    assert num_buckets(TINY, one).tolist() == [3, 1]
    assert num_buckets(TINY, replace(one, data_parallel_size=60)).tolist() == [2, 1]
    assert num_buckets(TINY, replace(one, ddp_bucket_size=1_000_000)).tolist() == [int(np.ceil(first / 1e6)), 1]


def test_what_a_reduction_leaves() -> None:
    """
    Four buckets of 4 s, backward 2 s: three quarters of the backward hide, 2.5 are left.

    A gather in four buckets delays the forward by its first bucket and what the forward does not hide.
    """
    assert shown_reduction_s(np.array(4.0), 4, 2.0) == pytest.approx(2.5)
    assert shown_reduction_s(np.array(1.0), 4, 2.0) == pytest.approx(0.25)
    assert shown_gather_s(np.array(4.0), 4, 2.0, 0.0) == pytest.approx(1.0 + 0.75 * 2.0)
    assert shown_gather_s(np.array(1.0), 4, 2.0, 0.1) == pytest.approx(0.25 + 0.1 * 0.75)


@pytest.mark.parametrize("slowdown", [0.0, 0.125, 0.5])
def test_what_the_forms_rely_on(slowdown: float) -> None:
    """What is shown grows with the collective, falls with the work beside, and is never less with a slowdown."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        whole, work = np.sort(rng.uniform(0, 5, 2)), np.sort(rng.uniform(0, 5, 2))
        buckets = int(rng.integers(1, 9))
        left, less = (shown_reduction_s(whole, buckets, float(one)) for one in work)
        fast, slow = (shown_gather_s(whole, buckets, float(one), 0.0) for one in work)
        assert (less <= left + 1e-12).all()
        assert (slow <= fast + 1e-12).all()
        found = shown_gather_s(whole, buckets, float(work[0]), slowdown)
        assert (found >= fast - 1e-12).all()
        assert found[0] <= found[1] + 1e-12
        assert left[0] <= left[1] + 1e-12


def test_nothing_changes_without_the_flags() -> None:
    """Flags that are off, and Megatron's default for interleaved sends, give the numbers of before."""
    job = make_job(make_cluster(8), LLAMA_8B, seq_length=4096)
    one = make_config(tp=4, pp=4, dp=4, num_layers=32)
    times = placed_times(job, one, identity_placement(one, 8, np.arange(8), "tp-cp-ep-dp-pp"))
    assert times.reduction_buckets is None
    assert times.first_extra_s is times.last_extra_s is times.ready_s is times.gather_s is None


def test_a_single_stage_hides_most_of_its_collectives() -> None:
    """Without a pipeline overlap makes the iteration shorter, and smaller buckets leave less, the slowdown included."""
    job = make_job(make_cluster(8, 5.0), LLAMA_8B, seq_length=4096)
    plain = make_config(tp=8, pp=1, dp=8, num_layers=32, use_distributed_optimizer=True)
    placement = identity_placement(plain, 8, np.arange(8), "tp-cp-ep-dp-pp")
    beside = overlapped(plain, gather=True)
    small = replace(beside, ddp_bucket_size=10_000_000)
    found = [estimate(job, one, placement).iteration_time_s for one in (plain, beside, small)]
    assert found[0] > found[1] > found[2]


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("bandwidth", [0.5, 25.0])
def test_relaxations_are_below_the_simulator(p2p: str, bandwidth: float) -> None:
    """Slow and fast links, equal and unequal GPUs: no relaxation is above the simulated time."""
    rng = np.random.default_rng(3)
    for kinds in ((A100_80,), (A100_80, A100_40)):
        values = bandwidth * rng.uniform(0.5, 1.5, (9, 9))
        job = make_job(make_cluster(9, values, kinds=kinds), LLAMA_8B, seq_length=4096, p2p=p2p)
        data = problem_of(job)
        for candidate in data.candidates:
            nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
            placement = tile_placement(candidate.config, candidate.tile, nodes)
            simulated = estimate(job, candidate.config, placement).iteration_time_s
            assert objective_ticks(data, candidate, nodes) * data.tick_s <= simulated * (1 + 1e-9)
