"""Pins that contradict each other, or the job, are named."""

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, contradiction, enumerate_with_reasons

JOB = make_job(make_cluster(2), LLAMA_8B)

CONTRADICTIONS = [
    ({"tensor_parallel": (8,), "pipeline_parallel": (3,)}, "--tensor-parallel 8 and --pipeline-parallel 3", "does not"),
    (
        {"tensor_parallel": (8,), "pipeline_parallel": (2,), "data_parallel": (2,), "micro_batch_size": (1,)},
        "--tensor-parallel 8 and --pipeline-parallel 2 and --data-parallel 2",
        "leaves dp=1 of 16 GPUs, not 2",
    ),
    (
        {"micro_batch_size": (8,), "data_parallel": (16,), "recompute": ("full",)},
        "--data-parallel 16 and --micro-batch-size 8",
        "global_batch_size=64 is no multiple",
    ),
    (
        {"virtual_pipeline": (2,), "pipeline_parallel": (1,)},
        "--pipeline-parallel 1 and --virtual-pipeline 2",
        "needs pipeline_model_parallel_size >= 2",
    ),
    ({"num_gpus": 8, "tensor_parallel": (16,)}, "--num-gpus 8 and --tensor-parallel 16", "does not divide 8 GPUs"),
    ({"tensor_parallel": (5,)}, "--tensor-parallel 5", "does not divide"),
]


@pytest.mark.search
@pytest.mark.parametrize(("pins", "where", "why"), CONTRADICTIONS)
def test_contradicting_pins_are_named(pins: dict[str, object], where: str, why: str) -> None:
    """Only those that are to blame, with the reason; each alone can be mended by a value that is named."""
    space = SearchSpace(**pins)  # type: ignore[arg-type]
    assert not enumerate_with_reasons(JOB, space).candidates
    error = contradiction(JOB, space)
    assert error is not None
    assert error.where == where
    assert why in error.problem
    assert "Legal values" in error.problem


def test_what_is_named_is_legal() -> None:
    """The values that the message names are those that are legal with the other pins."""
    error = contradiction(JOB, SearchSpace(virtual_pipeline=(2,), pipeline_parallel=(1,)))
    assert error is not None
    assert "--virtual-pipeline 1" in error.problem
    assert "--pipeline-parallel 2 or 4" in error.problem


def test_no_pin_is_blamed_for_a_job_that_cannot_be() -> None:
    """A batch of 1 sequence on 16 GPUs goes with pipelines and tensor groups only; without pins there is no blame."""
    assert contradiction(JOB, SearchSpace()) is None
