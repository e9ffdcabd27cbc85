"""State of a search in a folder."""

from pathlib import Path

import pytest
from factories import make_config

from pipette_opt.base.errors import InputError
from pipette_opt.tune.folder import RECORD, TrialRecord, TuneFolder


def record(trial: int = 1) -> TrialRecord:
    """A finished trial."""
    return TrialRecord(
        trial=trial,
        status="timed",
        config=make_config(tp=2, dp=4),
        predicted_s=1.0,
        least_s=0.1,
        fits=0.9,
        hosts=("n0",),
        started=5.0,
        time_s=1.1,
    )


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Two trials, in the order of their numbers."""
    folder = TuneFolder(tmp_path)
    for number in (2, 1):
        folder.trial(number).mkdir()
        folder.write(record(number))
    assert folder.records() == [record(1), record(2)]


def test_a_damaged_record_names_the_file(tmp_path: Path) -> None:
    """Half a record is no record."""
    folder = TuneFolder(tmp_path)
    folder.trial(1).mkdir()
    (folder.trial(1) / RECORD).write_text('{"trial": 1')
    with pytest.raises(InputError, match=r"is not valid JSON.*remove the folder of this trial"):
        folder.records()


def test_a_folder_belongs_to_one_job_and_one_search(tmp_path: Path) -> None:
    """Another job, a second search at once, and a folder with other files are refused."""
    folder = TuneFolder(tmp_path / "state")
    job = {"model": "a", "hosts": "b"}
    with folder.locked(job), pytest.raises(InputError, match="in use by another tune"), folder.locked(job):
        pass
    with (
        pytest.raises(InputError, match=r"trials of another job: not the same hosts[.] Give another -o"),
        folder.locked({**job, "hosts": "c"}),
    ):
        pass
    with folder.locked(job):
        pass
    (tmp_path / "letter.txt").write_text("dear")
    with (
        pytest.raises(InputError, match="has files that tune did not write, such as letter"),
        TuneFolder(tmp_path).locked(job),
    ):
        pass
    with (
        pytest.raises(InputError, match=r"letter.txt: is a file; -o is the folder of the trials"),
        TuneFolder(tmp_path / "letter.txt").locked(job),
    ):
        pass
