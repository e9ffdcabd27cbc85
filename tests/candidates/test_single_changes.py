"""Single changes of a configuration, tried beside the configurations of a search space."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, enumerate_more, enumerate_with_reasons, left_out, searched_values
from pipette_opt.candidates.enumeration import legal_candidates
from pipette_opt.candidates.single_changes import choices, open_choices, single_changes
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance

NARROW = SearchSpace(num_gpus=8, context_parallel=(1,), micro_batch_size=(1, 2), narrowed=("context_parallel",))
"""Context parallelism was left out for the time limit; the micro-batch is pinned."""


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of four GPUs."""
    return make_job(make_cluster(2, 50.0, gpus=4), TINY, 32, 2048)


@pytest.fixture(scope="module")
def plan(job: Instance) -> ParallelConfig:
    """A configuration of the narrowed space with two stages of two chunks."""
    space = replace(NARROW, tensor_parallel=(2,), pipeline_parallel=(2,), virtual_pipeline=(2,))
    return enumerate_with_reasons(job, space).candidates[0]


def test_changes_differ_in_one_open_choice(job: Instance, plan: ParallelConfig) -> None:
    """What was left out for the time limit changes, too; what the user pinned stays."""
    space, own = replace(NARROW, near=(plan,)), choices(plan)
    found = enumerate_with_reasons(job, space)
    assert "micro_batch_size" not in open_choices(space)
    assert found.near
    for config in found.near:
        changed = {name for name, value in choices(config).items() if value != own[name]}
        assert len(changed) <= 1
        assert changed <= {*open_choices(space)}
    assert {config.context_parallel_size for config in found.near} == {1, 2}
    assert {config.num_chunks for config in found.candidates} > {1, 2}
    recomputed = {config.recomputation for config in found.near}
    assert recomputed >= {"mlp", "core_attn+mlp"}
    assert not any("moe" in str(word) for word in recomputed)  # the model has no experts


def test_limits_of_the_default_space_are_lifted(job: Instance, plan: ParallelConfig) -> None:
    """Micro-batches above 8 and more chunks than 5 are changes, if the user did not set other limits."""
    (space,) = [space for space in single_changes(job, SearchSpace(near=(plan,))) if space.micro_batch_size is None]
    assert space.max_micro_batch_size == 32 // plan.data_parallel_size
    limited = SearchSpace(near=(plan,), max_micro_batch_size=4)
    assert {space.max_micro_batch_size for space in single_changes(job, limited)} == {4}


def test_most_chunks_count_both_ends(job: Instance, plan: ParallelConfig) -> None:
    """Six layers on two stages with embedding and head as a layer each: four chunks of one layer are a change."""
    six = replace(job, model=replace(job.model, num_layers=6))
    near = replace(plan, layers_per_stage=(3, 3), virtual_pipeline_model_parallel_size=3)
    (space,) = [space for space in single_changes(six, SearchSpace(near=(near,))) if space.virtual_pipeline is None]
    found = {config.layers_per_chunk for config in legal_candidates(six, space) if config.num_chunks == 4}
    assert found == {((0, 1), (1, 1), (1, 1), (1, 0))}


def test_changes_are_no_values_of_the_space(job: Instance, plan: ParallelConfig) -> None:
    """A degree that only single changes have is still left out, and the text says so."""
    space = replace(NARROW, near=(plan,))
    found = enumerate_with_reasons(job, space)
    assert searched_values(job, found) == searched_values(job, enumerate_with_reasons(job, NARROW))
    said = left_out(job, space, found)
    assert "context parallel other than 1 but for single changes of 1 plan (left out for the time limit)" in said


def test_changes_can_be_added_later(job: Instance, plan: ParallelConfig) -> None:
    """Afterwards the enumeration has what one of the whole space has; splits found since apply to changes, too."""
    before = enumerate_with_reasons(job, NARROW)
    space = replace(NARROW, near=(plan,))
    wider = replace(space, more_splits=((6, 2),))
    found = enumerate_more(job, wider, space, enumerate_more(job, space, NARROW, before))
    whole = enumerate_with_reasons(job, wider)
    assert found.candidates[: len(before.candidates)] == before.candidates
    assert set(found.candidates) == set(whole.candidates)
    assert found.near == whole.near
    assert found.num_combinations == whole.num_combinations
    assert found.first_broken == whole.first_broken
    assert any(config.layers_per_stage == (6, 2) for config in found.near)
