"""Links by number of flows, and what a cluster refuses."""

import numpy as np
import pytest
from factories import A100_40, A100_80, make_cluster, make_links

from pipette_opt.base.units import GB
from pipette_opt.specs import LinkMatrix, NodeSpec


def test_one_measured_flow_grows_up_to_the_nics() -> None:
    """10 GB/s for one flow, four NICs: 20 for two, 40 for four and for eight."""
    spec = make_cluster(2, 10.0, nics_per_node=4)
    assert [spec.pair_bytes_per_s(k)[0, 1] / GB for k in (1, 2, 4, 8)] == [10, 20, 40, 40]


def test_measured_counts_are_interpolated_and_held() -> None:
    """10 for one and 45 for eight flows: 15 for two, 45 for sixteen."""
    spec = make_cluster(2, link_matrices=(make_links(45.0, 2, 8), make_links(10.0, 2, 1)))
    assert [spec.pair_bytes_per_s(k)[0, 1] / GB for k in (1, 2, 8, 16)] == pytest.approx([10, 15, 45, 45])


def test_only_many_flows_measured() -> None:
    """Fewer flows than measured get their share."""
    spec = make_cluster(2, link_matrices=(make_links(40.0, 2, 8),))
    assert spec.pair_bytes_per_s(2)[0, 1] == pytest.approx(10 * GB)


def test_a_pair_missing_in_one_matrix_is_known_from_the_other() -> None:
    """The single-flow matrix lacks a pair that eight flows have, and the other way round."""
    one, eight = np.full((3, 3), 10.0), np.full((3, 3), 40.0)
    one[0, 1] = eight[1, 2] = np.nan
    spec = make_cluster(3, link_matrices=(make_links(one, 3, 1), make_links(eight, 3, 8)))
    assert spec.pair_bytes_per_s(4)[0, 1] == pytest.approx(20 * GB)
    assert spec.pair_bytes_per_s(4)[1, 2] == pytest.approx(10 * GB)
    assert spec.usable_links.sum() == 6


def test_the_host_cap_bounds_every_pair() -> None:
    """A cap of 25 GB/s holds for any number of flows."""
    spec = make_cluster(2, 10.0, node_bytes_per_s=25.0 * GB)
    assert [spec.pair_bytes_per_s(k)[0, 1] / GB for k in (1, 2, 4)] == [10, 20, 25]


def test_links_are_directed() -> None:
    """A matrix may differ by direction."""
    values = np.array([[np.nan, 5.0], [20.0, np.nan]])
    spec = make_cluster(2, values)
    assert spec.pair_bytes_per_s(1)[0, 1] == 5 * GB
    assert spec.pair_bytes_per_s(1)[1, 0] == 20 * GB


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf])
def test_bad_bandwidths_are_refused(bad: float) -> None:
    """Zero, negative and infinite bandwidths name the pair."""
    with pytest.raises(ValueError, match="from host 0 to host 1"):
        LinkMatrix(concurrent_flows=1, bytes_per_s=np.array([[1.0, bad], [1.0, 1.0]]))


def test_kinds_of_gpu() -> None:
    """Kinds are numbered in order of first appearance."""
    spec = make_cluster(4, kinds=(A100_80, A100_40))
    assert [gpu.name for gpu in spec.gpu_kinds] == ["a100-80gb", "a100-40gb"]
    assert spec.kind_of_node.tolist() == [0, 1, 0, 1]


def test_a_cluster_refuses_contradictions() -> None:
    """Duplicate hosts, unequal hosts, matrices of another size, two hosts without links."""
    same = NodeSpec(host="a", gpu=A100_80, num_gpus=8)
    with pytest.raises(ValueError, match="a more than once"):
        make_cluster(2, nodes=(same, same))
    with pytest.raises(ValueError, match="equally many"):
        make_cluster(2, nodes=(same, NodeSpec(host="b", gpu=A100_80, num_gpus=4)))
    with pytest.raises(ValueError, match="has 3 hosts"):
        make_cluster(2, link_matrices=(make_links(1.0, 3),))
    with pytest.raises(ValueError, match="needs a link matrix"):
        make_cluster(2, link_matrices=())
