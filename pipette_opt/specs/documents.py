"""Lengths of the documents that a job trains on, as a histogram."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_opt.base.types import IntArray

MAX_LENGTHS = 256
"""Most different lengths of a histogram; more are grouped, so that plan files stay small. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """
    Histogram of document lengths.

    Parameters
    ----------
    lengths
        Different lengths in tokens, ascending, each at least 1.
    counts
        Number of documents of each length, each at least 1.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.lengths or len(self.lengths) != len(self.counts):
            raise ValueError(f"documents must have a count for each of {len(self.lengths)} lengths (at least 1).")
        if min(self.counts) < 1 or self.lengths[0] < 1 or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError("lengths of documents must be ascending and >= 1, with counts >= 1.")

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return self.lengths[-1]

    @property
    def mean_length(self) -> float:
        """Mean tokens of a document."""
        return float(np.average(self.lengths, weights=self.counts))

    @property
    def attended_length(self) -> float:
        """
        Length of equal documents with as much causal attention per token, tokens.

        A token of a document of ``l`` tokens sees ``l / 2`` tokens on average, so this is the sum of all squares over
        the sum of all lengths.
        """
        lengths, counts = np.array(self.lengths, dtype=np.float64), np.array(self.counts, dtype=np.float64)
        return float(counts @ lengths**2 / (counts @ lengths))

    def cut(self, length: int) -> "Documents":
        """Return the documents with longer ones cut to ``length`` tokens, as trainers truncate them."""
        lengths, place = np.unique(np.minimum(self.lengths, length), return_inverse=True)
        counts = np.bincount(place, weights=self.counts)
        return Documents(lengths=tuple(map(int, lengths)), counts=tuple(map(int, counts)))

    def padded_length(self, micro_batch_size: Any) -> Any:
        """Return the expected tokens of the longest of ``micro_batch_size`` documents drawn at random."""
        shares = np.cumsum(self.counts) / np.sum(self.counts)
        sizes = np.asarray(micro_batch_size)[..., None]
        is_longest = np.diff(shares**sizes, axis=-1, prepend=0.0)
        return is_longest @ np.array(self.lengths, dtype=np.float64)


def grouped(lengths: IntArray, counts: IntArray) -> Documents:
    """
    Return a histogram of at most ``MAX_LENGTHS`` lengths; groups have about equal tokens and keep their mean length.

    The longest document keeps its length. ``lengths`` are ascending, of shape ``(n,)``, like ``counts``.
    """
    if len(lengths) > MAX_LENGTHS:
        shorter = counts[:-1].astype(np.float64)
        tokens = lengths[:-1] * shorter
        groups = np.cumsum(tokens) * (MAX_LENGTHS - 1) // (tokens.sum() * (1 + 1e-9))
        sums = np.bincount(groups.astype(np.int64), weights=shorter)
        held = np.flatnonzero(sums)
        means = np.bincount(groups.astype(np.int64), weights=tokens)[held] / sums[held]
        rounded, place = np.unique(np.rint(means).astype(np.int64), return_inverse=True)
        lengths = np.append(rounded, lengths[-1])
        counts = np.append(np.bincount(place, weights=sums[held]), counts[-1])
    return Documents(lengths=tuple(map(int, lengths)), counts=tuple(map(int, counts)))
