"""All export formats by name, and the export of a plan."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipette_opt.base.errors import InputError, did_you_mean, meant
from pipette_opt.export.checks import check_equal_microbatches, check_map
from pipette_opt.export.formats import format_modules
from pipette_opt.export.launch_options import ExportOptions, refuse_unused
from pipette_opt.export.machines import on_machines
from pipette_opt.export.target import Target
from pipette_opt.plans.plan import Plan

TARGETS: Mapping[str, Target] = MappingProxyType(
    {name: import_module(module).TARGET for name, module in format_modules().items()}
)
"""Formats by name."""

NO_OPTIONS = ExportOptions()
"""Default options, for formats that have none."""


def export(plan: Plan, target: str, options: ExportOptions = NO_OPTIONS) -> dict[str, str]:
    """
    Return the files that launch a plan, by file name; all files belong in one folder.

    Raise ``InputError`` if the format is unknown or cannot express the plan, if an option has no effect, or if two
    ranks share a GPU.
    """
    if target not in TARGETS:
        of_program = [name for name, entry in TARGETS.items() if target.lower() in entry.programs]
        hint = meant(of_program) or did_you_mean(target, TARGETS)
        raise InputError("--format", f"must be one of {', '.join(TARGETS)}, got {target!r}.{hint}")
    chosen = TARGETS[target]
    refuse_unused(target, options, {name: entry.takes for name, entry in TARGETS.items()})
    if chosen.needs_image and options.image is None:
        raise InputError("--image", f"is required with --format {target}: the name of a container image.")
    plan = on_machines(target, plan, [name for name, entry in TARGETS.items() if entry.any_count])
    check_map(plan)
    if not chosen.is_map:
        check_equal_microbatches(target, plan)
    return chosen.write(plan, options) if chosen.takes else chosen.write(plan)
