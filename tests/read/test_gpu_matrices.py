"""Matrices of single GPUs in cluster files: what they say, written and read again, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import matrix_files, read_cluster, subset_cluster, write_cluster

CLUSTER = """\
nodes: [{hosts: "n[1-3]", gpu: a40, gpus_per_node: 2}]
intra_node: {bandwidth_gb_per_s: 20, latency_us: 8, matrices: [{file: pairs.csv}]}
inter_node: {latency_us: 12, nics_per_node: 2, bandwidth_gb_per_s: 10}
"""
PAIRS = "from/to,GPU0,GPU1\nGPU0,,50\nGPU1,40,\n"
SINGLES = (
    "x,n1:0,n1:1,n2:0,n2:1,n3:0,n3:1\n"
    "n1:0,,50,9,3,9,3\nn1:1,50,,3,9,3,9\nn2:0,9,3,,50,9,3\nn2:1,3,9,50,,3,9\nn3:0,9,3,9,3,,50\nn3:1,3,9,3,9,50,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three hosts of two GPUs: a matrix inside hosts, and beside it one between them."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "singles.csv").write_text(SINGLES)
    return tmp_path


def with_singles(text: str = "inter_node: {latency_us: 12, nics_per_node: 2, ") -> str:
    """The cluster file with the matrix between GPUs."""
    head = CLUSTER.replace(", matrices: [{file: pairs.csv}]", "").split("inter_node")[0]
    return head + text + "matrices: [{file: singles.csv, concurrent_flows: 1}]}\n"


def test_inside_hosts(folder: Path) -> None:
    """Every host has the matrix; links between hosts are as without it."""
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.between is None
    assert (links.inside / 1e9).tolist() == [[[0, 50], [40, 0]]] * 3


def test_hosts_of_their_own(folder: Path) -> None:
    """Two files for different hosts."""
    entries = "[{file: pairs.csv, hosts: 'n[1,3]'}, {file: slow.csv, hosts: n2}]"
    (folder / "slow.csv").write_text("x,0,1\n0,,5\n1,5,\n")
    (folder / "c.yaml").write_text(CLUSTER.replace("[{file: pairs.csv}]", entries))
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert (links.inside[:, 0, 1] / 1e9).tolist() == [50, 5, 50]
    assert matrix_files(folder / "c.yaml", "intra_node") == ["pairs.csv", "slow.csv"]


def test_rows_of_gpus_in_any_order(folder: Path) -> None:
    """GPUs are found by their numbers."""
    (folder / "pairs.csv").write_text("x,1,0\n1,,40\n0,50,\n")
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.inside[0, 0, 1] == 50e9


def test_nics_of_gpus(folder: Path) -> None:
    """Given, or shared evenly by neighbours."""
    (folder / "c.yaml").write_text(with_singles("inter_node: {nics_per_node: 2, nic_of_gpu: [1, 0], "))
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.nic_of_slot.tolist() == [1, 0]
    (folder / "c.yaml").write_text(with_singles("inter_node: {nics_per_node: 1, "))
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.nic_of_slot.tolist() == [0, 0]


def test_without_figures_inside_hosts_the_one_figure_counts(folder: Path) -> None:
    """A matrix between GPUs whose blocks of hosts are empty; pairs.csv may say them, too."""
    (folder / "singles.csv").write_text(SINGLES.replace("50", ""))
    (folder / "c.yaml").write_text(with_singles())
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.inside[2, 0, 1] == 20e9
    (folder / "c.yaml").write_text(with_singles().replace("latency_us: 8", "matrices: [{file: pairs.csv}]"))
    links = read_cluster(folder / "c.yaml").gpu_links
    assert links is not None
    assert links.inside[2, 0, 1] == 50e9


@pytest.mark.parametrize("singles", [False, True])
def test_written_and_read_again(folder: Path, singles: bool) -> None:
    """Both sorts of matrices come back as they were, also of some hosts."""
    if singles:
        (folder / "c.yaml").write_text(with_singles())
    cluster = subset_cluster(read_cluster(folder / "c.yaml"), ["n1", "n3"])
    write_cluster(cluster, folder / "again.yaml")
    again = read_cluster(folder / "again.yaml")
    links, found = cluster.gpu_links, again.gpu_links
    assert links is not None
    assert found is not None
    assert (found.inside == links.inside).all()
    assert (found.nic_of_slot == links.nic_of_slot).all()
    assert (found.between is None) is not singles
    if found.between is not None:
        assert np.array_equal(found.between, links.between, equal_nan=True)
    assert np.array_equal(again.pair_bytes_per_s(1), cluster.pair_bytes_per_s(1), equal_nan=True)


def test_hosts_that_a_matrix_of_gpus_lacks(folder: Path) -> None:
    """All are named."""
    (folder / "singles.csv").write_text("x,n1:0,n1:1\nn1:0,,50\nn1:1,50,\n")
    (folder / "c.yaml").write_text(with_singles())
    with pytest.raises(InputError, match=r"singles.csv: has no GPUs of n\[2-3\]; add rows and columns"):
        read_cluster(folder / "c.yaml")


def test_nics_of_gpus_without_matrix(folder: Path) -> None:
    """They would change nothing."""
    text = CLUSTER.replace(", matrices: [{file: pairs.csv}]", "").replace("nics_per_node: 2", "nic_of_gpu: [0, 1]")
    (folder / "c.yaml").write_text(text)
    with pytest.raises(InputError, match="nic_of_gpu has no effect without a matrix of GPUs"):
        read_cluster(folder / "c.yaml")


def test_the_inside_of_hosts_twice(folder: Path) -> None:
    """Both files say it."""
    (folder / "c.yaml").write_text(with_singles().replace("latency_us: 8", "matrices: [{file: pairs.csv}]"))
    with pytest.raises(InputError, match="leave one of the two out"):
        read_cluster(folder / "c.yaml")


def test_too_many_gpus(folder: Path) -> None:
    """Hosts of 16 keep the slowest pair, which the plan says."""
    names = [f"n{host}:{slot}" for host in (1, 2) for slot in range(16)]
    rows = [",".join([name, *("" if name == other else "7" for other in names)]) for name in names]
    (folder / "singles.csv").write_text("\n".join([",".join(["x", *names]), *rows]))
    text = with_singles().replace("n[1-3]", "n[1-2]").replace("gpus_per_node: 2", "gpus_per_node: 16")
    (folder / "c.yaml").write_text(text)
    cluster = read_cluster(folder / "c.yaml")
    assert cluster.gpu_links is None
    assert any("of two hosts the slowest pair counts" in one for one in cluster.assumed)
