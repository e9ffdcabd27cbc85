"""Packings of hosts and the maps they give."""

import itertools

import numpy as np
import pytest
from factories import make_config
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_opt.parallel import RankGrid, grid_by_rank, host_tiles, hosts_by_rank, identity_placement, tile_placement

POWERS = st.sampled_from([1, 2, 3, 4, 6, 8])


@pytest.mark.search
@settings(max_examples=200, deadline=None)
@given(tp=st.sampled_from([1, 2, 4, 8]), pp=POWERS, dp=POWERS)
def test_every_packing_is_a_partition(tp: int, pp: int, dp: int) -> None:
    """Each GPU gets one rank, each host a full rectangle, and contiguous means what torchrun needs."""
    one = make_config(tp=tp, pp=pp, dp=dp, num_layers=24)
    tiles = list(host_tiles(one, 8, "slurm"))
    if one.world_size % 8 == 0:
        assert tiles
    for tile in tiles:
        grid = tile.node_grid(one)
        nodes = np.arange(int(np.prod(grid))).reshape(grid)
        placement = tile_placement(one, tile, nodes)
        gpus = list(zip(placement.node.tolist(), placement.local_rank.tolist(), strict=True))
        assert len(set(gpus)) == one.world_size
        assert max(placement.local_rank) < 8
        in_order = tile_placement(one, tile, grid_by_rank(one, tile, np.arange(int(np.prod(grid)))))
        assert (np.diff(in_order.node) >= 0).all() == tile.contiguous
        assert hosts_by_rank(tile, nodes).tolist() == list(dict.fromkeys(placement.node.tolist()))
        contiguous = all(np.ptp(np.flatnonzero(placement.node == node)) < 8 for node in placement.nodes_used)
        assert contiguous == tile.contiguous


def test_torchrun_only_gets_contiguous_packings() -> None:
    """2 x 2 blocks of a 4 x 4 grid need one process per rank; rows and columns do not."""
    one = make_config(tp=2, pp=4, dp=4)
    shapes = {
        launcher: [(b.stages, b.replicas) for b in host_tiles(one, 8, launcher)] for launcher in ("slurm", "torchrun")
    }
    assert shapes == {"slurm": [(1, 4), (2, 2), (4, 1)], "torchrun": [(1, 4), (4, 1)]}


def test_stages_inside_a_host() -> None:
    """A whole pipeline in one host of four slots, replicas on different hosts: the second rank order."""
    one = make_config(tp=2, pp=4, dp=2)
    tile = next(tile for tile in host_tiles(one, 8, "torchrun") if tile.stages == 4)
    placement = tile_placement(one, tile, np.array([5, 3]).reshape(1, 2, 1))
    assert placement.order == "tp-cp-ep-pp-dp"
    assert placement.node.tolist() == [5] * 8 + [3] * 8
    ranks = RankGrid.of(one, placement.order).ranks()
    assert set(placement.node[ranks[:, 0]].ravel().tolist()) == {5}


def test_tensor_groups_across_hosts() -> None:
    """Sixteen tensor ranks fill two hosts in order."""
    one = make_config(tp=16, pp=2)
    (tile,) = host_tiles(one, 8, "slurm")
    placement = tile_placement(one, tile, np.array([3, 1, 0, 2]).reshape(2, 1, 2))
    assert placement.node.tolist() == [3] * 8 + [1] * 8 + [0] * 8 + [2] * 8


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
def test_rank_numbers(order: str) -> None:
    """Coordinates by plain arithmetic."""
    grid = RankGrid(tp=2, cp=1, dp=3, pp=4, order=order)  # type: ignore[arg-type]
    for pp, dp, tp in itertools.product(range(4), range(3), range(2)):
        expected = tp + 2 * (dp + 3 * pp) if order.endswith("pp") else tp + 2 * (pp + 4 * dp)
        assert grid.ranks()[pp, dp, 0, tp] == expected
        assert grid.coordinates()[expected].tolist() == [pp, dp, 0, tp]


def test_identity_needs_enough_hosts() -> None:
    """The message has the numbers."""
    with pytest.raises(ValueError, match="16 ranks need 2 hosts of 8 GPUs, got 1"):
        identity_placement(make_config(tp=8, pp=2), 8, np.array([0]), "tp-cp-ep-dp-pp")
