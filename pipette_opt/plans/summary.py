"""Summaries of plans and estimates in at most ten lines, for a Python prompt."""

import textwrap
from collections.abc import Iterable

from pipette_opt.base.units import counted, gib, percent
from pipette_opt.plans.predicted import IterationTime, StageMemory, fullness
from pipette_opt.plans.verdict import expected_time, risk_words
from pipette_opt.specs.host_names import compress_hosts

MAX_LINES = 10
"""Largest number of lines of a summary."""

WIDTH = 120
"""Largest number of characters of a line; a longer line is cut and ends with dots."""


def lines_at_most(title: str, lines: Iterable[str]) -> str:
    """Return a title and indented lines, at most ten in all; the last line says how many more were left out."""
    shown = list(lines)
    if len(shown) >= MAX_LINES:
        left_out = len(shown) - (MAX_LINES - 2)
        shown = [*shown[: MAX_LINES - 2], f"... and {left_out} more"]
    return "\n".join([_short(title), *(f"  {_short(line)}" for line in shown)])


def _short(line: str) -> str:
    """Return the text without line breaks, cut to :data:`WIDTH`."""
    return textwrap.shorten(line.replace("\n", " "), WIDTH, placeholder=" ...", tabsize=1)


def launch_lines(estimate: IterationTime, memory: Iterable[StageMemory], hosts: Iterable[str]) -> list[str]:
    """Return lines with expected time and band, tokens per second, memory of the fullest stage, and hosts."""
    used = tuple(hosts)
    lines = [
        f"time: {expected_time(estimate)}",
        f"tokens: {estimate.expected_tokens_per_s:,.0f} per second, MFU {percent(estimate.expected_mfu)}",
    ]
    fullest = max(memory, key=fullness, default=None)
    if fullest is not None:
        lines.append(
            f"memory: {gib(fullest.predicted_bytes):.1f} of {gib(fullest.capacity_bytes):.1f} GiB on stage "
            f"{fullest.stage}, risk of running out {risk_words(fullest.oom_probability)}"
        )
    return [*lines, f"hosts: {counted(len(used), 'host')}, {compress_hosts(used)}"]
