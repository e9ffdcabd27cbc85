"""Levels of cluster files: NVLink domains, leaves and pods; what is usual, and what is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import cluster_document, parse_cluster, read_cluster, subset_cluster, write_cluster
from pipette_opt.read.nominal import cluster_template, nominal_cluster, nominal_record, record_of_options
from pipette_opt.specs import ClusterSpec

DOMAIN = {"name": "nvlink-domain", "hosts": 2, "bandwidth_gb_per_s": 720, "scale_up": True}


def parsed(levels: object, hosts: str = "n[1-8]", **inter: object) -> ClusterSpec:
    """A cluster of GB200 hosts with these levels; 45 GB/s a flow between hosts, 180 a host."""
    document = {
        "nodes": [{"hosts": hosts, "gpu": "gb200", "gpus_per_node": 4}],
        "inter_node": {"nics": "4x400", **inter},
        "levels": levels,
    }
    return parse_cluster(document, "c.yaml", Path())


def rates(cluster: ClusterSpec, num_flows: int = 1) -> list[float]:
    """From the first host to all, GB/s."""
    return (cluster.pair_bytes_per_s(num_flows)[0] / 1e9).round(6).tolist()


def test_levels_from_inside_out() -> None:
    """Pairs in a domain, four in a leaf, all others over a spine with half of the rate; a domain has no NICs."""
    leaf = {"name": "leaf", "hosts": [["n[1-2]", "n[3-4]"], "n[5-8]"], "oversubscription": 1, "latency_us": 10}
    cluster = parsed([DOMAIN, leaf, {"name": "spine", "oversubscription": 2}])
    assert rates(cluster)[1:] == [720, 45, 45, 22.5, 22.5, 22.5, 22.5]
    assert rates(cluster, 4)[1:] == [2880, 180, 180, 90, 90, 90, 90]
    latencies = (cluster.pair_latency_s[0] * 1e6).round(6)
    assert latencies[1:].tolist() == [8, 10, 10, 12, 12, 12, 12]
    assert cluster.most_in_domain == 2


def test_hosts_of_no_group_have_no_domain() -> None:
    """A spare host beside a domain has its NICs only."""
    cluster = parsed([DOMAIN | {"hosts": ["n[1-4]", ["n5", "n7"]]}])
    assert cluster.domain_of_node.tolist() == [0, 0, 0, 0, 1, 2, 1, 3]
    assert cluster.most_in_domain == 4


def test_a_file_without_levels_has_the_domains_that_are_usual() -> None:
    """GB200 comes in racks of 18 hosts of which jobs use 16; an empty list says that there are none."""
    for hosts, expected in (("16", [16]), ("18", [18]), ("32", [16, 16]), ("36", [18, 18]), ("20", [16, 4])):
        cluster = nominal_cluster(nodes=hosts, gpu="gb200", nics=None, gpus_per_node=None)
        assert np.bincount(cluster.domain_of_node).tolist() == expected
        assert any(note.startswith("NVLink domains: ") for note in cluster.assumed)
    for gpu, count in (("h100", None), ("gb200", 2)):
        nics = None if count is None else "2x400"
        assert not nominal_cluster(nodes="16", gpu=gpu, nics=nics, gpus_per_node=count).levels
    assert not parsed([]).levels
    assert not any(note.startswith("NVLink domains: ") for note in parsed([]).assumed)


def test_measured_links_have_no_usual_domains(tmp_path: Path) -> None:
    """What was measured between hosts says all; levels fill the gaps where a file has both."""
    (tmp_path / "links.csv").write_text("x,a,b,c\na,,500,20\nb,510,,\nc,20,,\n")
    text = (
        "nodes: [{hosts: [a, b, c], gpu: gb200, gpus_per_node: 4}]\n"
        "inter_node: {matrices: [{file: links.csv, concurrent_flows: 1}]}\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    plain = read_cluster(tmp_path / "c.yaml")
    assert not plain.levels
    assert np.isnan(plain.pair_bytes_per_s(1)[1, 2])
    (tmp_path / "c.yaml").write_text(text + "levels: [{name: nvlink, bandwidth_gb_per_s: 600, scale_up: true}]\n")
    both = read_cluster(tmp_path / "c.yaml")
    found = both.pair_bytes_per_s(1) / 1e9
    assert (found[0, 1], found[1, 0], found[0, 2], found[1, 2]) == (500, 510, 20, 600)
    assert both.usable_links.sum() == 6


def test_written_and_read_again(tmp_path: Path) -> None:
    """Levels stay, and so does their absence."""
    leaf = {"name": "leaf", "hosts": 4, "oversubscription": 1.5}
    for cluster in (parsed([DOMAIN, leaf, {"name": "spine", "oversubscription": 3}]), parsed([])):
        write_cluster(cluster, tmp_path / "c.yaml")
        again = read_cluster(tmp_path / "c.yaml")
        assert len(again.levels) == len(cluster.levels)
        for flows in (1, 3, 4):
            np.testing.assert_allclose(again.pair_bytes_per_s(flows), cluster.pair_bytes_per_s(flows), rtol=1e-9)
        np.testing.assert_array_equal(again.domain_of_node, cluster.domain_of_node)


def test_template_and_record_read_back(tmp_path: Path) -> None:
    """What `init` writes has the domains that `--nodes` has, and a plan records them."""
    options = {"nodes": "20", "gpu": "gb300", "nics": None, "gpus_per_node": None}
    given = nominal_cluster(**options)  # type: ignore[arg-type]
    (tmp_path / "c.yaml").write_text(cluster_template(**options))  # type: ignore[arg-type]
    again = read_cluster(tmp_path / "c.yaml")
    for flows in (1, 4):
        np.testing.assert_allclose(again.pair_bytes_per_s(flows), given.pair_bytes_per_s(flows))
    record = nominal_record(given, **options)
    assert record_of_options(record["options"], "plan.json") == record


def test_some_hosts_of_domains() -> None:
    """Without a host its domain is smaller."""
    cluster = subset_cluster(parsed([DOMAIN]), ["n1", "n3", "n4"])
    assert cluster.most_in_domain == 2
    assert rates(cluster)[1:] == [45, 45]
    assert cluster_document(cluster)["levels"][0]["hosts"] == ["n1", "n[3-4]"]


def test_levels_need_equal_hosts_and_no_links_of_gpus() -> None:
    """Blocks of unequal hosts and matrices of GPUs have links of their own."""
    document = {
        "nodes": [{"hosts": "a[1-2]", "gpu": "gb200", "gpus_per_node": 4}],
        "gpus_per_block": 2,
        "inter_node": {"nics": "4x400"},
        "levels": [DOMAIN],
    }
    with pytest.raises(InputError, match="levels: need hosts with equally many GPUs, and no gpus_per_block"):
        parse_cluster(document, "c.yaml", Path())
    assert replace(parsed([DOMAIN]), gpu_links=None).levels
