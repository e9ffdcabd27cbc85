"""
Fine-tuning: further training of the network on measured runs, for the errors that the memory constants leave.

The traces stay in the loss, so that predictions unlike the runs hardly change.
"""

from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.memory.weights import NetworkWeights

MAX_CHANGE = 0.3
"""Maximum change of ``log(peak / formula)`` that a run can teach the network. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneParams:
    """
    Settings of the fine-tuning.

    Parameters
    ----------
    beta
        Error of ``log(peak / formula)`` above which the loss is linear.
    """

    steps: int = 400
    learning_rate: float = 2e-3
    beta: float = 0.03


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lessons:
    """
    Training examples: features and the wanted predictions.

    Parameters
    ----------
    features
        Features of each example, shape ``(num_rows, num_features)``.
    log_ratio
        Wanted ``log(peak / formula)``, shape ``(num_rows,)``.
    """

    features: FloatArray
    log_ratio: FloatArray


def tune_network(
    network: NetworkWeights, runs: Lessons, traces: Lessons, params: TuneParams | None = None
) -> NetworkWeights:
    """Return the network after further training steps on traces and runs, both with equal weight in the loss."""
    import torch

    from models.memory.network import MemoryNetwork

    if not len(runs.log_ratio):
        return network
    params = params or TuneParams()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = MemoryNetwork([len(bias) for bias in network.biases[:-1]])
    state = {"mean": network.mean, "scale": network.scale}
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        state |= {f"layers.{index}.weight": weight, f"layers.{index}.bias": bias}
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in state.items()})
    pairs = [
        (torch.from_numpy(lessons.features), torch.from_numpy(lessons.log_ratio), torch.nn.SmoothL1Loss(beta=beta))
        for lessons, beta in ((traces, params.beta), (runs, params.beta))
    ]
    optimizer = torch.optim.Adam(module.parameters(), lr=params.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, params.steps)
    for _ in range(params.steps):
        optimizer.zero_grad()
        sum(loss_of(module(inputs), wanted) for inputs, wanted, loss_of in pairs).backward()
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    tuned = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    wanted = np.concatenate([network.log_ratio_range, runs.log_ratio])
    return replace(
        network,
        weights=tuple(tuned[f"layers.{index}.weight"] for index in range(len(network.weights))),
        biases=tuple(tuned[f"layers.{index}.bias"] for index in range(len(network.biases))),
        lowest=np.minimum(network.lowest, runs.features.min(axis=0)),
        highest=np.maximum(network.highest, runs.features.max(axis=0)),
        log_ratio_range=np.array([wanted.min(), wanted.max()]),
    )
