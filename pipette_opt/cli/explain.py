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

RULED_OUT = {
    "legality rules": " by the launcher's rules",
    "memory": " for the memory",
    "work alone": ", even if messages took no time",
    "best links": ", even if every link were the fastest",
    "search": " than the fastest found, as the plan's search has proven",
}
"""Words added to a verdict, by the rule or bound that excludes the configuration."""


@opt.spread
def explain(
    context: typer.Context,
    job_options: Annotated[opt.JobOptions, opt.Without(("measured_runs",))],
    space_options: opt.SpaceOptions,
    asked: Annotated[
        list[str] | None,
        typer.Argument(
            help="Configurations to explain, as tp=8,pp=2,recompute=full or as table labels such as 'tp8 pp2 sp'."
        ),
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(
            help="Explain the configuration in these Megatron arguments, or in a file with them.",
            rich_help_panel=opt.JOB,
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
    seed: opt.Seed = 0,
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
    from pipette_opt.library.explain import PLACE_S, explained, params_of, question_of
    from pipette_opt.plans.watcher import Watcher

    if rules and (asked is not None or args is not None or plan is not None):
        raise InputError("--rules", "checks the whole job; leave out configurations, --args and --plan.")
    params = params_of(time_limit or (RULE_S if rules else PLACE_S), workers, seed, max_oom_risk)
    has_job = plan is None or any(
        opt.is_given(context, field.name) for field in fields(job_options) if field.name != "env"
    )
    question = question_of(plan, job_options if has_job else None, lambda job: search_space(job, space_options))
    if rules:
        _show_rules(question.instance, question.space, params, json=json)
        return
    watcher = Watcher()
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = explained(question, asked, args, params, watcher, job_options.env)
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

    for answer in found.answers:
        show(
            f"{answer.asked}: {verdict_words(answer.why.verdict, answer.why.ruled_out_by)}",
            *(f"  {reason}" for reason in answer.reasons),
        )
        if answer.placed is not None:
            show(*_placed_tables(answer.placed))
    if not found.answers:
        nothing = "The job has legal configurations that fit in memory."
        show(in_words(found.conflicts) or nothing)


def verdict_words(verdict: str, ruled_out_by: str) -> str:
    """Return a verdict and, in plain words, the rule or bound that excludes the configuration."""
    return f"{verdict}{RULED_OUT.get(ruled_out_by, '')}"


def _placed_tables(placed: "Placed") -> "list[RenderableType]":
    """Return a line and a table that compare the best placement found with the plan, largest loss first."""
    from pipette_opt.base.units import MIN_DIFFERENCE, difference, three_digits
    from pipette_opt.plans.predicted import AS_GOOD
    from pipette_opt.report.cells import columns_table, seconds_text, spaced, words

    own_s, best_s = placed.iteration_time_s, placed.plan_iteration_time_s
    word = difference(own_s / best_s, "slower than the plan", "faster than the plan", "as fast as the plan")
    if own_s < (1 - MIN_DIFFERENCE) * best_s:
        is_new = own_s < (1 - AS_GOOD) * placed.fastest_s
        word += "; solve again with this configuration pinned" if is_new else ", which is plainer; --prefer fastest"
    table = columns_table("where the time goes", "asked for >", "the plan >", "more >")
    scale = placed.factor
    own_s, best_s = scale * own_s, scale * best_s
    rows = [(words(cause), scale * part["asked_s"], scale * part["plan_s"]) for cause, part in placed.causes.items()]
    for name, asked_s, plan_s in sorted(rows, key=lambda row: row[2] - row[1]):
        table.add_row(name, seconds_text(asked_s), seconds_text(plan_s), f"{asked_s - plan_s:+.4f} s")
    table.add_row("iteration", seconds_text(own_s), seconds_text(best_s), f"{own_s - best_s:+.4f} s")
    return [f"  placed, {placed.config} takes {three_digits(own_s)} s: {word}", spaced(table)]


def _show_rules(instance: "Instance", space: "SearchSpace", params: "OptimizeParams", *, json: bool) -> None:
    """Solve the job with and without each rule of the layouts study, and print the rows."""
    from dataclasses import asdict

    from pipette_opt.base.units import percent
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.library.layout_rules import RULES, check_rules
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    watcher = Watcher()
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        rows = check_rules(instance, space, params, watcher)
    if json:
        show_json([asdict(row) | {"gain": row.gain} for row in rows])
    else:
        table = columns_table("rule", "holds", "with >", "without >", "gain >", "why")
        for row in rows:
            table.add_row(
                *(row.rule, row.verdict + (", proven" if row.is_proven else "")),
                *(seconds_text(row.kept_s), seconds_text(row.broken_s)),
                *("-" if row.gain is None else percent(row.gain), row.why),
            )
        show(spaced(table))
    if watcher.stop.is_set():
        say(f"stopped early: {len(rows)} of {len(RULES)} rules are done")
        raise typer.Exit(STOPPED_EARLY)
