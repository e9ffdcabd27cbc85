"""``pipette-opt benchmark layers`` and ``squares``: what other systems choose, on their own costs."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.cli import options as opt

INSTANCES = "The instances"

PROFILE = "galvatron_llama2_7b_profiles.json"
"""Galvatron's published profile, in the folder of measured runs."""


def layers(
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Galvatron's profiles, joined; by default the one of llama2-7b in $PIPETTE_OPT_SHARED/measured.",
            rich_help_panel=INSTANCES,
        ),
    ] = None,
    budgets: Annotated[
        str, typer.Option(help="Memory of a GPU, GB, several separated by commas.", rich_help_panel=INSTANCES)
    ] = "8,12,14,16,18,20,24",
    batches: Annotated[
        str, typer.Option(help="Global batches, several separated by commas.", rich_help_panel=INSTANCES)
    ] = "8,16,32,64",
    num_layers: Annotated[int, typer.Option(help="Layers of the model.", rich_help_panel=INSTANCES)] = 32,
    stages: Annotated[
        int | None, typer.Option(help="Only pipelines of so many stages.", rich_help_panel=INSTANCES)
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for each budget.", rich_help_panel=opt.RUN)] = 10.0,
    workers: opt.Workers = 1,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="Also write the table here.", rich_help_panel=opt.RUN)] = None,
    json: opt.Json = False,
) -> None:
    """
    A strategy for each layer: Galvatron's decision and the proven one, on Galvatron's own costs.

    One host of eight GPUs. Strategies are tensor, sequence or data parallelism, ZeRO-2 or ZeRO-3, recomputed or not.

    Example: [bold]pipette-opt benchmark layers --budgets 16,20,24 --batches 16[/]
    """
    import threading
    from dataclasses import asdict

    from pipette_opt.base.units import percent
    from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
    from pipette_opt.cli.output import check_place, check_stdout, say, show, show_json, write_csv
    from pipette_opt.lab.backtest.memory_evaluation import measured_folder
    from pipette_opt.lab.layer_bench.compare import compare_layers
    from pipette_opt.lab.layer_bench.profile import read_profile
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    check_place(csv)
    check_stdout(json, csv)
    given = profile or measured_folder() / PROFILE
    if profile is None and not given.exists():
        raise InputError("--profile", f"is needed: there is no {given}; set PIPETTE_OPT_SHARED or give the file.")
    if num_layers < 1:
        raise InputError("--num-layers", f"must be >= 1, got {num_layers}.")
    read = read_profile(given, num_layers)
    if stages is not None and (stages not in (1, 2, 4, 8) or stages > num_layers):
        raise InputError("--stages", f"must be 1, 2, 4 or 8, and at most the {num_layers} layers, got {stages}.")
    if not time_limit > 0:
        raise InputError("--time-limit", f"must be > 0, got {time_limit}.")
    of_batches = opt.sizes("--batches", batches) or ()
    of_budgets = _numbers("--budgets", budgets)
    rows, stop = [], threading.Event()
    with stop_on_interrupt(stop):
        for row in compare_layers(read, of_batches, of_budgets, stages, time_limit, opt.threads(workers), seed, stop):
            rows.append(row)
            say(f"batch {row.batch}, {row.budget_gb:g} GB: {row.ours}")
    if csv is not None and rows:
        write_csv(csv, [asdict(row) for row in rows])
    if json:
        show_json([asdict(row) for row in rows])
    else:
        headers = (
            "batch >",
            "budget >",
            "usable >",
            "Galvatron >",
            "ours >",
            "faster >",
            "gap >",
            "searched >",
            "ours >",
        )
        table = columns_table(*headers)
        for row in rows:
            table.add_row(
                *(str(row.batch), f"{row.budget_gb:g} GB", f"{row.usable_mb} MB"),
                *(seconds_text(row.galvatron_s), seconds_text(row.ours_s), percent(row.faster), f"{row.gap:.0e}"),
                *(f"{row.galvatron_search_s:.1f} s", f"{row.ours_search_s:.1f} s"),
            )
        table.caption = "its search: all budgets of a batch together; -: proven that nothing fits"
        show(spaced(table))
    if stop.is_set():
        say(f"stopped early: {len(rows)} of {len(of_batches) * len(of_budgets)} rows are done")
        raise typer.Exit(STOPPED_EARLY)


OF_SOLVE = ("num_gpus", "gpu_price", "launcher", "p2p", "allreduce", "micro_batches")
"""Options of a job that change nothing where layers are priced on like hosts."""

WIDTHS = (64, 128, 64)
"""Of the layers of ``--check``: two, the first plain and the second skewed; with as many tokens as the first inputs."""


@opt.spread
def squares(
    job_options: Annotated[opt.JobOptions, opt.Without(OF_SOLVE)],
    check: Annotated[
        str | None,
        typer.Option(
            help="Also run layers on squares of so many processes of this machine, e.g. 4,16 (needs torch).",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Layers on squares of ranks (PrimePar) beside Megatron's tensor parallelism on as many, both priced.

    Planned only: no launcher runs squares. Micro-batches are 1, 2, 4 and 8 samples for each row of the square.

    Example: [bold]pipette-opt benchmark squares --model llama-2-7b --nodes 2 --gpu h100
    --global-batch-size 8 --seq-length 4096[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.units import percent
    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.costs.squares import square_traffic
    from pipette_opt.lab.squares import claims, compare_squares
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    sides = [_side(ranks) for ranks in opt.sizes("--check", check) or ()]
    rows = list(compare_squares(opt.read_job(job_options).instance))
    checks = []
    for side in sides:
        from pipette_opt.measure.squares import check_squares

        say(f"{side**2} processes over gloo")
        checks.append(check_squares(WIDTHS[0], WIDTHS, side))
    if json:
        show_json(
            {
                "rows": [asdict(row) for row in rows],
                "claims": [claim._asdict() for claim in claims(rows)],
                "checks": [asdict(one) for one in checks],
            }
        )
        return
    table = columns_table(
        *("GPUs >", "samples >", "Megatron >", "square >", "speedup >", "mixed >", "hidden >", "sent >"),
        *("kept >", "no SP >"),
    )
    for row in rows:
        table.add_row(
            *(str(row.ranks), str(row.micro_batch), seconds_text(row.megatron_s), seconds_text(row.square_s)),
            *(f"{row.speedup:.2f} x", f"{row.megatron_s / row.mixed_s:.2f} x", percent(row.hidden)),
            f"{row.square_sent_bytes / row.megatron_sent_bytes:.2f} x",
            *(f"{row.square_kept_bytes / row.megatron_kept_bytes:.2f} x", f"{row.memory:.2f} x"),
        )
    table.caption = (
        "one layer and micro-batch; mixed: the faster for attention and for the MLP; sent, kept: the square over "
        "Megatron with sequence parallelism; no SP: kept, over Megatron without it"
    )
    of_paper = columns_table("the paper", "here", "agrees")
    for claim in claims(rows):
        of_paper.add_row(claim.paper, claim.ours, "yes" if claim.agrees else "no")
    show(spaced(table), spaced(of_paper))
    if checks:
        checked = columns_table("processes >", "largest error >", "sent by each >", "by the model >")
        for one in checks:
            sent, said = (sum(layer.total for layer in each) for each in (one.sent, map(square_traffic, one.products)))
            checked.add_row(str(one.side**2), f"{one.worst:.1e}", f"{sent} elements", f"{said} elements")
        show(spaced(checked))


def systems(
    count: Annotated[int, typer.Option(help="Jobs, of a generator with the seed.", rich_help_panel=INSTANCES)] = 12,
    most_hosts: Annotated[
        int, typer.Option(help="Leave out jobs on more hosts, 16 at most.", rich_help_panel=INSTANCES)
    ] = 16,
    time_limit: Annotated[
        float, typer.Option(help="Seconds of this project's search of each job.", rich_help_panel=opt.RUN)
    ] = 20.0,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="Also write every choice here.", rich_help_panel=opt.RUN)] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the page here.", rich_help_panel=opt.RUN)
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    What Pipette, AMP, Varuna, Megatron's rule, Galvatron, PrimePar's space and exhaustive search choose.

    On the same jobs, timed by the same judge. Twelve jobs take some ten minutes.

    Example: [bold]pipette-opt benchmark systems --count 3 --most-hosts 4[/]
    """
    import threading
    from dataclasses import asdict

    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
    from pipette_opt.cli.output import check_place, check_stdout, say, show_json, write_csv
    from pipette_opt.lab.systems_bench.instances import cases
    from pipette_opt.lab.systems_bench.methods import SystemRow, run_case
    from pipette_opt.lab.systems_bench.tables import markdown

    check_place(csv, out)
    check_stdout(json, csv, out)
    for option, value in (("--count", count), ("--time-limit", time_limit)):
        if not value > 0:
            raise InputError(option, f"must be > 0, got {value}.")
    if not 1 <= most_hosts <= 16:
        raise InputError("--most-hosts", f"must be from 1 to 16, got {most_hosts}.")
    given = list(cases(count, seed, most_hosts))
    if not given:
        raise InputError("--most-hosts", f"leaves no job of {count}, got {most_hosts}.")
    rows: list[SystemRow] = []
    stop = threading.Event()
    with stop_on_interrupt(stop):
        for case in given:
            say(case.name)
            found = run_case(case.name, case.instance, time_limit, opt.threads(workers), seed, stop)
            if stop.is_set():
                break
            rows += found
            if csv is not None:
                write_csv(csv, [asdict(row) for row in rows])
            if out is not None and not is_stdout(out):
                write_atomically(out, markdown(rows, seed, time_limit))
    if json:
        show_json([asdict(row) for row in rows])
    elif rows:
        typer.echo(markdown(rows, seed, time_limit))
    if stop.is_set():
        say(f"stopped early: {len({row.case for row in rows})} of {len(given)} jobs are done")
        raise typer.Exit(STOPPED_EARLY)


def experts(
    plan: Annotated[Path, typer.Argument(help="A plan with expert parallelism.")],
    expert_loads: Annotated[
        str, typer.Option(help="A file with a number for each expert, or zipf:1.2.", rich_help_panel=INSTANCES)
    ],
    spare_slots: Annotated[
        int, typer.Option(help="Most slots for copies of hot experts on a rank; 0 for none.", rich_help_panel=INSTANCES)
    ] = 1,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    cluster: opt.Cluster = None,
    json: opt.Json = False,
) -> None:
    """
    What loads of single experts do to a plan: as listed, placed by load, with copies of hot experts.

    And the capacity factor that keeps the risk of running out of memory at what is accepted.

    Example: [bold]pipette-opt benchmark experts plan.json --expert-loads zipf:1.0[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.units import counted, gib, percent
    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.lab.expert_loads import chosen_row, largest_imbalance, load_rows
    from pipette_opt.library.plans import plan_and_instance
    from pipette_opt.prepare import load_predictor
    from pipette_opt.read.expert_loads import read_expert_loads
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    if not 0 <= spare_slots <= 8:
        raise InputError("--spare-slots", f"must be from 0 to 8, got {spare_slots}.")
    found, instance = plan_and_instance(plan, cluster)
    loads = read_expert_loads(expert_loads, instance.model)
    predictor = load_predictor(max_oom_risk, instance)
    rows = load_rows(instance, found, loads, predictor, max_oom_risk, spare_slots)
    largest = largest_imbalance(instance, found, predictor, max_oom_risk)
    if json:
        show_json({"rows": [asdict(row) for row in rows], "capacity_factor": largest})
        return
    table = columns_table("experts", "busiest rank >", "at least >", "time >", "slower >", "memory >", "risk >")
    for row in rows:
        table.add_row(
            *(row.placement, f"{row.imbalance:.3f}", f"{row.bound:.3f}", seconds_text(row.iteration_time_s)),
            percent(row.iteration_time_s / rows[0].iteration_time_s - 1),
            f"{gib(row.predicted_bytes):.1f} GiB",
            percent(row.oom_probability),
        )
    table.caption = f"{found.config.label()}; busiest rank: tokens over the mean; memory of the fullest stage"
    show(spaced(table))
    chosen = chosen_row(rows, max_oom_risk)
    if chosen is None:
        say("experts by load: no number of copies keeps to the accepted risk")
    else:
        say(f"experts by load: fastest within the accepted risk with {counted(chosen.spare_slots, 'slot')} for copies")
    if largest == found.config.expert_model_parallel_size:
        say("memory: fits even if one rank gets all tokens")
    elif largest:
        factor = int(100 * largest) / 100
        say(f"memory: fits up to {largest:.3f} times the mean; --moe-expert-capacity-factor {factor} keeps to it")
    else:
        say("memory: does not fit with equal loads either")


@opt.spread
def slices(
    job_options: Annotated[opt.JobOptions, opt.Without(OF_SOLVE)],
    stages: Annotated[
        str, typer.Option(help="Depths of pipelines, a stage on each host.", rich_help_panel=INSTANCES)
    ] = "4,8",
    sequences: Annotated[
        str, typer.Option(help="Sequences of a replica, one after the other.", rich_help_panel=INSTANCES)
    ] = "1,4",
    json: opt.Json = False,
) -> None:
    """
    Slices of sequences through a pipeline (TeraPipe): the best lengths beside equal slices and none.

    Planned only: no launcher runs slices in training.

    Example: [bold]pipette-opt benchmark slices --model llama-3-8b --nodes 8 --gpu a100 --seq-length 8192[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.units import percent
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.lab.token_slices import compare_slices
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    depths, counts = opt.sizes("--stages", stages) or (), opt.sizes("--sequences", sequences) or ()
    rows = list(compare_slices(opt.read_job(job_options).instance, depths, counts))
    if json:
        show_json([asdict(row) for row in rows])
        return
    table = columns_table("stages >", "sequences >", "whole >", "equal >", "best >", "over equal >", "best lengths")
    for row in rows:
        table.add_row(
            *(str(row.stages), str(row.sequences), seconds_text(row.whole_s)),
            *(f"{seconds_text(row.equal_s)} ({row.num_equal})", seconds_text(row.best_s)),
            *(percent(row.equal_s / row.best_s - 1), ", ".join(map(str, row.lengths))),
        )
    show(spaced(table))


@opt.spread
def stages(job_options: Annotated[opt.JobOptions, opt.Without(OF_SOLVE)], json: opt.Json = False) -> None:
    """
    Stages with unequal numbers of replicas (PipeDream), asynchronous or with flushes, beside equal ones.

    A worker is a host. Planned only: no launcher runs stages with unequal replicas.

    Example: [bold]pipette-opt benchmark stages --model llama-3-8b --nodes 7 --gpu a100
    --global-batch-size 60 --seq-length 4096[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.units import percent
    from pipette_opt.cli.output import say_progress, show, show_json
    from pipette_opt.lab.stage_replicas import compare_stages
    from pipette_opt.report.cells import columns_table, seconds_text, spaced

    instance = opt.read_job(job_options).instance
    rows = list(compare_stages(instance, say_progress))
    if all(one is None for _, _, one in rows):
        hosts = instance.cluster.num_nodes
        raise InfeasibleError(
            f"no stages fit in memory on {hosts} hosts: give more with --nodes, a smaller --model, or a smaller "
            f"--seq-length than {instance.training.seq_length}."
        )
    if json:
        shown = [{"way": way, "equal": equal, "plan": None if one is None else asdict(one)} for way, equal, one in rows]
        show_json(shown)
        return
    table = columns_table("training", "replicas", "s >", "gap >", "layers x replicas of stages", "versions")
    for way, equal, one in rows:
        kind = "equal" if equal else "any"
        if one is None:
            table.add_row(way, kind, "nothing fits", "", "", "")
            continue
        split = ", ".join(f"{count} x {own}" for count, own in zip(one.layers, one.replicas, strict=True))
        versions = ", ".join(map(str, one.versions)) if way == "async" else "1"
        table.add_row(way, kind, seconds_text(one.seconds), percent(1 - one.bound_s / one.seconds), split, versions)
    show(spaced(table))


def _side(ranks: int) -> int:
    """The side of a square of ranks."""
    for side in (1, 2, 4, 8):
        if side**2 == ranks:
            return side
    raise InputError("--check", f"must be 1, 4, 16 or 64 processes, got {ranks}.")


def _numbers(option: str, text: str) -> list[float]:
    """Positive numbers separated by commas."""
    found = []
    for word in text.split(","):
        try:
            number = float(word)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise InputError(option, f"must be positive numbers separated by commas, got {word.strip()!r}.")
        found.append(number)
    return found
