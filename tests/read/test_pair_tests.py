"""Output of OSU's programs and of perftest."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.link_formats.pair_tests import is_pair_test, pair_facts
from pipette_opt.read.links import import_links
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Latency, Rate

OSU_BW = """# OSU MPI-CUDA Bandwidth Test v7.3
# Size      Bandwidth (MB/s)
# Datatype: MPI_CHAR.
1                       1.50
65536               9000.00
1048576            20000.00
4194304            22000.00
"""

OSU_LATENCY = """# OSU MPI Latency Test v5.9
# Size          Latency (us)
0                       1.40
8                       1.60
4096                    4.00
"""

IB_WRITE = """---------------------------------------------------------------------------------------
                    RDMA_Write {both}BW Test
 Dual-port       : OFF		Device         : mlx5_0
 ibv_wr* API     : ON
 WARNING: BW peak won't be measured in this run.
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0x24 QPN 0x0174 PSN 0x300138
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
 65536      5000             {peak}            {average}		   0.185273
---------------------------------------------------------------------------------------
"""


def ib_write(unit: str = "MB/sec", average: float = 10000.0, both: str = "") -> str:
    """One line of results."""
    return IB_WRITE.format(unit=unit, peak=average + 1, average=average, both=both)


def rows_of(text: str, where: str) -> list[Rate | Latency]:
    """Rows of a log."""
    return [fact for fact in pair_facts(Log(text), where) if isinstance(fact, Rate | Latency)]


OSU_BIBW = OSU_BW.replace("Bandwidth Test", "Bi-Directional Bandwidth Test")
IB_READ = ib_write().replace("RDMA_Write", "RDMA_Read")


@pytest.mark.parametrize(
    ("text", "name", "program", "expected"),
    [
        (OSU_BW, "osu_bw_n1_n2.txt", "osu_bw", {("n1", "n2"): 21e9}),  # the mean of the sizes from 1 MiB on
        (OSU_BIBW, "n1__n2.log", "osu_bibw", {("n1", "n2"): 10.5e9, ("n2", "n1"): 10.5e9}),  # the sum of both ways
        (OSU_LATENCY, "n1_to_n2", "osu_latency", {("n1", "n2"): 1.4e-6}),  # the best of the smallest messages
        (ib_write(), "ib_write_bw_a_b.txt", "ib_write_bw", {("a", "b"): 10000 * 2**20}),  # MB/sec are 2^20 bytes
        (ib_write("Gb/sec", 200.0), "a_b.txt", "ib_write_bw", {("a", "b"): 25e9}),
        (
            ib_write("Gb/sec", 200.0, both="Bidirectional "),
            "a_b.txt",
            "ib_write_bw",
            {("a", "b"): 12.5e9, ("b", "a"): 12.5e9},
        ),
        (IB_READ, "client_to_server.txt", "ib_read_bw", {("server", "client"): 10000 * 2**20}),  # the client receives
    ],
)
def test_rows(text: str, name: str, program: str, expected: dict[tuple[str, str], float]) -> None:
    """Sender, receiver and bytes/s of each direction, or seconds of a small message."""
    rows = rows_of(text, name)
    values = {row.hosts: row.bytes_per_s if isinstance(row, Rate) else row.latency_s for row in rows}
    assert values == pytest.approx(expected)
    assert {row.program for row in rows} == {program}
    assert all(row.is_one_way == (len(rows) == 1) for row in rows if isinstance(row, Rate))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("# hosts: gpu01 gpu02", "x.txt"),
        ("$ mpirun -np 2 -H gpu01:1,gpu02:1 osu_bw D D", "x.txt"),
        ("$ srun -N2 -w gpu[01-02] osu_bw", "x.txt"),
        ("", "gpu01_to_gpu02.txt"),
        ("", "osu_bw_gpu01_gpu02.txt"),
        ("", "gpu01,gpu02"),
    ],
)
def test_where_the_hosts_are_named(line: str, name: str) -> None:
    """In a line, in the launcher's command, in the file's name."""
    (row,) = rows_of(f"{line}\n{OSU_BW}", name)
    assert row.hosts == ("gpu01", "gpu02")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (OSU_BW, "results.txt", "does not name the two hosts"),
        (OSU_BW, "a_b_c.txt", "does not name the two hosts"),
        (OSU_BW, "a_to_a.txt", "does not name the two hosts"),
        (OSU_BW[:-1], "a_b.txt", "is cut off in its last line"),
        (OSU_BW.split("1 ", maxsplit=1)[0], "a_b.txt", "has no results"),
        (OSU_BW + OSU_BW, "a_b.txt", "several tests are mixed"),
        (OSU_BW.replace("22000.00", "nan"), "a_b.txt", "must have 2 numbers"),
        (OSU_BW.replace("22000.00", ""), "a_b.txt", "must have 2 numbers"),
        (OSU_BW.replace("22000.00", "22000.00 Fail"), "a_b.txt", "received wrong data"),
        (OSU_LATENCY.replace("0  ", "100", 1).replace("\n8 ", "\n800 "), "a_b.txt", "must have sizes up to"),
    ],
)
def test_damaged_output(text: str, name: str, message: str) -> None:
    """Each says what is wrong."""
    assert is_pair_test(text)
    with pytest.raises(InputError, match=message):
        rows_of(text, name)


def test_a_folder_of_them_becomes_a_cluster(tmp_path: Path) -> None:
    """Two directions, a latency, and a pair that was not measured."""
    (tmp_path / "n1_to_n2.txt").write_text(OSU_BW)
    (tmp_path / "n2_to_n1.txt").write_text(ib_write("Gb/sec", 80.0))
    (tmp_path / "n2_to_n3.txt").write_text(ib_write("Gb/sec", 160.0, both="Bidirectional "))
    (tmp_path / "osu_latency_n1_n2.txt").write_text(OSU_LATENCY)
    imported = import_links(tmp_path, gpu="a100-80gb", gpus_per_node=8)
    assert imported.cluster.hosts == ("n1", "n2", "n3")
    nan = np.nan
    expected = [[nan, 21, nan], [10, nan, 10], [nan, 10, nan]]
    np.testing.assert_allclose(imported.cluster.link_matrices[0].bytes_per_s / 1e9, expected)
    assert imported.cluster.inter_node_latency_s == pytest.approx(1.4e-6)
    assert imported.missing == {1: (("n1", "n3"),)}


@pytest.mark.parametrize("text", [OSU_BW, OSU_LATENCY, ib_write(), ib_write(both="Bidirectional ")])
def test_lines_around_results_are_counted(text: str) -> None:
    """What the programs print is known; what stands around it is not."""
    log = Log(f"# hosts: n1 n2\n{text}")
    list(pair_facts(log, "x.txt"))
    assert log.unused() == ""
    log = Log(f"# hosts: n1 n2\nmodule load ucx\n{text} Failed status 12: wr_id 0 syndrom 0x81\n")
    list(pair_facts(log, "x.txt"))
    assert log.unused().endswith("lines were not used: first, line 2: 'module load ucx'.")
    assert log.unused().startswith("2 of ")


def test_a_line_that_cannot_be_read_is_named_by_its_number_in_the_file() -> None:
    """Two processes' lines are mixed, each of which has its tag."""
    lines = [f"[1,0]<stdout>: {line}" for line in OSU_BW.splitlines()]
    text = "\n".join(["# hosts: n1 n2", *lines, "[1,0]<stdout>: 8388608 x"]) + "\n"
    with pytest.raises(InputError, match="line 9: must have 2 numbers"):
        rows_of(text, "x.txt")
