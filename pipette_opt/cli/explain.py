"""``pipette-opt explain``."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import ExplainOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from pipette_opt.library.explain import Explained, Placed
    from pipette_opt.library.layout_rules import RuleRow


@opt.spread
def explain(
    context: typer.Context,
    job_options: Annotated[opt.JobOptions, opt.Without(("measured_runs", "host_order"))],
    space_options: opt.SpaceOptions,
    asked: Annotated[
        list[str] | None,
        typer.Argument(
            help="Configurations to explain, as tp=8,pp=2,recompute=full or as table labels such as 'tp8 pp2 sp'."
        ),
    ] = None,
    *,
    how: ExplainOptions,
    limits: Annotated[opt.LimitOptions, opt.Without(("seed",))],
    json: opt.Json = False,
) -> None:
    """
    Explain why a configuration is not the plan, why no plan exists, or which rules of thumb hold.

    Every configuration gets an answer: illegal (by which rule), too big (which stage, by how many GiB, of what), slower
    (by how much, and where the time goes against the plan), or not searched. Without a configuration, and if no plan
    exists, the answer names the requirements that cannot be met together.

    Example: [bold]pipette-opt explain tp=8 pp=4 --plan plan.json[/]

    Example: [bold]pipette-opt explain "tp8 pp4" "tp4 pp8" --plan plan.json[/]

    Example: [bold]pipette-opt explain --rules --example lab-16x8[/]
    """
    from dataclasses import asdict

    from pipette_opt.cli.output import show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.explain import explain as library_explain
    from pipette_opt.library.layout_rules import RULES

    with watched(quiet=json) as watcher:
        given = opt.typed_of(context, job_options, space_options, how, limits)
        found = for_commands(library_explain)(asked, **given, on_progress=watcher)
    if how.rules:
        if json:
            show_json([asdict(row) | {"gain": row.gain} for row in found.rules])
        else:
            show(_rules_table(found.rules), "", "Times are simulated.")
        exit_if_stopped(watcher, f"{len(found.rules)} of {len(RULES)} rules are done")
    elif not json:
        _show(found)
    elif found.answers:
        documents = [answer.as_dict() for answer in found.answers]
        show_json(documents[0] if len(documents) == 1 else documents)
    else:
        show_json({"feasible": not found.conflicts, "conflicts": [list(names) for names in found.conflicts]})


def _show(found: "Explained") -> None:
    """Print verdict, reasons and times of each configuration, or the requirements that cannot be met together."""
    from pipette_opt.certify.conflicts import in_words
    from pipette_opt.cli.output import show

    for number, answer in enumerate(found.answers):
        show(
            *([""] if number else []), f"{answer.asked}: {answer.answer}", *(f"  {reason}" for reason in answer.reasons)
        )
        if answer.placed is not None:
            show(_placed_table(answer.placed))
    if not found.answers:
        nothing = "The job has legal configurations that fit in memory; `pipette-opt solve` finds the fastest."
        show(in_words(found.conflicts) or nothing)


def _placed_table(placed: "Placed") -> "RenderableType":
    """
    Return a table that compares the best placement found with the plan, largest loss first.

    All seconds have the digits of the plan's iteration time.
    """
    from pipette_opt.base.table import Table
    from pipette_opt.base.units import three_digits, words
    from pipette_opt.report.cells import as_rich

    total_s = placed.factor * placed.plan_iteration_time_s
    decimals = len(three_digits(total_s).partition(".")[2])
    causes = sorted(placed.causes.items(), key=lambda item: item[1]["plan_s"] - item[1]["asked_s"])
    compared = [(words(cause), part["asked_s"], part["plan_s"]) for cause, part in causes]
    rows = []
    for name, *both_s in [*compared, ("iteration", placed.iteration_time_s, placed.plan_iteration_time_s)]:
        own_s, plan_s = (round(placed.factor * seconds, decimals) for seconds in both_s)
        if max(own_s, plan_s) > 0:
            shown = (f"{own_s:.{decimals}f} s", f"{plan_s:.{decimals}f} s", f"{own_s - plan_s:+.{decimals}f} s")
            rows.append((name, *shown))
    return as_rich(Table(headers=("where the time goes", "asked for >", "the plan >", "more >"), rows=rows))


def _rules_table(rows: "Sequence[RuleRow]") -> "RenderableType":
    """Return a table of rules of the layouts study: whether each holds, and the times with and without it."""
    from pipette_opt.base.table import Table
    from pipette_opt.base.units import short_seconds
    from pipette_opt.report.cells import as_rich

    cells = [
        (
            row.rule,
            row.verdict + (", proven" if row.is_proven else ""),
            short_seconds(row.kept_s),
            short_seconds(row.broken_s),
            row.why,
        )
        for row in rows
    ]
    return as_rich(Table(headers=("rule", "holds", "with >", "without >", "why"), rows=cells))
