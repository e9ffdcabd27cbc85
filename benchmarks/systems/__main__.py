"""
Choices of other systems: ``python -m benchmarks.systems -o benchmarks/results/systems.md``.

The first section has the choices of Pipette, AMP, Varuna, Megatron's rule, Galvatron, PrimePar and exhaustive search
for the same jobs, beside this project's; one simulator times all. Each other section has one instance of a system that
decides something else, with its proof. Twelve jobs take some ten minutes, the other sections two.
"""

import argparse
from collections.abc import Callable, Iterator

from benchmarks.layers.__main__ import PROFILE
from benchmarks.layers.compare import compare_layers
from benchmarks.layers.profile import read_profile
from benchmarks.measured import measured_folder
from benchmarks.page import made_by, option, run_page, say, table
from benchmarks.squares.__main__ import WIDTHS
from benchmarks.squares.compare import claims, compare_squares
from benchmarks.squares.costs import square_traffic
from benchmarks.systems import experts, slices, stages
from benchmarks.systems.instances import cases
from benchmarks.systems.methods import SystemRow, run_case
from benchmarks.systems.tables import choices_section
from pipette_opt.base.units import percent
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.report.cells import seconds_text

BUDGETS_GB = (14.0, 16.0, 18.0, 20.0, 24.0)
"""Memory of a GPU in Galvatron's section. Chosen: nothing fits below 15 GB."""

BATCHES = (8, 16, 32, 64)

SQUARES_JOB = JobOptions(model="llama-2-7b", nodes="1", gpu="h100-80gb", global_batch_size=8, seq_length=4096)
"""Job of PrimePar's section: a host of eight H100."""


def layers_section() -> str:
    """Return the section of Galvatron: its programme beside the proven optimum, on its own costs."""
    path = measured_folder() / PROFILE
    if not path.is_file():
        return f"## Galvatron: a strategy for each layer\n\nNot run: there is no {PROFILE}.\n"
    rows = [
        (
            *(row.batch, f"{row.budget_gb:g} GB", seconds_text(row.galvatron_s), seconds_text(row.ours_s)),
            *(percent(row.faster), f"{row.gap:.0e}", f"{row.ours_search_s:.1f} s"),
        )
        for row in compare_layers(read_profile(path, 32), BATCHES, BUDGETS_GB)
    ]
    head = ("batch", "budget", "Galvatron", "ours", "faster", "gap", "our search")
    return (
        "## Galvatron: a strategy for each layer\n\nllama2-7b on one host of 8 GPUs, Galvatron's published profile and "
        "cost model. Gap: to the bound proven by CP-SAT. -: proven that nothing fits. More: `python -m "
        f"benchmarks.layers`.\n\n{table(head, rows)}"
    )


def squares_section() -> str:
    """Return the section of PrimePar: layers on squares beside Megatron's, and products checked on processes."""
    from benchmarks.squares.processes import check_squares

    found = list(compare_squares(read_job(SQUARES_JOB).instance))
    rows = [
        (
            *(row.ranks, row.micro_batch, seconds_text(row.megatron_s), seconds_text(row.square_s)),
            *(f"{row.speedup:.2f} x", f"{row.megatron_s / row.mixed_s:.2f} x", percent(row.hidden)),
        )
        for row in found
    ]
    head = ("GPUs", "samples", "Megatron", "square", "speedup", "mixed", "messages hidden")
    agreed = [(claim.paper, claim.ours, "yes" if claim.agrees else "no") for claim in claims(found)]
    checks = [check_squares(WIDTHS[0], WIDTHS, side) for side in (2, 4)]
    checked = [
        (
            *(result.side**2, f"{result.worst:.1e}", sum(layer.total for layer in result.sent)),
            sum(layer.total for layer in map(square_traffic, result.products)),
        )
        for result in checks
    ]
    return (
        "## PrimePar: products on squares of ranks\n\nA layer of llama-2-7b on one host of 8 H100. Mixed: the faster "
        f"for attention and for the MLP. More: `python -m benchmarks.squares`.\n\n{table(head, rows)}\n"
        f"{table(('the paper', 'here', 'agrees'), agreed)}\nTwo layers on squares of processes over gloo, against "
        "the products on one process:\n\n"
        + table(("processes", "largest error", "elements that each sent", "by the cost model"), checked)
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "layers": layers_section,
    "squares": squares_section,
    "slices": slices.section,
    "stages": stages.section,
    "experts": experts.section,
}
"""Section of each system beside the choices for the same jobs."""


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page after each section and after each job of the choices."""
    parts: dict[str, str] = {}
    rows: list[SystemRow] = []

    def page() -> str:
        return "\n".join([f"# Choices of each system\n\n{made_by()}\n", *parts.values()])

    if given.only in ("", "choices"):
        for case in cases(given.count, given.seed, given.most_hosts):
            say(case.name)
            rows += run_case(case.name, case.instance, given.time_limit, given.workers, given.seed)
            parts["choices"] = choices_section(rows)
            yield page()
    for name, section in SECTIONS.items():
        if given.only in ("", name):
            say(name)
            parts[name] = section()
            yield page()


OPTIONS = (
    option("--only", choices=("choices", *SECTIONS), default="", help="only this section"),
    option("--count", type=int, default=12, help="number of jobs of the choices, drawn by --seed"),
    option("--most-hosts", type=int, default=16, help="maximum number of hosts of a job"),
    option("--time-limit", type=float, default=20.0, help="time limit of this project's search per job, seconds"),
    option("--workers", type=int, default=1, help="threads of this project's search"),
    option("--seed", type=int, default=0),
)


if __name__ == "__main__":
    run_page(make, *OPTIONS)
