"""Clusters made of logs of links: a table of logs and what comes of them, real logs, and logs that are damaged."""

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_logs import nccl_text, write_logs
from tables import table
from test_log_lines import TAGS

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import read_cluster, write_cluster
from pipette_opt.read.link_formats.nccl_tests import pair_flows, parse_nccl_text
from pipette_opt.read.links import ImportedLinks, import_links
from pipette_opt.read.log_lines import Log

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
CASES, FORMATS = SHARED / "cases" / "links", SHARED / "formats"

measured = pytest.mark.skipif(not (SHARED / "links").is_dir(), reason="the measured links are not here")
needs_cases = pytest.mark.skipif(not CASES.is_dir() or not FORMATS.is_dir(), reason=f"{SHARED} is not here")

OWN_FORMATS = ("nccl-tests", "rccl-tests", "out-", "training-configs")
"""Folders of formats that are read, and of files to write."""

IMPORTS = table(__file__, "imports")
"""What a row shows; logs by file name (:mod:`link_logs`); options, also sources among the files; what comes of it."""


def links(imported: ImportedLinks, flows: int) -> np.ndarray:
    """A matrix in GB/s."""
    return next(m.bytes_per_s for m in imported.cluster.link_matrices if m.concurrent_flows == flows) / 1e9


def outcome(imported: ImportedLinks) -> dict[str, Any]:
    """What is expected word for word."""
    cluster = imported.cluster
    pairs = [(a, b) for a in range(cluster.num_nodes) for b in range(a + 1, cluster.num_nodes)]
    return {
        "hosts": list(cluster.hosts),
        "gpus": cluster.gpus_per_node,
        "nics": cluster.nics_per_node,
        "kinds": [node.gpu.name for node in cluster.nodes],
        "flows": [matrix.concurrent_flows for matrix in cluster.link_matrices],
        "missing": {str(flows): [" ".join(pair) for pair in pairs] for flows, pairs in imported.missing.items()},
        "unusable": [f"{cluster.hosts[a]} {cluster.hosts[b]}" for a, b in pairs if not cluster.usable_links[a, b]],
    }


def numbers(imported: ImportedLinks) -> dict[str, float]:
    """What is expected up to 2 in 1000: rates in GB/s, flows behind them if there are several."""
    cluster = imported.cluster
    found = {"inside": cluster.intra_node_bytes_per_s / 1e9, "latency_us": cluster.inter_node_latency_s * 1e6}
    for matrix in cluster.link_matrices:
        flows = "" if matrix.concurrent_flows == 1 else f" x{matrix.concurrent_flows}"
        for (a, b), rate in np.ndenumerate(matrix.bytes_per_s / 1e9):
            found[f"{cluster.hosts[a]} {cluster.hosts[b]}{flows}"] = rate
    return found


@pytest.mark.parametrize(("shows", "texts", "options", "expected"), IMPORTS, ids=[row[0] for row in IMPORTS])
def test_imports(
    shows: str, texts: dict[str, str], options: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    """Each row has the cluster, the notes or the error that it names."""
    folder = write_logs(tmp_path, texts)
    sources = [folder / name for name in options.get("sources", [""])]
    given = {name: value for name, value in options.items() if name != "sources"}
    expected = dict(expected)
    if "error" in expected:
        with pytest.raises(InputError) as caught:
            import_links(sources, **given)
        assert expected["error"] in str(caught.value)
        assert expected.get("no_error", "\n") not in str(caught.value)
        return
    imported = import_links(sources, **given)
    for note in expected.pop("notes", []):
        assert any(note in line for line in imported.notes), imported.notes
    for note in expected.pop("no_notes", []):
        assert not any(note in line for line in imported.notes)
    for note, count in expected.pop("times", {}).items():
        assert sum(note in line for line in imported.notes) == count
    within, found = expected.pop("within", 2e-3), numbers(imported)
    wanted = expected.pop("rates", {}) | {name: expected.pop(name) for name in found if name in expected}
    wanted = {name: np.nan if rate is None else rate for name, rate in wanted.items()}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=within, nan_ok=True)
    assert {name: outcome(imported)[name] for name in expected} == expected


@pytest.mark.parametrize("cut", range(0, 760, 5))
def test_a_log_cut_anywhere_is_whole_or_unusable(cut: int) -> None:
    """No half of a log passes for a measurement."""
    whole = nccl_text("alltoall", {"n1": 1, "n2": 1}, 27.0)
    true = parse_nccl_text(Log(whole), "x.log")[0]
    for test in parse_nccl_text(Log(whole[:cut]), "x.log"):
        assert test.problem or test.rows == true.rows


def test_tags_of_every_kind_change_nothing() -> None:
    """A known log behind random tags, nested and padded, has the rates of the log alone."""
    chosen = random.Random(11)
    for kind, gpus in (("sendrecv", 1), ("alltoall", 4)):
        plain = nccl_text(kind, {"n1": gpus, "n2": gpus}, 25.0)
        (expected,) = parse_nccl_text(Log(plain), "x.log")
        for _ in range(60):
            before = chosen.choice(("", "login1: ")) + "".join(chosen.choices(TAGS, k=chosen.randrange(1, 4)))
            tagged = "".join(f"{before}{line}\n" for line in plain.splitlines())
            assert parse_nccl_text(Log(tagged), "x.log") == (expected,), before


def test_two_jobs_told_apart_by_their_labels() -> None:
    """Each rank prints a test of its own: two tests inside a host, not one over both."""
    texts = [nccl_text("sendrecv", {host: 2}, rate).splitlines() for host, rate in (("n1", 300.0), ("n2", 280.0))]
    mixed = "".join(f"0: {one}\n1: {other}\n" for one, other in zip(*texts, strict=True))
    assert [test.hosts for test in parse_nccl_text(Log(mixed), "x.log")] == [("n1",), ("n2",)]
    both = parse_nccl_text(Log("".join(line[3:] + "\n" for line in mixed.splitlines())), "x.log")
    assert all(test.problem and not test.failed for test in both)


@pytest.mark.parametrize("part", ["failed: ", "failed: error ", "NCCL WARN ", "_perf", "1 ", "a_"])
def test_hostile_lines_take_linear_time(part: str) -> None:
    """Sixteen kilobytes of the words that are looked for."""
    text = "# nThread 1 nGpus 1\n" + part * (16_384 // len(part)) + "\n"
    start = time.process_time()
    parse_nccl_text(Log(text * 4), "x.log")
    assert time.process_time() - start < 2


def test_nvlink_between_hosts_is_a_level(tmp_path: Path) -> None:
    """Flows of GB200 faster than a card: a domain; another host behind cards stays in the matrix."""
    texts = {
        "p12.txt": "@sendrecv n1:4 n2:4 600 device=GB200",
        "p13.txt": "@sendrecv n1:4 n3:4 45 device=GB200",
        "p23.txt": "@sendrecv n2:4 n3:4 45 device=GB200",
    }
    imported = import_links(write_logs(tmp_path / "logs", texts))
    write_cluster(imported.cluster, tmp_path / "cluster.yaml")
    again = read_cluster(tmp_path / "cluster.yaml")
    (level,) = again.levels
    assert level.scale_up
    assert level.group_of_node.tolist() == [0, 0, 1]
    rates = again.pair_bytes_per_s(1) / 1e9
    np.testing.assert_allclose(rates[[0, 0, 1], [1, 2, 2]], [600, 45, 45], rtol=2e-3)
    assert "NVLink domain: 2 links of n[1-2] carry 600 GB/s a flow" in " ".join(imported.notes)
    alone = import_links(tmp_path / "logs" / "p12.txt")
    write_cluster(alone.cluster, tmp_path / "alone.yaml")
    assert read_cluster(tmp_path / "alone.yaml").usable_links[0, 1]


def test_json_of_any_depth_stops_nothing(tmp_path: Path) -> None:
    """In a folder it is a file that is not used."""
    folder = write_logs(tmp_path, {"pair.txt": "@sendrecv n1:1 n2:1 40", "deep.json": '{"a":' * 100_000})
    assert any(note.startswith("deep.json was not used: ") for note in import_links(folder, gpus_per_node=8).notes)


@pytest.mark.search
@measured
def test_seventeen_measured_hosts(tmp_path: Path) -> None:
    """408 logs of a real cluster: failed pairs are missing, the bandwidths are those of hand counts."""
    imported = import_links(SHARED / "links" / "h100_17_nodes", fill="median")
    cluster = imported.cluster
    assert cluster.num_nodes == 17
    assert cluster.gpus_per_node == 8
    assert cluster.gpu_kinds[0].name == "h100-80gb"
    assert [matrix.concurrent_flows for matrix in cluster.link_matrices] == [1, 4, 8]
    assert {flows: len(pairs) for flows, pairs in imported.missing.items()} == {1: 5, 4: 18, 8: 5}
    one, eight = links(imported, 1), links(imported, 8)
    # cnode2-001 to -002 with 8 GPUs: algbw 25.0 on average, 4 * 25.0 GB/s; with one GPU 13.5.
    assert one[0, 1] == pytest.approx(13.47, abs=0.1)
    assert eight[0, 1] == pytest.approx(100.1, abs=0.5)
    write_cluster(cluster, tmp_path / "c.yaml")
    assert read_cluster(tmp_path / "c.yaml").hosts == cluster.hosts


@pytest.mark.search
@measured
def test_one_gpu_logs_show_eight_slow_pairs() -> None:
    """The pairs whose single GPU sits at PCI 9d:00 are about three times slower; none is averaged away."""
    imported = import_links(SHARED / "links" / "h100_17_nodes", only_gpus=1)
    assert [matrix.concurrent_flows for matrix in imported.cluster.link_matrices] == [1]
    one = links(imported, 1)
    slow = np.argwhere(np.triu(one < 0.5 * np.nanmedian(one)))
    names = {(int(i) + 1, int(j) + 1) for i, j in slow}
    assert names == {(1, 4), (2, 3), (2, 6), (4, 6), (4, 9), (11, 12), (13, 16), (13, 17)}
    assert set(imported.missing[1]) == {
        (f"cnode2-{a:03d}", f"cnode2-{b:03d}") for a, b in ((2, 8), (3, 8), (5, 16), (7, 16), (8, 9))
    }


@measured
def test_measured_logs_agree_with_their_own_summary() -> None:
    """The mean over all sizes, as busbw, is what each log prints as its average."""
    checked = 0
    for path in sorted((SHARED / "links" / "h100_17_nodes").glob("*_cnode2-001_*.log")):
        text = path.read_text()
        averages = [float(line.split(":")[1]) for line in text.splitlines() if "Avg bus bandwidth" in line]
        complete = [test for test in parse_nccl_text(Log(text), str(path)) if not test.problem]
        assert len(complete) == len(averages)
        for test, average in zip(complete, averages, strict=True):
            ranks = sum(test.gpus_of_host.values())
            factor = 1 if test.kind == "sendrecv" else (ranks - 1) / ranks
            mean = sum(row.algorithm_bytes_per_s for row in test.rows) / len(test.rows) / 1e9
            assert mean * factor == pytest.approx(average, rel=2e-3)
            assert pair_flows(test) == (1 if test.kind == "sendrecv" else ranks // 2)
            checked += 1
    assert checked > 80


@measured
def test_measured_mpigraph_and_its_pipette_json_agree() -> None:
    """Pipette's JSON of the two hosts holds the figures of the mpiGraph output."""
    given = {"gpu": "a100-80gb", "gpus_per_node": 8}
    text = import_links(SHARED / "links" / "mpigraph_2_nodes.out", **given)  # type: ignore[arg-type]
    matrix = links(text, 1)
    assert matrix[0, 1] == pytest.approx(14493.357 * 2**20 / 1e9)
    assert matrix[1, 0] == pytest.approx(11072.472 * 2**20 / 1e9)
    folder = SHARED / "measured" / "bandwidth"
    same = import_links(folder / "pipette_mpigraph_2nodes.json", **given)  # type: ignore[arg-type]
    np.testing.assert_allclose(links(same, 1), matrix)
    sixteen = import_links(folder / "pipette_mpigraph_16nodes_t0.json", **given)  # type: ignore[arg-type]
    values = links(sixteen, 1)
    assert values.shape == (16, 16)
    assert 16 < np.nanmin(values) < np.nanmax(values) < 21


@needs_cases
@pytest.mark.parametrize(
    ("place", "options", "flows", "expected"),
    [
        ("01-a40-sendrecv", {"test": "sendrecv", "gpus_per_node": 8}, 1, 11.2),
        ("05-mi250x-srun-label", {"gpu": "a100-80gb"}, 8, 8 * 19.17 / 2),
        ("07-allreduce-only", {"test": "all_reduce", "gpus_per_node": 8}, 1, 19.26),
        ("09-perftest-cuda", {"pair": "a,b", "gpu": "a100-80gb", "gpus_per_node": 2}, 1, 11.54),
        ("11-perftest-65536", {"pair": "a,b", "gpu": "a100-80gb", "gpus_per_node": 2}, 1, 24.14),
        ("one-direction", {"gpu": "a100-80gb", "gpus_per_node": 2}, 1, 11.54),
        ("14-mpt-prefix", {"gpus_per_node": 8}, 1, 14.4),
        ("16-h100-topo", {}, 1, 44.0),
    ],
)
def test_pasted_cases(place: str, options: dict[str, object], flows: int, expected: float) -> None:
    """Each has the rate that its log shows."""
    imported = import_links(CASES / place, **options)  # type: ignore[arg-type]
    assert links(imported, flows)[0, 1] == pytest.approx(expected, rel=0.01)


@needs_cases
def test_two_runs_in_one_log_are_refused() -> None:
    """Interleaved without labels."""
    with pytest.raises(InputError, match="the output of two runs is mixed"):
        import_links(CASES / "03-two-runs-interleaved")


@needs_cases
def test_formats_of_collectives() -> None:
    """Two pairs behind tags, an NVLink domain, and what many hosts tell of their NICs."""
    folder = FORMATS / "nccl-tests-many-hosts"
    pair = import_links(folder / "c_sendrecv_pair_prrte_tag.txt", gpus_per_node=8)
    assert links(pair, 1)[0, 1] == pytest.approx(44.1, rel=0.002)
    eight = import_links(folder / "d_alltoall_pair_label16.txt", gpus_per_node=8)
    assert links(eight, 8)[0, 1] == pytest.approx(325, rel=0.002)
    (level,) = import_links(folder / "e_gb200_sendrecv_timestamps.txt", gpus_per_node=8).cluster.levels
    assert level.scale_up
    assert level.bytes_per_s == pytest.approx(590e9, rel=0.002)
    for name, rate in (("a_alltoall_4x8.txt", 321), ("b_allgather_16x8_srun_label.txt", 349)):
        with pytest.raises(InputError, match=f"the NICs of a host carry {rate} GB/s"):
            import_links(folder / name, gpus_per_node=8)


@needs_cases
def test_every_format_is_refused_by_name_or_read() -> None:
    """No file of another program is taken for Pipette's JSON."""
    others = [file for file in FORMATS.glob("*/*") if file.is_file() and not file.parent.name.startswith(OWN_FORMATS)]
    for file in others:
        if file.name not in ("about.md", "a_tree.txt", "a_tree.conf", "c_tree_dynamic.txt"):
            with pytest.raises(InputError):
                import_links(file, gpu="h100-80gb")
