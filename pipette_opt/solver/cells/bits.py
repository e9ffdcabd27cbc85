"""Sets of hosts, or of cells, as bits of words, compiled."""

import numpy as np
from numpy.typing import NDArray

from pipette_opt.base.jit import njit

BitArray = NDArray[np.uint64]
"""Words of bits."""

WORD = 64
"""Bits of a word."""

_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def number_of(bits):  # type: ignore[no-untyped-def]
    """How many bits of a word are set."""
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True, nogil=True)
def lowest(bits):  # type: ignore[no-untyped-def]
    """Place of the lowest set bit of a word that is not 0."""
    return number_of((bits & (~bits + _ONE)) - _ONE)


@njit(cache=True, nogil=True)
def bit(place):  # type: ignore[no-untyped-def]
    """The bit of a host (or a cell) in its word."""
    return _ONE << np.uint64(place % WORD)


@njit(cache=True, nogil=True)
def without_lowest(bits):  # type: ignore[no-untyped-def]
    """A word that is not 0 without its lowest set bit."""
    return bits & (bits - _ONE)
