"""Pipelines with chosen or random times, for the tests of this folder."""

import numpy as np
import pytest

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.parallel.schedule import Schedule
from pipette_opt.simulate.breakdown import Causes, causes_of
from pipette_opt.simulate.estimate import simulate_times


def pipeline(
    forward: FloatArray | list[float],
    backward: FloatArray | list[float],
    send_forward: FloatArray | list[float] | None = None,
    send_backward: FloatArray | list[float] | None = None,
    reduction: FloatArray | list[float] | None = None,
    optimizer: float = 0.0,
) -> PlacedTimes:
    """Times per stage, ``(pp,)``, ``(pp, dp)`` or ``(chunks, pp, dp)``; a tenth of the work is tensor communication."""
    work_forward, work_backward = _as_chunks(forward), _as_chunks(backward)
    pp, dp = work_forward.shape[1:]
    sends = [
        np.zeros((pp, dp)) if send is None else np.asarray(send, dtype=float).reshape(pp, -1) * np.ones((1, dp))
        for send in (send_forward, send_backward)
    ]
    return PlacedTimes(
        forward_s=work_forward,
        backward_s=work_backward,
        tensor_forward_s=work_forward / 10,
        tensor_backward_s=work_backward / 10,
        send_forward_s=sends[0],
        send_backward_s=sends[1],
        reduction_s=np.zeros(pp) if reduction is None else np.asarray(reduction, dtype=float),
        optimizer_s=optimizer,
    )


def causes(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None) -> Causes:
    """The simulated time by cause; each way of counting is non-negative and adds up to it."""
    simulated = simulate_times(times, num_microbatches, p2p, schedule)
    found = causes_of(times, simulated, num_microbatches, p2p, schedule)
    for one in (found.pipeline, found.critical_path):
        assert sum(one.values()) == pytest.approx(simulated.iteration_time_s, rel=1e-12)
        assert min(one.values()) >= -1e-9
    assert found.critical_path["bubble"] == 0.0
    return found


def random_pipeline(
    rng: np.random.Generator, kind: str, num_stages: int, num_replicas: int = 1, num_chunks: int = 1
) -> PlacedTimes:
    """
    ``equal``: equal stages and links. ``near``: 5 % apart, directed links. ``uneven``: up to fivefold. ``wild``:
    forward and backward unrelated, links up to 3x the work. ``binary``: all times 0 or 1, so ties abound.
    """
    works, links = (num_chunks, num_stages, num_replicas), (num_stages, num_replicas)
    if kind == "equal":
        up = np.repeat(rng.uniform(0, 0.5, (1, num_replicas)), num_stages, axis=0)
        forward, backward, down = np.ones(works), np.full(works, 2.0), up
    elif kind in ("near", "uneven"):
        forward = rng.uniform(0.95, 1.05, works) if kind == "near" else rng.uniform(1, 5, works)
        backward = forward * rng.uniform(1.95, 2.05, works)
        up = rng.uniform(0.01, 0.3, links) if kind == "near" else rng.uniform(0, 1, links)
        down = up * rng.uniform(0.8, 1.25, links)
    elif kind == "wild":
        forward, backward = rng.uniform(0, 1, works) ** 4, rng.uniform(0, 1, works) ** 4
        up, down = (rng.uniform(0, 1, links) ** 3 * rng.choice([0, 0.1, 1, 3]) for _ in range(2))
    elif kind == "binary":
        forward, backward = (rng.integers(0, 2, works).astype(float) for _ in range(2))
        up, down = (rng.integers(0, 2, links) * float(rng.integers(0, 2)) for _ in range(2))
    else:
        raise ValueError(f"unknown kind {kind!r}.")
    if num_stages == 1:
        up, down = np.zeros(links), np.zeros(links)
    return pipeline(forward, backward, up, down)


def _as_chunks(work: FloatArray | list[float]) -> FloatArray:
    array = np.asarray(work, dtype=float)
    if array.ndim == 1:
        array = array[:, None]
    return array[None] if array.ndim == 2 else array
