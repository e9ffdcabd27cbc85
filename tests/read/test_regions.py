"""Clusters over regions: tables of pairs, hosts of each region, and what the cluster file then says."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.nics import Nics
from pipette_opt.read.regions import parse_regions, read_region_links, write_region_cluster

REGIONS = "region_a,region_b,delay_ms,bandwidth_Gbps\nEast,West,30,0.8\nEast,North,10,1.6\nNorth,West,40,0.4\n"
ZONES = (
    "zone_a,gpu_a,gpus_a,zone_b,gpu_b,gpus_b,max_bw_GBps,likely_placeholder\n"
    "a,V100,1,b,V100,1,1.5,False\na,V100,2,b,V100,2,2.5,False\na,V100,4,b,V100,4,9,True\na,A100,1,b,A100,1,3,False\n"
)


def write(
    path: Path, table: str, entries: list[str], gpu: str | None = None, latency_s: float | None = None
) -> list[str]:
    """A cluster file from a table; what was said."""
    source = path.with_name("table.csv")
    source.write_text(table)
    links = read_region_links(source, gpu)
    return write_region_cluster(
        path,
        links,
        parse_regions(entries, links),
        gpu="a100-80gb",
        gpus_per_node=4,
        nics=Nics(count=2, gbit_per_s=100),
        latency_s=latency_s,
        source="table.csv",
    )


def test_two_regions(tmp_path: Path) -> None:
    """Between regions what was measured, however many flows; inside the NICs; each with its own latency."""
    path = tmp_path / "two.yaml"
    assert len(write(path, REGIONS, ["East=2", "West=1"])) == 1
    spec = read_cluster(path)
    assert spec.hosts == ("east01", "east02", "west01")
    for flows, inside in ((1, 11.25e9), (4, 22.5e9)):
        rates = spec.pair_bytes_per_s(flows)
        assert rates[0, 2] == rates[2, 1] == pytest.approx(0.1e9)
        assert rates[0, 1] == pytest.approx(inside)
    assert spec.pair_latency_s[0, 2] == pytest.approx(30e-3)
    assert spec.pair_latency_s[0, 1] == pytest.approx(12e-6)


def test_three_regions_have_the_largest_latency(tmp_path: Path) -> None:
    """A cluster file has one latency beyond its levels; that is said."""
    path = tmp_path / "three.yaml"
    notes = write(path, REGIONS, ["East=1", "West=1", "North=1"])
    spec = read_cluster(path)
    assert spec.pair_latency_s[0, 1] == spec.pair_latency_s[0, 2] == pytest.approx(40e-3)
    assert spec.pair_bytes_per_s(1)[0, 2] == pytest.approx(0.2e9)
    assert any("the largest of 3 pairs" in note for note in notes)


def test_zones_by_number_of_flows(tmp_path: Path) -> None:
    """A matrix for each number of GPUs; placeholders and other GPUs do not count; the latency must be given."""
    path = tmp_path / "zones.yaml"
    with pytest.raises(InputError, match="the table has no latencies"):
        write(path, ZONES, ["a=1", "b=1"], "V100")
    write(path, ZONES, ["a=1", "b=1"], "V100", 1e-3)
    spec = read_cluster(path)
    assert [one.concurrent_flows for one in spec.link_matrices] == [1, 2]
    assert np.allclose([spec.pair_bytes_per_s(flows)[0, 1] for flows in (1, 2, 4)], [1.5e9, 2.5e9, 2.5e9])
    with pytest.raises(InputError, match="A100, V100"):
        read_region_links(tmp_path / "table.csv", "H100")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["East=2"], "two regions at least"),
        (["East=2", "South=1"], "'?South'? is not in the table|South"),
        (["East=2", "West=0"], "1 to 1024"),
        (["East=2", "West"], "not in the table"),
    ],
)
def test_wrong_regions_are_refused(tmp_path: Path, entries: list[str], said: str) -> None:
    """One message, with what would be right."""
    with pytest.raises(InputError, match=said):
        write(tmp_path / "x.yaml", REGIONS, entries)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    """The columns that are known are named."""
    with pytest.raises(InputError, match="delay_ms"):
        write(tmp_path / "x.yaml", "a,b\n1,2\n", ["East=1", "West=1"])
