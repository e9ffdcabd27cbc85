"""PrimePar's section of ``python -m benchmarks.systems``: layers on squares of ranks beside Megatron's."""

import argparse

from benchmarks.page import option, table
from benchmarks.squares.compare import claims, compare_squares
from benchmarks.squares.costs import square_traffic
from pipette_opt.base.units import percent, seconds_text
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions

WIDTHS = (64, 128, 64)
"""
Widths of the two layers of the check, the first plain and the second skewed; the first is also the number of tokens.
"""

SIDES = (2, 4)
"""Sides of the squares of processes in the check."""

OPTIONS = (
    option("--model", default="llama-2-7b", help="squares: model"),
    option("--gpu", default="h100", help="squares: GPU type"),
    option("--nodes", default="1", help="squares: number of hosts"),
    option("--gpus-per-node", type=int, help="squares: GPUs per host"),
    option("--nics", help="squares: NICs of a host, such as 8x400"),
    option("--precision", choices=("bf16", "fp16", "fp32"), help="squares: precision"),
    option("--seq-length", type=int, default=2048, help="squares: tokens per sequence"),
)


def squares_section(given: argparse.Namespace) -> str:
    """Return the section: predicted times, the paper's claims, and products checked on processes."""
    from benchmarks.squares.processes import check_squares

    names = ("model", "gpu", "nodes", "gpus_per_node", "nics", "precision", "seq_length")
    job = JobOptions(**{name: getattr(given, name) for name in names}, global_batch_size=64)
    found = list(compare_squares(read_job(job).instance))
    rows = [
        (
            *(row.ranks, row.micro_batch, seconds_text(row.megatron_s), seconds_text(row.square_s)),
            *(f"{row.speedup:.2f} x", f"{row.megatron_s / row.mixed_s:.2f} x", percent(row.hidden)),
            f"{row.square_sent_bytes / row.megatron_sent_bytes:.2f} x",
            *(f"{row.square_kept_bytes / row.megatron_kept_bytes:.2f} x", f"{row.memory:.2f} x"),
        )
        for row in found
    ]
    head = ("GPUs", "samples", "Megatron", "square", "speedup", "mixed", "hidden", "sent", "kept", "kept, no SP")
    agreed = [(claim.paper, claim.ours, "yes" if claim.agrees else "no") for claim in claims(found)]
    checked = [
        (
            *(result.side**2, f"{result.worst:.1e}", sum(layer.total for layer in result.sent)),
            sum(layer.total for layer in map(square_traffic, result.products)),
        )
        for result in (check_squares(WIDTHS[0], WIDTHS, side) for side in SIDES)
    ]
    return (
        f"## PrimePar: products on squares of ranks\n\nA layer of {given.model}, {given.nodes} x {given.gpu}, "
        f"sequences of {given.seq_length:,} tokens. Mixed: the faster for attention and for the MLP; hidden: messages "
        "beside compute; sent, kept: the square over Megatron with sequence parallelism (SP), or without it.\n\n"
        f"{table(head, rows)}\n{table(('the paper', 'here', 'agrees'), agreed)}\n"
        "Two layers on squares of processes over gloo, against the products on one process:\n\n"
        + table(("processes", "largest error", "elements that each sent", "by the cost model"), checked)
    )
