"""``pipette-opt replan``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import ReplanOptions


@opt.spread
def replan(
    plan: Annotated[Path, typer.Argument(help="Plan file of the job that runs now.")],
    asked: ReplanOptions,
    limits: Annotated[opt.LimitOptions, opt.Without(("seed",))],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write the new plan to. Only a file given here replaces a plan of another job. [default: "
            "replan.json]",
        ),
    ] = None,
    moves_out: Annotated[
        Path | None, typer.Option("--moves", help="CSV file to write the parameters that each rank must load to.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Plan again after hosts are lost or join: the new optimum, the parameters to reload, and the price of fewer moves.

    Example: [bold]pipette-opt replan plan.json --lost gpu07 --joined gpu21 -o new.json[/]
    """
    begun = time.perf_counter()
    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.base.units import difference
    from pipette_opt.cli.output import check_outputs, say, say_written, show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.replan import replan as library_replan
    from pipette_opt.replan.load_tables import moves_csv, moves_to_dict, replan_tables
    from pipette_opt.report.plan_file import keep_plan, read_plan
    from pipette_opt.report.same_job import check_same_job
    from pipette_opt.report.tables import verdict_line

    given, out = out, out or Path("replan.json")
    check_outputs(json, out, moves_out)
    if given is None:
        check_same_job(out, read_plan(plan).inputs)
    with watched(quiet=json, begun=begun, keeps_plans=True) as watcher:
        found = for_commands(library_replan)(plan, **opt.given_of(asked, limits), on_progress=watcher)
    chosen = found.chosen.plan
    keep_plan(chosen, out)
    if moves_out is not None:
        write_atomically(moves_out, moves_csv(found.chosen.moves))
    if json:
        moves = moves_to_dict(found.chosen, found.options, found.unequal)
        show_json({"verdict": chosen.verdict, **moves})
    else:
        stdout = next((path for path in (out, moves_out) if is_stdout(path)), None)
        verdict = verdict_line(chosen.verdict)
        show(verdict, *replan_tables(found.old, found.chosen, found.options), beside=stdout)
        say_written(out, "plan")
        if moves_out is not None:
            say_written(moves_out, "what each rank must load")
        for option in found.loosened:
            say(f"{option} of the old plan was dropped: {chosen.config.world_size} GPUs cannot satisfy it")
        if found.unequal is not None:
            gain = difference(
                chosen.estimate.iteration_time_s / found.unequal.plan.estimate.iteration_time_s,
                "more",
                "fewer",
                "as many",
            )
            hosts = found.unequal.plan.config.world_size / chosen.gpus_per_node
            say(
                f"with --micro-batches unequal: {hosts:g} hosts, {gain} tokens per second (planned only: "
                "no launcher runs unequal numbers)"
            )
    exit_if_stopped(watcher, "this is the best plan so far")
