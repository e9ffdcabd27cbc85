"""Clusters over regions: tables of pairs, hosts of each region, and what the cluster file then says."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import matrix_files, read_cluster, subset_cluster, write_cluster
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


def test_three_regions_have_three_latencies(tmp_path: Path) -> None:
    """Each pair has its own, and a cluster that is read and written again keeps them; so do some of its hosts."""
    path = tmp_path / "three.yaml"
    write(path, REGIONS, ["East=2", "West=1", "North=1"])
    spec = read_cluster(path)
    write_cluster(spec, tmp_path / "again.yaml")
    assert set(matrix_files(path)) == {"three_links_1.csv", "three_links_4.csv", "three_latencies.csv"}
    for one in (spec, read_cluster(tmp_path / "again.yaml")):
        assert one.pair_latency_s[0] == pytest.approx([12e-6, 12e-6, 30e-3, 10e-3])
        assert one.pair_latency_s[2, 3] == one.pair_latency_s[3, 2] == pytest.approx(40e-3)
    assert spec.pair_bytes_per_s(1)[0, 3] == pytest.approx(0.2e9)
    few = subset_cluster(spec, ["west01", "north01"])
    assert few.pair_latency_s == pytest.approx(np.full((2, 2), 40e-3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,east01,west01\neast01,,fast\nwest01,1,\n", "row east01, column west01.*latency in us"),
        ("x,east01,west01\neast01,,2e6\nwest01,1,\n", "from 0 to 1e\\+06"),
        ("x,east01,south01\neast01,,2\nsouth01,1,\n", "south01"),
    ],
)
def test_latencies_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    """A word, seconds in place of microseconds, a strange host: file, row, and what would be right."""
    path = tmp_path / "three.yaml"
    write(path, REGIONS, ["East=1", "West=1", "North=1"])
    (tmp_path / "three_latencies.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_cluster(path)


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
        (["East=2", "South=1"], "'?South'? is is not among the regions of the table|South"),
        (["East=2", "West=0"], "1 to 1024"),
        (["East=2", "West"], "is not among the regions of the table"),
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


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    """Columns and rows of both tables; of a pair that is listed twice the slower and later is used."""
    table = REGIONS.replace("bandwidth_Gbps\n", "bandwidth_Gbps,cost\n").replace("0.8\n", "0.8,1\n")
    table = table.replace("1.6\n", "1.6,1\n").replace("0.4\n", "0.4,1\n") + "West,East,20,0.1,1\nWest,West,1,9,1\n"
    notes = write(tmp_path / "c.yaml", table, ["East=1", "West=1"])
    assert notes[:2] == ["table.csv: 1 column not used: 'cost'.", "table.csv: 1 row not used, inside one region."]
    links = read_region_links(tmp_path / "table.csv")
    pair = frozenset(("East", "West"))
    assert links.bytes_per_s[1][pair] == pytest.approx(0.1e9 / 8)
    assert links.latency_s[pair] == 0.03
    notes = write(tmp_path / "d.yaml", ZONES, ["a=1", "b=1"], "V100", 0.01)
    assert notes[0].startswith("table.csv: 2 rows not used, of other GPUs than V100, of different numbers of them")
    (tmp_path / "table.csv").write_text(ZONES.replace("V100,2,b,V100,2", "V100,two,b,V100,two"))
    with pytest.raises(InputError, match="gpus_a must be a whole number of GPUs >= 1, got 'two'"):
        read_region_links(tmp_path / "table.csv", "V100")
