"""Who chooses tensor overlap: the search, the options of the job, or today's script."""

from pathlib import Path

import pytest
from factories import TINY, make_cluster

from pipette_opt.candidates import SearchSpace
from pipette_opt.job.read import Made, read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.arguments import described, job_and_space
from pipette_opt.options.description import JobOptions, SpaceOptions

SHAPE = """--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512
--vocab-size 1024 --bf16 --global-batch-size 16 --micro-batch-size 1"""
TODAY = "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"


@pytest.mark.parametrize(
    ("script", "option", "is_given", "is_searched"),
    [
        ("", None, False, True),
        ("", True, True, False),
        ("", False, False, False),
        (TODAY, None, True, True),  # a job that has it has nothing to choose
        (TODAY, False, False, False),
    ],
)
def test_who_chooses(tmp_path: Path, script: str, option: bool | None, is_given: bool, is_searched: bool) -> None:
    """Nothing said: the search; else what is said, before what a script says, also of what is passed on."""
    arguments = tmp_path / "train.sh"
    arguments.write_text(f"{SHAPE} {script}".replace("\n", " "))
    job = read_job(JobOptions(launch=str(arguments), tp_comm_overlap=option), Made(cluster=make_cluster(2)))
    training = job.instance.training
    assert training.tp_comm_overlap == is_given
    if not is_given:
        assert not any(one[0].startswith("--tp-comm") for one in training.other_arguments or ())
    assert search_space(job, SpaceOptions()).tp_comm_overlap == (None if is_searched else False)


def test_functions_search_it_unless_a_space_is_given() -> None:
    """A space of the caller's own says it itself."""
    given = {"global_batch_size": 16, "seq_length": 512}
    job = described(make_cluster(2), TINY, None, given)
    assert job_and_space(*job, None)[1].tp_comm_overlap is None
    assert job_and_space(*job, SearchSpace())[1].tp_comm_overlap is False
    said = {**given, "tp_comm_overlap": False}
    assert job_and_space(*described(make_cluster(2), TINY, None, said), None)[1].tp_comm_overlap is False
