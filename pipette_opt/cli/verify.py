"""``pipette-opt verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_opt.base.units import listed, three_digits
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import watched

if TYPE_CHECKING:
    from pipette_opt.library.verify import Verified


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
    from pipette_opt.cli.output import say, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.verify import verify as library_verify
    from pipette_opt.report.file_rules import FILE_RULES

    with watched(quiet=json) as watcher:
        found = for_commands(library_verify)(
            plan, cluster, prove=prove, time_limit_s=time_limit, workers=workers, on_progress=watcher
        )
    rules = [*found.checked.rules, *FILE_RULES]
    if json:
        show_json({"plan": str(plan), "valid": True, "rules": len(rules), "rule_names": rules, **_as_dict(found)})
        return
    for missing in found.unread:
        say(f"{missing} does not exist, so it could not be compared with the file that the plan was made from")
    say(f"{plan}: all {len(rules)} rules hold")
    for line in _lines(found):
        say(line)
    say(f"taken on trust: {'; '.join(found.checked.on_trust)}")


def _as_dict(found: "Verified") -> dict[str, Any]:
    """Return the result of the check as fields of the ``--json`` document."""
    checked, proven = found.checked, found.proven
    return {
        "configurations": checked.num_configurations,
        "bounded_without_search": checked.num_bounded,
        "on_trust": list(checked.on_trust),
        "rest_on_search": [config.label() for config in checked.open_configs],
        "proven": None if proven is None else {"bound_s": proven.bound_s, "seconds": proven.seconds},
    }


def _lines(found: "Verified") -> list[str]:
    """Return sentences that say how each part of the certificate was checked."""
    plan, checked, proven = found.plan, found.checked, found.proven
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
