"""``pipette-opt explain``."""

import contextlib
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from pipette_opt.candidates import SearchSpace
    from pipette_opt.certify.why import Why
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.plan import Plan
    from pipette_opt.specs import Instance

PLACED = ("slower", "not faster", "may win", "not searched")
"""Verdicts after which the configuration is placed, to say where its time goes."""


@opt.spread
def explain(
    context: typer.Context,
    job_options: opt.JobOptions,
    space_options: opt.SpaceOptions,
    asked: Annotated[
        list[str] | None,
        typer.Argument(help="Configurations: tp=8,pp=2,recompute=full, or labels of tables such as 'tp8 pp2 sp'."),
    ] = None,
    args: Annotated[
        str | None, typer.Option(help="Instead: Megatron arguments, or a file that has them.", rich_help_panel=opt.JOB)
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="The plan to compare with, whose job is meant unless one is given.")
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="Instead: which rules of the layouts study hold for this job.")
    ] = False,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds to place what is asked for (5), or of each solve of --rules (15).",
            min=0.1,
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> None:
    """
    Why a configuration is not the plan, why there is no plan, or which rules of thumb hold.

    Every configuration has an answer: illegal (by which rule), too big (which stage, by how much, of what), slower (by
    how much, and where the time goes against the plan), or not searched. Without a configuration: which requirements
    cannot be met together, if there is no plan.

    Example: [bold]pipette-opt explain tp=8 pp=4 --plan plan.json[/]

    Example: [bold]pipette-opt explain "tp8 pp4" "tp4 pp8" --plan plan.json[/]

    Example: [bold]pipette-opt explain --rules --example lab-16x8[/]
    """
    from pipette_opt.certify.labels import separate
    from pipette_opt.optimize import OptimizeParams

    if asked is not None and args is not None:
        raise InputError("--args", "is a configuration, too; give one.")
    if rules and (asked is not None or args is not None or plan is not None):
        raise InputError("--rules", "is about the whole job; give neither a configuration nor a plan with it.")
    params = opt.checked(
        OptimizeParams,
        time_limit_s=time_limit or (15.0 if rules else 5.0),
        workers=opt.threads(workers),
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    has_job = any(opt.is_given(context, one.name) for one in fields(job_options))
    if plan is not None and not has_job:
        instance, space, old = _of_plan(plan)
    else:
        job = opt.read_job(job_options)
        instance, space, old = job.instance, opt.search_space(job, space_options), None
        if plan is not None:
            from pipette_opt.library.plans import plan_of_job

            old = plan_of_job(plan, instance)
    if rules:
        _show_rules(instance, space, params, json=json)
    elif args is not None:
        _show_why(instance, space, [_label_of(instance, space, args)], params, old, json=json)
    elif asked:
        _show_why(instance, space, separate(asked), params, old, json=json)
    else:
        _show_conflicts(instance, space, params, json=json)


def _of_plan(path: Path) -> "tuple[Instance, SearchSpace, Plan]":
    """A plan's job, what its user pinned, and the plan."""
    from pipette_opt.library.plans import plan_and_instance
    from pipette_opt.replan.space import pinned_space

    plan, instance = plan_and_instance(path, None)
    return instance, replace(pinned_space(plan), num_gpus=plan.config.world_size), plan


def _show_why(
    instance: "Instance",
    space: "SearchSpace",
    asked: "Sequence[str]",
    params: "OptimizeParams",
    plan: "Plan | None",
    *,
    json: bool,
) -> None:
    """Why configurations are not the plan, each placed to say where its time goes; with ``json`` several are a list."""
    from pipette_opt.certify.labels import pinned
    from pipette_opt.certify.why import why
    from pipette_opt.cli.output import show, show_json

    for text in asked:
        pinned(space, text)  # a slip in the last one is said before the first is placed
    documents = []
    for text in asked:
        answer = why(instance, space, text, params.max_oom_risk, plan)
        placed = None
        if plan is not None and answer.verdict in PLACED:
            placed = _placed(instance, answer, params, quiet=json)
        if json:
            documents.append(_as_dict(answer, placed, plan))
            continue
        by = f", ruled out by {answer.ruled_out_by}" if answer.ruled_out_by else ""
        show(f"{text}: {answer.verdict}{by}", *(f"  {reason}" for reason in answer.reasons))
        if placed is not None and plan is not None:
            show(*_placed_tables(placed, plan))
    if json:
        show_json(documents[0] if len(asked) == 1 else documents)


def _as_dict(answer: "Why", placed: "Plan | None", plan: "Plan | None") -> dict[str, Any]:
    """The answer for machines."""
    from dataclasses import asdict

    found = {name: value for name, value in asdict(answer).items() if name != "space"}
    return {**found, "placed": None if placed is None or plan is None else _placed_as_dict(placed, plan)}


def _label_of(instance: "Instance", space: "SearchSpace", text: str) -> str:
    """Megatron arguments as a label."""
    from pipette_opt.library.models import check_one_model
    from pipette_opt.read.megatron_args import read_megatron_args

    given = read_megatron_args(text, "the configuration")
    check_one_model(instance.model, instance.training, given)
    size = space.num_gpus or instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return given.parallel_config(instance.model.num_layers, size).label()


def _placed(instance: "Instance", answer: "Why", params: "OptimizeParams", *, quiet: bool) -> "Plan | None":
    """The best placement found of what was asked for."""
    from pipette_opt.cli.output import live_progress
    from pipette_opt.optimize import optimize
    from pipette_opt.plans.watcher import Watcher

    watcher = Watcher()
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=quiet), contextlib.suppress(InfeasibleError):
        return optimize(instance, answer.space, params, watcher)
    return None


def _placed_as_dict(placed: "Plan", plan: "Plan") -> dict[str, Any]:
    own, best = placed.estimate, plan.estimate
    return {
        "config": placed.config.label(),
        "iteration_time_s": own.iteration_time_s,
        "lower_bound_s": placed.certificate.lower_bound_s,
        "plan_iteration_time_s": best.iteration_time_s,
        "causes": {
            cause: {"asked_s": own.breakdown.get(cause, 0.0), "plan_s": best.breakdown.get(cause, 0.0)}
            for cause in {**own.breakdown, **best.breakdown}
        },
    }


def _placed_tables(placed: "Plan", plan: "Plan") -> "list[RenderableType]":
    """The best placement found against the plan, cause by cause, what costs most first."""
    from pipette_opt.report.cells import columns_table, seconds_text, spaced, words

    found = _placed_as_dict(placed, plan)
    own_s, best_s = found["iteration_time_s"], found["plan_iteration_time_s"]
    more = own_s / best_s - 1
    word = (
        f"{more:.2%} slower than the plan"
        if more > 0
        else f"{-more:.2%} faster than the plan: solve again with it pinned"
    )
    table = columns_table("where the time goes", "asked for >", "the plan >", "more >")
    rows = [(words(cause), one["asked_s"], one["plan_s"]) for cause, one in found["causes"].items()]
    for name, asked_s, plan_s in sorted(rows, key=lambda row: row[2] - row[1]):
        table.add_row(name, seconds_text(asked_s), seconds_text(plan_s), f"{asked_s - plan_s:+.4f} s")
    table.add_row("iteration", seconds_text(own_s), seconds_text(best_s), f"{own_s - best_s:+.4f} s")
    return [f"  placed, {found['config']} takes {own_s:.4f} s: {word}", spaced(table)]


def _show_conflicts(instance: "Instance", space: "SearchSpace", params: "OptimizeParams", *, json: bool) -> None:
    """Which requirements cannot be met together."""
    from pipette_opt.certify.conflicts import conflicts, in_words
    from pipette_opt.cli.output import show, show_json

    found = conflicts(instance, space, params.max_oom_risk)
    if json:
        show_json({"feasible": not found, "conflicts": [list(names) for names in found]})
    else:
        show(
            in_words(found) or "Something is legal and fits: `pipette-opt candidates` lists it, `solve` finds the best."
        )


def _show_rules(instance: "Instance", space: "SearchSpace", params: "OptimizeParams", *, json: bool) -> None:
    """The rules of the layouts study, each solved with and without."""
    from dataclasses import asdict

    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.lab.layout_rules import RULES, check_rules
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.report.cells import columns_table, percent, seconds_text, spaced

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
