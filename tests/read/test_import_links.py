"""Clusters made of nccl-tests logs, mpiGraph output and Pipette's JSON."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import read_cluster, write_cluster
from pipette_opt.read.link_formats.nccl_tests import pair_flows, parse_nccl_json, parse_nccl_text
from pipette_opt.read.links import ImportedLinks, import_links
from pipette_opt.read.log_lines import Log

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
MIB = 2**20

measured = pytest.mark.skipif(not (SHARED / "links").is_dir(), reason="the measured links are not here")


def nccl_text(
    kind: str,
    gpus_of_host: dict[str, int],
    rate_gb_per_s: float,
    *,
    sizes: Sequence[int] = (32 * MIB, 64 * MIB),
    latency_us: float = 0.0,
    device: str = "NVIDIA H100 80GB HBM3",
    ends: bool = True,
    wrong: int = 0,
) -> str:
    """Text of a test whose algbw is ``rate_gb_per_s`` once the latency is gone."""
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {kind}_perf",
        "# nThread 1 nGpus 1 minBytes 33554432 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20",
        "# Using devices",
    ]
    ranks = [(host, index) for host, gpus in gpus_of_host.items() for index in range(gpus)]
    for rank, (host, index) in enumerate(ranks):
        lines.append(f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on {host} device {index:2d} [0000:1b:00] {device}")
    for size in sizes:
        micros = latency_us + size / rate_gb_per_s / 1e3
        cells = f"{micros:9.2f} {size / micros / 1e3:7.2f} {size / micros / 1e3:7.2f}"
        lines.append(f"{size:12d} {size // 8:12d} double none -1 {cells} {wrong:6d} {cells}    N/A")
    if ends:
        lines += [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}", "# Avg bus bandwidth    : 1.0"]
        lines.append(f"# Collective test concluded: {kind}_perf")
    return "\n".join(lines) + "\n"


@pytest.fixture
def logs(tmp_path: Path) -> Callable[..., Path]:
    """Write texts as files of a folder."""

    def write(**texts: str) -> Path:
        folder = tmp_path / "logs"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.log").write_text(text)
        return folder

    return write


def links(imported: ImportedLinks, flows: int) -> np.ndarray:
    """A matrix in GB/s."""
    return next(m.bytes_per_s for m in imported.cluster.link_matrices if m.concurrent_flows == flows) / 1e9


def test_sendrecv_is_one_flow_however_many_gpus(logs: Callable[..., Path]) -> None:
    """A ring of 16 ranks crosses between two hosts once each way: algbw is the flow's rate."""
    imported = import_links(logs(a=nccl_text("sendrecv", {"n1": 8, "n2": 8}, 15.0)))
    assert [matrix.concurrent_flows for matrix in imported.cluster.link_matrices] == [1]
    np.testing.assert_allclose(links(imported, 1), [[np.nan, 15], [15, np.nan]], rtol=2e-3)
    assert imported.cluster.gpus_per_node == 8


@pytest.mark.parametrize(("gpus", "algbw", "expected"), [(1, 27.0, 13.5), (4, 26.0, 52.0), (8, 25.0, 100.0)])
def test_alltoall_crosses_with_all_gpus(logs: Callable[..., Path], gpus: int, algbw: float, expected: float) -> None:
    """
    By hand, two hosts of G GPUs: a GPU sends size/2G to each of the G GPUs over there, G GPUs do: G * size / 2.

    With G = 8 and 25 GB/s algbw that is 100 GB/s; with G = 1 the halves of 27 GB/s, NCCL's busbw.
    """
    imported = import_links(logs(a=nccl_text("alltoall", {"n1": gpus, "n2": gpus}, algbw)), gpus_per_node=8)
    np.testing.assert_allclose(links(imported, gpus)[0, 1], expected, rtol=2e-3)


def test_the_slowest_measurement_of_a_pair_counts(logs: Callable[..., Path]) -> None:
    """One flow was measured three times, with different GPUs; a slow one is not hidden by faster ones."""
    folder = logs(
        a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 5.0) + nccl_text("alltoall", {"n1": 1, "n2": 1}, 27.0),
        b=nccl_text("sendrecv", {"n1": 8, "n2": 8}, 15.0) + nccl_text("alltoall", {"n1": 8, "n2": 8}, 25.0),
    )
    imported = import_links(folder)
    assert links(imported, 1)[0, 1] == pytest.approx(5.0, rel=2e-3)
    assert links(imported, 8)[0, 1] == pytest.approx(100.0, rel=2e-3)
    one = import_links(folder, only_gpus=8)
    assert links(one, 1)[0, 1] == pytest.approx(15.0, rel=2e-3)


def test_only_some_logs(logs: Callable[..., Path]) -> None:
    """The 1-GPU logs alone: one matrix, hosts still with eight GPUs, as many NICs assumed and said."""
    folder = logs(
        a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 5.0),
        b=nccl_text("alltoall", {"n1": 8, "n2": 8}, 25.0),
    )
    imported = import_links(folder, only_gpus=1)
    assert [matrix.concurrent_flows for matrix in imported.cluster.link_matrices] == [1]
    assert imported.cluster.gpus_per_node == 8
    assert imported.cluster.nics_per_node == 8
    assert any("Assumed: 8 NICs per host" in note for note in imported.notes)
    assert import_links(folder, only_gpus=1, nics_per_node=4).cluster.nics_per_node == 4


def three_hosts(broken: str) -> dict[str, str]:
    """Three pairs, 10, 20 and the one between n2 and n3 as given."""
    return {
        "p12": nccl_text("sendrecv", {"n1": 1, "n2": 1}, 10.0),
        "p13": nccl_text("sendrecv", {"n1": 1, "n3": 1}, 20.0),
        "p23": broken,
    }


FAILED = nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, ends=False) + (
    "n3: Test NCCL failure common.cu:401 'remote process exited or there was a network error / '\n"
)


@pytest.mark.parametrize(("fill", "expected"), [("exclude", None), ("worst", 10.0), ("median", 15.0)])
def test_what_fills_a_failed_pair(logs: Callable[..., Path], fill: str, expected: float | None) -> None:
    """Missing, not zero; the user chooses, and hears which pair it was and why."""
    imported = import_links(logs(**three_hosts(FAILED)), fill=fill, gpus_per_node=8)  # type: ignore[arg-type]
    assert imported.missing == {1: (("n2", "n3"),)}
    value = links(imported, 1)[1, 2]
    if expected is None:
        assert np.isnan(value)
        assert not imported.cluster.usable_links[1, 2]
    else:
        assert value == pytest.approx(expected, rel=2e-3)
    text = " ".join(imported.notes)
    assert "a test failed between n2 - n3 (e.g. sendrecv in p23.log failed: Test NCCL failure" in text
    assert ("Excluded" if expected is None else "Filled") in text


@pytest.mark.parametrize(
    "broken",
    [
        nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, ends=False),
        nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, sizes=()),
        nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, wrong=3),
        nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0) + nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, wrong=3),
        FAILED
        + nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0, wrong=3)
        + nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0),
    ],
    ids=["broken off", "no results", "wrong results", "wrong the second time", "crashed, wrong, then right"],
)
def test_failures_of_all_sorts(logs: Callable[..., Path], broken: str) -> None:
    """A link that gave wrong results once is not trusted, even if another test of it succeeded."""
    assert import_links(logs(**three_hosts(broken)), gpus_per_node=8).missing == {1: (("n2", "n3"),)}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_measurement_counts_beside_a_crash(logs: Callable[..., Path], is_first: bool) -> None:
    """A test crashes for many reasons; a run of it that ended well says what the link carries."""
    good = nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0)
    texts = three_hosts(good) | {"a-crash" if is_first else "q-crash": FAILED}
    imported = import_links(logs(**texts), gpus_per_node=8)
    assert imported.missing == {1: ()}
    assert links(imported, 1)[1, 2] == pytest.approx(30.0, rel=2e-3)
    text = " ".join(imported.notes)
    assert "-crash.log failed: Test NCCL failure" in text
    assert "; another run of it measured n2 - n3, which counts." in text
    files = sorted(logs(**texts).iterdir())
    assert import_links(files, gpus_per_node=8).missing == {1: ()}


def test_an_excluded_pair_is_unusable_with_any_flows(logs: Callable[..., Path]) -> None:
    """It failed with 8 GPUs; its 1-GPU measurement would make it look merely slow."""
    texts = {
        f"{kind}{a}{b}": nccl_text(kind, {a: gpus, b: gpus}, 25.0, ends=(kind, a, b) != ("alltoall", "n2", "n3"))
        for kind, gpus in (("sendrecv", 1), ("alltoall", 8))
        for a, b in (("n1", "n2"), ("n1", "n3"), ("n2", "n3"))
    }
    folder = logs(**texts)
    imported = import_links(folder, gpus_per_node=8)
    assert imported.missing == {1: (), 8: (("n2", "n3"),)}
    assert not imported.cluster.usable_links[1, 2]
    filled = import_links(folder, fill="worst", gpus_per_node=8)
    assert links(filled, 8)[1, 2] == pytest.approx(100.0, rel=2e-3)
    assert links(filled, 1)[1, 2] == pytest.approx(25.0, rel=2e-3)


def test_damaged_output_is_not_believed(logs: Callable[..., Path]) -> None:
    """Numbers that contradict each other, and two runs mixed in one file, are left out and said."""
    good = nccl_text("sendrecv", {"n2": 1, "n3": 1}, 30.0)
    mixed = good.replace("#  Rank  1", "#  Rank  0 Group  0 Pid 1 on n9 device  0 [0000:1b:00] NVIDIA H100\n#  Rank  1")
    imported = import_links(logs(**three_hosts(mixed)), gpus_per_node=8)
    assert any("rank 0 is listed twice" in note for note in imported.notes)
    wrong_rate = good.replace("  30.00   30.00      0", "  90.00   30.00      0")
    assert wrong_rate != good
    imported = import_links(logs(**three_hosts(wrong_rate)), gpus_per_node=8)
    assert any("size / time is not algbw" in note for note in imported.notes)
    assert np.isnan(links(imported, 1)[1, 2])


@pytest.mark.parametrize("cut", range(0, 760, 5))
def test_a_log_cut_anywhere_is_whole_or_unusable(cut: int) -> None:
    """No half of a log passes for a measurement."""
    whole = nccl_text("alltoall", {"n1": 1, "n2": 1}, 27.0)
    true = parse_nccl_text(Log(whole), "x.log")[0]
    for test in parse_nccl_text(Log(whole[:cut]), "x.log"):
        assert test.problem or test.rows == true.rows


def test_warnings_of_a_run_that_ended_well_do_not_matter(logs: Callable[..., Path]) -> None:
    """NCCL warns of much; only a run that does not end has failed."""
    text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0)
    warned = text.replace("# Using devices", "n1:1:1 [0] NCCL WARN something is deprecated\n# Using devices")
    assert links(import_links(logs(a=warned), gpus_per_node=8), 1)[0, 1] == pytest.approx(15.0, rel=2e-3)


def test_latency_is_fitted_from_small_messages(logs: Callable[..., Path]) -> None:
    """Twenty microseconds and 20 GB/s come out again, and the bandwidth is that of large messages."""
    sizes = [2**power for power in range(10, 31)]
    imported = import_links(
        logs(a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 20.0, sizes=sizes, latency_us=20)), gpus_per_node=8
    )
    assert imported.cluster.inter_node_latency_s == pytest.approx(20e-6, rel=0.02)
    assert links(imported, 1)[0, 1] == pytest.approx(20.0, rel=0.01)
    large_only = import_links(logs(a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 20.0)), gpus_per_node=8)
    assert any("Assumed: 12 us latency between hosts" in note for note in large_only.notes)


def test_inside_a_host(logs: Callable[..., Path]) -> None:
    """A ring inside one host measures its fabric; otherwise the catalogue's figure is assumed, aloud."""
    pair = nccl_text("sendrecv", {"n1": 8, "n2": 8}, 15.0)
    imported = import_links(logs(a=pair))
    assert imported.cluster.intra_node_bytes_per_s == 360e9
    assert any("Assumed: 360 GB/s inside a host" in note for note in imported.notes)
    imported = import_links(logs(a=pair, b=nccl_text("sendrecv", {"n1": 8}, 300.0)))
    assert imported.cluster.intra_node_bytes_per_s == pytest.approx(300e9, rel=1e-3)


def test_tests_that_do_not_tell_pairs_apart(logs: Callable[..., Path]) -> None:
    """Three hosts, unequal hosts, other collectives: named, and not used."""
    imported = import_links(
        logs(
            a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0),
            b=nccl_text("sendrecv", {"n1": 1, "n2": 1, "n3": 1}, 15.0),
            c=nccl_text("alltoall", {"n1": 1, "n2": 2}, 15.0),
            d=nccl_text("all_reduce", {"n1": 2, "n2": 2}, 15.0),
            e="nothing of the sort",
            f="",
        )
    )
    assert imported.cluster.hosts == ("n1", "n2")
    text = " ".join(imported.notes)
    assert "b.log was not used: sendrecv over 3 hosts does not tell the pairs apart" in text
    assert "c.log was not used: alltoall with 1 and 2 GPUs does not load a pair evenly" in text
    assert "d.log was not used: all_reduce over 2 hosts of 2 GPUs does not measure a pair" in text
    assert "e.log was not used: is no output of nccl-tests" in text
    assert "f.log was not used: the file is empty" in text


def test_hosts_with_different_gpus(logs: Callable[..., Path]) -> None:
    """Kinds are told apart by host; a host with two kinds, or an unknown kind, is an error."""
    first = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0).replace(
        "on n2 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3", "on n2 device  0 [0000:1b:00] NVIDIA H200"
    )
    imported = import_links(logs(a=first), gpus_per_node=8)
    assert [node.gpu.name for node in imported.cluster.nodes] == ["h100-80gb", "h200-141gb"]
    with pytest.raises(InputError, match="host n2 appears with different GPUs"):
        import_links(logs(a=first, b=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0)), gpus_per_node=8)
    odd = logs(a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0, device="Voodoo 2"), b="")
    with pytest.raises(InputError, match="'Voodoo 2' of host n1 is not in the catalogue"):
        import_links(odd, gpus_per_node=8)
    assert import_links(odd, gpu="a100-80gb", gpus_per_node=8).cluster.nodes[0].gpu.name == "a100-80gb"


def test_hosts_are_sorted_as_people_count(logs: Callable[..., Path]) -> None:
    """n2 before n10."""
    imported = import_links(logs(a=nccl_text("sendrecv", {"n10": 1, "n2": 1}, 15.0)), gpus_per_node=8)
    assert imported.cluster.hosts == ("n2", "n10")


def test_labels_of_launchers_are_dropped(logs: Callable[..., Path]) -> None:
    """Output of srun --label and mpirun --tag-output."""
    text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0)
    for label in ("0: ", "[1,0]<stdout>:"):
        folder = logs(a="".join(label + line + "\n" for line in text.splitlines()))
        assert links(import_links(folder, gpus_per_node=8), 1)[0, 1] == pytest.approx(15.0, rel=2e-3)


def test_older_output_without_the_name_of_the_test(tmp_path: Path) -> None:
    """The file's name decides then."""
    lines = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0).splitlines()
    text = "\n".join(line for line in lines if "Collective test" not in line and "nccl-tests version" not in line)
    (tmp_path / "sendrecv_perf_n1_n2.txt").write_text(text.replace("Group  0 ", ""))
    assert links(import_links(tmp_path, gpus_per_node=8), 1)[0, 1] == pytest.approx(15.0, rel=2e-3)
    (tmp_path / "sendrecv_perf_n1_n2.txt").rename(tmp_path / "x.txt")
    with pytest.raises(InputError, match="does not name the test"):
        import_links(tmp_path, gpus_per_node=8)


def nccl_json(kind: str, hosts: Sequence[str], rate: float, *, ngpus: int = 1, ends: bool = True) -> str:
    """What ``-J`` writes: one device for each process, even with several GPUs in it."""
    micros = 2**30 / rate / 1e3
    side = {"time": micros, "alg_bw": rate, "bus_bw": rate, "nwrong": 0.0}
    data = {
        "version": 1,
        "args": [f"/x/build/{kind}_perf", "-J", "out.json"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": ngpus,
            "devices": [
                {"rank": i, "pid": i, "hostname": host, "device": 0, "device_info": "NVIDIA A100-SXM4-80GB"}
                for i, host in enumerate(hosts)
            ],
        },
        "results": [{"size": 2**30, "out_of_place": side, "in_place": side | {"nwrong": None}}],
    }
    if ends:
        data |= {
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": rate},
            "errors": [],
        }
    return json.dumps(data)


def test_json_of_groups_and_rings(tmp_path: Path) -> None:
    """``NCCL_TESTS_SPLIT`` puts processes in groups; ``env`` has the algorithm."""
    pairs = json.loads(nccl_json("all_reduce", ["n1", "n1", "n2", "n2"], 20.0))
    for number, device in enumerate(pairs["config"]["devices"]):
        device["group"] = number % 2
    (tmp_path / "a.json").write_text(json.dumps(pairs))
    assert links(import_links(tmp_path), 2)[0, 1] == pytest.approx(40.0)
    whole = json.loads(nccl_json("all_reduce", ["n1"] * 8 + ["n2"] * 8, 75.0))
    for environment, problem in (
        (["HOME=/x", "NCCL_ALGO=Ring"], "carry 141 GB/s each way"),
        (["NCCL_ALGO=Tree"], "of the NICs it says nothing"),
        (None, "of the NICs it says nothing"),
    ):
        (tmp_path / "a.json").write_text(json.dumps(whole | {"env": environment}))
        with pytest.raises(InputError, match=problem):
            import_links(tmp_path)


def test_json_output(tmp_path: Path) -> None:
    """The same derivations; with -g 4 each process stands for four GPUs."""
    (tmp_path / "a.json").write_text(nccl_json("sendrecv", ["n1", "n2"], 20.0))
    (tmp_path / "b.json").write_text(nccl_json("alltoall", ["n1", "n2"], 30.0, ngpus=4))
    imported = import_links(tmp_path)
    assert links(imported, 1)[0, 1] == pytest.approx(20.0)
    assert links(imported, 4)[0, 1] == pytest.approx(60.0)
    assert imported.cluster.gpus_per_node == 4
    assert imported.cluster.nodes[0].gpu.name == "a100-80gb"


def test_keys_of_json_that_nobody_reads_are_named(tmp_path: Path) -> None:
    """Those at the top of what nccl-tests and Pipette write."""
    (tmp_path / "a.json").write_text(json.dumps(json.loads(nccl_json("sendrecv", ["n1", "n2"], 20.0)) | {"mine": 1}))
    assert "a.json: 1 key not used: 'mine'." in import_links(tmp_path / "a.json", gpus_per_node=8).notes
    table = {"gpus": ["a", "b"], "bandwidth": [[0, 20000], [20000, 0]], "unit": "MB/s", "latency": 1}
    (tmp_path / "b.json").write_text(json.dumps(table))
    imported = import_links(tmp_path / "b.json", gpu="a100-80gb", gpus_per_node=8)
    assert "b.json: 1 key not used: 'latency'." in imported.notes


def test_json_that_breaks_off(tmp_path: Path) -> None:
    """A test without its summary is not used; half a file cannot even say between whom."""
    test = parse_nccl_json(nccl_json("sendrecv", ["n1", "n2"], 20.0, ends=False), "x.json")
    assert not test.failed
    assert test.problem == "broke off after 1 size, without an error message; run the test again"
    (tmp_path / "a.json").write_text(nccl_json("sendrecv", ["n1", "n2"], 20.0)[:300])
    with pytest.raises(InputError, match="is not valid JSON"):
        import_links(tmp_path / "a.json")


MPIGRAPH = """\
START mpiGraph v1.5
Send\ta1:0\ta2:1\t
a1:0 to\t0.000\t14000.0\t
a2:1 to\t11000.0\t0.000\t

Recv\ta1:0\ta2:1\t
a1:0 from\t0.000\t11500.0\t
a2:1 from\t13000.0\t0.000\t
END mpiGraph
"""


def test_mpigraph_is_directed(tmp_path: Path) -> None:
    """From a1 to a2 the sender saw 14000, the receiver 13000: the smaller counts; its MB is 2^20."""
    path = tmp_path / "mpi.out"
    path.write_text("noise of the launcher\n" + MPIGRAPH)
    imported = import_links(path, gpu="a100-80gb", gpus_per_node=8)
    assert "mpi.out: 1 of 10 lines were not used: first, line 1: 'noise of the launcher'." in imported.notes
    matrix = imported.cluster.link_matrices[0].bytes_per_s
    assert matrix[0, 1] == 13000 * 2**20
    assert matrix[1, 0] == 11000 * 2**20
    with pytest.raises(InputError, match="do not name the GPU of host a1"):
        import_links(path, gpus_per_node=8)
    with pytest.raises(InputError, match="do not have the number of GPUs of a host"):
        import_links(path, gpu="a100-80gb")


def test_nothing_usable(tmp_path: Path, logs: Callable[..., Path]) -> None:
    """No file, empty folder, only failures, wrong options."""
    with pytest.raises(InputError, match="the file or folder does not exist"):
        import_links(tmp_path / "nowhere", gpus_per_node=8)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="the folder contains no files"):
        import_links(tmp_path / "empty", gpus_per_node=8)
    failed = logs(a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 15.0, ends=False))
    with pytest.raises(InputError, match="no usable measurement"):
        import_links(failed, gpus_per_node=8)
    good = logs(a=nccl_text("sendrecv", {"n1": 4, "n2": 4}, 15.0))
    with pytest.raises(InputError, match="gpus_per_node: is 2, but the logs used 4"):
        import_links(good, gpus_per_node=2)
    with pytest.raises(InputError, match="--fill: must be one of exclude, worst, median, switch"):
        import_links(good, fill="zero", gpus_per_node=8)  # type: ignore[arg-type]


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


def test_snapshots_give_the_worst_or_the_mean(tmp_path: Path) -> None:
    """A link that was slow once: worst 10, mean 12; the note names it."""
    for moment, rate in (("monday", 14.0), ("friday", 10.0)):
        (tmp_path / moment).mkdir()
        (tmp_path / moment / "a.log").write_text(nccl_text("sendrecv", {"n1": 1, "n2": 1}, rate))
    (tmp_path / "friday" / "b.log").write_text(nccl_text("sendrecv", {"n1": 1, "n3": 1}, 14.0))
    sources = [tmp_path / "monday", tmp_path / "friday"]
    worst = import_links(sources, gpus_per_node=8)
    assert links(worst, 1)[0, 1] == pytest.approx(10, rel=2e-3)
    assert links(import_links(sources, repeated="mean", gpus_per_node=8), 1)[0, 1] == pytest.approx(12, rel=2e-3)
    text = " ".join(worst.notes)
    assert "n1 to n2 (mean 12.0, worst 10.0)" in text
    assert "Not every source has n3" in text


def test_a_test_that_failed_once(tmp_path: Path) -> None:
    """The worst moment is no link at all; the mean leaves that moment out."""
    for moment, ends in (("monday", True), ("friday", False)):
        (tmp_path / moment).mkdir()
        text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 14.0, ends=ends) + ("" if ends else "Test NCCL failure\n")
        (tmp_path / moment / "a.log").write_text(text)
        (tmp_path / moment / "b.log").write_text(nccl_text("sendrecv", {"n1": 1, "n3": 1}, 14.0))
    sources = [tmp_path / "monday", tmp_path / "friday"]
    assert np.isnan(links(import_links(sources, gpus_per_node=8), 1)[0, 1])
    assert links(import_links(sources, repeated="mean", gpus_per_node=8), 1)[0, 1] == pytest.approx(14, rel=2e-3)


@pytest.mark.parametrize(
    ("direction", "expected"), [("measured", (30, 10)), ("average", (20, 20)), ("slower", (10, 10))]
)
def test_directions(tmp_path: Path, direction: str, expected: tuple[float, float]) -> None:
    """Both as measured, their mean, or the slower."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps({"gpus": ["a", "b"], "bandwidth": [[0, 30], [10, 0]]}))
    imported = import_links(path, gpu="a100-80gb", gpus_per_node=8, direction=direction)  # type: ignore[arg-type]
    matrix = imported.cluster.link_matrices[0].bytes_per_s / MIB
    assert (matrix[0, 1], matrix[1, 0]) == pytest.approx(expected)


def test_short_and_long_names(logs: Callable[..., Path]) -> None:
    """The same host twice is an error, until the domain is cut."""
    folder = logs(
        a=nccl_text("sendrecv", {"n1.cluster": 4, "n2": 4}, 15.0),
        b=nccl_text("sendrecv", {"n1": 8, "n2": 8}, 12.0),
    )
    with pytest.raises(InputError, match=r"'n1' and 'n1.cluster' both appear"):
        import_links(folder)
    imported = import_links(folder, short_names=True)
    assert imported.cluster.hosts == ("n1", "n2")
    assert imported.cluster.gpus_per_node == 8
    assert links(imported, 1)[0, 1] == pytest.approx(12, rel=2e-3)
