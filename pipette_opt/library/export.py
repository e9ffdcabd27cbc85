"""``export``: files that launch a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.export.folder import write_folder
from pipette_opt.export.hosts import hosts_are_named, unnamed_note
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.script_changes import Change, launch_changes
from pipette_opt.export.targets import export as files_of
from pipette_opt.job.inputs import check_inputs
from pipette_opt.job.models import check_job_of_plan
from pipette_opt.library.arguments import Named, argument_errors, options_of, plan_or_file, texts
from pipette_opt.library.plans import opened
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.summary import lines_at_most


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """
    A plan in the format of a launcher.

    Parameters
    ----------
    files
        Text of each file, by file name; all files belong in one folder. Empty if changes of a script were requested.
    changes
        Options of a launch script that the plan changes, adds and drops.
    script
        Name of the launch script; empty if none was given.
    notes
        Sentences to read before the launch.
    """

    target: str
    files: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    script: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        files = [f"{name}: {len(text.splitlines())} lines" for name, text in self.files.items()]
        changes = [f"{change.action} {change.option} {change.after or ''}".rstrip() for change in self.changes]
        return lines_at_most(f"{self.target}{f' against {self.script}' if self.script else ''}", [*files, *changes])


@argument_errors()
def export(
    plan: Plan | Named,
    format: str = "rankmap-json",  # noqa: A002 - as the option of the command line
    *,
    out: Named | None = None,
    force: bool = False,
    launch: Named | None = None,
    env: str | Iterable[str] | None = None,
    cluster: Named | None = None,
    **options: Any,
) -> Exported:
    """
    Return the files that launch a plan, and write them if ``out`` is given.

    Parameters
    ----------
    plan
        A plan or its file.
    format
        A module of :mod:`pipette_opt.export.formats`, such as ``rankmap-json``, ``megatron`` or ``slurm``.
    out
        Folder for the files; without it nothing is written.
    force
        Whether to replace files in ``out`` that ``export`` did not write, or that were changed.
    launch
        Launch that runs today; the result then holds ``changes``, the lines to change, add and drop, and no files.
    env
        Variables of the launch script, each ``NAME=VALUE``.
    cluster
        Path of the plan's cluster file today, if it was moved.
    options
        Fields of :class:`~pipette_opt.export.launch_options.ExportOptions`, such as ``image`` and ``partition``.

    Raises
    ------
    InputError
        If the format cannot express the plan, an option has no effect, or the plan's files have changed since.
        ``where`` names the argument or the file.
    """
    if env and launch is None:
        raise InputError("--env", "has no effect without --launch, the script that reads these variables.")
    opened_plan, path = opened(plan_or_file(plan))
    notes = [
        f"{missing} does not exist, so it could not be compared with the file that the plan was made from"
        for missing in check_inputs(opened_plan, path, None if cluster is None else Path(cluster))
    ]
    if launch is not None:
        changes, where = _changes(opened_plan, fspath(launch), format, texts(env))
        return Exported(target=format, files={}, changes=changes, script=where, notes=tuple(notes))
    (chosen,) = options_of(options, ExportOptions)
    files = files_of(opened_plan, format, chosen)
    if not hosts_are_named(opened_plan):
        notes.append(unnamed_note(len(opened_plan.placement.nodes_used)))
    if out is not None:
        write_folder(Path(out), files, force=force)
    return Exported(target=format, files=files, notes=tuple(notes))


def _changes(plan: Plan, script: str, target: str, env: Sequence[str] | None) -> tuple[tuple[Change, ...], str]:
    """Return the changes of a launch script's options, each with its line and reason, and the script's name."""
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment

    given = read_megatron_args(script, "--launch", script_environment(env))
    wanted = given.module or "megatron"
    if target != wanted:
        raise InputError("--launch", f"is a launch of {given.framework}, which needs --format {wanted}, got {target}.")
    check_job_of_plan(plan, given)
    try:
        today = given.parallel_config(sum(plan.config.layers_per_stage), plan.config.world_size)
    except InputError:  # it is for another number of GPUs, or of layers: options are compared as they are written
        today = None
    return tuple(launch_changes(plan, given, today=today)), given.where
