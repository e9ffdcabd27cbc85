"""Lengths of documents: a line for each document, or a histogram with a line for each length."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import IntArray, read_only
from pipette_opt.base.units import number_in
from pipette_opt.read.files import read_text
from pipette_opt.read.kinds_of_files import reads
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.documents import Documents, grouped

HEADERS = (["length"], ["length", "count"])
"""Header lines that a file of lengths may have."""

TOTAL = "total"
"""First word of a last line with the number of all documents."""

PADDED_TO = 256
"""Sequence length that holds the longest document is a multiple of this, so that many ranks can share it. Chosen."""

MAX_LENGTH = 10**9
"""Largest valid length of a document, in tokens. Chosen to catch typing errors."""

MAX_COUNT = 10**12
"""Largest valid number of documents of a line. Chosen to catch typing errors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lengths:
    """
    Lengths of documents in tokens, and how many documents have each.

    Parameters
    ----------
    lengths, counts
        Distinct lengths in ascending order, and the number of documents of each.
    row_lengths, row_counts
        Length and number of documents of each line, in the order of the file.
    """

    lengths: IntArray
    counts: IntArray
    row_lengths: IntArray
    row_counts: IntArray

    @property
    def num_documents(self) -> int:
        """Number of all documents."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return sum(length * count for length, count in zip(self.lengths.tolist(), self.counts.tolist(), strict=True))


@reads()
def read_lengths(path: str | Path) -> Lengths:
    """
    Return the document lengths of a file: lines ``length``, or lines ``length,count``.

    A header line ``length`` or ``length,count``, blank lines and a last line ``total,N`` may be there.

    Raises
    ------
    InputError
        If the file has no length, a line is wrong, only some lines have a count, or the total is not the sum of counts.
    """
    lines = [(number, line) for number, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    rows = [(f"{path}, line {number}", [word.strip() for word in line.split(",")]) for number, line in lines]
    if rows and [word.lower() for word in rows[0][1]] in HEADERS:
        del rows[0]
    total = rows.pop() if rows and rows[-1][1][0].lower() == TOTAL else None
    if not rows:
        raise InputError(str(path), "has no lengths; give a line `length` or `length,count` for each.")
    width = len(rows[0][1])
    found = [_row(where, cells, width) for where, cells in rows]
    if total is not None:
        _check_total(*total, sum(count for _, count in found))
    return lengths_of(found)


def read_documents(path: str | Path) -> Documents:
    """Return the histogram of a file of lengths, as :func:`read_lengths` reads it, for predictions."""
    found = read_lengths(path)
    return grouped(found.lengths, found.counts)


def check_lengths(documents: Documents, path: Path, training: TrainingSpec, model: ModelSpec) -> None:
    """Raise ``InputError`` for documents that a sequence or the model's positions cannot hold."""
    longest, positions = documents.longest, model.max_position_embeddings
    if longest > positions:
        problem = f"has a document of {longest:,} tokens, but {model.name} has {positions:,} positions"
        raise InputError(str(path), f"{problem}; leave longer documents out, as trainers do.")
    if longest > training.seq_length:
        problem = f"has a document of {longest:,} tokens, longer than --seq-length {training.seq_length:,}"
        raise InputError(str(path), f"{problem}; raise it, or cut documents as the trainer does.")


def lengths_of(rows: list[tuple[int, int]]) -> Lengths:
    """Return the lengths of pairs (length, number of documents), at least one, in their order."""
    together: Counter[int] = Counter()
    for length, count in rows:
        together[length] += count
    row_lengths, row_counts = read_only(np.array(rows, np.int64).T)
    lengths, counts = read_only(np.array(sorted(together.items()), np.int64).T)
    return Lengths(lengths=lengths, counts=counts, row_lengths=row_lengths, row_counts=row_counts)


def _row(where: str, cells: list[str], width: int) -> tuple[int, int]:
    """Return length and count of a line, whose number of cells must be that of the first line."""
    if len(cells) not in (1, 2):
        raise InputError(where, f"must be `length` or `length,count`, got {shown(','.join(cells))}.")
    if len(cells) != width:
        has, lack = ("a count", "no count") if len(cells) == 2 else ("no count", "a count")
        raise InputError(where, f"has {has}, but the first line has {lack}; give a count on all lines or on none.")
    must = f"length must be a whole number from 1 to {MAX_LENGTH:,}"
    length = int(number_in(cells[0], where, must, 1, MAX_LENGTH, is_whole=True))
    must = f"count must be a whole number from 1 to {MAX_COUNT:,}"
    count = int(number_in(cells[-1], where, must, 1, MAX_COUNT, is_whole=True)) if width == 2 else 1
    return length, count


def _check_total(where: str, cells: list[str], num_documents: int) -> None:
    """Raise ``InputError`` unless the total of a last line is the number of documents."""
    must = f"{TOTAL} must be {num_documents}, the sum of all counts"
    number_in(",".join(cells[1:]), where, must, num_documents, num_documents, is_whole=True)
