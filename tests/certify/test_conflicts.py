"""The fewest requirements that cannot be met together."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, TINY, make_cluster, make_job, make_random_cluster

from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_candidates, legal_candidates
from pipette_opt.certify.conflicts import (
    NARROW_STATES,
    Answers,
    Question,
    _state_bytes,
    conflicts,
    in_words,
    requirements,
)
from pipette_opt.memory.fewest import check_memory
from pipette_opt.parallel import ParallelConfig
from pipette_opt.prepare import load_predictor
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

MEMORY = "GiB of memory per GPU at a risk of 1 %"

SEEDS = (0, 1, 3, 8, 9, 11, 12, 16, 17, 20, 21, 22, 24, 32, 33, 34, 35)
"""Random questions without a plan."""


def test_nothing_conflicts_where_there_is_a_plan() -> None:
    """No set."""
    assert conflicts(make_job(make_cluster(2)), SearchSpace(), 0.01) == []
    assert in_words([]) == ""


def test_a_pin_against_memory() -> None:
    """No recomputation and no splitting of an 8B model on one GPU: each set is irreducible, and named in words."""
    job = make_job(make_cluster(1, gpus=1), LLAMA_8B, 8, 4096)
    found = conflicts(job, SearchSpace(), 0.01)
    assert len(found) == 1
    assert found[0][0] == "1 host of 1 GPU"
    assert found[0][1].endswith(MEMORY)
    assert in_words(found).startswith("These requirements cannot be met together: 1 host of 1 GPU, ")


def test_moments_and_gradients_in_16_bits_are_a_way_out() -> None:
    """Without them too large, with them a plan: the set names their options; a job that has them has no such way."""
    small = replace(A100_80, memory_bytes=int(52 * GIB))
    job = make_job(make_cluster(1, gpus=8, kinds=(small,)), LLAMA_8B, 8, 1024)
    space = SearchSpace(data_parallel=(8,))
    sets = conflicts(job, space, 0.01)
    assert sets
    assert all(any("--use-precision-aware-optimizer --exp-avg-dtype bf16" in name for name in found) for found in sets)
    narrow = replace(job, training=replace(job.training, **NARROW_STATES))
    assert conflicts(narrow, space, 0.01) == []
    asked = Question(instance=narrow, space=space, risk=0.01)
    assert not any("moments" in requirement.name for requirement in requirements(asked))


def test_pins_and_batch() -> None:
    """Four replicas cannot share ten sequences; the memory has no part in it."""
    job = make_job(make_cluster(2, gpus=2), TINY, 10, 1024)
    found = conflicts(job, SearchSpace(num_gpus=4, data_parallel=(4,)), 0.01, float("inf"))
    assert found
    for names in found:
        assert "--data-parallel 4" in names
        assert not any(name.endswith(MEMORY) for name in names)
    assert any("a batch of 10" in names for names in found)


@pytest.mark.parametrize(
    ("job", "space"),
    [
        (make_job(make_cluster(1, gpus=1), LLAMA_8B, 8, 16384), SearchSpace(recompute=(None,), tensor_parallel=(1,))),
        (make_job(make_cluster(1, gpus=2), TINY, 5, 1024), SearchSpace(data_parallel=(2,), tensor_parallel=(1,))),
        (make_job(make_cluster(1, gpus=2), TINY, 8, 1024), SearchSpace(tensor_parallel=(3,), micro_batch_size=(2,))),
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
            if not Answers(asked, required).is_possible(kept):
                minimal.append(names)
    found = [frozenset(names) for names in conflicts(job, space, 0.01, float("inf"))]  # type: ignore[arg-type]
    assert found
    assert set(found) <= set(minimal)
    assert len(found[0]) == min(map(len, minimal))


def test_hosts_that_are_given_are_tried_where_their_number_is_free() -> None:
    """Five stages go on five of eight GPUs with the batch that is given, so they alone are not to blame."""
    model = replace(LLAMA_8B, num_layers=40)
    job = make_job(make_random_cluster(np.random.default_rng(0), 2), model, 60, 2048)
    space = SearchSpace(pipeline_parallel=(5,), virtual_pipeline=(2,))
    assert conflicts(job, space, 1.0) == []
    odd = replace(job, training=replace(job.training, global_batch_size=64))  # in groups of five micro-batches
    assert ("--pipeline-parallel 5", "--virtual-pipeline 2", "a batch of 64") in conflicts(odd, space, 1.0)
    found = [set(names) for names in conflicts(job, replace(space, sequence_parallel=(True,)), 1.0, 60.0)]
    assert found
    assert all("--sequence-parallel on" in names for names in found)
    assert not any(one < other for one in found for other in found)


@pytest.mark.parametrize(
    "job",
    [
        make_job(make_cluster(1, gpus=8), LLAMA_8B, 8, 2048),
        make_job(make_cluster(2, gpus=8), replace(LLAMA_8B, num_experts=8, moe_router_topk=2), 16, 2048),
    ],
)
def test_no_configuration_holds_less_than_its_states(job: Instance) -> None:
    """Memory that is counted for all GPUs of what fits is never below weights and optimizer states held once."""
    space = SearchSpace()
    candidates = enumerate_candidates(job, space)
    fitting = check_memory(job, candidates, load_predictor(0.01, job), 0.01).fitting
    assert fitting
    least = _state_bytes(Question(instance=job, space=space, risk=0.01))
    for checked in fitting:
        ranks_of_stage = checked.config.world_size // checked.config.pipeline_model_parallel_size
        assert checked.need_bytes.sum() * ranks_of_stage >= least


def _random_question(seed: int) -> Question:
    """A small job with random pins; most have no plan."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    cluster = make_cluster(int(rng.integers(1, 3)), gpus=pick(1, 2, 3))
    model = pick(TINY, replace(TINY, num_layers=5), LLAMA_8B)
    job = make_job(cluster, model, int(rng.integers(1, 40)), pick(1000, 6000) if model is LLAMA_8B else 1000)
    job = replace(job, training=replace(job.training, unequal_microbatches=pick(False, False, True)))
    choices = {
        "max_gpus": pick(1, 2),
        "tensor_parallel": pick((1,), (2,), (3,)),
        "pipeline_parallel": pick((1,), (2,), (5,)),
        "data_parallel": pick((1,), (2,)),
        "context_parallel": pick((1,), (2,), (3,)),
        "virtual_pipeline": pick((2,), (6,)),
        "micro_batch_size": pick((2,), (3,), (16,)),
        "sequence_parallel": pick((True,), (False,)),
        "recompute": pick((None,), ("full",), ("mlp",)),
        "offload": pick(("optimizer",), ("core_attn",)),
        "data_parallel_sharding_strategy": ("optim_grads",),
        "num_distributed_optimizer_instances": (2,),
    }
    pinned = {name: value for name, value in choices.items() if rng.random() < 0.25}
    if "num_distributed_optimizer_instances" in pinned:  # needs the other
        pinned["data_parallel_sharding_strategy"] = ("optim_grads",)
    return Question(instance=job, space=SearchSpace(**pinned), risk=pick(0.01, IGNORED_RISK))


def _legal(question: Question) -> set[ParallelConfig]:
    """All legal configurations of a question."""
    space = replace(question.space, world_sizes=question.world_sizes, overlap_grad_reduce=False)
    return set(legal_candidates(question.job, space))


@pytest.mark.parametrize("seed", range(8))
def test_a_question_without_a_requirement_has_all_its_configurations(seed: int) -> None:
    """Every legal configuration stays legal in one of the relaxed questions, also after another relaxation."""
    asked = _random_question(seed)
    for first in requirements(asked):
        for question in (each for each in first.relaxed(asked) if each.times == 1):
            legal = _legal(question)
            for other in requirements(question):
                relaxed = [_legal(each) for each in other.relaxed(question) if each.times == 1]
                assert legal <= set().union(*relaxed), (first.name, other.name)


@pytest.mark.parametrize("seed", SEEDS)
def test_sets_are_minimal_whatever_the_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked directly, without other answers, a set has no plan, and has one without any of its requirements."""
    asked = _random_question(seed)
    required = requirements(asked)
    shuffled = [required[index] for index in np.random.default_rng(seed).permutation(len(required))]
    monkeypatch.setattr("pipette_opt.certify.conflicts.requirements", lambda question: shuffled)
    found = conflicts(asked.instance, asked.space, asked.risk, 0.0)
    monkeypatch.undo()
    found += conflicts(asked.instance, asked.space, asked.risk, 0.0)
    assert len(found) >= 2
    for names in map(set, found):
        kept = [each for each in required if each.name in names]
        assert not Answers(asked, required).is_possible(kept)
        for each in kept:
            assert Answers(asked, required).is_possible([other for other in kept if other is not each])
