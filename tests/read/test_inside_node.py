"""The inside of a host: NCCL's topology file and nvidia-smi."""

from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.inside_node import (
    is_nccl_topology,
    is_nvidia_smi_topology,
    parse_nccl_topology,
    parse_nvidia_smi_topology,
)
from pipette_opt.read.links import import_links
from pipette_opt.read.log_lines import Log

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
    assert node.nvlink_bytes_per_s == pytest.approx(18 * 20.6e9)
    assert node.nic_bytes_per_s == pytest.approx(8 * 50e9)


def test_direct_links_are_those_of_the_poorest_pair() -> None:
    """Four A100 with four links a pair; without any, nothing is known."""
    direct = parse_nccl_topology(topology(4, '<nvlink target="{other}" count="4" tclass="0x030200"/>', sm=80), "t")
    assert direct.nvlinks == 4
    assert direct.nvlink_bytes_per_s == pytest.approx(80e9)
    plain = parse_nccl_topology(topology(4, ""), "t")
    assert (plain.nvlinks, plain.nvlink_bytes_per_s) == (0, None)


def test_nvidia_smi() -> None:
    """Terminal colours, NICs and affinities do not matter."""
    text = SMI.format(way="NV12")
    assert is_nvidia_smi_topology(text)
    node = parse_nvidia_smi_topology(Log(text), "topo.txt")
    assert (node.num_gpus, node.num_nics, node.nvlinks, node.nvlink_bytes_per_s) == (2, 2, 12, None)
    assert parse_nvidia_smi_topology(Log(SMI.format(way="SYS")), "topo.txt").nvlinks == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (topology(2, SWITCHED)[:-20], "is not valid XML"),
        ("<system></system>", "has no GPU"),
        (topology(2, SWITCHED).replace('speed="400000"', 'speed="fast"'), "must have speed, a whole number"),
    ],
)
def test_damaged_xml(text: str, message: str) -> None:
    """Each says what is wrong."""
    assert is_nccl_topology(text)
    with pytest.raises(InputError, match=message):
        parse_nccl_topology(text, "topo.xml")


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
    assert any("NVLink does not join all GPUs" in note for note in import_links(tmp_path, gpu="l4").notes)
