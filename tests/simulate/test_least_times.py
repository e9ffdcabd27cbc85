"""Lower bounds by the number of GPUs."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search


@pytest.fixture(scope="module")
def job() -> Instance:
    """Three hosts of four GPUs."""
    return make_job(make_cluster(3, 50.0, gpus=4), TINY, 32, 2048)


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace(),
        SearchSpace(recompute=("full",), overlap_grad_reduce=True),
        SearchSpace(tensor_parallel=(2,), data_parallel=(2, 4)),
        SearchSpace(layers_per_stage=((5, 3), (2, 2, 2, 2))),
    ],
    ids=["free", "recomputed", "pinned degrees", "pinned layers"],
)
def test_the_bound_is_the_least_work_of_all_configurations(job: Instance, space: SearchSpace) -> None:
    """
    As if every configuration were looked at, in each choice of recomputation and overlap; infinite without any.

    Where layers are free that of every split, not of the listed ones alone: the joint model's may be faster.
    """
    least, bounds = LeastTimes(job, space), WorkBounds(job)
    work = bounds if space.layers_per_stage else bounds.of_any_split
    assert least.numbers == (12, 8, 4)
    for num_gpus in least.numbers:
        found = enumerate_with_reasons(job, SearchSpace(**(_fields(space) | {"num_gpus": num_gpus}))).candidates
        assert least(num_gpus) == pytest.approx(min(map(work, found), default=float("inf")))
        assert least.at_peak_s(num_gpus) <= least(num_gpus)


def test_whether_a_number_may_beat_a_time(job: Instance) -> None:
    """As the bound says, by fewer configurations; a bound at full rate is no larger than any other."""
    space, bounds = SearchSpace(), WorkBounds(job)
    for num_gpus in (12, 8, 4):
        least = LeastTimes(job, space)
        seconds = least(num_gpus)
        assert least.may_beat(num_gpus, 1.001 * seconds)
        assert not least.not_below_s
        assert not least.may_beat(num_gpus, seconds)
        assert least.not_below_s[num_gpus] == seconds
        assert not least.may_beat(num_gpus, 0.5 * seconds)
        assert 0.5 * seconds <= least.not_below_s[num_gpus] <= seconds
        for config in enumerate_with_reasons(job, replace(space, num_gpus=num_gpus)).candidates:
            assert 0 < bounds.at_full_rate(config) <= min(bounds(config), bounds.of_any_split(config))


def test_as_many_gpus_as_the_space_allows(job: Instance) -> None:
    """Whole hosts only."""
    assert LeastTimes(job, SearchSpace(max_gpus=11)).numbers == (8, 4)
    assert LeastTimes(job, SearchSpace(max_gpus=3)).numbers == ()


@pytest.mark.parametrize(
    ("num_layers", "depths", "chunks"),
    [(10, 0, 3), (3, 1, 4)],
    ids=["embedding and head counted as layers", "chunks without layers"],
)
def test_unequal_chunks_are_bounded_by_their_own_layers(num_layers: int, depths: int, chunks: int) -> None:
    """No bound on equal chunks applies to them: two stages of 3 chunks hold 5 layers each, not 4 and 6."""
    small = replace(LLAMA_8B, num_layers=num_layers, mtp_num_layers=depths, vocab_size=1024)
    job = make_job(make_cluster(2, 50.0, gpus=1), small, 32)
    space = SearchSpace(pipeline_parallel=(2,), virtual_pipeline=(chunks,), micro_batch_size=(1,))
    config = enumerate_with_reasons(job, space).candidates[0]
    (tile,) = host_tiles(config, 1, job.launcher)
    placement = tile_placement(config, tile, np.array([0, 1]).reshape(tile.node_grid(config)))
    assert not config.has_equal_chunks
    assert 0 < LeastTimes(job, space)(2) <= estimate(job, config, placement).iteration_time_s


def _fields(space: SearchSpace) -> dict[str, object]:
    return {name: getattr(space, name) for name in SearchSpace.__dataclass_fields__}
