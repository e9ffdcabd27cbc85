"""Array types and the words that several parts share."""

import math
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

P2PMode = Literal["blocking", "async"]
"""Whether a stage waits for its sends (Megatron-Core's 1F1B without interleaving) or hides them."""

Collective = Literal["ring", "hierarchical", "tree"]
"""How gradients are reduced over several hosts; see ``costs/collectives.py``."""

RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
"""Megatron-Core's two rank orders, fastest dimension first; the second is ``--use-tp-pp-dp-mapping``."""

Launcher = Literal["torchrun", "slurm", "mpi"]
"""What starts the processes: ``torchrun`` gives each node contiguous ranks, the others any rank map."""

Precision = Literal["fp32", "fp16", "bf16"]

RecomputeGranularity = Literal["selective", "full"]

RecomputeMethod = Literal["uniform", "block"]

Recomputation = str
"""
What is recomputed in a search space, beside nothing: ``selective``, the attention core; ``block``, the first layers of
each chunk, as few as memory asks for; ``full``, all layers; or modules of all layers, as ``moe_act+layernorm``.
"""


def read_only(array: np.ndarray, dtype: type | np.dtype | None = None) -> np.ndarray:
    """Return a C-contiguous read-only copy of ``array``, or itself if it is one already."""
    if (
        isinstance(array, np.ndarray)
        and array.base is None
        and not array.flags.writeable
        and array.flags.c_contiguous
        and (dtype is None or array.dtype == dtype)
    ):
        return array
    copy = np.array(array, dtype=dtype, order="C", copy=True)
    copy.setflags(write=False)
    return copy


LARGEST_EXACT = 2**53
"""Whole numbers up to here are the same in every reader of JSON (RFC 8259, section 6)."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether ``value`` is a finite number that a float can hold; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


Prefer = Literal["simple", "fastest"]
"""Which of the plans that are as good as the fastest is shown: the plainest, or the fastest itself."""

ProofStep = Literal["work alone", "best links", "judge over best links", "any layers", "search"]
"""
Which bound rules a configuration out, from the cheapest on: its work, a form or the simulator over the best links, a
family of the joint model, or a search.
"""
