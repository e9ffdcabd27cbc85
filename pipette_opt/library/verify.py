"""``verify``: check every figure of a finished plan again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipette_opt.base.errors import InputError
from pipette_opt.job.inputs import check_inputs
from pipette_opt.library.arguments import Named, Told, argument_errors, watcher_of
from pipette_opt.library.plans import plan_and_instance
from pipette_opt.options.values import threads
from pipette_opt.plans.plan import Plan
from pipette_opt.read.files import read_json
from pipette_opt.report.file_rules import broken_file_rules
from pipette_opt.specs import Instance
from pipette_opt.verify import Checked
from pipette_opt.verify import verify as check

if TYPE_CHECKING:
    from pipette_opt.replan.prove import Proven


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """
    A plan whose rules all hold.

    Parameters
    ----------
    unread
        Recorded input files that no longer exist, so that they were not compared.
    proven
        Result of solving again; ``None`` if it was not asked for, or nothing was open.
    """

    plan: Plan
    checked: Checked
    unread: tuple[str, ...]
    proven: "Proven | None" = None


@argument_errors()
def verify(
    plan: Named,
    cluster: Named | None = None,
    *,
    prove: bool = False,
    time_limit_s: float | None = None,
    workers: int | None = None,
    on_progress: Told | None = None,
) -> Verified:
    """
    Check every figure of a finished plan again, without the solver.

    Parameters
    ----------
    plan
        File of the plan.
    cluster
        Path of the plan's cluster file today, if it was moved.
    prove
        Whether to solve again where bounds alone cannot confirm the certificate.
    time_limit_s
        Seconds for ``prove``; by default the larger of 60 and twice the time of the plan's own search.
    workers, on_progress
        Threads and progress, as in :func:`~pipette_opt.solve`.

    Raises
    ------
    InputError
        If an argument is wrong, the file is damaged, or an input of the plan has changed.
    PlanError
        If rules are broken; the text names all of them.
    """
    if time_limit_s is not None and not prove:
        raise InputError("--time-limit", "has no effect without --prove; give --prove, too.")
    found, instance, checked, unread = check_file(Path(plan), None if cluster is None else Path(cluster))
    proven = None
    if prove and (checked.open_configs or found.certificate.joint_model is not None):
        from pipette_opt.replan.prove import prove as solve_again  # loads the search

        proven = solve_again(
            instance,
            found,
            checked.open_configs,
            time_limit_s=time_limit_s,
            workers=threads(workers),
            watcher=watcher_of(on_progress),
        )
    return Verified(plan=found, checked=checked, unread=tuple(unread), proven=proven)


def check_file(path: Path, cluster: Path | None = None) -> tuple[Plan, Instance, Checked, list[str]]:
    """
    Read and check a plan file.

    Return the plan, its job, the result of the check, and the input files that no longer exist. Raise ``InputError``
    for a damaged file or changed inputs, and ``PlanError`` with the names of all broken rules.
    """
    plan, instance = plan_and_instance(path, cluster)
    unread = check_inputs(plan, path, cluster)
    content = read_json(path)
    return plan, instance, check(instance, plan, broken_file_rules(content, instance, plan)), unread
