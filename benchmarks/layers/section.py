"""Galvatron's section of ``python -m benchmarks.systems``: its programme beside the proven optimum on its costs."""

import argparse
from pathlib import Path

from benchmarks.layers.compare import compare_layers
from benchmarks.layers.profile import read_profile
from benchmarks.measured import measured_folder
from benchmarks.page import option, say, table
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import percent, seconds_text

PROFILE = "galvatron_llama2_7b_profiles.json"
"""Galvatron's published profile, in the folder of measured runs."""

OPTIONS = (
    option("--profile", type=Path, help=f"layers: Galvatron's profiles, joined; by default {PROFILE}"),
    option("--budgets", default="14,16,18,20,24", help="layers: memory of a GPU in GB, several with commas"),
    option("--batches", default="8,16,32,64", help="layers: global batch sizes, several with commas"),
    option("--num-layers", type=int, default=32, help="layers: number of layers of the model"),
    option("--stages", type=int, choices=(1, 2, 4, 8), help="layers: only this number of pipeline stages"),
)


def layers_section(given: argparse.Namespace) -> str:
    """Return the section: a row for each batch and budget."""
    path = given.profile or measured_folder() / PROFILE
    if not path.is_file():
        return f"## Galvatron: a strategy for each layer\n\nNot run: there is no {path.name}.\n"
    if given.num_layers < (given.stages or 1):
        raise InputError("--num-layers", f"must be >= {given.stages or 1}, got {given.num_layers}.")
    batches, budgets = (list(map(int, _numbers("--batches", given.batches))), _numbers("--budgets", given.budgets))
    profile, rows = read_profile(path, given.num_layers), []
    for row in compare_layers(profile, batches, budgets, given.stages, given.time_limit, given.workers, given.seed):
        say(f"batch {row.batch}, {row.budget_gb:g} GB: {row.ours}")
        rows.append(
            (
                *(row.batch, f"{row.budget_gb:g} GB", seconds_text(row.galvatron_s), seconds_text(row.ours_s)),
                *(percent(row.faster), f"{row.gap:.0e}", f"{row.ours_search_s:.1f} s"),
            )
        )
    head = ("batch", "budget", "Galvatron", "ours", "faster", "gap", "our search")
    return (
        f"## Galvatron: a strategy for each layer\n\nllama2-7b of {given.num_layers} layers on one host of 8 GPUs, "
        "Galvatron's published profile and cost model. Gap: to the bound proven by CP-SAT. -: proven that nothing "
        f"fits.\n\n{table(head, rows)}"
    )


def _numbers(name: str, text: str) -> list[float]:
    """Return positive numbers from a text with commas; raises ``InputError`` otherwise."""
    found = []
    for word in text.split(","):
        try:
            number = float(word)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise InputError(name, f"must be positive numbers separated by commas, got {word.strip()!r}.")
        found.append(number)
    return found
