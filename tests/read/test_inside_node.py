"""The inside of a host: NCCL's topology file and nvidia-smi."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_logs import nccl_text
from tables import table

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

LINKS_OF_NCCL = {
    "switches": SWITCHED,
    "pairs": '<nvlink target="{other}" count="4" tclass="0x030200"/>',
    "none": "",
}
"""NVLinks of each GPU in the rows of the table, {other} its neighbours' buses."""

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


def links_of(row: dict[str, Any]) -> list[list[int]]:
    """NVLinks of a row: a mesh without the GPUs that are off, and numbers of directed links that differ."""
    links = mesh(row.get("gpus", 8), row.get("off", ()), links=row.get("links", 18))
    for a, b, count in row.get("but", ()):
        links[a][b] = count
    return links


def imported(folder: Path, row: dict[str, Any]) -> ImportedLinks:
    """Cluster of two hosts with the topology of a row, H100 unless the row says otherwise."""
    (folder / "n1_to_n2.txt").write_text(OSU_BW)
    (folder / "topo.txt").write_text(smi(links_of(row)))
    if "measured_gb_per_s" in row:
        (folder / "inside.txt").write_text(nccl_text("sendrecv", {"n1": 8}, row["measured_gb_per_s"]))
    return import_links(folder, **{"gpu": "h100-80gb", **row.get("options", {})})


@pytest.mark.parametrize("row", table(__file__, "TOPOLOGIES"), ids=lambda row: row["shows"])
def test_topologies(tmp_path: Path, row: dict[str, Any]) -> None:
    """Each topology has the rates beside it in GB/s, also behind a cluster file; sentences on its health, and notes."""
    found = imported(tmp_path, row)
    write_cluster(found.cluster, tmp_path / "c.yaml")
    for cluster in (found.cluster, read_cluster(tmp_path / "c.yaml")):
        assert cluster.intra_node_bytes_per_s == pytest.approx(row["slowest"] * 1e9)
        inside = cluster.gpu_links and cluster.gpu_links.inside
        assert (inside is None) == (row["inside"] is None)
        if inside is not None:
            assert inside == pytest.approx(np.array([row["inside"]] * 2) * 1e9, rel=1e-4)
    assert len(found.health.sentences) == len(row["health"])
    assert all(map(str.startswith, found.health.sentences, row["health"]))
    assert all(part in " ".join(found.notes) for part in row.get("notes", ()))


@pytest.mark.parametrize("row", table(__file__, "NCCL"), ids=lambda row: row["shows"])
def test_files_of_nccl(row: dict[str, Any]) -> None:
    """GPUs, NVLinks and NICs of a host, for the NVLinks of each GPU."""
    text = topology(row["gpus"], LINKS_OF_NCCL[row["links"]], sm=row["sm"])
    node = parse_nccl_topology(text.replace(SWITCHED, "", row.get("without", 0)), "topo.xml")
    assert json.loads(json.dumps({name: getattr(node, name) for name in row["means"]})) == row["means"]


def test_a_topology_that_breaks_off_is_named_beside_the_question(tmp_path: Path) -> None:
    """The number of GPUs is asked for, with the reason why the topology does not have it."""
    (tmp_path / "topo.txt").write_text(smi(mesh(8))[:300])
    (tmp_path / "a.log").write_text(nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0))
    with pytest.raises(InputError, match=r"give --gpus-per-node, e\.g\. 8\. topo\.txt was not used: row GPU[0-9] must"):
        import_links(tmp_path)


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
