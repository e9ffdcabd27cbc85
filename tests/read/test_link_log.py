"""The log of profile links."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.link_formats.link_log import LinkLog, is_link_log, link_line, parse_link_log
from pipette_opt.read.links import import_links

LOG = LinkLog(hosts=("n2", "n10"), gpus_per_node=2, device_name="NVIDIA A100-SXM4-80GB", together=True)


def text_of(*lines: str) -> str:
    """A log with these lines."""
    return json.dumps(LOG.header) + "\n" + "".join(lines)


def test_written_and_read_back() -> None:
    """Also what was measured twice: the later one counts; what breaks off does not."""
    text = text_of(
        link_line(1, "n2", "n10", {4: 1e9, 32: 2e9}, 1e-5),
        link_line(1, "n2", "n10", {4: 3e9, 32: 4e9}, 2e-5),
        link_line(2, "n10", "n2", {32: 6e9}, 5e-5),
        link_line(2, "n2", "n10", {32: 6e9}, 5e-5)[:-9],
    )
    assert is_link_log(text)
    log = parse_link_log(text, "log")
    assert log.rates == {(1, "n2", "n10"): {4: 3e9, 32: 4e9}, (2, "n10", "n2"): {32: 6e9}}
    assert log.latencies == {("n2", "n10"): 2e-5}
    assert log.header == LOG.header


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"pipette_opt_links": 9}\n', "must be a log of version 1"),
        ('{"pipette_opt_links": 1}\n', "line 1: hosts is missing"),
        (text_of().replace("2,", "-8,", 1), r"gpus_per_node must be a whole number in \[1, 1024\], got -8"),
        (text_of().replace('["n2", "n10"]', '"n2"'), "hosts must be a list, each text, got 'n2'"),
        (text_of().replace("n10", "n1$(id)"), "must consist of letters"),
        (text_of(link_line(1, "n2", "n10", {4: 1e9}, 10.0)), r"latency_s must be a number in \[0, 1\], got 10"),
        (text_of(link_line(1, "n2", "n10", {4: 1e9}, 0.0).replace("1,", "1.9,", 1)), "flows must be a whole number"),
        (text_of(link_line(1, "n2", "n10", {4: 1e9}, 0.0).replace("1,", "Infinity,", 1)), "Infinity is not a number"),
        (text_of("nonsense\n"), "line 2: is not valid JSON"),
        (text_of('{"flows": 1}\n'), "line 2: sender is missing"),
        (text_of(link_line(1, "n2", "n3", {4: 1e9}, 0.0)), "host 'n3' is not in the first line"),
        (text_of(link_line(1, "n2", "n10", {4: -1e9}, 0.0)), "bytes_per_s.4 must be a number in"),
    ],
)
def test_damaged_logs(text: str, message: str) -> None:
    """Each says where."""
    with pytest.raises(InputError, match=message):
        parse_link_log(text, "log")


def test_a_cluster_of_it(tmp_path: Path) -> None:
    """The largest message tells the bandwidth; the device its kind; the pings the latency."""
    path = tmp_path / "cluster.links.jsonl"
    path.write_text(
        text_of(
            link_line(1, "n2", "n10", {4: 1e9, 32: 2e9}, 1e-5),
            link_line(1, "n10", "n2", {4: 1e9, 32: 3e9}, 3e-5),
            link_line(2, "n2", "n10", {32: 4e9}, 1.0),
            link_line(2, "n10", "n2", {32: 5e9}, 1.0),
        )
    )
    cluster = import_links(path).cluster
    assert cluster.hosts == ("n2", "n10")
    assert (cluster.nodes[0].gpu.name, cluster.gpus_per_node) == ("a100-80gb", 2)
    one, two = (matrix.bytes_per_s / 1e9 for matrix in cluster.link_matrices)
    np.testing.assert_allclose(one, [[np.nan, 2], [3, np.nan]])
    np.testing.assert_allclose(two, [[np.nan, 4], [5, np.nan]])
    assert cluster.inter_node_latency_s == pytest.approx(2e-5)
