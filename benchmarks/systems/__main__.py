"""
Choices of other systems: ``python -m benchmarks.systems -o benchmarks/results/systems.md``.

The first section has the choices of Pipette, AMP, Varuna, Megatron's rule, Galvatron, PrimePar and exhaustive search
for the same jobs, beside this project's; one simulator times all. Each other section has one instance of a system that
decides something else, with its proof; options of ``layers`` and ``squares`` choose other instances. Twelve jobs take
some ten minutes, the other sections two.
"""

import argparse
from collections.abc import Callable, Iterator

from benchmarks.layers import section as layers
from benchmarks.page import made_by, option, run_page, say
from benchmarks.squares import section as squares
from benchmarks.systems import experts, slices, stages
from benchmarks.systems.instances import cases
from benchmarks.systems.methods import SystemRow, run_case
from benchmarks.systems.tables import choices_section

SECTIONS: dict[str, Callable[[argparse.Namespace], str]] = {
    "layers": layers.layers_section,
    "squares": squares.squares_section,
    "slices": lambda given: slices.section(),
    "stages": lambda given: stages.section(),
    "experts": lambda given: experts.section(),
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
            parts[name] = section(given)
            yield page()


OPTIONS = (
    option("--only", choices=("choices", *SECTIONS), default="", help="only this section"),
    option("--count", type=int, default=12, help="number of jobs of the choices, drawn by --seed"),
    option("--most-hosts", type=int, default=16, help="maximum number of hosts of a job"),
    option("--time-limit", type=float, default=20.0, help="time limit of this project's search per job, seconds"),
    option("--workers", type=int, default=1, help="threads of this project's search"),
    option("--seed", type=int, default=0),
    *layers.OPTIONS,
    *squares.OPTIONS,
)


if __name__ == "__main__":
    run_page(make, *OPTIONS)
