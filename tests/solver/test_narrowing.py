"""A search space that a short time limit has time for."""

import itertools
from dataclasses import replace

import pytest
from factories import make_cluster, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons, left_out, space_of
from pipette_opt.candidates.combinations import combinations
from pipette_opt.candidates.enumeration import has_any, is_counted
from pipette_opt.plans import watcher
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import COUNTING
from pipette_opt.solver.narrowing import few_values, narrowed
from pipette_opt.specs import Instance


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of 8."""
    return make_job(make_cluster(2))


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever it is asked."""
    seconds = itertools.count()
    monkeypatch.setattr(watcher.time, "perf_counter", lambda: float(next(seconds)))


def ends_after(seconds: float) -> Clock:
    """A clock that begins now."""
    return Clock(watcher=watcher.Watcher(started=watcher.time.perf_counter()), ends_s=seconds)


def num_combinations(job: Instance, space: SearchSpace, *sizes: int) -> int:
    """Looks that counting takes."""
    return sum(len(list(combinations(job, space, size, only_counted=True))) for size in sizes)


def test_counting_stops_when_time_is_over(job: Instance) -> None:
    """One look for each combination."""
    count = num_combinations(job, SearchSpace(), 16)
    for looks, expected in ((count, True), (count - 1, False)):
        left = iter([False] * looks)
        assert is_counted(job, SearchSpace(), [16], lambda left=left: next(left, True)) == expected
    assert has_any(job, SearchSpace())
    assert not has_any(job, SearchSpace(tensor_parallel=(3,)))


@pytest.mark.search
@pytest.mark.usefixtures("ticks")
def test_a_space_is_narrowed_only_for_time(job: Instance) -> None:
    """A space that can be counted in its share of the time stays; too little time for it narrows one field."""
    space, count = SearchSpace(), len(enumerate_with_reasons(job, SearchSpace()).candidates)
    looks = num_combinations(job, space, 16) + 2
    assert narrowed(job, space, ends_after(float("inf"))) is space
    assert narrowed(job, space, ends_after(1e308)) is space
    before = 3 * looks  # seconds in which the narrower spaces are counted
    assert narrowed(job, space, ends_after(before + looks / COUNTING.share)) is space
    assert narrowed(job, space, ends_after((looks - 5) / COUNTING.share)).narrowed == ("context_parallel",)
    least = narrowed(job, space, ends_after(0.0))
    assert least.narrowed == ("context_parallel", "micro_batch_size", "virtual_pipeline")
    assert 0 < len(enumerate_with_reasons(job, least).candidates) < count


@pytest.mark.search
@pytest.mark.usefixtures("ticks")
def test_numbers_of_gpus_are_narrowed_to_the_most_promising() -> None:
    """They are narrowed after all other fields: three stay at first, the first alone at last; their order is kept."""
    job = make_job(make_cluster(4))
    space = SearchSpace(world_sizes=(16, 32, 24, 8))
    assert narrowed(job, space, ends_after(0.0)).world_sizes == (16,)
    few = few_values(job, space)
    looks = num_combinations(job, few, 16, 32, 24, 8)
    assert narrowed(job, space, ends_after((looks - 5) / COUNTING.share)).world_sizes == (16, 32, 24)
    assert narrowed(job, space, ends_after(3 * looks + looks / COUNTING.share)).world_sizes == space.world_sizes
    assert enumerate_with_reasons(job, space).world_sizes == (32, 24, 16, 8)


def test_pins_stay(job: Instance) -> None:
    """A pinned field is not narrowed, and is called pinned; a narrowed one is not."""
    least = narrowed(job, SearchSpace(micro_batch_size=(8,)), ends_after(0.0))
    assert least.micro_batch_size == (8,)
    assert "micro_batch_size" not in least.narrowed
    said = left_out(job, least, enumerate_with_reasons(job, least))
    assert "micro batch size other than 8 (pinned)" in said
    assert "context parallel other than 1 (left out for the time limit)" in said


def test_a_recorded_space_says_what_was_narrowed(job: Instance) -> None:
    """It comes back as it was; a field that was not narrowed is refused."""
    least = narrowed(job, SearchSpace(world_sizes=(16, 8)), ends_after(0.0))
    recorded = {"narrowed": list(least.narrowed)} | {name: list(getattr(least, name)) for name in least.narrowed}
    assert space_of(recorded) == least
    with pytest.raises(InputError, match="narrowed"):
        replace(SearchSpace(), narrowed=("tensor_parallel",))
    with pytest.raises(InputError, match="narrowed"):
        replace(SearchSpace(), narrowed=("colour",))
