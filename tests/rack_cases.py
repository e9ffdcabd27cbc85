"""What bounds by racks are tried on: random problems to enumerate, and racks without noise."""

import numpy as np
from instances import Variant

from pipette_opt.placement_bench.problems import balanced_problem
from pipette_opt.problem import ProblemData
from pipette_opt.types import P2PMode

SHAPES = [(2, 2, 1), (3, 2, 1), (2, 3, 1)]

VARIANTS = [
    Variant(p2p=p2p, directed=directed, missing_share=missing, num_kinds=kinds, num_capacities=kinds, levels=levels)
    for p2p in ("blocking", "async")
    for directed in (False, True)
    for missing, kinds, levels in ((0.0, 1, 0), (0.2, 1, 2), (0.0, 2, 3), (0.2, 2, 0))
]


def in_racks(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int, racks: int = 2) -> ProblemData:
    """Racks without noise; the first hosts are slow."""
    number = shape[0] * shape[1] + spare
    rack, pace = np.arange(number) % racks, np.where(np.arange(number) < slow, 0.5, 1.0)
    rate = np.where(rack[:, None] == rack[None, :], 24.0, 16.0) * np.minimum(pace[:, None], pace[None, :])
    np.fill_diagonal(rate, np.nan)
    return balanced_problem(rate, shape, p2p)
