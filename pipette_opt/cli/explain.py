"""``pipette-opt explain``."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipette_opt.candidates import SearchSpace
    from pipette_opt.library.explain import Explained, Placed
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.specs import Instance

RULE_S = 15.0
"""Time limit of each solve of ``--rules``, in seconds, if ``--time-limit`` is not given. Chosen."""


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
    plan: Annotated[
        Path | None, typer.Option(help="Plan file to compare with; also gives the job, unless job options are given.")
    ] = None,
    rules: Annotated[
        bool,
        typer.Option("--rules", help="Check which rules of the layouts study (arXiv 2311.05610) hold for this job."),
    ] = False,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds to place each configuration (default 5), or for each solve of --rules (default 15).",
            min=0.1,
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    workers: opt.Workers = None,
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
    from pipette_opt.cli.output import live_progress, show_json
    from pipette_opt.job.space import search_space
    from pipette_opt.library.explain import OF_LAUNCH, PLACE_S, check_asked, explained, params_of, question_of
    from pipette_opt.plans.watcher import Watcher

    if rules and (asked is not None or plan is not None):
        raise InputError("--rules", "checks the whole job; leave out configurations and --plan.")
    check_asked(asked, job_options, plan)
    params = params_of(time_limit or (RULE_S if rules else PLACE_S), workers, 0, max_oom_risk)
    has_job = plan is None or any(
        opt.is_given(context, field.name) for field in fields(job_options) if field.name not in OF_LAUNCH
    )
    question = question_of(plan, job_options if has_job else None, lambda job: search_space(job, space_options))
    if rules:
        _show_rules(question.instance, question.space, params, json=json)
        return
    watcher = Watcher()
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = explained(question, asked, job_options, params, watcher)
    if not json:
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


def _show_rules(instance: "Instance", space: "SearchSpace", params: "OptimizeParams", *, json: bool) -> None:
    """Solve the job with and without each rule of the layouts study, and print the rows."""
    from dataclasses import asdict

    from pipette_opt.base.table import Table
    from pipette_opt.base.units import short_seconds
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.library.layout_rules import RULES, check_rules
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.report.cells import as_rich

    watcher = Watcher()
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        rows = check_rules(instance, space, params, watcher)
    if json:
        show_json([asdict(row) | {"gain": row.gain} for row in rows])
    else:
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
        table = Table(headers=("rule", "holds", "with >", "without >", "why"), rows=cells)
        show(as_rich(table), "", "Times are simulated.")
    if watcher.stop.is_set():
        say(f"stopped early: {len(rows)} of {len(RULES)} rules are done")
        raise typer.Exit(STOPPED_EARLY)
