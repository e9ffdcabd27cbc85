"""Cluster files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_opt.base.errors import InputError
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


def test_every_field_arrives_in_base_units(folder: Path) -> None:
    """GB/s are 10^9, empty cells are missing, links are directed."""
    cluster = read_cluster(folder / "c.yaml")
    assert cluster.hosts == ("gpu01", "gpu02", "big")
    assert [node.gpu.name for node in cluster.nodes] == ["a100-80gb", "a100-80gb", "a100-40gb"]
    assert cluster.intra_node_bytes_per_s == 235e9
    assert cluster.inter_node_latency_s == pytest.approx(12e-6)
    assert cluster.nics_per_node == 4
    assert cluster.node_bytes_per_s == 90e9
    expected = np.array([[np.nan, 20, 10.5], [21, np.nan, np.nan], [9, 8, np.nan]]) * 1e9
    np.testing.assert_array_equal(cluster.link_matrices[0].bytes_per_s, expected)


def test_a_matrix_may_have_another_order_and_fewer_hosts(folder: Path) -> None:
    """Rows are found by name; a host without a row has no measurement."""
    (folder / "links.csv").write_text("x,big,gpu01\nbig,,9\ngpu01,10.5,\n")
    links = read_cluster(folder / "c.yaml").link_matrices[0].bytes_per_s / 1e9
    assert links[0, 2] == 10.5
    assert links[2, 0] == 9
    assert np.isnan(links[1]).all()


def test_uniform_links(folder: Path) -> None:
    """One number instead of matrices."""
    text = GOOD.replace("  matrices:\n    - {file: links.csv, concurrent_flows: 1}\n", "  bandwidth_gb_per_s: 25\n")
    (folder / "c.yaml").write_text(text)
    links = read_cluster(folder / "c.yaml").link_matrices[0].bytes_per_s
    assert np.count_nonzero(links == 25e9) == 6


def test_a_matrix_of_gpus_keeps_the_links_of_single_gpus(folder: Path) -> None:
    """Two GPUs a host: of 5, 6 and 7 GB/s the fastest is the pair's, and what was not measured is the slowest."""
    text = GOOD.replace("gpus_per_node: 8", "gpus_per_node: 2")
    (folder / "c.yaml").write_text(text)
    names = ["gpu01:0", "gpu01:1", "gpu02:0", "gpu02:1", "big:0", "big:1"]
    rows = [
        ["", "200", "6", "5", "", ""],
        ["100", "", "7", "", "", ""],
        ["4", "4", "", "200", "", ""],
        ["4", "3", "200", "", "", ""],
        ["", "", "", "", "", "50"],
        ["", "", "", "", "50", ""],
    ]
    lines = [",".join(["", *names]), *(",".join([name, *row]) for name, row in zip(names, rows, strict=True))]
    (folder / "links.csv").write_text("\n".join(lines))
    cluster = read_cluster(folder / "c.yaml")
    links = cluster.link_matrices[0].bytes_per_s / 1e9
    assert links[0, 1] == 7
    assert links[1, 0] == 4
    assert np.isnan(links[0, 2])
    known = cluster.gpu_links
    assert known is not None
    assert known.between is not None
    assert (known.between[0, :, 1] / 1e9).tolist() == [[6, 5], [7, 5]]
    assert (known.inside[0] / 1e9).tolist() == [[0, 200], [100, 0]]
    assert known.nic_of_slot.tolist() == [0, 1]
    (folder / "c.yaml").write_text(text.replace("concurrent_flows: 1", "concurrent_flows: 8"))
    with pytest.raises(InputError, match="concurrent_flows must be 1"):
        read_cluster(folder / "c.yaml")


def test_pipette_json_in_place_of_csv(folder: Path) -> None:
    """Pipette's files hold mpiGraph's MB/s, of 2^20 bytes; the diagonal is ignored."""
    (folder / "links.json").write_text('{"gpus": ["gpu01", "gpu02"], "bandwidth": [[7, 1000], [2000, 7]]}')
    (folder / "c.yaml").write_text(GOOD.replace("links.csv", "links.json"))
    links = read_cluster(folder / "c.yaml").link_matrices[0].bytes_per_s
    assert links[0, 1] == 1000 * 2**20
    assert links[1, 0] == 2000 * 2**20


def test_a_gpu_may_be_written_out(folder: Path) -> None:
    """A GPU the catalogue lacks."""
    gpu = "{name: mine, memory_mib: 1000, memory_bandwidth_gb_per_s: 500, peak_tflops: {fp32: 10, bf16: 100}}"
    (folder / "c.yaml").write_text(GOOD.replace("gpu: a100-80gb", f"gpu: {gpu}"))
    mine = read_cluster(folder / "c.yaml").nodes[0].gpu
    assert mine.memory_bytes == 1000 * 2**20
    assert mine.peak_flops == {"fp32": 10e12, "bf16": 100e12}


def test_a_gpu_that_is_written_out_may_say_its_generation(folder: Path) -> None:
    """Without it, a note says how; an unknown word is refused with the known ones."""
    gpu = "{name: mine, memory_mib: 1000, memory_bandwidth_gb_per_s: 500, peak_tflops: {bf16: 100}}"
    path = folder / "c.yaml"

    def written(generation: str) -> ClusterSpec:
        path.write_text(GOOD.replace("gpu: a100-80gb", "gpu: " + gpu.replace("}}", "}" + generation + "}")))
        return read_cluster(path)

    silent = written("")
    assert silent.nodes[0].gpu.generation == ""
    assert sum("GPU mine counts as one that no public run used" in note for note in silent.assumed) == 1
    assert "`generation` in its entry can say another" in " ".join(silent.assumed)
    given = written(", generation: hopper")
    assert given.nodes[0].gpu.generation == "hopper"
    assert not any("generation" in note for note in given.assumed)
    with pytest.raises(InputError, match=r"nodes\[0\], gpu: generation must be one of volta, .*hopper, .*, got 'warp'"):
        written(", generation: warp")


SILENT = "nodes: [{hosts: 'n[1-4]', gpu: h100}]\n"


def test_where_a_file_is_silent_the_catalogue_speaks(tmp_path: Path) -> None:
    """GPUs, NICs and the inside of a host are the usual ones of the GPU, and each is said."""
    (tmp_path / "c.yaml").write_text(SILENT)
    cluster = read_cluster(tmp_path / "c.yaml")
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (8, 8)
    assert cluster.intra_node_bytes_per_s == 360e9
    assert cluster.intra_node_latency_s == pytest.approx(8e-6)
    assert cluster.inter_node_latency_s == pytest.approx(12e-6)
    assert cluster.pair_bytes_per_s(1)[0, 1] == pytest.approx(0.9 * 50e9)
    assert cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(0.9 * 400e9)
    assert not cluster.links_measured
    said = " ".join(cluster.assumed)
    for words in ("No link was measured", "8x400", "GPUs of a host: 8", "360 GB/s and 8 us", "12 us", "h100-pcie"):
        assert words in said


def test_nothing_is_assumed_where_the_file_says_all(folder: Path) -> None:
    """A measured cluster has no assumptions."""
    cluster = read_cluster(folder / "c.yaml")
    assert cluster.links_measured
    assert cluster.assumed == ()


@pytest.mark.parametrize(("gpu", "flows"), [("h100-80gb", 8), ("rtx-4090", 1)])
def test_nics_that_a_file_does_not_say_are_never_silent(folder: Path, gpu: str, flows: int) -> None:
    """With one matrix of single flows NICs decide what eight flows attain: the usual number, or one, but said."""
    text = GOOD.replace("  nics_per_node: 4\n", "").replace("a100-80gb", gpu).replace("A100-40GB", gpu)
    (folder / "c.yaml").write_text(text)
    cluster = read_cluster(folder / "c.yaml")
    assert cluster.nics_per_node == flows
    assert len(cluster.assumed) == 1
    assert cluster.assumed[0].startswith("NICs of a host: ")


def test_nics_beside_a_matrix_count_them_and_cap_the_host(folder: Path) -> None:
    """Measured links stay; eight flows gain up to the number of NICs, and no more than these carry."""
    text = GOOD.replace("nics_per_node: 4", "nics: 4x200").replace("  node_bandwidth_gb_per_s: 90\n", "")
    (folder / "c.yaml").write_text(text)
    cluster = read_cluster(folder / "c.yaml")
    assert cluster.pair_bytes_per_s(8)[0, 1] == 4 * 20e9
    assert cluster.node_bytes_per_s == 100e9
    assert cluster.assumed == ()


def test_a_gpu_without_a_usual_host_needs_nics(tmp_path: Path) -> None:
    """What nobody can know is asked for, with what would be right."""
    (tmp_path / "c.yaml").write_text("nodes: [{hosts: 'n[1-4]', gpu: rtx-4090, gpus_per_node: 4}]\n")
    with pytest.raises(
        InputError, match=r"needs nics, such as 8x400 .*the catalogue has no usual NICs for hosts of 4 GPUs"
    ):
        read_cluster(tmp_path / "c.yaml")


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


@pytest.mark.parametrize(
    "text", ["", "just words", "- a\n- b", "nodes: []", "nodes: 3", "\x00", "nodes: [{hosts: 3.5}]", "nodes: [[]]"]
)
def test_nonsense_is_an_input_error(tmp_path: Path, text: str) -> None:
    """Never another exception."""
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError):
        read_cluster(tmp_path / "c.yaml")


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


SLIPS = [
    ("bandwidth_gb_per_s: 235", "bandwidth_gb_per_s: 2039", None),
    (
        "bandwidth_gb_per_s: 235",
        "bandwidth_gb_per_s: 2040",
        "intra_node: bandwidth_gb_per_s is 2040, more than the 2,039",
    ),
    ("latency_us: 12\n", "latency_us: 1000000\n", None),
    ("latency_us: 12\n", "latency_us: 1000001\n", r"inter_node: latency_us is 1e\+06, more than a second"),
    ("latency_us: 8}", "latency_us: 8000000000}", r"intra_node: latency_us is 8e\+09, more than a second"),
]


@pytest.mark.parametrize(("right", "slip", "said"), SLIPS)
def test_slips_of_units_are_found(folder: Path, right: str, slip: str, said: str | None) -> None:
    """No link inside a host is faster than a GPU's memory, and no latency is above a second."""
    (folder / "c.yaml").write_text(GOOD.replace(right, slip))
    if said is None:
        read_cluster(folder / "c.yaml")
        return
    with pytest.raises(InputError, match=said):
        read_cluster(folder / "c.yaml")


@pytest.mark.parametrize(("flows", "gb_per_s", "is_right"), [(1, 2039, True), (1, 2040, False), (2, 4078, True)])
def test_links_in_mb_per_s_are_found(folder: Path, flows: int, gb_per_s: int, is_right: bool) -> None:
    """So many flows between hosts move no more than the memory of as many GPUs."""
    (folder / "c.yaml").write_text(GOOD.replace("concurrent_flows: 1", f"concurrent_flows: {flows}"))
    (folder / "links.csv").write_text(LINKS.replace("gpu01,,20", f"gpu01,,{gb_per_s}"))
    if is_right:
        read_cluster(folder / "c.yaml")
        return
    with pytest.raises(InputError, match=r"2040 GB/s from gpu01 to gpu02 with 1 flow is more than the 2,039 GB/s"):
        read_cluster(folder / "c.yaml")


def test_excluded_hosts_are_named_by_their_option(folder: Path) -> None:
    """Unknown ones, and all of them."""
    cluster = read_cluster(folder / "c.yaml")
    with pytest.raises(InputError, match=r"^--exclude-hosts: host 'zz'"):
        exclude_hosts(cluster, ["zz"])
    with pytest.raises(InputError, match=r"^--exclude-hosts: names every host"):
        exclude_hosts(cluster, ["gpu[01-02]", "big"])
