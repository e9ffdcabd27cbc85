"""Cluster files."""

import json
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.read.cluster import exclude_hosts, read_cluster, subset_cluster, write_cluster
from pipette_opt.read.gpus import read_gpu
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.matrices import read_matrix
from pipette_opt.specs import ClusterSpec, GpuSpec, LinkMatrix, NodeSpec
from pipette_opt.specs.host_names import compress_hosts

GOOD = """\
name: three
nodes:
  - {hosts: "gpu[01-02]", gpu: a100-80gb, gpus_per_node: 8}
  - {hosts: [big], gpu: A100-40GB, gpus_per_node: 8}
intra_node: {bandwidth_gb_per_s: 235, latency_us: 8}
inter_node:
  latency_us: 12
  nics_per_node: 4
  matrices:
    - {file: links.csv, concurrent_flows: 1}
  node_bandwidth_gb_per_s: 90
"""
LINKS = """\
,gpu01,gpu02,big
gpu01,,20,10.5
gpu02,21,,
big,9,8,
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good cluster of three hosts."""
    (tmp_path / "c.yaml").write_text(GOOD)
    (tmp_path / "links.csv").write_text(LINKS)
    return tmp_path


def put(row: dict[str, Any], folder: Path) -> Path:
    """Write the files of a row: the good ones with replaced parts, or others in their place; return the cluster's."""
    files = {"c.yaml": GOOD, "links.csv": LINKS} | row.get("files", {})
    for name, text in files.items():
        for old, new in row.get("replace", {}).items():
            assert any(old in other for other in files.values()), old
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder / "c.yaml"


def gb_per_s(links: FloatArray) -> Any:
    """Links in GB/s as nested lists; null where there is no measurement."""
    return [[None if np.isnan(link) else round(link / 1e9, 9) for link in row] for row in links]


SIDES: dict[str, Callable[[ClusterSpec], Any]] = {
    "gpus": lambda cluster: [node.gpu.name for node in cluster.nodes],
    "links": lambda cluster: gb_per_s(cluster.link_matrices[0].bytes_per_s),
    "links of 1 flow": lambda cluster: gb_per_s(cluster.pair_bytes_per_s(1)),
    "links of 8 flows": lambda cluster: gb_per_s(cluster.pair_bytes_per_s(8)),
    "GPU links inside": lambda cluster: gb_per_s(attrgetter("gpu_links.inside")(cluster)[0]),
    "GPU links between": lambda cluster: gb_per_s(attrgetter("gpu_links.between")(cluster)[0, :, 1]),
    "NIC of each GPU": lambda cluster: attrgetter("gpu_links.nic_of_slot")(cluster).tolist(),
    "first GPU": lambda cluster: {name: getattr(cluster.nodes[0].gpu, name) for name in GPU_FIELDS},
}
"""Names of a row that are no fields of a cluster."""

GPU_FIELDS = ("memory_bytes", "memory_bytes_per_s", "peak_flops", "generation")


@pytest.mark.parametrize("row", table(__file__, "READ"), ids=lambda row: row["shows"])
def test_cluster_files(tmp_path: Path, row: dict[str, Any]) -> None:
    """Each cluster file has the fields beside it; ``assumed`` are patterns of as many notes, in their order."""
    cluster = read_cluster(put(row, tmp_path))
    for name, expected in row["means"].items():
        if name == "assumed":
            assert len(cluster.assumed) == len(expected)
            assert all(
                re.search(part, note) for note, parts in zip(cluster.assumed, expected, strict=True) for part in parts
            )
            continue
        found = SIDES.get(name, attrgetter(name))(cluster)
        found = pytest.approx(found) if isinstance(found, float) else json.loads(json.dumps(found))
        assert found == expected, name


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["shows"])
def test_wrong_cluster_files(tmp_path: Path, row: dict[str, Any]) -> None:
    """Each is refused in the words beside it; nonsense never raises another exception."""
    with pytest.raises(InputError, match=row["error"]):
        read_cluster(put(row, tmp_path))


HUGE_VALUES = [
    ("node_bandwidth_gb_per_s: 90", f"node_bandwidth_gb_per_s: 1{'0' * 400}", r"must be a number > 0, got 10000"),
    ("node_bandwidth_gb_per_s: 90", f"node_bandwidth_gb_per_s: 1{'0' * 5000}", r"has a value that cannot be read"),
    ("name: three", f"name: {'[' * 5000}", r"too deep to be read|nesting depth"),
]


@pytest.mark.search
@pytest.mark.parametrize(("old", "new", "message"), HUGE_VALUES, ids=["huge", "thousands of digits", "deep"])
def test_huge_values_of_cluster_files(folder: Path, old: str, new: str, message: str) -> None:
    """What Python's own readers do not survive is an error of the file, too."""
    assert old in GOOD
    (folder / "c.yaml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read_cluster(folder / "c.yaml")


def test_a_cell_of_many_digits(folder: Path) -> None:
    """Python's own reader does not survive it."""
    (folder / "links.csv").write_text(LINKS.replace("20,10.5", f"{'1' * 200_000},10.5"))
    with pytest.raises(InputError, match=r"links.csv: is not valid CSV"):
        read_cluster(folder / "c.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "too deep to be read"),
        ('{"gpus": ["a", "b"], "bandwidth": [[0, 1' + "0" * 400 + "], [1, 0]]}", "from a to b must be a number > 0"),
        ('{"gpus": ["a", "b"], "bandwidth": [[0, 1' + "0" * 5000 + "], [1, 0]]}", "is not valid JSON: Exceeds"),
    ],
    ids=["deep", "huge", "thousands of digits"],
)
def test_wrong_json_matrices(tmp_path: Path, text: str, message: str) -> None:
    """What Python's own readers do not survive is an error of the file, too."""
    (tmp_path / "links.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_matrix(tmp_path / "links.json")


def test_missing_and_binary_files(tmp_path: Path) -> None:
    """A file that is not there, a folder, and one that is no text."""
    with pytest.raises(InputError, match="does not exist"):
        read_cluster(tmp_path / "c.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(InputError, match="UTF-8"):
        read_cluster(tmp_path / "c.yaml")


def same_cluster(first: ClusterSpec, second: ClusterSpec) -> None:
    """Equal to 1 kB/s and 1 ps."""
    assert first.name == second.name
    assert first.nodes == second.nodes
    assert first.nics_per_node == second.nics_per_node
    assert (first.node_bytes_per_s is None) == (second.node_bytes_per_s is None)
    assert first.intra_node_bytes_per_s == pytest.approx(second.intra_node_bytes_per_s, abs=1e3)
    assert first.inter_node_latency_s == pytest.approx(second.inter_node_latency_s, abs=1e-12)
    assert first.links_measured == second.links_measured
    for mine, other in zip(first.link_matrices, second.link_matrices, strict=True):
        assert mine.concurrent_flows == other.concurrent_flows
        np.testing.assert_allclose(mine.bytes_per_s, other.bytes_per_s, atol=1e3, rtol=0)


@pytest.mark.search
@settings(max_examples=25, deadline=None)
@given(num_nodes=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), cap=st.booleans())
def test_writing_and_reading_again(
    tmp_path_factory: pytest.TempPathFactory, num_nodes: int, seed: int, cap: bool
) -> None:
    """Any cluster comes back; writing what was read gives the same files byte for byte."""
    rng = np.random.default_rng(seed)
    source = "x" if rng.random() < 0.5 else ""
    special = GpuSpec(
        name="odd",
        memory_bytes=2**30,
        peak_flops={"bf16": 1.5e14},
        memory_bytes_per_s=1e12,
        source=source,
        generation="ada" if source else "",
    )
    kinds = [read_gpu("a100-80gb"), read_gpu("a100-40gb"), special]
    matrices = []
    for flows in rng.choice([1, 2, 4, 8], size=rng.integers(1, 4), replace=False):
        values = rng.uniform(1e9, 1e11, size=(num_nodes, num_nodes))
        values[rng.random(values.shape) < 0.2] = np.nan
        matrices.append(LinkMatrix(concurrent_flows=int(flows), bytes_per_s=values))
    cluster = ClusterSpec(
        name="any: name #1",
        nodes=tuple(
            NodeSpec(host=f"n{rng.integers(0, 9)}-{i:02d}", gpu=kinds[rng.integers(0, 3)], num_gpus=8)
            for i in range(num_nodes)
        ),
        intra_node_bytes_per_s=float(rng.uniform(1e9, 1e12)),
        inter_node_latency_s=float(rng.uniform(0, 1e-4)),
        nics_per_node=int(rng.integers(1, 9)),
        link_matrices=tuple(matrices),
        node_bytes_per_s=float(rng.uniform(1e9, 1e12)) if cap else None,
    )
    folder = tmp_path_factory.mktemp("written")
    write_cluster(cluster, folder / "a.yaml", comment="made\nby a test")
    again = read_cluster(folder / "a.yaml")
    same_cluster(cluster, again)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    write_cluster(again, folder / "a.yaml", comment="made\nby a test")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_subset_keeps_order_and_links(folder: Path) -> None:
    """Hosts stay in the cluster's order, whatever the order they are asked in."""
    cluster = subset_cluster(read_cluster(folder / "c.yaml"), ["big", "gpu01"])
    assert cluster.hosts == ("gpu01", "big")
    np.testing.assert_array_equal(cluster.link_matrices[0].bytes_per_s / 1e9, [[np.nan, 10.5], [9, np.nan]])


def test_excluding_hosts(folder: Path) -> None:
    """Ranges are understood; unknown hosts and excluding all are errors."""
    cluster = read_cluster(folder / "c.yaml")
    assert exclude_hosts(cluster, []).hosts == cluster.hosts
    assert exclude_hosts(cluster, ["gpu[01-02]"]).hosts == ("big",)
    with pytest.raises(InputError, match=r"host 'gpu03' is not in cluster three. Did you mean gpu0"):
        exclude_hosts(cluster, ["gpu03"])
    with pytest.raises(InputError, match="names every host of cluster three"):
        exclude_hosts(cluster, ["gpu[01-02],big"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu[01-03,20]", ["gpu01", "gpu02", "gpu03", "gpu20"]),
        ("a,b[9-11]", ["a", "b9", "b10", "b11"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (["x[1-2]", "y"], ["x1", "x2", "y"]),
        ("gpu[098-101].lab", ["gpu098.lab", "gpu099.lab", "gpu100.lab", "gpu101.lab"]),
    ],
)
def test_host_ranges(text: object, expected: list[str]) -> None:
    """Slurm's way to write many hosts."""
    assert list(expand_hosts(text)) == expected


@pytest.mark.search
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["gpu", "node-", "a1b"]), st.integers(0, 120), st.integers(1, 4)),
        min_size=1,
        max_size=12,
    )
)
def test_compressed_hosts_expand_again(parts: list[tuple[str, int, int]]) -> None:
    """Whatever the names, numbers and leading zeros."""
    hosts = tuple(f"{prefix}{str(number).zfill(width)}" for prefix, number, width in parts)
    assert expand_hosts(compress_hosts(hosts)) == hosts


def test_excluded_hosts_are_named_by_their_option(folder: Path) -> None:
    """Unknown ones, and all of them."""
    cluster = read_cluster(folder / "c.yaml")
    with pytest.raises(InputError, match=r"^--exclude-hosts: host 'zz'"):
        exclude_hosts(cluster, ["zz"])
    with pytest.raises(InputError, match=r"^--exclude-hosts: names every host"):
        exclude_hosts(cluster, ["gpu[01-02]", "big"])
