"""Output of OSU's programs and of perftest."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.links import import_links
from pipette_opt.read.log_lines import Log
from pipette_opt.read.pair_tests import PairTest, is_pair_test, parse_pair_tests

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


def only_test(text: str, where: str) -> PairTest:
    """Test of a log that has no other."""
    (test,) = parse_pair_tests(Log(text), where)
    return test


def test_osu_bandwidth_is_directed_and_in_millions_of_bytes() -> None:
    """Rank 0 sends; the mean of the sizes from 1 MiB on."""
    test = only_test(OSU_BW, "osu_bw_n1_n2.txt")
    assert (test.kind, test.sender, test.receiver, test.both_ways) == ("osu_bw", "n1", "n2", False)
    assert test.bytes_per_s == pytest.approx(21e9)


def test_osu_both_ways_is_the_sum_of_both() -> None:
    """Each direction gets half."""
    test = only_test(OSU_BW.replace("Bandwidth Test", "Bi-Directional Bandwidth Test"), "n1__n2.log")
    assert test.bytes_per_s == pytest.approx(10.5e9)
    assert test.both_ways


def test_osu_latency() -> None:
    """The best of the smallest messages."""
    test = only_test(OSU_LATENCY, "n1_to_n2")
    assert test.latency_s == pytest.approx(1.4e-6)
    assert test.bytes_per_s is None


def test_perftest_units() -> None:
    """MB/sec are 2^20 bytes, Gb/sec 10^9 bits."""
    assert only_test(ib_write(), "ib_write_bw_a_b.txt").bytes_per_s == pytest.approx(10000 * 2**20)
    assert only_test(ib_write("Gb/sec", 200.0), "a_b.txt").bytes_per_s == pytest.approx(25e9)
    both = only_test(ib_write("Gb/sec", 200.0, both="Bidirectional "), "a_b.txt")
    assert both.both_ways
    assert both.bytes_per_s == pytest.approx(12.5e9)


def test_reading_turns_the_direction() -> None:
    """The client of ib_read_bw receives."""
    test = only_test(ib_write().replace("RDMA_Write", "RDMA_Read"), "client_to_server.txt")
    assert (test.kind, test.sender, test.receiver) == ("ib_read_bw", "server", "client")


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
    test = only_test(f"{line}\n{OSU_BW}", name)
    assert (test.sender, test.receiver) == ("gpu01", "gpu02")


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
        only_test(text, name)


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
    parse_pair_tests(log, "x.txt")
    assert log.unused() == ""
    log = Log(f"# hosts: n1 n2\nmodule load ucx\n{text} Failed status 12: wr_id 0 syndrom 0x81\n")
    parse_pair_tests(log, "x.txt")
    assert log.unused().endswith("lines were not used: first, line 2: 'module load ucx'.")
    assert log.unused().startswith("2 of ")


def test_a_line_that_cannot_be_read_is_named_by_its_number_in_the_file() -> None:
    """Two processes' lines are mixed, each of which has its tag."""
    lines = [f"[1,0]<stdout>: {line}" for line in OSU_BW.splitlines()]
    text = "\n".join(["# hosts: n1 n2", *lines, "[1,0]<stdout>: 8388608 x"]) + "\n"
    with pytest.raises(InputError, match="line 9: must have 2 numbers"):
        parse_pair_tests(Log(text), "x.txt")
