"""``pipette-opt verify``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def verify(
    plan: Annotated[Path, typer.Argument(help="The plan to check.")],
    cluster: opt.Cluster = None,
    json: opt.Json = False,
) -> None:
    """
    Check every rule of a finished plan again, without the solver.

    Example: [bold]pipette-opt verify plan.json[/]
    """
    from pipette_opt.cli.output import say, show_json
    from pipette_opt.cli.plans import plan_and_instance
    from pipette_opt.verify import verify as check

    found, instance = plan_and_instance(plan, cluster)
    checked = check(instance, found)
    if json:
        show_json(
            {
                "plan": str(plan),
                "valid": True,
                "rules": len(checked.rules),
                "configurations": checked.num_configurations,
                "bounded_again": checked.num_bounded,
            }
        )
    else:
        say(f"{plan}: all {len(checked.rules)} rules hold")
        say(f"{checked}")
