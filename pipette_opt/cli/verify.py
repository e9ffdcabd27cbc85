"""``pipette-opt verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import listed, three_digits
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from pipette_opt.plans.plan import Plan
    from pipette_opt.replan.prove import Proven
    from pipette_opt.specs import Instance
    from pipette_opt.verify import Checked


def verify(
    plan: Annotated[Path, typer.Argument(help="Plan file to check.")],
    cluster: opt.Cluster = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Also solve again where bounds alone cannot confirm the certificate.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds for --prove; by default the larger of 60 and twice the time of the plan's own search.",
            min=0.1,
        ),
    ] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """
    Check every figure of a finished plan again, without the solver.

    Memory and times are predicted again, and the searched space is enumerated again. A lower bound on the time of each
    configuration is computed as if all links were as fast as the fastest. Claims that this bound cannot confirm rest on
    the search; [bold]--prove[/] solves them again. Exit code 2 means that a rule is broken; the message names it.

    Example: [bold]pipette-opt verify plan.json --prove[/]
    """
    from pipette_opt.cli.output import live_progress, say, show_json
    from pipette_opt.report.file_rules import FILE_RULES

    if time_limit is not None and not prove:
        raise InputError("--time-limit", "has no effect without --prove; give --prove, too.")
    found, instance, checked, unread = check_file(plan, cluster)
    rules = [*checked.rules, *FILE_RULES]
    proven = None
    if prove and (checked.open_configs or found.certificate.joint_model is not None):
        from pipette_opt.plans.watcher import Watcher
        from pipette_opt.replan.prove import prove as solve_again

        watcher = Watcher()
        with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
            proven = solve_again(
                instance,
                found,
                checked.open_configs,
                time_limit_s=time_limit,
                workers=opt.threads(workers),
                watcher=watcher,
            )
    if json:
        show_json(
            {"plan": str(plan), "valid": True, "rules": len(rules), "rule_names": rules, **_as_dict(checked, proven)}
        )
        return
    for missing in unread:
        say(f"{missing} does not exist, so it could not be compared with the file that the plan was made from")
    say(f"{plan}: all {len(rules)} rules hold")
    for line in _lines(found, checked, proven):
        say(line)
    say(f"taken on trust: {'; '.join(checked.on_trust)}")


def check_file(path: Path, cluster: Path | None = None) -> "tuple[Plan, Instance, Checked, list[str]]":
    """
    Read and check a plan file.

    Return the plan, its job, the result of the check, and the input files that no longer exist. Raise ``InputError``
    for a damaged file or changed inputs, and ``PlanError`` with the names of all broken rules.
    """
    from pipette_opt.job.inputs import check_inputs
    from pipette_opt.library.plans import plan_and_instance
    from pipette_opt.read.files import read_json
    from pipette_opt.report.file_rules import broken_file_rules
    from pipette_opt.verify import verify as check

    plan, instance = plan_and_instance(path, cluster)
    unread = check_inputs(plan, path, cluster)
    content = read_json(path)
    return plan, instance, check(instance, plan, broken_file_rules(content, instance, plan)), unread


def _as_dict(checked: "Checked", proven: "Proven | None") -> dict[str, Any]:
    """Return the result of the check as fields of the ``--json`` document."""
    return {
        "configurations": checked.num_configurations,
        "bounded_without_search": checked.num_bounded,
        "on_trust": list(checked.on_trust),
        "rest_on_search": [config.label() for config in checked.open_configs],
        "proven": None if proven is None else {"bound_s": proven.bound_s, "seconds": proven.seconds},
    }


def _lines(plan: "Plan", checked: "Checked", proven: "Proven | None") -> list[str]:
    """Return sentences that say how each part of the certificate was checked."""
    bound, count, left = plan.certificate.lower_bound_s, checked.num_configurations, len(checked.open_configs)
    claim = f"nothing searched is faster than {three_digits(plan.estimate.expected_of(bound))} s"
    everything = f"all {count:,} configurations that fit" if count > 1 else "the only configuration that fits"
    shown = everything if not left else f"{checked.num_bounded:,} of {count:,} configurations that fit"
    lines = [f"{claim}: shown again for {shown}, without a search"]
    others = [f"the other {left:,}"] if left else []
    if plan.certificate.joint_model is not None:
        others.append("every other split of the layers")
    if not others:
        return lines
    if proven is not None:
        return [*lines, f"shown for {' and '.join(others)} by solving again in {proven.seconds:.1f} s"]
    if left:
        others[0] += f" ({listed([config.label() for config in checked.open_configs], MAX_NAMED)})"
    return [*lines, f"not shown for {' and '.join(others)}, which rest on the search: --prove solves again"]


MAX_NAMED = 3
"""Maximum number of named configurations whose bound rests on the search. Chosen."""
