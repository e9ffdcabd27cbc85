"""Network for the errors of a formula on measured peaks: trained on several stacks, applied to another."""

from itertools import pairwise

import numpy as np

from pipette_opt.base.types import FloatArray

WIDTHS, STEPS, RATE, DECAY, MEMBERS = (16, 16), 600, 5e-3, 0.05, 3
"""Hidden units, full-batch steps of AdamW, its rate and weight decay, and number of averaged networks. Chosen."""

BETA = 0.03
"""Error of the log above which the loss is linear. Chosen."""


def learn_residual(
    features: FloatArray, log_ratio: FloatArray, say: FloatArray, wanted: FloatArray, steps: int = STEPS
) -> FloatArray:
    """
    Return the predicted ``log(measured / formula)`` of unseen rows, shape ``(num_wanted,)``.

    Parameters
    ----------
    features, wanted
        Features of rows to learn from and to predict, shapes ``(num_rows, num_features)`` and
        ``(num_wanted, num_features)``.
    log_ratio
        ``log(measured / formula)``, shape ``(num_rows,)``.
    say
        Weight of each row, shape ``(num_rows,)``; must be positive.
    steps
        Training steps of each of the averaged networks.
    """
    import torch

    mean, scale = features.mean(axis=0), features.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    inputs, asked = (torch.from_numpy((array - mean) / scale) for array in (features, wanted))
    targets, weights = torch.from_numpy(log_ratio), torch.from_numpy(say / say.sum())
    loss_of = torch.nn.SmoothL1Loss(beta=BETA, reduction="none")
    prediction, threads = np.zeros(len(wanted)), torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small to share
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        sizes = (features.shape[1], *WIDTHS, 1)
        layers = [torch.nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
        network = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
        optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            optimizer.zero_grad()
            (weights * loss_of(network(inputs)[:, 0], targets)).sum().backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            prediction += network(asked)[:, 0].numpy() / MEMBERS
    torch.set_num_threads(threads)
    return np.asarray(np.clip(prediction, log_ratio.min(), log_ratio.max()))
