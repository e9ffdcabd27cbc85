"""``pack``."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import TINY

import pipette_opt as po

Command = Callable[..., tuple[int, str, str]]

BINS = ("--bin", "100", "--replicas", "2", "--microbatches", "2", "--model", "llama-3-8b", "--workers", "1")
LENGTHS = (90, 50, 50, 40, 30, 20, 10)


@pytest.fixture(autouse=True)
def lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of lengths in the present folder."""
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("\n".join(map(str, LENGTHS)))


def test_answer_and_file(command: Command) -> None:
    """The answer comes first, then a row for each step; the file has a line for each document."""
    code, out, err = command("pack", "lengths.csv", *BINS, "-o", "packing.csv")
    assert code == 0, err
    text = " ".join(out.split())
    assert text.startswith("Packing: 7 documents in 4 bins, 72.5 % full; a step takes 1.")
    assert "no packing is faster. Documents in file order, first-fit:" in text
    assert "packing written to packing.csv" in err
    rows = list(csv.DictReader(Path("packing.csv").read_text().splitlines()))
    assert [int(row["length"]) for row in rows] == list(LENGTHS)
    assert [int(row["document"]) for row in rows] == list(range(7))
    assert {row["step"] for row in rows} == {"0"}


def test_json_is_the_functions_answer(command: Command) -> None:
    """Both give the same packing; more documents than a step holds take two."""
    options = ("--bin", "100", "--replicas", "1", "--microbatches", "2", "--stages", "2", "--wait", "microbatch")
    code, out, err = command("pack", "lengths.csv", *options, "--model", "llama-3-8b", "--workers", "1", "--json")
    assert code == 0, err
    found = po.pack(
        "lengths.csv", "llama-3-8b", bin=100, replicas=1, microbatches=2, stages=2, wait="microbatch", workers=1
    )
    assert json.loads(out) == found.as_dict()
    assert (len(found.step_times), found.gap, found.is_fewest) == (2, 0, True)
    assert "4 bins of 2 steps" in repr(found)


def test_lengths_and_model_in_memory() -> None:
    """Lengths may be a list, the model an object; equal documents in equal bins take the time of equal work."""
    found = po.pack([30, 30, 30, 30], TINY, bin=30, replicas=2, microbatches=2, workers=1)
    assert (found.step_times, found.gap, found.first_fit) == ((1.0,), 0.0, 1.0)


@pytest.mark.parametrize("wrong", [[], [3, 0], [2.5]])
def test_wrong_lengths_in_memory(wrong: list[int]) -> None:
    """A list has whole numbers above 0, and at least one."""
    with pytest.raises(po.InputError, match="lengths: must be whole numbers >= 1, at least one, got"):
        po.pack(wrong, TINY, bin=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bin", "80"), "lengths.csv: has 1 document longer than a bin of 80 tokens, the longest of 90"),
        (("--wait", "never"), "--wait: must be one of step, microbatch, got 'never'"),
        (("--replicas", "1000000"), "--replicas: times --microbatches must be at most 100,000"),
    ],
)
def test_wrong_options(options: tuple[str, ...], message: str, command: Command) -> None:
    """The error names the option or the file."""
    code, _, err = command("pack", "lengths.csv", *BINS, *options)
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.parametrize(("left_out", "message"), [("--bin", "--bin: is missing"), ("--model", "--model: is missing")])
def test_missing_options(left_out: str, message: str, command: Command) -> None:
    """Bin and model have no default."""
    place = BINS.index(left_out)
    code, _, err = command("pack", "lengths.csv", *BINS[:place], *BINS[place + 2 :])
    assert (code, message in " ".join(err.split())) == (2, True)


def test_too_many_documents(command: Command) -> None:
    """A histogram of a data set is refused before anything is made of it."""
    Path("lengths.csv").write_text("length,count\n50,100001\n")
    code, _, err = command("pack", "lengths.csv", *BINS)
    assert code == 2
    assert "has 100,001 documents; at most 100,000 can be packed" in " ".join(err.split())
