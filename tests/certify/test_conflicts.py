"""The fewest requirements that cannot be met together."""

from itertools import combinations

import pytest
from specs_for_tests import LLAMA_8B, TINY, cluster, instance

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.conflicts import Question, _possible, conflicts, in_words, requirements

MEMORY = "GiB of memory a GPU at a risk of 1%"


def test_nothing_conflicts_where_there_is_a_plan() -> None:
    """No set."""
    assert conflicts(instance(cluster(2)), SearchSpace(), 0.01) == []
    assert in_words([]) == ""


def test_a_pin_against_memory() -> None:
    """No recomputation and no splitting of an 8B model on one GPU: each set is irreducible, and named in words."""
    job = instance(cluster(1, gpus=1), LLAMA_8B, 8, 4096)
    found = conflicts(job, SearchSpace(), 0.01)
    assert len(found) == 1
    assert found[0][0] == "1 host of 1 GPUs"
    assert found[0][1].endswith(MEMORY)
    assert in_words(found).startswith("These cannot go together: 1 host of 1 GPUs, ")


def test_pins_and_batch() -> None:
    """Four replicas cannot share ten sequences; the memory has no part in it."""
    job = instance(cluster(2, gpus=2), TINY, 10, 1024)
    found = conflicts(job, SearchSpace(num_gpus=4, data_parallel=(4,)), 0.01, float("inf"))
    assert found
    for names in found:
        assert "--data-parallel 4" in names
        assert not any(name.endswith(MEMORY) for name in names)
    assert any("a batch of 10" in names for names in found)


@pytest.mark.parametrize(
    ("job", "space"),
    [
        (instance(cluster(1, gpus=1), LLAMA_8B, 8, 16384), SearchSpace(recompute=(None,), tensor_parallel=(1,))),
        (instance(cluster(1, gpus=4), TINY, 10, 1024), SearchSpace(data_parallel=(4,), tensor_parallel=(1,))),
        (instance(cluster(1, gpus=2), TINY, 8, 1024), SearchSpace(tensor_parallel=(3,), micro_batch_size=(2,))),
    ],
)
def test_each_set_is_irreducible_and_brute_force_has_none_smaller(job: object, space: SearchSpace) -> None:
    """Of all sets of requirements, those that cannot be met and of which every part can."""
    asked = Question(instance=job, space=space, risk=0.01)  # type: ignore[arg-type]
    required = requirements(asked)
    minimal: list[frozenset[str]] = []
    for size in range(len(required) + 1):
        for kept in combinations(required, size):
            names = frozenset(one.name for one in kept)
            if any(other <= names for other in minimal):
                continue
            if not _possible(asked, [one for one in required if one not in kept]):
                minimal.append(names)
    found = [frozenset(names) for names in conflicts(job, space, 0.01, float("inf"))]  # type: ignore[arg-type]
    assert found
    assert set(found) <= set(minimal)
    assert len(found[0]) == min(map(len, minimal))
