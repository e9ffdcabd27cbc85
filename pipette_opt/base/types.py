"""Array types, and option values that several packages share."""

import math
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

P2PMode = Literal["blocking", "async"]
"""Pipeline sends: ``blocking`` if a stage waits for them (Megatron-Core's plain 1F1B), else ``async``."""

Collective = Literal["ring", "hierarchical", "tree"]
"""Algorithm that reduces gradients over several hosts; see ``costs/collectives.py``."""

RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
"""Megatron-Core's two rank orders, fastest dimension first; the second is ``--use-tp-pp-dp-mapping``."""

Launcher = Literal["torchrun", "slurm", "mpi", "replicas-first"]
"""
Program that starts the processes: ``torchrun`` gives each node contiguous ranks, ``slurm`` and ``mpi`` allow any rank
map. ``replicas-first``: torchrun with a framework that numbers replicas before stages, Megatron-Core's first order.
"""

Precision = Literal["fp32", "fp16", "bf16"]

RecomputeGranularity = Literal["selective", "full"]

RecomputeMethod = Literal["uniform", "block"]

Recomputation = str
"""
Recomputation choice of a search space.

``selective`` recomputes the attention core, ``full`` all layers. ``block`` recomputes the first layers of each chunk,
as few as memory requires. Other texts name modules of all layers, such as ``moe_act+layernorm``.
"""


def read_only(array: np.ndarray, dtype: type | np.dtype | None = None) -> np.ndarray:
    """Return a C-contiguous read-only copy of ``array``; ``array`` itself if it is such an array, or a part of one."""
    if (
        isinstance(array, np.ndarray)
        and not array.flags.writeable
        and (array.base is None or (isinstance(array.base, np.ndarray) and not array.base.flags.writeable))
        and array.flags.c_contiguous
        and (dtype is None or array.dtype == dtype)
    ):
        return array
    copy = np.array(array, dtype=dtype, order="C", copy=True)
    copy.setflags(write=False)
    return copy


LARGEST_EXACT = 2**53
"""Largest whole number that every JSON reader reads exactly (RFC 8259, section 6)."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether ``value`` is a finite number that a float can hold; false for booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


Prefer = Literal["simple", "fastest"]
"""Choice among plans that are as good as the fastest: show the plainest (``simple``), or the fastest itself."""

ProofStep = Literal["work alone", "best links", "judge over best links", "any layers", "search"]
"""
Proof step that rules a configuration out, cheapest first.

``work alone``: compute without messages; ``best links``: formula with the fastest links; ``judge over best links``:
simulator with the fastest links; ``any layers``: joint CP-SAT model; ``search``: search over placements.
"""
