"""
Baseline AMP: its cost formula with two link speeds, and its simulated annealing.

D. Li, H. Wang, E. Xing, H. Zhang, "AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness",
NeurIPS 2022, arXiv 2210.07297. Formulas as in ``cost_het_cluster.py``, ``pipe.py`` and ``homogeneous_sa.py`` of its
release (github.com/DachengLi1/AMP).
"""

import time
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.baselines.megatron import identity_nodes
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AmpParams:
    """
    Settings of AMP's placement and annealing.

    Parameters
    ----------
    placement
        ``listed``: hosts in listed order, every candidate and tiling compared by AMP's cost, as in the release's
        experiments. ``annealed``: also swap hosts, by AMP's annealing on AMP's cost. That is a generous reading: the
        release anneals over tilings and never swaps hosts.
    num_annealed
        Number of annealed candidates: those with the least cost in listed order.
    moves
        Number of swaps tried per annealed candidate.
    time_limit_s
        Wall time of all annealing, seconds.
    hot
        First temperature, as a fraction of the first cost; the temperature falls linearly to zero, as in the release.
    """

    placement: Literal["listed", "annealed"] = "annealed"
    num_annealed: int = 8
    moves: int = 5_000
    time_limit_s: float = 5.0
    seed: int = 0
    hot: float = 0.01

    def __post_init__(self) -> None:
        for name in ("num_annealed", "moves"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        for name in ("time_limit_s", "hot"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")


class AmpView(NamedTuple):
    """
    Data that AMP's cost knows of a candidate: one number per host, none for single links. All times are in ticks.

    Parameters
    ----------
    work
        Forward and backward pass of one micro-batch on each stage on each host, shape ``(pp, num_nodes)``.
    send
        Transfer of one micro-batch, one way, over a host's median link, shape ``(num_nodes,)``.
    ring
        Gradient reduction of each stage over a host's median link, at least as long as inside a host, shape ``(pp,
        num_nodes)``.
    row
        Grid row of each stage, shape ``(pp,)``.
    intra_send
        Transfer of one micro-batch inside a host.
    """

    work: FloatArray
    send: FloatArray
    ring: FloatArray
    row: IntArray
    intra_send: float
    num_microbatches: int


class _Choice(NamedTuple):
    """Candidate with AMP's cost in ticks, and its placement; ``None`` if its hosts lack memory or links."""

    cost: float
    candidate: int
    solution: Solution | None


def amp(data: ProblemData, params: AmpParams | None = None) -> Result:
    """
    Return the candidate and placement with the least cost by AMP's formula.

    The result's objective is that of our relaxation. AMP chooses tensor, pipeline and data size, micro-batch
    size, layer partition and tiling; its tensor groups stay inside a host. It has no memory model and knows no single
    links. A choice that does not fit or uses an unmeasured link is skipped, since the release's trial run would reject
    it too.
    """
    params, started = params or AmpParams(), time.perf_counter()
    known = [index for index, candidate in enumerate(data.candidates) if _is_known(data, candidate)]
    views = {index: amp_view(data, data.candidates[index]) for index in known}
    order = itemgetter(0, 1)
    choices = sorted((_listed(data, views[index], index) for index in known), key=order)
    if params.placement == "annealed":
        ends = started + params.time_limit_s
        few, rest = choices[: params.num_annealed], choices[params.num_annealed :]
        annealed = [_annealed(data, views[choice.candidate], choice, params, ends) for choice in few]
        choices = sorted((*annealed, *rest), key=order)
    chosen = next((choice.solution for choice in choices if choice.solution is not None), None)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    return result_of([] if chosen is None else [chosen], bounds, started)


def amp_view(data: ProblemData, candidate: CandidateData) -> AmpView:
    """Return AMP's view of a candidate: each host has one link time, the median of its links both ways."""
    kinds = data.kind_of_node
    stages = np.arange(candidate.num_stages)
    ring = np.repeat(candidate.ring_floor_ticks[:, None], data.num_nodes, axis=1).astype(np.float64)
    if candidate.grid[1] > 1:
        of_host = np.stack([_median_link(ticks) for ticks in candidate.ring_ticks])
        ring = np.maximum(ring, of_host[candidate.ring_class])
    return AmpView(
        work=(candidate.forward_ticks + candidate.backward_ticks)[kinds].T.astype(np.float64),
        send=_median_link(candidate.p2p_ticks),
        ring=ring,
        row=stages // candidate.tile.stages,
        intra_send=float(candidate.intra_p2p_ticks),
        num_microbatches=candidate.num_microbatches,
    )


def amp_cost(view: AmpView, nodes: IntArray) -> float:
    """
    Return AMP's cost in ticks: ``(m - 1) max_s e_s + sum e_s + sum c_s + max_s d_s``.

    ``e_s``: one micro-batch on stage ``s``, mean over the replicas. ``c_s``: one transfer to the next stage by the
    slower of the two hosts, mean over the replicas, counted once for all micro-batches. ``d_s``: ring all-reduce of the
    stage's gradients at its slowest hop. All hops of the ring count, as the paper intends; the release only uses the
    last hop.

    Parameters
    ----------
    nodes
        Host of each grid cell, shape ``(P, D)``.
    """
    hosts = nodes[view.row]  # (pp, D)
    stage = np.arange(len(hosts))[:, None]
    work = view.work[stage, hosts].mean(axis=1)
    send = np.maximum(view.send[hosts[:-1]], view.send[hosts[1:]])
    send[view.row[:-1] == view.row[1:]] = view.intra_send
    total: np.float64 = (view.num_microbatches - 1) * work.max() + work.sum() + send.mean(axis=1).sum()
    return float(total + view.ring[stage, hosts].max())


def _is_known(data: ProblemData, candidate: CandidateData) -> bool:
    """
    Return whether AMP can express the candidate: no interleaving, no context parallelism, one host per cell.

    Gradients are reduced in one ring, so neither ZeRO 2 nor 3.
    """
    config = candidate.config
    plain = config.num_chunks == 1 and config.context_parallel_size == 1 and config.reduces_in_one_ring
    return plain and candidate.grid[2] == 1 and candidate.num_cells <= data.num_nodes


def _median_link(ticks: IntArray) -> FloatArray:
    """Return the median time of each host's links both ways, ticks; ``UNUSABLE_TICKS`` for a host without links."""
    known = np.where(ticks < UNUSABLE_TICKS, ticks, np.nan)
    both = np.concatenate([known, known.T], axis=1)
    result = np.full(len(ticks), float(UNUSABLE_TICKS))
    linked = ~np.isnan(both).all(axis=1)
    result[linked] = np.nanmedian(both[linked], axis=1)
    return result


def _listed(data: ProblemData, view: AmpView, index: int) -> _Choice:
    nodes = identity_nodes(data.candidates[index])
    return _Choice(amp_cost(view, nodes[:, :, 0]), index, checked_solution(data, index, nodes))


def _annealed(data: ProblemData, view: AmpView, start: _Choice, params: AmpParams, ends: float) -> _Choice:
    """
    Return the best choice after swaps of hosts, spare hosts included.

    A swap with a higher cost is accepted with probability ``exp(-difference / T)``.
    """
    random = np.random.default_rng((params.seed, start.candidate))
    candidate = data.candidates[start.candidate]
    P, D, _ = candidate.grid
    listed = identity_nodes(candidate)
    spare = np.setdiff1d(np.arange(data.num_nodes), listed)
    order = np.concatenate([listed.ravel(), spare])
    if len(order) < 2:
        return start
    current, best = start.cost, start
    cells = order[: P * D].reshape(P, D)  # a view, which follows every swap
    for move in range(params.moves):
        if time.perf_counter() >= ends:
            break
        temperature = params.hot * start.cost * (1 - move / params.moves)
        i, j = int(random.integers(P * D)), int(random.integers(len(order)))
        order[[i, j]] = order[[j, i]]
        cost = amp_cost(view, cells)
        if cost > current and random.random() >= np.exp((current - cost) / max(temperature, 1e-9)):
            order[[i, j]] = order[[j, i]]
            continue
        current = cost
        if cost < best.cost or best.solution is None:
            solution = checked_solution(data, start.candidate, cells[:, :, None])
            if solution is not None:
                best = _Choice(cost, start.candidate, solution)
    return best
