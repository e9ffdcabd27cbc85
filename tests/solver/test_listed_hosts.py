"""Hosts of rows in the order listed: stages and groups of experts inside NVLink domains."""

import numpy as np
import pytest
from factories import make_cluster, make_config
from levels import in_domains

from pipette_opt.parallel import host_tiles
from pipette_opt.solver.listed_hosts import hosts_together, next_hosts
from pipette_opt.specs import ClusterSpec

RACKS = in_domains([0] * 5 + [1] * 5 + [2] * 5)


def rows(given: ClusterSpec, number: int, width: int, together: int) -> list[list[int]]:
    """Rows that are filled in turn."""
    free, found = np.ones(given.num_nodes, dtype=np.bool_), []
    for _ in range(number):
        taken = next_hosts(given, free, width, together)
        assert taken is not None
        free[taken] = False
        found.append(taken.tolist())
    return found


def test_rows_stay_in_a_domain_where_one_has_room() -> None:
    """Of five hosts a domain has two rows of two; the last row takes what is left, of the first domains."""
    assert rows(RACKS, 7, 2, 1) == [[0, 1], [2, 3], [5, 6], [7, 8], [10, 11], [12, 13], [4, 9]]
    assert rows(RACKS, 3, 4, 1) == [[0, 1, 2, 3], [5, 6, 7, 8], [10, 11, 12, 13]]


def test_groups_of_a_long_row_stay_in_a_domain() -> None:
    """Twelve hosts in groups of four, one group a domain; in pairs, two pairs of each; alone, in turn."""
    assert rows(RACKS, 1, 12, 4) == [[0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]]
    assert rows(RACKS, 1, 12, 2) == [[0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]]
    assert rows(RACKS, 1, 12, 1) == [list(range(12))]


def test_without_domains_hosts_come_as_listed() -> None:
    """Whatever belongs together, and as many as are free."""
    plain = make_cluster(6)
    assert rows(plain, 2, 3, 3) == [[0, 1, 2], [3, 4, 5]]
    free = np.array([False, True, True, False, True, True])
    taken = next_hosts(plain, free, 3, 2)
    assert taken is not None
    assert taken.tolist() == [1, 2, 4]
    assert next_hosts(plain, free, 5, 1) is None


@pytest.mark.parametrize(
    ("ep", "replicas", "hosts"),
    [(1, 4, 1), (4, 4, 1), (8, 4, 2), (16, 4, 4), (8, 2, 4)],
)
def test_hosts_of_a_group_of_experts(ep: int, replicas: int, hosts: int) -> None:
    """So many replicas of a stage on a host, and of these as many as there are ranks of experts."""
    one = make_config(tp=1, pp=2, dp=16, expert_model_parallel_size=ep)
    [tile] = [tile for tile in host_tiles(one, 4, "slurm") if tile.replicas == replicas]
    assert hosts_together(one, tile) == hosts
