"""All targets in one table."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipette_opt.errors import InputError
from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.rankmap import export_rankmap_csv, export_rankmap_json
from pipette_opt.export.slurm import export_slurm
from pipette_opt.export.torchrun import export_torchrun
from pipette_opt.plan import Plan

Target = Callable[[Plan], dict[str, str]]
"""Texts of the files, by name."""

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "rankmap-json": export_rankmap_json,
        "rankmap-csv": export_rankmap_csv,
        "megatron": export_megatron,
        "torchrun": export_torchrun,
        "slurm": export_slurm,
    }
)


def export(plan: Plan, target: str) -> dict[str, str]:
    """
    Files that start a plan, by name; all of them belong into one folder.

    Raises ``InputError`` if there is no such target, or if it cannot express the plan.
    """
    if target not in TARGETS:
        raise InputError("format", f"must be one of {', '.join(TARGETS)}, got {target!r}.")
    return TARGETS[target](plan)
