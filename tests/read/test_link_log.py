"""The log of profile links."""

import json
from pathlib import Path

import numpy as np
import pytest

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
