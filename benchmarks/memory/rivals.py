"""
Predictors that our memory prediction is compared with.

They are the memory formula without the network, the formula plus a margin of 20 %, and the network of the Pipette
paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray

MARGIN = 1.2
"""Factor on the formula as a usual safety margin. Chosen."""

PIPETTE_WIDTHS = (64, 48, 24, 12)
BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PipetteParams:
    """Training settings of Pipette's code (Adam, rate 0.1 cut tenfold every 1000 of 5000 epochs), shortened."""

    epochs: int = 600
    learning_rate: float = 0.01
    cut_every: int = 200
    seed: int = 0


def train_pipette(
    features: FloatArray, peak_gib: FloatArray, wanted: FloatArray, params: PipetteParams | None = None
) -> FloatArray:
    """
    Return peaks in GiB predicted by Pipette's network (11-64-48-24-12-1, ReLU, squared error, standardised inputs).

    With its published rate of 0.1 the network diverges on small data; 0.01 is used, which gives smaller errors.

    Parameters
    ----------
    features, peak_gib
        Runs to learn from, shapes ``(num_runs, 11)`` and ``(num_runs,)``.
    wanted
        Features of the runs to predict, shape ``(num_wanted, 11)``.
    """
    import torch
    from torch import nn

    params = params or PipetteParams()
    torch.manual_seed(params.seed)
    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    sizes = (features.shape[1], *PIPETTE_WIDTHS)
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
    inputs = torch.tensor((features - mean) / scale, dtype=torch.float32)
    targets = torch.tensor(peak_gib, dtype=torch.float32)
    optimizer = torch.optim.Adam(network.parameters(), lr=params.learning_rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, params.cut_every, 0.1)
    for _ in range(params.epochs):
        order = torch.randperm(len(inputs))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = ((network(inputs[chosen])[:, 0] - targets[chosen]) ** 2).mean()
            loss.backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        out = network(torch.tensor((wanted - mean) / scale, dtype=torch.float32))[:, 0]
    return np.asarray(out.numpy(), dtype=np.float64)


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction (Wilson)."""
    if total == 0:
        return 0.0, 1.0
    z, share = 1.96, hits / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return max(float(centre - half), 0.0), min(float(centre + half), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """
    Errors of a rule about running out of memory.

    Parameters
    ----------
    missed, ran_out
        Runs that ran out and were called safe, and all runs that ran out.
    false, fitted
        Runs that fitted and were refused, and all runs that fitted.
    """

    missed: int
    ran_out: int
    false: int
    fitted: int

    @property
    def accuracy(self) -> float:
        """Fraction of runs with a right verdict."""
        return 1 - (self.missed + self.false) / max(self.ran_out + self.fitted, 1)


def verdicts(refused: BoolArray, ran_out: BoolArray) -> Verdicts:
    """Count the verdicts; both masks have shape ``(num_runs,)``."""
    return Verdicts(
        missed=int((ran_out & ~refused).sum()),
        ran_out=int(ran_out.sum()),
        false=int((refused & ~ran_out).sum()),
        fitted=int((~ran_out).sum()),
    )


def best_kept(times_s: FloatArray, refused: BoolArray, groups: Sequence[str]) -> tuple[int, int]:
    """
    Return the number of groups whose fastest feasible run is not refused, and of all groups.

    ``times_s`` is NaN for runs without a time.
    """
    kept, seen = 0, 0
    names = np.array(groups)
    for group in sorted(set(groups)):
        members: IntArray = np.flatnonzero((names == group) & np.isfinite(times_s))
        if len(members):
            seen += 1
            kept += not refused[members[times_s[members].argmin()]]
    return kept, seen
