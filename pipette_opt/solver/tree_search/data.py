"""A candidate as the flat arrays that the search of a grid works on."""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.matching import bottleneck_level
from pipette_opt.solver.tree_search.costs import (
    NEVER,
    after_reductions,
    as_ints,
    end_parts,
    mean_parts,
    ring_hops,
    transfers,
    watched_stages,
)


class Grid(NamedTuple):
    """
    A candidate; ``P`` rows, ``D`` columns, ``a`` stages in a row, ``W`` watched stages, ``N`` hosts, all in ticks.

    Of a column ``W + 1`` sums are bounded: the end of each watched stage without the ``m - 1`` periods, and what all
    stages take in a period.

    Parameters
    ----------
    scalars
        ``P, D, a``, micro-batches less one, whether sends are blocking, transfer inside a host, whether rings may be
        turned round.
    work
        Work of each stage, forward and backward, shape ``(stages, N)``.
    inner
        Least period that the stages of a row alone have on a host, shape ``(P, N)``.
    wait
        What a period counts of a transfer, shape ``(N, N)``.
    node
        What a host adds to each sum, shape ``(W + 1, P, N)``.
    transfer
        What a transfer can add to a sum: in the direction of forwards, both ways, in a period; shape ``(3, N, N)``.
    arc
        Which of these it adds to each sum, shape ``(P - 1, W + 1)``.
    hop
        Reduction of each watched stage by ring hop, shape ``(W, N, N)``.
    least_hop, after
        Least reduction of each watched stage, and what follows it, shape ``(W,)``.
    row
        Row of each watched stage, shape ``(W,)``.
    slowest
        Hosts, those with the slowest links first, shape ``(N,)``.
    """

    scalars: IntArray
    work: IntArray
    inner: IntArray
    wait: IntArray
    node: IntArray
    transfer: IntArray
    arc: IntArray
    hop: IntArray
    least_hop: IntArray
    after: IntArray
    row: IntArray
    slowest: IntArray


def grid_of(data: ProblemData, candidate: CandidateData) -> Grid:
    """A candidate with a closed form and tensor groups inside hosts as arrays."""
    P, D, _ = candidate.grid
    a, inside, blocking = candidate.block.stages, candidate.intra_p2p_ticks, data.p2p == "blocking"
    kinds = data.kind_of_node
    there, both, wait = transfers(candidate, blocking=blocking)
    watched = watched_stages(candidate)
    nodes = [end_parts(candidate, kinds, both, there, stage)[0] for stage in watched.tolist()]
    last_above = (np.arange(P - 1) + 1) * a - 1  # stage before each transfer
    hops = [ring_hops(candidate, stage) for stage in watched.tolist()]
    work = (candidate.forward_ticks + candidate.backward_ticks)[kinds].T
    turns = all((hop == hop.T).all() for hop in hops)
    grid = Grid(
        scalars=as_ints([P, D, a, candidate.num_microbatches - 1, blocking, inside, turns]),
        work=as_ints(work),
        inner=as_ints(_longest_inside(work.reshape(P, a, -1), inside, blocking)),
        wait=as_ints(wait),
        node=as_ints([*nodes, mean_parts(data, candidate, kinds, wait)[0]]),
        transfer=as_ints([there, both, 2 * wait if blocking else wait]),
        arc=as_ints(np.append(last_above[:, None] >= watched, np.full((P - 1, 1), 2), axis=1)),
        hop=as_ints(hops),
        least_hop=as_ints([bottleneck_level(hop, D) if D > 1 else int(hop[0, 0]) for hop in hops]),
        after=after_reductions(candidate, watched),
        row=as_ints(watched // a),
        slowest=as_ints(np.argsort(-(np.minimum(wait, NEVER // len(wait)).sum(axis=1) + work.sum(axis=0)))),
    )
    return _without_early(grid)


def _without_early(g: Grid) -> Grid:
    """Leaves out watched stages that end before the first one does, whatever the hosts and however slow their ring."""
    N = len(g.wait)
    if N == 1:
        return g
    apart = ~np.eye(N, dtype=np.bool_)
    usable = g.transfer.max(axis=0) < NEVER
    sooner = (g.node[:1] - g.node[:-1]).min(axis=2).sum(axis=1)  # than the first stage, in any column
    for row in range(len(g.arc)):
        less = g.transfer[g.arc[row, 0]] - g.transfer[g.arc[row, :-1]]
        sooner += less[:, usable].min(axis=1, initial=NEVER)
    slowest = g.hop[:, apart].max(axis=1) + g.after
    late = (slowest > g.least_hop[0] + g.after[0] + sooner) | (np.arange(len(g.row)) == 0)
    late |= (g.hop[:, apart] >= NEVER).any(axis=1)
    sums = np.append(late, True)
    return g._replace(
        node=as_ints(g.node[sums]),
        arc=as_ints(g.arc[:, sums]),
        hop=as_ints(g.hop[late]),
        least_hop=as_ints(g.least_hop[late]),
        after=as_ints(g.after[late]),
        row=as_ints(g.row[late]),
    )


def _longest_inside(work: IntArray, inside: int, blocking: bool) -> IntArray:
    """
    Least period that the stages of a row alone have on a host, shape ``(P, N)``.

    Parameters
    ----------
    work
        Shape ``(P, a, N)``.
    """
    a = work.shape[1]
    if blocking:
        waits = inside * (np.minimum(np.arange(a), 1) + np.minimum(np.arange(a)[::-1], 1))
        return as_ints((work + waits[None, :, None]).max(axis=1))
    means = [
        -(-(work[:, start:end].sum(axis=1) + 2 * inside * (end - start - 1)) // (end - start))
        for start in range(a)
        for end in range(start + 1, a + 1)
    ]
    return as_ints(np.stack(means).max(axis=0))
