"""A search space that a short time limit has time for."""

from dataclasses import replace

import pytest
from specs_for_tests import cluster, instance

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons, left_out, narrowed, space_of
from pipette_opt.candidates.enumeration import has_more_than
from pipette_opt.candidates.narrowing import CONFIGURATIONS_PER_S
from pipette_opt.specs import Instance


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of 8."""
    return instance(cluster(2))


def test_counting_stops_at_the_limit(job: Instance) -> None:
    """Exactly as many as there are is not more."""
    count = len(enumerate_with_reasons(job, SearchSpace()).candidates)
    assert not has_more_than(job, SearchSpace(), count)
    assert has_more_than(job, SearchSpace(), count - 1)


def test_a_space_is_narrowed_only_for_time(job: Instance) -> None:
    """What fits the limit stays; a little less narrows one field, no time narrows all that may be."""
    space, count = SearchSpace(), len(enumerate_with_reasons(job, SearchSpace()).candidates)
    assert narrowed(job, space, float("inf")) is space
    assert narrowed(job, space, 1e308) is space
    assert narrowed(job, space, (count + 0.5) / CONFIGURATIONS_PER_S) is space
    assert narrowed(job, space, (count - 0.5) / CONFIGURATIONS_PER_S).narrowed[:1] == ("context_parallel",)
    least = narrowed(job, space, 0.0)
    assert least.narrowed == ("context_parallel", "virtual_pipeline", "micro_batch_size")
    assert 0 < len(enumerate_with_reasons(job, least).candidates) < count


def test_numbers_of_gpus_are_narrowed_to_the_most_promising() -> None:
    """Three stay at first, the first alone at last; their order is kept."""
    job = instance(cluster(4))
    space = SearchSpace(world_sizes=(16, 32, 24, 8))
    assert narrowed(job, space, 0.0).world_sizes == (16,)
    count = len(enumerate_with_reasons(job, space).candidates)
    assert narrowed(job, space, (count - 0.5) / CONFIGURATIONS_PER_S).world_sizes == (16, 32, 24)
    assert enumerate_with_reasons(job, space).world_sizes == (32, 24, 16, 8)


def test_pins_stay(job: Instance) -> None:
    """A pinned field is not narrowed, and is called pinned; a narrowed one is not."""
    least = narrowed(job, SearchSpace(micro_batch_size=(8,)), 0.0)
    assert least.micro_batch_size == (8,)
    assert "micro_batch_size" not in least.narrowed
    said = left_out(job, least, enumerate_with_reasons(job, least))
    assert "micro batch size other than 8 (pinned)" in said
    assert "context parallel other than 1 (left out for the time limit)" in said


def test_a_recorded_space_says_what_was_narrowed(job: Instance) -> None:
    """It comes back as it was; a field that was not narrowed is refused."""
    least = narrowed(job, SearchSpace(world_sizes=(16, 8)), 0.0)
    recorded = {"narrowed": list(least.narrowed)} | {name: list(getattr(least, name)) for name in least.narrowed}
    assert space_of(recorded) == least
    with pytest.raises(InputError, match="narrowed"):
        replace(SearchSpace(), narrowed=("tensor_parallel",))
    with pytest.raises(InputError, match="narrowed"):
        replace(SearchSpace(), narrowed=("colour",))
