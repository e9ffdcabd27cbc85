"""Clusters without a cluster file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_opt.read.cluster import cluster_document, read_cluster, write_cluster
from pipette_opt.read.nominal import nominal_cluster, nominal_record, record_of_options, recorded_cluster

H100: dict[str, Any] = {"nodes": "16", "gpu": "h100", "nics": "8x400", "gpus_per_node": None}


def test_equal_hosts_of_a_kind() -> None:
    """16 hosts of 8 H100 with 8 NICs of 400 Gbit/s: every link is 0.9 of the nominal rate."""
    cluster = nominal_cluster(**H100)
    assert cluster.hosts[0] == "node01"
    assert cluster.hosts[-1] == "node16"
    assert cluster.gpus_per_node == 8
    assert cluster.nodes[0].gpu.name == "h100-80gb"
    off_diagonal = ~np.eye(16, dtype=bool)
    assert np.unique(cluster.pair_bytes_per_s(1)[off_diagonal]).tolist() == [45e9]
    assert np.unique(cluster.pair_bytes_per_s(8)[off_diagonal]).tolist() == [360e9]
    assert cluster.node_bytes_per_s == 360e9


def test_what_was_assumed_is_said() -> None:
    """Links first; NICs only if they were not given."""
    given, usual = nominal_cluster(**H100), nominal_cluster(**{**H100, "nics": None})
    assert given.assumed[0].startswith("No link was measured")
    assert not given.links_measured
    assert not any(note.startswith("NICs of a host") for note in given.assumed)
    assert any(note.startswith("NICs of a host: 8x400 Gbit/s, as usual") for note in usual.assumed)
    assert any("h100-pcie" in note for note in given.assumed)


def test_hosts_may_have_names() -> None:
    """A range in place of a number."""
    assert nominal_cluster(**{**H100, "nodes": "gpu[08-10],spare"}).hosts == ("gpu08", "gpu09", "gpu10", "spare")


@pytest.mark.parametrize("nics", ["8x400", "3x56", "7x123.4"])
def test_a_plan_reads_back_exactly_what_was_solved(nics: str) -> None:
    """By value: the document that a plan records gives the same cluster, to the last bit."""
    cluster = nominal_cluster(**{**H100, "nics": nics})
    again = recorded_cluster({"document": cluster_document(cluster), "assumed": list(cluster.assumed)}, "plan.json")
    assert again.nodes == cluster.nodes
    assert again.assumed == cluster.assumed
    assert not again.links_measured
    for flows in (1, 3, 8):
        np.testing.assert_array_equal(again.pair_bytes_per_s(flows), cluster.pair_bytes_per_s(flows))
    assert again.node_bytes_per_s == cluster.node_bytes_per_s
    assert again.inter_node_latency_s == cluster.inter_node_latency_s
    assert again.intra_node_latency_s == cluster.intra_node_latency_s


def test_written_to_a_file_it_needs_no_matrix(tmp_path: Path) -> None:
    """One figure for all links stays one figure."""
    write_cluster(nominal_cluster(**H100), tmp_path / "c.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    again = read_cluster(tmp_path / "c.yaml")
    assert not again.links_measured
    assert again.pair_bytes_per_s(8)[0, 1] == 360e9


GIVEN: tuple[dict[str, Any], ...] = (
    {"nodes": "4", "gpu": "h100", "nics": "8x400"},
    {"nodes": "4", "gpu": "h100-80gb", "nics": "8x400", "gpus_per_node": 8},
    {"nodes": "gpu[01-03]", "gpu": "H100", "nics": None},
    {"nodes": "2", "gpu": "a100-80gb", "nics": "32x100", "gpus_per_node": 4},
    {"nodes": "1", "gpu": "h100", "nics": None},
    {"nodes": "1", "gpu": "h100", "nics": "4x200"},
)


@pytest.mark.parametrize("given", GIVEN, ids=lambda one: " ".join(map(str, one.values())))
def test_a_record_is_the_one_that_its_options_give(given: dict[str, Any]) -> None:
    """Whatever options a cluster comes from, its record can be made again."""
    options = {"gpus_per_node": None, **given}
    record = nominal_record(nominal_cluster(**options), **options)
    assert record_of_options(record["options"], "plan.json") == record


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("assumed", []),
        ("assumed", ["All links were measured."]),
        ("inter_node", {"latency_us": 12, "nics_per_node": 16, "bandwidth_gb_per_s": 45}),
        ("inter_node", {"latency_us": 1, "nics_per_node": 8, "bandwidth_gb_per_s": 45, "node_bandwidth_gb_per_s": 360}),
        ("name", "the-fast-one"),
    ],
)
def test_a_record_that_no_options_give_is_told(place: str, value: object) -> None:
    """Rates, latencies and texts that were changed by hand."""
    options = {"nodes": "4", "gpu": "h100", "nics": "8x400", "gpus_per_node": None}
    record = nominal_record(nominal_cluster(**options), **options)  # type: ignore[arg-type]
    (record if place == "assumed" else record["document"])[place] = value
    assert record_of_options(record["options"], "plan.json") != record
