"""The inside of a host: NCCL's topology file and nvidia-smi."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_logs import nccl_text

from pipette_opt.base.errors import InputError
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.cluster import read_cluster, write_cluster
from pipette_opt.read.link_format import facts_of
from pipette_opt.read.link_formats.nccl_topology import parse_nccl_topology
from pipette_opt.read.link_formats.nvidia_smi_topology import parse_nvidia_smi_topology
from pipette_opt.read.links import ImportedLinks, import_links
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Topology

OSU_BW = "# OSU MPI Bandwidth Test v7.3\n# Size      Bandwidth (MB/s)\n4194304   22000.00\n"


def topology(gpus: int, links: str, sm: int = 90) -> str:
    """NCCL's XML of a host; ``links`` are the NVLinks of each GPU, {other} its neighbours' buses."""
    buses = [f"0000:{i:02x}:00.0" for i in range(gpus)]
    parts = []
    for dev, bus in enumerate(buses):
        inner = "".join(links.format(other=other) for other in buses if other != bus) if "{other}" in links else links
        parts.append(
            f'<pci busid="{bus}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">'
            f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{inner}</gpu></pci>'
            f'<pci busid="0000:a{dev}:00.0" class="0x020700"><nic><net name="mlx5_{dev}" dev="{dev}" speed="400000" '
            f'port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>'
        )
    return f'<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">{"".join(parts)}</cpu></system>'


SWITCHED = "".join(
    f'<nvlink target="0000:c{i}:00.0" count="{n}" tclass="0x068000"/>' for i, n in enumerate((4, 5, 5, 4))
)

SMI = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \t{way}\tPXB\tSYS\t0-47\t0\t\tN/A
GPU1\t{way}\t X \tSYS\tPXB\t48-95\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS
NIC1\tSYS\tPXB\tSYS\t X

Legend:

  X    = Self
"""


def test_lines_around_a_table_are_counted() -> None:
    """Rows and the legend are known, a command before them is not."""
    log = Log("$ nvidia-smi topo -m\n" + SMI.format(way="NV18") + "\nNIC Legend:\n\n  NIC0: mlx5_0\n")
    parse_nvidia_smi_topology(log, "topo.txt")
    assert log.unused() == "1 of 14 lines were not used: first, line 1: '$ nvidia-smi topo -m'."


def test_nvswitch_links_of_a_gpu_add_up() -> None:
    """18 NVLinks of an H100 through four switches; eight NICs of 400 Gbit/s."""
    node = parse_nccl_topology(topology(8, SWITCHED), "topo.xml")
    assert (node.num_gpus, node.nvlinks, node.num_nics, node.compute_capability) == (8, 18, 8, 90)
    assert node.nic_bytes_per_s == pytest.approx(8 * 50e9)


def test_direct_links_are_those_of_the_poorest_pair() -> None:
    """Four A100 with four links a pair; without any, nothing is known."""
    direct = parse_nccl_topology(topology(4, '<nvlink target="{other}" count="4" tclass="0x030200"/>', sm=80), "t")
    assert direct.nvlinks == 4
    plain = parse_nccl_topology(topology(4, ""), "t")
    assert (plain.nvlinks, plain.off_nvlink) == (0, ())


def test_nvidia_smi(tmp_path: Path) -> None:
    """Terminal colours, NICs and affinities do not matter."""
    (tmp_path / "topo.txt").write_text(SMI.format(way="NV12"))
    node = next(fact.node for fact in facts_of(tmp_path / "topo.txt", LinkOptions()) if isinstance(fact, Topology))
    assert (node.num_gpus, node.num_nics, node.nvlinks, node.compute_capability) == (2, 2, 12, None)
    assert parse_nvidia_smi_topology(Log(SMI.format(way="SYS")), "topo.txt").nvlinks == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (topology(2, SWITCHED)[:-20], "is not valid XML"),
        ("<system></system>", "has no GPU"),
        (topology(2, SWITCHED).replace('speed="400000"', 'speed="fast"'), "must have speed, a whole number"),
    ],
)
def test_damaged_xml(text: str, message: str, tmp_path: Path) -> None:
    """Each says what is wrong."""
    (tmp_path / "topo.xml").write_text(text)
    with pytest.raises(InputError, match=message):
        facts_of(tmp_path / "topo.xml", LinkOptions())


def test_damaged_table() -> None:
    """A row that breaks off."""
    text = SMI.format(way="NV12").replace("\tSYS\tPXB\t48-95\t1\t\tN/A", "")
    with pytest.raises(InputError, match="row GPU1 must have 4 entries"):
        parse_nvidia_smi_topology(Log(text), "topo.txt")


def test_what_a_topology_adds_to_a_cluster(tmp_path: Path) -> None:
    """GPUs, NICs, their cap and NVLink; of two different ones neither is believed."""
    (tmp_path / "n1_to_n2.txt").write_text(OSU_BW)
    (tmp_path / "topo.xml").write_text(topology(8, SWITCHED))
    cluster = import_links(tmp_path, gpu="h100-80gb").cluster
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (8, 8)
    assert cluster.intra_node_bytes_per_s == pytest.approx(18 * 20.6e9)
    assert cluster.node_bytes_per_s == pytest.approx(400e9)
    (tmp_path / "topo.txt").write_text(SMI.format(way="NV12"))
    with pytest.raises(InputError, match="topologies of hosts differ"):
        import_links(tmp_path, gpu="h100-80gb")
    (tmp_path / "topo.xml").unlink()
    imported = import_links(tmp_path, gpu="a100-80gb")
    assert imported.cluster.intra_node_bytes_per_s == pytest.approx(12 * 20e9)
    (tmp_path / "topo.txt").write_text(SMI.format(way="PHB"))
    assert any("NVLink joins no GPUs of a host." in note for note in import_links(tmp_path, gpu="l4").notes)


def smi(links: Sequence[Sequence[int]]) -> str:
    """Table of ``nvidia-smi topo -m`` with these numbers of NVLinks; SYS for none."""
    names = [f"GPU{gpu}" for gpu in range(len(links))]
    rows = ["\t" + "\t".join(names) + "\tCPU Affinity"]
    for a, row in enumerate(links):
        cells = [" X " if a == b else f"NV{count}" if count else "SYS" for b, count in enumerate(row)]
        rows.append("\t".join([names[a], *cells, "0-47"]))
    return "\n".join(rows) + "\n"


def mesh(gpus: int, off: Sequence[int] = (), *, links: int = 18) -> list[list[int]]:
    """NVLinks of a host with NVSwitch; GPUs in ``off`` have none."""
    return [[0 if a == b or a in off or b in off else links for b in range(gpus)] for a in range(gpus)]


def imported(folder: Path, links: Sequence[Sequence[int]], **options: Any) -> ImportedLinks:
    """Cluster of two hosts of H100 with this topology."""
    (folder / "n1_to_n2.txt").write_text(OSU_BW)
    (folder / "topo.txt").write_text(smi(links))
    return import_links(folder, **{"gpu": "h100-80gb", **options})


@pytest.mark.parametrize("off", [(2,), (0, 7), (1, 3, 5)])
def test_gpus_off_nvlink_are_named_and_slow(tmp_path: Path, off: tuple[int, ...]) -> None:
    """Their pairs get the rate of PCIe 5, the others 18 NVLinks; a cluster file keeps both."""
    found = imported(tmp_path, mesh(8, off))
    assert f"NVLink does not reach GPU {', '.join(map(str, off))} of the host" in " ".join(found.notes)
    assert [sentence.split(" of ")[0] for sentence in found.health.sentences] == [f"GPU {gpu}" for gpu in off]
    write_cluster(found.cluster, tmp_path / "c.yaml")
    links = read_cluster(tmp_path / "c.yaml").gpu_links
    assert links is not None
    expected = np.where(np.array(mesh(8, off)) > 0, 18 * 20.6e9, 40e9)
    np.fill_diagonal(expected, 0)
    assert links.inside == pytest.approx(np.stack([expected] * 2))
    assert found.cluster.intra_node_bytes_per_s == 40e9


def test_a_gpu_off_nvlink_in_the_file_of_nccl() -> None:
    """The GPU without NVLinks among GPUs on NVSwitch."""
    text = topology(4, SWITCHED)
    node = parse_nccl_topology(text.replace(SWITCHED, "", 1), "topo.xml")
    assert (node.off_nvlink, node.nvlinks, node.pair_nvlinks[1]) == ((0,), 0, (0, 0, 18, 18))


def test_a_link_that_one_side_lacks_is_none(tmp_path: Path) -> None:
    """A table that is not symmetric: the poorer side counts, and the pair stands out."""
    links = mesh(8)
    links[3][5] = 0
    found = imported(tmp_path, links)
    assert found.cluster.gpu_links is not None
    assert found.cluster.gpu_links.inside[0, 5, 3] == 40e9
    assert any("slow by themselves GPU 3 to GPU 5" in sentence for sentence in found.health.sentences)
    assert "No host, GPU or link stands out from the others." not in found.health.sentences


def test_bridges_between_pairs_of_gpus_are_no_fault(tmp_path: Path) -> None:
    """Four GPUs in two pairs: pairs are fast, and no GPU stands out."""
    links = [[12 if a != b and a // 2 == b // 2 else 0 for b in range(4)] for a in range(4)]
    found = imported(tmp_path, links, gpu="a100-80gb")
    assert found.cluster.gpu_links is not None
    assert found.cluster.gpu_links.inside[0, 0].tolist() == [0, 12 * 20e9, 20e9, 20e9]
    assert found.health.sentences == ("No host, GPU or link stands out from the others.",)


def test_a_mesh_without_a_switch_has_the_usual_rate(tmp_path: Path) -> None:
    """Eight V100: NCCL's rings pass over neighbours and use all links, which the catalogue's figure counts."""
    links = [[0] * 8 for _ in range(8)]
    for a, b, count in [(0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)]:
        for i, j in ((a, b), (b, a), (7 - a, 7 - b), (7 - b, 7 - a)):
            links[i][j] = count
    found = imported(tmp_path, links, gpu="v100-32gb").cluster
    assert (found.intra_node_bytes_per_s, found.gpu_links) == (120e9, None)


def test_a_gpu_with_half_its_nvlinks_stands_out(tmp_path: Path) -> None:
    """The others keep their rate."""
    links = [[9 if links and 6 in (a, b) else links for b, links in enumerate(row)] for a, row in enumerate(mesh(8))]
    found = imported(tmp_path, links)
    assert found.cluster.gpu_links is not None
    assert found.cluster.gpu_links.inside[0, 0, [1, 6]] == pytest.approx([18 * 20.6e9, 9 * 20.6e9])
    (sentence,) = found.health.sentences
    assert sentence.startswith("GPU 6 of n[1-2] has 50 % of the usual rate to the other GPUs of its host")


def test_gpus_without_any_nvlink_get_no_rate_of_nvlink(tmp_path: Path) -> None:
    """The catalogue's figure of an SXM card is NVLink's; PCIe's counts."""
    found = imported(tmp_path, mesh(8, range(8)))
    assert (found.cluster.intra_node_bytes_per_s, found.cluster.gpu_links) == (40e9, None)
    assert "Assumed: 40 GB/s between all GPUs of a host, a usual rate of PCIe; measure it." in found.notes


def test_gpus_joined_to_each_other_only_are_off_nvlink(tmp_path: Path) -> None:
    """Two of eight have NVLink between them, and none to the six."""
    links = mesh(8, (2, 5))
    links[2][5] = links[5][2] = 18
    found = imported(tmp_path, links)
    assert "NVLink does not reach GPU 2, 5 of the host" in " ".join(found.notes)
    assert [sentence.split(" of ")[0] for sentence in found.health.sentences] == ["GPU 2", "GPU 5"]


@pytest.mark.parametrize(("gpus", "off"), [(3, (1,)), (8, (0, 1, 2, 3)), (4, (3,))])
def test_half_of_the_gpus_may_be_off(tmp_path: Path, gpus: int, off: tuple[int, ...]) -> None:
    """Small hosts, and as many GPUs off NVLink as on it."""
    found = imported(tmp_path, mesh(gpus, off))
    assert [sentence.split(" of ")[0] for sentence in found.health.sentences] == [f"GPU {gpu}" for gpu in off]


@pytest.mark.parametrize(("gpus", "given"), [(16, None), (8, 6)])
def test_a_gpu_off_nvlink_is_named_where_links_of_single_gpus_are_not_kept(
    tmp_path: Path, gpus: int, given: int | None
) -> None:
    """Nothing else stands out."""
    found = imported(tmp_path, mesh(gpus, (2,)), **({} if given is None else {"gpus_per_node": given}))
    assert found.health.sentences == ("NVLink does not reach GPU 2 of the host whose topology was read.",)


def test_a_topology_that_breaks_off_is_named_beside_the_question(tmp_path: Path) -> None:
    """The number of GPUs is asked for, with the reason why the topology does not have it."""
    (tmp_path / "topo.txt").write_text(smi(mesh(8))[:300])
    (tmp_path / "a.log").write_text(nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0))
    with pytest.raises(InputError, match=r"give --gpus-per-node, e\.g\. 8\. topo\.txt was not used: row GPU[0-9] must"):
        import_links(tmp_path)


def test_a_gpu_off_nvlink_may_be_left_out(tmp_path: Path) -> None:
    """Seven of eight GPUs have NVLink between all; six of them are not known to."""
    rest = imported(tmp_path, mesh(8, (2,)), gpus_per_node=7).cluster
    assert (rest.intra_node_bytes_per_s, rest.gpu_links) == (pytest.approx(18 * 20.6e9), None)
    assert imported(tmp_path, mesh(8, (2,)), gpus_per_node=6).cluster.intra_node_bytes_per_s == 40e9


@pytest.mark.parametrize(("measured", "slow", "fast"), [(30.0, 30e9, 18 * 20.6e9), (320.0, 40e9, 320e9)])
def test_a_measured_rate_is_of_the_links_that_attain_it(
    tmp_path: Path, measured: float, slow: float, fast: float
) -> None:
    """A ring at a rate of PCIe passed a pair without NVLink; a faster one did not."""
    (tmp_path / "inside.txt").write_text(nccl_text("sendrecv", {"n1": 8}, measured))
    links = imported(tmp_path, mesh(8, (2,))).cluster.gpu_links
    assert links is not None
    assert (links.inside[0, 0, 2], links.inside[0, 0, 1]) == pytest.approx((slow, fast), rel=1e-3)


def test_a_faulty_host_beside_healthy_ones(tmp_path: Path) -> None:
    """Files named after their hosts may differ in NVLinks; a host without a file has most of them."""
    (tmp_path / "n1_to_n2.txt").write_text(OSU_BW)
    (tmp_path / "n1_to_n12.txt").write_text(OSU_BW)
    (tmp_path / "topo-n2.txt").write_text(smi(mesh(8, (4,))))
    (tmp_path / "n1.topo.txt").write_text(smi(mesh(8)))
    found = import_links(tmp_path, gpu="h100-80gb")
    assert found.health.sentences == (
        "GPU 4 of n2 has 11 % of the usual rate to the other GPUs of its host: look at its NVLinks.",
    )
    assert "NVLink does not reach GPU 4 of n2. Look at its NVLinks." in found.notes
    assert "No topology file is named after n12: the one with most NVLinks counts." in found.notes
    write_cluster(found.cluster, tmp_path / "c.yaml")
    links = read_cluster(tmp_path / "c.yaml").gpu_links
    assert links is not None
    assert [links.inside[host, 0, 4] for host in range(3)] == pytest.approx([18 * 20.6e9, 40e9, 18 * 20.6e9])
    (tmp_path / "topo.txt").write_text(smi(mesh(8, (5,))))  # of no host
    with pytest.raises(InputError, match=r"the topologies of hosts differ .* name each file after its host"):
        import_links(tmp_path, gpu="h100-80gb")
    (tmp_path / "topo.txt").rename(tmp_path / "topo-n12.txt")
    assert [sentence[:15] for sentence in import_links(tmp_path, gpu="h100-80gb").health.sentences] == [
        "GPU 4 of n2 has",
        "GPU 5 of n12 ha",
    ]
    (tmp_path / "topo-n12.txt").write_text(smi(mesh(4)))
    with pytest.raises(InputError, match="the topologies of hosts differ"):
        import_links(tmp_path, gpu="h100-80gb")


def test_large_hosts_get_the_slowest_rate(tmp_path: Path) -> None:
    """Links of single GPUs are kept for up to twelve GPUs a host."""
    found = imported(tmp_path, mesh(16, (4,)))
    assert (found.cluster.intra_node_bytes_per_s, found.cluster.gpu_links) == (40e9, None)
