"""Lengths of documents in a job: the sequence that they need, their errors, and a plan with them."""

from pathlib import Path
from typing import Any

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.job.read import read_job
from pipette_opt.library.solve import solve
from pipette_opt.library.verify import verify
from pipette_opt.options.description import JobOptions
from pipette_opt.report.plan_file import write_plan
from pipette_opt.specs.documents import Documents

OPTIONS: dict[str, Any] = {"nodes": "1", "gpu": "h100", "model": "llama-3-8b", "global_batch_size": 64}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Four documents, the longest of 5,000 tokens."""
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n1000,3\n5000,1\ntotal,4\n")
    return path


def test_the_longest_document_sets_the_sequence(lengths: Path) -> None:
    """Rounded up to 256 tokens; a given length stays, and packing needs one."""
    training = read_job(JobOptions(**OPTIONS, lengths=lengths)).instance.training
    assert training.documents == Documents(lengths=(1000, 5000), counts=(3, 1))
    assert (training.seq_length, training.packed) == (5120, False)
    packed = read_job(JobOptions(**OPTIONS, lengths=lengths, packed=True, seq_length=8192)).instance.training
    assert (packed.seq_length, packed.packed) == (8192, True)
    with pytest.raises(InputError, match="--seq-length: is required"):
        read_job(JobOptions(**OPTIONS, lengths=lengths, packed=True))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"seq_length": 4096},
            r"lengths.csv: has a document of 5,000 tokens, longer than --seq-length 4,096; raise it",
        ),
        ({"model": "llama-2-7b"}, r"lengths.csv: has a document of 5,000 tokens, but llama-2-7b has 4,096 positions"),
        ({"profile": Path("times.csv")}, r"--profile: has times of whole sequences, which --lengths does not have"),
    ],
)
def test_lengths_that_do_not_fit(more: dict[str, Any], message: str, lengths: Path) -> None:
    """Sequence, model and profile."""
    with pytest.raises(InputError, match=message):
        read_job(JobOptions(**{**OPTIONS, **more}, lengths=lengths))


@pytest.mark.search
@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_with_lengths_is_verified(packed: bool, lengths: Path, tmp_path: Path) -> None:
    """Its rules hold, tokens per second count no padding, and its screen says what documents cost."""
    plan = solve(**OPTIONS, lengths=lengths, packed=packed, seq_length=8192, tensor_parallel="8", time_limit_s=20)
    tokens = 64 * (8192 if packed else 2000)
    assert plan.estimate.tokens_per_s == pytest.approx(tokens / plan.estimate.iteration_time_s)
    write_plan(plan, tmp_path / "plan.json")
    assert verify(tmp_path / "plan.json").plan.notes == plan.notes
    note = next(note for note in plan.notes if note.startswith("Documents: "))
    assert "2,000 tokens on average, p" + ("acked into" if packed else "added to") in note
    assert "wait for has" in note
