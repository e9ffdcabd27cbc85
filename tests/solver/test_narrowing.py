"""A search space that a short time limit has time for."""

from dataclasses import replace

import pytest
from factories import make_cluster, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons, left_out, space_of
from pipette_opt.candidates.enumeration import has_any, num_legal
from pipette_opt.plans import watcher
from pipette_opt.plans.clock import Clock
from pipette_opt.solver.narrowing import LISTED_PER_SECOND, few_values, narrowed
from pipette_opt.specs import Instance


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of 8."""
    return make_job(make_cluster(2))


@pytest.fixture
def stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time does not go on."""
    monkeypatch.setattr(watcher.time, "perf_counter", lambda: 0.0)


def ends_after(seconds: float) -> Clock:
    """A clock that begins now."""
    return Clock(watcher=watcher.Watcher(started=watcher.time.perf_counter()), ends_s=seconds)


def room_for(number: float) -> Clock:
    """A clock with time for this number of configurations."""
    return ends_after(number / LISTED_PER_SECOND)


def test_legal_configurations_are_counted_up_to_a_number(job: Instance) -> None:
    """The number is that of the enumeration; counting ends at the first combination above the most."""
    number = len(enumerate_with_reasons(job, SearchSpace(world_sizes=(16,))).candidates)
    assert num_legal(job, SearchSpace(), [16]) == number
    assert num_legal(job, SearchSpace(), [16], number) == number
    assert number > num_legal(job, SearchSpace(), [16], number // 2) > number // 2
    assert num_legal(job, SearchSpace(), [16, 8]) > number
    assert has_any(job, SearchSpace())
    assert not has_any(job, SearchSpace(tensor_parallel=(3,)))


@pytest.mark.search
@pytest.mark.usefixtures("stands_still")
def test_a_space_is_narrowed_only_for_time(job: Instance) -> None:
    """A space stays if there is time for its configurations; with time for one fewer, one field is narrowed."""
    space, number = SearchSpace(), num_legal(job, SearchSpace(), [16])
    assert narrowed(job, space, ends_after(float("inf"))) is space
    assert narrowed(job, space, ends_after(1e308)) is space
    assert narrowed(job, space, room_for(number + 0.5)) is space
    assert narrowed(job, space, room_for(number - 0.5)).narrowed == ("context_parallel",)
    least = narrowed(job, space, ends_after(0.0))
    assert least.narrowed == ("context_parallel", "micro_batch_size", "virtual_pipeline")
    assert 0 < len(enumerate_with_reasons(job, least).candidates) < number


@pytest.mark.search
@pytest.mark.usefixtures("stands_still")
def test_numbers_of_gpus_are_narrowed_to_the_most_promising() -> None:
    """They are narrowed after all other fields: three stay at first, the first alone at last; their order is kept."""
    job = make_job(make_cluster(4))
    space = SearchSpace(world_sizes=(16, 32, 24, 8))
    assert narrowed(job, space, ends_after(0.0)).world_sizes == (16,)
    number = num_legal(job, few_values(job, space), (16, 32, 24, 8))
    assert narrowed(job, space, room_for(number - 0.5)).world_sizes == (16, 32, 24)
    assert narrowed(job, space, room_for(number + 0.5)).world_sizes == space.world_sizes
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
