"""Logs of links as people paste them: tags before lines, tests and hosts without names, one direction, NVLink."""

import os
import random
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_import_links import nccl_text
from test_log_lines import TAGS
from test_pair_tests import OSU_BW, ib_write

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import read_cluster, write_cluster
from pipette_opt.read.link_formats.nccl_tests import parse_nccl_text
from pipette_opt.read.links import ImportedLinks, import_links
from pipette_opt.read.log_lines import Log

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
CASES, FORMATS = SHARED / "cases" / "links", SHARED / "formats"
needs_cases = pytest.mark.skipif(not CASES.is_dir() or not FORMATS.is_dir(), reason=f"{SHARED} is not here")

OWN_FORMATS = ("nccl-tests", "rccl-tests", "out-", "training-configs")
"""Folders of formats that are read, and of files to write."""

NAMELESS = "\n".join(
    line for line in nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0).splitlines() if "Collective test" not in line
)
"""A log of older nccl-tests, which does not name the test."""

TOPOLOGY = """\
$ nvidia-smi topo -m

\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPXB\tNODE\tSYS\t0-47\t0
GPU1\tNV18\t X \tNODE\tPXB\tSYS\t0-47\t0
NIC0\tPXB\tNODE\t X \tNODE\tSYS
NIC1\tNODE\tPXB\tNODE\t X \tSYS
NIC2\tSYS\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
"""


def rate_of(imported: ImportedLinks, flows: int = 1) -> float:
    """Rate from the first host to the second, GB/s."""
    matrix = next(one for one in imported.cluster.link_matrices if one.concurrent_flows == flows)
    return float(matrix.bytes_per_s[0, 1] / 1e9)


def noted(imported: ImportedLinks) -> str:
    """All notes."""
    return " ".join(imported.notes)


def written(folder: Path, **texts: str) -> Path:
    """A folder of files."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


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


def test_a_healthy_pair_behind_tags_is_never_a_failed_one(tmp_path: Path) -> None:
    """Padded labels of srun, beside a plain log: all three pairs are measured, none is excluded."""
    texts = {
        f"{a}{b}": "".join(f"{tag}{line}\n" for line in nccl_text("sendrecv", {a: 1, b: 1}, 40.0).splitlines())
        for tag, a, b in (("", "n1", "n2"), (" 0: ", "n1", "n3"), ("[prterun-n2-1@1,0]<stdout>: ", "n2", "n3"))
    }
    imported = import_links(written(tmp_path / "logs", **texts), gpus_per_node=8)
    assert imported.missing == {1: ()}
    assert "failed" not in noted(imported)


def test_rows_that_cannot_be_read_are_no_failure() -> None:
    """A log with an error failed; one whose rows are in no known form did not."""
    text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0)
    strange = text.replace(" double none -1 ", ",double,")
    (test,) = parse_nccl_text(Log(strange), "x.log")
    assert not test.failed
    assert "has no row that can be read; line 7" in test.problem
    (cut,) = parse_nccl_text(Log(text[: text.index("# Out of bounds")]), "x.log")
    assert not cut.failed
    assert cut.problem == "broke off after 2 sizes, without an error message; run the test again"
    (error,) = parse_nccl_text(
        Log(text[: text.index("# Out of bounds")] + "slurmstepd: error: *** STEP CANCELLED\n"), "x"
    )
    assert error.failed


def test_a_log_without_its_head(tmp_path: Path) -> None:
    """Its first lines were cut: with the list of ranks it is read, without it the message says what is missing."""
    lines = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0).splitlines(keepends=True)
    log = tmp_path / "run.txt"
    log.write_text("".join(lines[3:]))
    assert rate_of(import_links(log, test="sendrecv", gpus_per_node=8)) == pytest.approx(40.0, rel=2e-3)
    log.write_text("#       size         count      type   redop    root\n" + "".join(lines[6:]))
    with pytest.raises(InputError, match="lists no devices; the log must begin with its first line"):
        import_links(log, test="sendrecv", gpus_per_node=8)


def test_a_test_named_behind_its_header() -> None:
    """As rccl-tests print it: one test, not two."""
    lines = nccl_text("alltoall", {"n1": 2, "n2": 2}, 40.0).splitlines(keepends=True)
    (test,) = parse_nccl_text(Log("".join([lines[2], lines[1], *lines[3:]])), "sendrecv.txt")
    assert (test.kind, test.problem) == ("alltoall", "")


def test_two_jobs_told_apart_by_their_labels() -> None:
    """Each rank prints a test of its own: two tests inside a host, not one over both."""
    texts = [nccl_text("sendrecv", {host: 2}, rate).splitlines() for host, rate in (("n1", 300.0), ("n2", 280.0))]
    mixed = "".join(f"0: {one}\n1: {other}\n" for one, other in zip(*texts, strict=True))
    assert [test.hosts for test in parse_nccl_text(Log(mixed), "x.log")] == [("n1",), ("n2",)]
    both = parse_nccl_text(Log("".join(line[3:] + "\n" for line in mixed.splitlines())), "x.log")
    assert all(test.problem and not test.failed for test in both)


def test_a_test_that_nobody_names_is_asked_for(tmp_path: Path) -> None:
    """By option, by the command in the log, or by the file's name, which is said; never guessed."""
    log = tmp_path / "run.txt"
    log.write_text(NAMELESS)
    with pytest.raises(InputError, match="does not name the test; give it with --test, one of sendrecv, alltoall"):
        import_links(log, gpus_per_node=8)
    given = import_links(log, test="sendrecv_perf", gpus_per_node=8)
    assert rate_of(given) == pytest.approx(40.0, rel=2e-3)
    assert "run.txt: its log does not name the test; sendrecv, from --test." in noted(given)
    log.write_text(f"$ mpirun -np 2 ./build/sendrecv_perf -b 32M -e 64M\n{NAMELESS}")
    assert "sendrecv, from the command in the log" in noted(import_links(log, gpus_per_node=8))
    named = tmp_path / "all-to-all_sendrecv.txt"
    named.write_text(NAMELESS)
    with pytest.raises(InputError, match="does not name the test"):
        import_links(named, gpus_per_node=8)
    with pytest.raises(InputError, match="--test: must be one of sendrecv, alltoall, all_reduce"):
        import_links(log, test="ping", gpus_per_node=8)


def test_a_test_that_is_none_is_refused(tmp_path: Path) -> None:
    """The bus bandwidth of an alltoall over two ranks is half its algbw; here both are equal."""
    log = tmp_path / "run.txt"
    log.write_text(NAMELESS)
    with pytest.raises(InputError, match="is not alltoall, as --test says: its busbw of"):
        import_links(log, test="alltoall")


def test_collectives_of_two_ranks_measure_their_link(tmp_path: Path) -> None:
    """All-reduce moves its size each way, all-gather half of it; over more ranks there is no pair."""
    pair = import_links(written(tmp_path / "one", a=nccl_text("all_reduce", {"n1": 1, "n2": 1}, 20.0)), gpus_per_node=8)
    assert rate_of(pair) == pytest.approx(20.0, rel=2e-3)
    assert "all_reduce of two ranks on two hosts: its bus bandwidth of 20.00 GB/s" in noted(pair)
    gather = import_links(
        written(tmp_path / "two", a=nccl_text("all_gather", {"n1": 1, "n2": 1}, 20.0)), gpus_per_node=8
    )
    assert rate_of(gather) == pytest.approx(10.0, rel=2e-3)
    with pytest.raises(InputError, match="all_reduce over 2 hosts of 8 GPUs does not measure a pair"):
        import_links(written(tmp_path / "more", a=nccl_text("all_reduce", {"n1": 8, "n2": 8}, 20.0)), gpus_per_node=8)


def test_collectives_of_two_hosts_tell_nothing_of_their_nics(tmp_path: Path) -> None:
    """Trees send less between two hosts than the bus bandwidth supposes; a ring sends all of it, if NICs can."""
    text = nccl_text("all_reduce", dict.fromkeys(("n1", "n2"), 8), 250.0)
    with pytest.raises(InputError, match="of the NICs it says nothing") as nothing:
        import_links(written(tmp_path / "tree", a=text))
    assert "GB/s" not in str(nothing.value)
    for number, line in enumerate(
        ("mpirun -x NCCL_ALGO=RING all_reduce_perf -b 32M", "n1:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Ring")
    ):
        slower = nccl_text("all_reduce", dict.fromkeys(("n1", "n2"), 8), 160.0)
        with pytest.raises(InputError, match="it says that the NICs of a host carry 300 GB/s each way"):
            import_links(written(tmp_path / f"ring{number}", a=f"{line}\n{slower}"))
    for algorithm in ("Ring,Tree", "^Tree", "NVLSTree"):
        with pytest.raises(InputError, match="of the NICs it says nothing"):
            import_links(written(tmp_path / algorithm, a=f"NCCL_ALGO={algorithm} ./all_reduce_perf\n{slower}"))
    with pytest.raises(InputError, match="469 GB/s each way together, more than the 400 GB/s of the usual NICs"):
        import_links(written(tmp_path / "fast", a=f"export NCCL_ALGO=Ring\n{text}"))


def test_an_all_reduce_of_three_hosts_tells_the_least(tmp_path: Path) -> None:
    """By hand: whatever the algorithm, a host of three sends 2 x 2/3 of 150 GB/s."""
    with pytest.raises(InputError, match="the NICs of a host carry at least 200 GB/s each way together"):
        import_links(
            written(tmp_path / "three", a=nccl_text("all_reduce", dict.fromkeys(("n1", "n2", "n3"), 8), 150.0))
        )


def without_end(sizes: Sequence[int], most: int = 2**27) -> str:
    """A log without its last lines, whose header announces sizes from 32 MiB to ``most``."""
    text = nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0, sizes=sizes, ends=False)
    return text.replace("maxBytes 134217728", f"maxBytes {most}")


def test_a_log_with_all_sizes_of_its_header_is_complete(tmp_path: Path) -> None:
    """Sizes that double, or grow by bytes; one size fewer, or a row that is cut, is a test that broke off."""
    doubled = [2**25, 2**26, 2**27]
    found = import_links(written(tmp_path / "all", a=without_end(doubled)), gpus_per_node=8)
    assert rate_of(found) == pytest.approx(40.0, rel=2e-3)
    assert "a.txt: its log lacks its last lines, but has the 3 sizes that its header announces" in noted(found)
    stepped = without_end([2**25, 2**25 + 10, 2**25 + 20], 2**25 + 29).replace("2(factor)", "10(bytes)")
    for text, problem in (
        (stepped, ""),
        (without_end(doubled[:2]), "broke off after 2 sizes"),
        (without_end(doubled, 2**28), "broke off after 3 sizes"),
        (without_end(doubled)[:-20], "broke off after 3 sizes"),
        (without_end(doubled).replace("2(factor)", "1(factor)"), "broke off after 3 sizes"),
    ):
        (test,) = parse_nccl_text(Log(text), "x.log")
        assert test.problem.startswith(problem), text
        assert bool(test.problem) == bool(problem)


def split(text: str, group_of_rank: Callable[[int], int]) -> str:
    """Ranks of a log in groups, as NCCL_TESTS_SPLIT puts them."""
    for rank in range(text.count("#  Rank ")):
        text = text.replace(f"Rank {rank:2d} Group  0", f"Rank {rank:2d} Group {group_of_rank(rank):2d}")
    return text


def test_groups_that_run_at_once_are_so_many_flows(tmp_path: Path) -> None:
    """``MOD 8`` over two hosts of eight GPUs: eight pairs of GPUs, each with the printed rate."""
    two = dict.fromkeys(("n1", "n2"), 8)
    for kind in ("sendrecv", "all_reduce"):
        found = import_links(written(tmp_path / kind, a=split(nccl_text(kind, two, 45.0), lambda rank: rank % 8)))
        assert rate_of(found, 8) == pytest.approx(8 * 45.0, rel=2e-3)
        assert "8 groups of ranks ran at once (NCCL_TESTS_SPLIT); the log has the figures of one" in noted(found)
    halves = import_links(
        written(tmp_path / "halves", a=split(nccl_text("alltoall", two, 45.0), lambda rank: rank % 2))
    )
    assert rate_of(halves, 8) == pytest.approx(2 * 45.0 * 4 / 2, rel=2e-3)


def test_groups_inside_hosts_measure_the_inside(tmp_path: Path) -> None:
    """``DIV 8``: each host runs a ring of its own, and no link between the hosts is measured."""
    inside = split(nccl_text("sendrecv", dict.fromkeys(("n1", "n2"), 8), 300.0), lambda rank: rank // 8)
    with pytest.raises(InputError, match="no usable measurement between two hosts"):
        import_links(written(tmp_path / "inside", a=inside))
    pair = nccl_text("sendrecv", dict.fromkeys(("n1", "n2"), 8), 40.0)
    cluster = import_links(written(tmp_path / "both", a=inside, b=pair)).cluster
    assert cluster.intra_node_bytes_per_s == pytest.approx(300e9, rel=2e-3)
    uneven = split(pair, lambda rank: min(rank // 6, 1))
    with pytest.raises(InputError, match=r"its 2 groups of ranks \(NCCL_TESTS_SPLIT\) are not on the same hosts"):
        import_links(written(tmp_path / "uneven", a=uneven))


def test_one_gpu_a_host_is_no_count_of_its_gpus(tmp_path: Path) -> None:
    """A test with one GPU a host does not say how many there are; it is asked for, not taken as one."""
    folder = written(tmp_path / "one", a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0))
    with pytest.raises(InputError, match="used one GPU of a host and do not say how many it has; give --gpus-per-node"):
        import_links(folder)
    assert import_links(folder, gpus_per_node=1).cluster.gpus_per_node == 1


def test_equal_remarks_are_one(tmp_path: Path) -> None:
    """Three logs with the same remark, and two that are left out for the same reason."""
    names = ("n1", "n2", "n3")
    texts = {f"sendrecv-{a}{b}": nccl_text("sendrecv", {a: 1, b: 1}, 40.0) for a in names for b in names if a < b}
    texts = {
        name: "\n".join(line for line in text.splitlines() if "Collective" not in line) for name, text in texts.items()
    }
    texts |= {f"z{number}": "nothing of ours" for number in range(3)}
    notes = import_links(written(tmp_path / "logs", **texts), gpus_per_node=8).notes
    assert [note for note in notes if "does not name the test" in note] == [
        "sendrecv-n1n2.txt and 2 more files: its log does not name the test; sendrecv, from the name of the file."
    ]
    assert sum(note.startswith("z0.txt and 2 more files were not used: is no output of") for note in notes) == 1


def test_many_hosts_tell_what_their_nics_carry(tmp_path: Path) -> None:
    """By hand: eight GPUs of each of four hosts send three quarters of 40 GB/s to others: 240."""
    folder = written(tmp_path / "logs", a=nccl_text("alltoall", dict.fromkeys(("n1", "n2", "n3", "n4"), 8), 40.0))
    with pytest.raises(InputError, match="the NICs of a host carry 240 GB/s each way together"):
        import_links(folder)


@pytest.mark.parametrize("columns", ["redop", "root", ""])
def test_columns_of_older_rccl_tests(columns: str) -> None:
    """Rows without ``redop`` or ``root`` are read by their header."""
    words = {"redop": "none ", "root": "-1 "}
    lines = ["#       size         count      type   " + columns + "     time   algbw   busbw  error"]
    for line in nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0).splitlines():
        lines.append(line.replace(" none -1 ", f" {words.get(columns, '')}").replace("      0 ", "  0e+00 "))
    header = lines.pop(0)
    at = next(index for index, line in enumerate(lines) if "double" in line)
    (test,) = parse_nccl_text(Log("\n".join([*lines[:at], header, *lines[at:]]) + "\n"), "x.log")
    assert test.problem == ""
    assert [row.algorithm_bytes_per_s for row in test.rows] == pytest.approx([40e9, 40e9], rel=1e-3)


def test_one_direction_is_taken_for_both(tmp_path: Path) -> None:
    """No empty cluster, no warnings of numpy; a pair measured both ways keeps its two rates."""
    log = tmp_path / "a_to_b.txt"
    log.write_text(ib_write())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = import_links(log, gpu="a100-80gb", gpus_per_node=8)
    assert "Measured one way only, and taken for both: a to b." in noted(imported)
    assert imported.cluster.usable_links[1, 0]
    both = written(tmp_path / "both", a_to_b=ib_write("Gb/sec", 200.0), b_to_a=ib_write("Gb/sec", 100.0))
    matrix = import_links(both, gpu="a100-80gb", gpus_per_node=8).cluster.link_matrices[0]
    assert matrix.bytes_per_s[[0, 1], [1, 0]].tolist() == pytest.approx([25e9, 12.5e9])


def test_hosts_that_a_log_does_not_name(tmp_path: Path) -> None:
    """They are asked for, by an option that is named."""
    log = tmp_path / "run.txt"
    log.write_text("CUDA device 0: PCIe address is 17:00\n" + ib_write())
    with pytest.raises(InputError, match="Give them with --pair gpu01,gpu02"):
        import_links(log, gpu="a100-80gb", gpus_per_node=8)
    given = import_links(log, gpu="a100-80gb", gpus_per_node=8, pair="gpu01,gpu02")
    assert given.cluster.hosts == ("gpu01", "gpu02")
    assert "gpu01 and gpu02, from --pair" in noted(given)


def test_server_and_client_of_one_test(tmp_path: Path) -> None:
    """Both processes print the results behind their labels; it is one pair, measured once each."""
    log = tmp_path / "n1_to_n2.txt"
    log.write_text("".join(f"0: {line}\n1: {line}\n" for line in OSU_BW.splitlines()))
    tagged = import_links(log, gpu="a100-80gb", gpus_per_node=8)
    log.write_text(OSU_BW)
    assert rate_of(tagged) == rate_of(import_links(log, gpu="a100-80gb", gpus_per_node=8))


def test_a_topology_beside_a_log(tmp_path: Path) -> None:
    """It tells the GPUs of a host, and which NICs are near them."""
    logs = written(tmp_path / "logs", pair=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0), topo=TOPOLOGY)
    imported = import_links(logs)
    assert (imported.cluster.gpus_per_node, imported.cluster.nics_per_node) == (2, 2)
    assert "NIC2 is far from every GPU and not counted" in noted(imported)
    more = written(tmp_path / "more", pair=nccl_text("sendrecv", {"n1": 4, "n2": 4}, 40.0), topo=TOPOLOGY)
    with pytest.raises(InputError, match="the topology of a host has 2 GPUs, but a test used 4 GPUs of a host"):
        import_links(more)


def test_nics_of_a_host_without_switches(tmp_path: Path) -> None:
    """Where all are on the other side of a socket, all count."""
    logs = {"pair": nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0), "topo": TOPOLOGY.replace("PXB", "NODE")}
    logs["topo"] = logs["topo"].replace("SYS", "NODE")
    assert import_links(written(tmp_path / "logs", **logs)).cluster.nics_per_node == 3


def test_nvlink_between_hosts_is_a_level(tmp_path: Path) -> None:
    """Flows of GB200 faster than a card: a domain; another host behind cards stays in the matrix."""
    device = "NVIDIA GB200"
    texts = {
        "p12": nccl_text("sendrecv", {"n1": 4, "n2": 4}, 600.0, device=device),
        "p13": nccl_text("sendrecv", {"n1": 4, "n3": 4}, 45.0, device=device),
        "p23": nccl_text("sendrecv", {"n2": 4, "n3": 4}, 45.0, device=device),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = import_links(written(tmp_path / "logs", **texts))
        write_cluster(imported.cluster, tmp_path / "cluster.yaml")
        again = read_cluster(tmp_path / "cluster.yaml")
        alone = import_links(written(tmp_path / "alone", p12=texts["p12"]))
        write_cluster(alone.cluster, tmp_path / "alone.yaml")
        assert read_cluster(tmp_path / "alone.yaml").usable_links[0, 1]
    (level,) = again.levels
    assert level.scale_up
    assert level.group_of_node.tolist() == [0, 0, 1]
    rates = again.pair_bytes_per_s(1) / 1e9
    np.testing.assert_allclose(rates[[0, 0, 1], [1, 2, 2]], [600, 45, 45], rtol=2e-3)
    assert "NVLink domain: 2 links of n[1-2] carry 600 GB/s a flow" in noted(imported)


def test_a_topology_without_its_legend(tmp_path: Path) -> None:
    """The table alone is enough, also underlined as on a screen."""
    table = (
        TOPOLOGY[: TOPOLOGY.index("Legend")]
        .replace("\tGPU0\t", "\t\x1b[4mGPU0\t", 1)
        .replace("Affinity\n", "Affinity\x1b[0m\n", 1)
    )
    logs = written(tmp_path / "logs", pair=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0), topo=table)
    assert import_links(logs).cluster.gpus_per_node == 2


@pytest.mark.parametrize(("rate", "said"), [(400.0, "Gbit/s taken for GB/s"), (0.04, "GB/s taken for MB/s")])
def test_rates_in_other_units_are_noted(tmp_path: Path, rate: float, said: str) -> None:
    """A flow of an H100 above its card, or far below."""
    assert said in noted(
        import_links(written(tmp_path / "logs", a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, rate)), gpus_per_node=8)
    )
    plain = import_links(
        written(tmp_path / "plain", a=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 44.0)), gpus_per_node=8
    )
    assert "Check the units" not in noted(plain)


def test_files_of_other_programs(tmp_path: Path) -> None:
    """Alone they are an error that says what they are; in a folder they are named and stop nothing."""
    nodes = tmp_path / "nodes.json"
    nodes.write_text('{"apiVersion": "v1", "items": [{"kind": "Node"}]}')
    with pytest.raises(InputError, match="is JSON neither of nccl-tests"):
        import_links(nodes, gpus_per_node=8)
    folder = written(tmp_path / "logs", pair=nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0))
    (folder / "nodes.json").write_text(nodes.read_text())
    (folder / "deep.json").write_text('{"a":' * 100_000)
    (folder / "paper.pdf").write_bytes(b"%PDF-1.7\n\x00\x00")
    (folder / "run.sh").write_text("#!/bin/bash\nsrun train\n")
    text = noted(import_links(folder, gpus_per_node=8))
    for name in ("nodes.json", "deep.json", "paper.pdf", "run.sh"):
        assert f"{name} was not used: " in text
    assert "It looks like a PDF" in text
    assert "It looks like a shell script" in text


def test_switches_alone_need_measurements(tmp_path: Path) -> None:
    """The message says what was read and what it lacks."""
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=n[1-2]\nSwitchName=empty\n")
    with pytest.raises(InputError, match="Only this was read, which needs measurements beside it: a list of switches"):
        import_links(tmp_path / "topology.conf")


def test_no_pair_with_every_number_of_flows(tmp_path: Path) -> None:
    """Each pair lacks one of two measurements: nothing would be left, which is said."""
    texts = {
        "a": nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0),
        "b": nccl_text("alltoall", {"n1": 8, "n3": 8}, 40.0),
    }
    with pytest.raises(InputError, match=r"no pair of hosts was measured with every number of flows \(1, 8\)"):
        import_links(written(tmp_path / "logs", **texts))


def test_unused_lines_are_counted(tmp_path: Path) -> None:
    """Lines of a job around its test, not those of NCCL."""
    text = "module load nccl\nn1:1:1 [0] NCCL INFO Bootstrap\n" + nccl_text("sendrecv", {"n1": 1, "n2": 1}, 40.0)
    said = noted(import_links(written(tmp_path / "logs", a=f"{text}done\n"), gpus_per_node=8))
    assert f"a.txt: 2 of {len(text.splitlines()) + 1} lines were not used: first, line 1: 'module load nccl'." in said


@pytest.mark.parametrize("part", ["failed: ", "failed: error ", "NCCL WARN ", "_perf", "1 ", "a_"])
def test_hostile_lines_take_linear_time(part: str) -> None:
    """Sixteen kilobytes of the words that are looked for."""
    text = "# nThread 1 nGpus 1\n" + part * (16_384 // len(part)) + "\n"
    start = time.process_time()
    parse_nccl_text(Log(text * 4), "x.log")
    assert time.process_time() - start < 2


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
    assert rate_of(imported, flows) == pytest.approx(expected, rel=0.01)


@needs_cases
def test_two_runs_in_one_log_are_refused() -> None:
    """Interleaved without labels."""
    with pytest.raises(InputError, match="the output of two runs is mixed"):
        import_links(CASES / "03-two-runs-interleaved")


@needs_cases
def test_formats_of_collectives() -> None:
    """Two pairs behind tags, an NVLink domain, and what many hosts tell of their NICs."""
    folder = FORMATS / "nccl-tests-many-hosts"
    assert rate_of(import_links(folder / "c_sendrecv_pair_prrte_tag.txt", gpus_per_node=8)) == pytest.approx(
        44.1, rel=0.002
    )
    assert rate_of(import_links(folder / "d_alltoall_pair_label16.txt", gpus_per_node=8), 8) == pytest.approx(
        325, rel=0.002
    )
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
