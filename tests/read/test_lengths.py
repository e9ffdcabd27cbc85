"""Files of document lengths."""

from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.lengths import read_lengths


@pytest.mark.parametrize(
    ("text", "lengths", "counts", "in_file"),
    [
        ("7\n3\n7\n", [3, 7], [1, 2], [7, 3, 7]),
        ("length\n\n7\n", [7], [1], [7]),
        ("length, count\n7, 2\n\n3,1\n7,4", [3, 7], [1, 6], [7, 3, 7]),
        ("7,2\r\n3,1\r\ntotal,3\r\n", [3, 7], [1, 2], [7, 3]),
        ("7\n3\nTotal,2\n", [3, 7], [1, 1], [7, 3]),
        ("1000000000,1000000000000\n", [10**9], [10**12], [10**9]),
    ],
)
def test_lines_and_histograms(
    text: str, lengths: list[int], counts: list[int], in_file: list[int], tmp_path: Path
) -> None:
    """Distinct lengths ascend and equal ones are counted together; lines keep their order."""
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    found = read_lengths(path)
    assert (found.lengths.tolist(), found.counts.tolist()) == (lengths, counts)
    assert found.row_lengths.tolist() == in_file
    assert found.num_documents == sum(counts) == found.row_counts.sum()
    assert found.num_tokens == sum(length * count for length, count in zip(lengths, counts, strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"lengths.csv: has no lengths; give a line `length`"),
        ("\n length \n", r"lengths.csv: has no lengths"),
        ("length,count\ntotal,0\n", r"lengths.csv: has no lengths"),
        ("7\n0\n", r"line 2: length must be a whole number from 1 to 1,000,000,000, got '0'"),
        ("7\n7.5\n", r"line 2: length must be a whole number .*, got '7.5'"),
        ("7\n\n1e3\n", r"line 3: length must be a whole number .*, got '1e3'"),
        ("1000000001\n", r"line 1: length must be"),
        ("7\nlength\n", r"line 2: length must be .*, got 'length'"),
        ("7,0\n", r"line 1: count must be a whole number from 1 to .*, got '0'"),
        ("7,1000000000001\n", r"line 1: count must be"),
        ("7,\n", r"line 1: count must be .*, got ''"),
        ("7\n3,1\n", r"line 2: has a count, but the first line has no count"),
        ("7,1\n3\n", r"line 2: has no count, but the first line has a count"),
        ("7,1,2\n", r"line 1: must be `length` or `length,count`, got '7,1,2'"),
        ("7,2\n3,1\ntotal,4\n", r"line 3: total must be 3, the sum of all counts, got '4'"),
        ("7,2\ntotal\n", r"line 2: total must be 2"),
        ("total,2\n7,2\n", r"line 1: length must be .*, got 'total'"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    """The error names file, line, value and what would be right."""
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_lengths(path)
