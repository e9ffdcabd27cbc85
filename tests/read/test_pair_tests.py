"""Output of OSU's programs and of perftest."""

import re

import pytest
from link_logs import log_text
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.link_formats.pair_tests import is_pair_test, pair_facts
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Latency, Rate


def rows_of(text: str, where: str) -> list[Rate | Latency]:
    """Rows of a log."""
    return [fact for fact in pair_facts(Log(text), where) if isinstance(fact, Rate | Latency)]


@pytest.mark.parametrize(("log", "name", "program", "expected"), table(__file__, "rows"))
def test_rows(log: str, name: str, program: str, expected: dict[str, float]) -> None:
    """
    Bytes/s of each direction, or seconds of a small message; hosts of a line, a launcher's command or the file's name.

    A bandwidth is the mean of the sizes from 1 MiB on, a latency the best of the smallest messages. MB/sec of perftest
    are 2^20 bytes, Gb/sec 10^9 bits. A sum of both directions is halved. The client of ``ib_read_bw`` receives.
    """
    rows = rows_of(log_text(log), name)
    values = {" ".join(row.hosts): row.bytes_per_s if isinstance(row, Rate) else row.latency_s for row in rows}
    assert values == pytest.approx(expected)
    assert {row.program for row in rows} == {program}
    assert all(row.is_one_way == (len(rows) == 1) for row in rows if isinstance(row, Rate))


@pytest.mark.parametrize(("log", "name", "message"), table(__file__, "damaged"))
def test_damaged_output(log: str, name: str, message: str) -> None:
    """Each says what is wrong; a line by its number in the file."""
    text = log_text(log)
    assert is_pair_test(text.replace("[1,0]<stdout>: ", ""))
    with pytest.raises(InputError, match=re.escape(message)):
        rows_of(text, name)


@pytest.mark.parametrize(
    "log",
    [
        "@osu_bw",
        "@osu_latency",
        "@ib_write_bw 10000",
        "@ib_write_bw 10000 | RDMA_Write -> RDMA_Write Bidirectional",
    ],
)
def test_lines_around_results_are_counted(log: str) -> None:
    """What the programs print is known; what stands around it is not."""
    text = log_text(log)
    known = Log(f"# hosts: n1 n2\n{text}")
    list(pair_facts(known, "x.txt"))
    assert known.unused() == ""
    other = Log(f"# hosts: n1 n2\nmodule load ucx\n{text} Failed status 12: wr_id 0 syndrom 0x81\n")
    list(pair_facts(other, "x.txt"))
    assert other.unused().endswith("lines were not used: first, line 2: 'module load ucx'.")
    assert other.unused().startswith("2 of ")
