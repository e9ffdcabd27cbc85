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
    from pipette_opt.verify import RULES
    from pipette_opt.verify import verify as check

    found, instance = plan_and_instance(plan, cluster)
    check(instance, found)
    if json:
        show_json({"plan": str(plan), "valid": True, "rules": len(RULES)})
    else:
        say(f"{plan}: all {len(RULES)} rules hold")
