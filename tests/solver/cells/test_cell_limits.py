"""A search that gives parts of itself away loses nothing."""

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.base.types import P2PMode
from pipette_opt.problem.objective import largest_ticks
from pipette_opt.solver.cells.data import Grid, grid_of
from pipette_opt.solver.cells.kernel import explore, share_done
from pipette_opt.solver.cells.limits import Part, give_away, part_of

Placement = tuple[tuple[int, ...], ...]


def _whole(p2p: P2PMode, seed: int, shape: tuple[int, int, int]) -> tuple[Grid, Part]:
    data = random_problem(np.random.default_rng([9, seed]), [shape], 6, Variant(p2p=p2p, scale=1000), max_block=2)
    candidate = data.candidates[0]
    ceiling = largest_ticks(candidate)
    g = grid_of(data, candidate)
    part = part_of(g, data.allowed(candidate), ceiling, 0, ceiling)
    assert part is not None
    return g, part


def _columns_in_any_turn(nodes: np.ndarray, shape: tuple[int, int, int]) -> Placement:
    """The least of a placement's turns, and those the other way round if that changes nothing."""
    columns = [tuple(column) for column in nodes.reshape(shape[:2]).T.tolist()]
    turns = [columns[start:] + columns[:start] for start in range(len(columns))]
    return tuple(min(turn for each in turns for turn in (each, each[:1] + each[:0:-1])))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 2, 1), (2, 3, 1), (4, 1, 1), (1, 4, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_given_away_is_found(seed: int, shape: tuple[int, int, int], p2p: P2PMode) -> None:
    """All placements of a grid, with parts given away every few hosts; some are found again by turns of the rings."""
    g, first = _whole(p2p, seed, shape)
    alone = []
    while explore(g, *first, 1 << 30) == 1:
        alone.append(_columns_in_any_turn(first.state.nodes, shape))
    assert len(set(alone)) >= 30
    random, parts, found, given = np.random.default_rng(seed), [_whole(p2p, seed, shape)[1]], [], 0
    while parts:
        part = parts.pop(int(random.integers(len(parts))))
        code = explore(g, *part, int(random.integers(1, 12)))
        if code == 0:
            continue
        parts.append(part)
        if code == 1:
            found.append(_columns_in_any_turn(part.state.nodes, shape))
        if random.random() < 0.3 and (other := give_away(part)) is not None:
            parts.append(other)
            given += 1
    assert given > 5
    assert set(found) == set(alone)
    assert len(found) < 2 * len(alone)


def test_share_behind() -> None:
    """It grows from nothing to everything, in small steps."""
    g, part = _whole("blocking", 0, (3, 2, 1))
    shares = [share_done(part.state)]
    while explore(g, *part, 3) != 0:
        shares.append(share_done(part.state))
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1
    assert len({round(share, 2) for share in shares}) > 20
