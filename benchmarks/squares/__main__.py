"""Layers on squares of ranks (PrimePar): ``python -m benchmarks.squares``."""

from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks.command import OF_SOLVE
from benchmarks.squares.compare import claims, compare_squares
from benchmarks.squares.costs import square_traffic
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import percent
from pipette_opt.cli import options as opt
from pipette_opt.cli.output import say, show, show_json
from pipette_opt.cli.program import run_command
from pipette_opt.report.cells import columns_table, seconds_text, spaced

WIDTHS = (64, 128, 64)
"""
Widths of the two layers of ``--check``, the first plain and the second skewed; the first is also the number of tokens.
"""


@opt.spread
def squares(
    job_options: Annotated[opt.JobOptions, opt.Without(OF_SOLVE)],
    check: Annotated[
        str | None,
        typer.Option(
            help="Also run layers on squares of local processes, e.g. 4,16 (needs torch).",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Compare layers on squares of ranks (PrimePar) with Megatron's tensor parallelism on as many GPUs, by predicted
    times.

    Planned only: no launcher runs squares. Micro-batches are 1, 2, 4 and 8 samples for each row of the square.

    Example: [bold]python -m benchmarks.squares --model llama-2-7b --nodes 2 --gpu h100
    --global-batch-size 8 --seq-length 4096[/]
    """
    sides = [_side(ranks) for ranks in opt.sizes("--check", check) or ()]
    rows = list(compare_squares(opt.read_job(job_options).instance))
    checks = []
    for side in sides:
        from benchmarks.squares.processes import check_squares

        say(f"{side**2} processes over gloo")
        checks.append(check_squares(WIDTHS[0], WIDTHS, side))
    if json:
        show_json(
            {
                "rows": [asdict(row) for row in rows],
                "claims": [claim._asdict() for claim in claims(rows)],
                "checks": [asdict(check) for check in checks],
            }
        )
        return
    table = columns_table(
        *("GPUs >", "samples >", "Megatron >", "square >", "speedup >", "mixed >", "hidden >", "sent >"),
        *("kept >", "no SP >"),
    )
    for row in rows:
        table.add_row(
            *(str(row.ranks), str(row.micro_batch), seconds_text(row.megatron_s), seconds_text(row.square_s)),
            *(f"{row.speedup:.2f} x", f"{row.megatron_s / row.mixed_s:.2f} x", percent(row.hidden)),
            f"{row.square_sent_bytes / row.megatron_sent_bytes:.2f} x",
            *(f"{row.square_kept_bytes / row.megatron_kept_bytes:.2f} x", f"{row.memory:.2f} x"),
        )
    table.caption = (
        "one layer and micro-batch; mixed: the faster for attention and for the MLP; sent, kept: the square over "
        "Megatron with sequence parallelism; no SP: kept, over Megatron without it"
    )
    of_paper = columns_table("the paper", "here", "agrees")
    for claim in claims(rows):
        of_paper.add_row(claim.paper, claim.ours, "yes" if claim.agrees else "no")
    show(spaced(table), spaced(of_paper))
    if checks:
        checked = columns_table("processes >", "largest error >", "sent by each >", "by the model >")
        for result in checks:
            sent, counted = (
                sum(layer.total for layer in each) for each in (result.sent, map(square_traffic, result.products))
            )
            checked.add_row(str(result.side**2), f"{result.worst:.1e}", f"{sent} elements", f"{counted} elements")
        show(spaced(checked))


def _side(ranks: int) -> int:
    """Return the side of a square of ranks; raises ``InputError`` for other numbers of ranks."""
    for side in (1, 2, 4, 8):
        if side**2 == ranks:
            return side
    raise InputError("--check", f"must be 1, 4, 16 or 64 processes, got {ranks}.")


if __name__ == "__main__":
    run_command(squares)
