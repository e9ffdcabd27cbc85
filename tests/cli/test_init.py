"""``pipette-opt init``."""

from collections.abc import Callable
from pathlib import Path

from pipette_opt.read.cluster import read_cluster

Run = Callable[..., tuple[int, str, str]]


def test_the_file_is_ready_to_use_and_to_edit(command: Run) -> None:
    """Read as it is: the hosts asked for, links by their NICs, nothing else assumed; comments say how to measure."""
    code, _, err = command("init", "--hosts", "gpu[01-16]", "--gpu", "H100", "--nics", "8x400")
    assert code == 0, err
    assert "GPU 'H100' is taken for h100-80gb" in err
    cluster = read_cluster("cluster.yaml")
    assert (cluster.num_nodes, cluster.hosts[0], cluster.gpus_per_node) == (16, "gpu01", 8)
    assert cluster.pair_bytes_per_s(8)[0, 1] == 360e9
    assert [note.split(":")[0] for note in cluster.assumed] == ["No link was measured"]
    text = Path("cluster.yaml").read_text()
    for words in ("profile links", "import links", "matrices:", "node_bandwidth_gb_per_s", "catalogue"):
        assert words in text


def test_matrices_take_the_place_of_the_comment(command: Run) -> None:
    """Whoever measures takes the comment signs away, and nothing else."""
    command("init", "--nodes", "2", "--gpu", "a100-80gb", "-o", "c.yaml")
    text = Path("c.yaml").read_text()
    for line in ("matrices:", "  - {file: links_1.csv"):
        assert f"  # {line}" in text
        text = text.replace(f"  # {line}", f"  {line}")
    Path("c.yaml").write_text(text)
    Path("links_1.csv").write_text(",node1,node2\nnode1,,20\nnode2,19,\n")
    cluster = read_cluster("c.yaml")
    assert cluster.links_measured
    assert cluster.pair_bytes_per_s(1)[0, 1] == 20e9
    assert cluster.assumed == ()


def test_a_file_is_not_overwritten_unless_asked(command: Run) -> None:
    """What somebody edited stays."""
    Path("cluster.yaml").write_text("mine")
    code, _, err = command("init")
    assert (code, Path("cluster.yaml").read_text()) == (2, "mine")
    assert "exists already; give another file name with -o, or --force" in err
    assert command("init", "--force")[0] == 0
    assert read_cluster("cluster.yaml").num_nodes == 16


def test_a_dash_shows_it(command: Run) -> None:
    """On standard output."""
    code, out, _ = command("init", "--gpu", "b200", "--nodes", "1", "-o", "-")
    assert code == 0
    assert "gpu: b200, gpus_per_node: 8" in out
    assert list(Path().iterdir()) == []
