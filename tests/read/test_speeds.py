"""Hosts that run at a share of their kind's peak."""

from pathlib import Path

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.costs.compute import stage_compute
from pipette_opt.read.cluster import read_cluster, write_cluster
from pipette_opt.read.gpus import gpu_record, read_gpu
from pipette_opt.read.speeds import parse_speeds, recorded_speeds, speed_record, with_speeds

FILE = """\
nodes:
  - {hosts: "g[1-2]", gpu: h100-80gb}
  - {hosts: "g[3-4]", gpu: h100-80gb, speed: %s}
inter_node: {bandwidth_gb_per_s: 45}
"""


def test_a_slow_host_is_a_kind_of_its_own() -> None:
    """Compute and memory bandwidth are scaled, memory is not; hosts of equal speed share a kind."""
    hosts = with_speeds(make_cluster(4), {"n1": 0.8, "n3": 0.8, "n2": 1.0})
    assert [gpu.name for gpu in hosts.gpu_kinds] == ["a100-80gb", "a100-80gb@0.8"]
    assert hosts.kind_of_node.tolist() == [0, 1, 0, 1]
    slow = hosts.nodes[1].gpu
    assert slow.peak_flops["bf16"] == pytest.approx(0.8 * A100_80.peak_flops["bf16"])
    assert slow.memory_bytes_per_s == pytest.approx(0.8 * A100_80.memory_bytes_per_s)
    assert slow.memory_bytes == A100_80.memory_bytes
    assert hosts.nodes[0].gpu == A100_80
    assert gpu_record(hosts) == {"a100-80gb": 80, "a100-80gb@0.8": 80}


def test_layers_take_as_much_longer() -> None:
    """Up to what launching kernels takes."""
    job = make_job(with_speeds(make_cluster(2), {"n1": 0.5}), LLAMA_8B, 32, 4096)
    found = stage_compute(job, make_config(tp=2, pp=4, dp=2, num_layers=32))
    ratio = found.forward_s[1] / found.forward_s[0]
    np.testing.assert_allclose(ratio, 2.0, rtol=0.05)


def test_options_name_hosts_or_ranges() -> None:
    """What a plan records of them reads the same."""
    speeds = parse_speeds(["g[1-2],h=0.8", "k=1.1"])
    assert speeds == {"g1": 0.8, "g2": 0.8, "h": 0.8, "k": 1.1}
    assert recorded_speeds(speed_record(speeds), "inputs") == speeds
    assert speed_record({}) is None
    assert recorded_speeds(None, "inputs") == {}


def test_unknown_hosts_are_refused() -> None:
    """With the host that may be meant."""
    with pytest.raises(InputError, match="'n11' is not in cluster test"):
        with_speeds(make_cluster(2), {"n11": 0.8})


def test_a_cluster_file_says_speeds(tmp_path: Path) -> None:
    """They come back from a file that is written; another speed on the command line contradicts it."""
    path = tmp_path / "c.yaml"
    path.write_text(FILE % 0.8)
    found = read_cluster(path)
    assert found.nodes[0].gpu == read_gpu("h100-80gb")
    assert found.nodes[3].gpu == read_gpu("h100-80gb").at_speed(0.8)
    write_cluster(found, tmp_path / "d.yaml")
    assert read_cluster(tmp_path / "d.yaml").nodes == found.nodes
    assert "speed: 0.8" in (tmp_path / "d.yaml").read_text()
    assert with_speeds(found, {"g3": 0.8}).nodes == found.nodes
    with pytest.raises(InputError, match=r"g3 has speed 0\.9 here and 0\.8 in its cluster file"):
        with_speeds(found, {"g3": 0.9})
    path.write_text(FILE % 1.5)
    with pytest.raises(InputError, match=r"nodes\[1\], speed: a speed must be at least 0\.01 and at most 1\.2"):
        read_cluster(path)
