"""Tags of launchers, schedulers and loggers are taken off the lines of logs."""

import random
import re
import time

import pytest
from tables import table

from pipette_opt.read.log_lines import Log, by_source, log_lines, untagged

TAGS = table(__file__, "TAGS")

LINES = (
    "# nThread 1 nGpus 1 minBytes 1048576",
    "#  Rank  0 Group  0 Pid 114101 on r1i0n0 device  0 [0x1a] NVIDIA A100-SXM4-40GB",
    "     1048576        262144     float     sum      -1    1626.5    0.64    0.64      0",
    "tensor_model_parallel_size ...................... 8",
    "[Rank 16] (after 1 iterations) memory (MB) | allocated: 31048.00",
    "iteration        2/    1000 | elapsed time per iteration (ms): 23074.4 |",
    "gpu01:5425:5460 [1] NCCL INFO Connection closed by localRank 0",
)


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("line", LINES)
def test_one_tag(tag: str, line: str) -> None:
    """The line is what the program printed, but for blanks before it."""
    (found,) = log_lines(tag + line)
    assert found.text.lstrip() == line.lstrip()


def test_tags_before_tags() -> None:
    """Any order of any tags, a host's before them, is taken off; what is not tagged stays as it is."""
    chosen = random.Random(3)
    for _ in range(300):
        tags = [chosen.choice(TAGS) for _ in range(chosen.randrange(4))]
        hosts = chosen.choice(("", "gpu01: ", "ip-10-0-0-1.cluster.local: ", "[gpu01] ", "trainer-1  | "))
        before = hosts + " " * chosen.randrange(3) * bool(tags) + "".join(tags)
        text = "".join(f"{before}{line}\n" for line in LINES)
        assert [line.text.lstrip() for line in log_lines(text)] == [line.lstrip() for line in LINES], before


def test_ranks_and_hosts_stay_known() -> None:
    """Lines of interleaved processes can be told apart."""
    lines = log_lines("gpu01:  0: a\ngpu02:  1: b\ngpu01:  0: c\ngpu02:  1: d\ngpu01:  0: e\ngpu02:  1: f\n")
    assert {source: [line.text for line in own] for source, own in by_source(lines).items()} == {
        "gpu01 0": ["a", "c", "e"],
        "gpu02 1": ["b", "d", "f"],
    }


@pytest.mark.parametrize(("text", "expected"), table(__file__, "untagged"))
def test_what_is_a_tag(text: str, expected: str) -> None:
    """Fields of a report and few hosts' names in a long text stay; so does a level that says that something failed."""
    assert untagged(text) == expected


def test_line_ends_and_progress_bars() -> None:
    """Lines of Windows, and a bar that returns to the start of its line; numbers are those of an editor."""
    lines = log_lines("a\r\n 10%\r 20%\r done\nb")
    assert [(line.number, line.text) for line in lines] == [(1, "a"), (2, " 10%"), (2, " 20%"), (2, " done"), (3, "b")]


@pytest.mark.parametrize("part", ["failed: ", "1: ", "[0]", "[", "(a", "INFO ", "a: ", "\x1b[1;", "\r", "[rank0]: "])
def test_long_lines_take_linear_time(part: str) -> None:
    """Sixteen kilobytes of what tags start with."""
    text = (part * (16_384 // len(part)) + "\n") * 4
    start = time.process_time()
    log_lines(text)
    assert time.process_time() - start < 2


def test_lines_that_no_reader_used_are_counted() -> None:
    """The first is shown with its number, cut to what can be read; blank lines and parts of a line count once."""
    log = Log("a\n\n" + "x" * 100 + "\n 10%\r 20%\r done\nb")
    log.use(log.lines[0])
    assert log.unused() == f"3 of 5 lines were not used: first, line 3: '{'x' * 57}...'."
    log.use_like(re.compile("x| 20%|b"))
    assert log.unused() == ""
    assert Log("").unused() == ""
    assert (log.is_cut, log.text[-5:]) == (True, "one\nb")
