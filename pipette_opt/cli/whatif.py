"""``pipette-opt whatif``."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

if TYPE_CHECKING:
    from pipette_opt.replan.changes import Change
    from pipette_opt.replan.whatif import Answer, WhatIf

SAME = 5e-4
"""Difference of shares below which losses are called the same; chosen, as they are shown with one digit."""

EACH = "each"
"""Says of hosts: each of them alone."""

HOSTS, CHANGES = "Hosts and links", "The job"

TITLES = {
    "without": "A host less, the dearest loss first",
    "repaired": "Repaired, the most useful first",
    "more hosts": "More hosts",
    "number of GPUs": "Another number of GPUs",
    "links": "Other links",
    "GPU": "Another kind of GPU",
    "training": "Another job",
}
"""Title of each group of questions, in the order in which they are shown."""


def whatif(
    plan: Annotated[Path, typer.Argument(help="The plan to ask about.")],
    cluster: Annotated[
        Path | None, typer.Option(help="The cluster as it is now, e.g. measured again.", rich_help_panel=opt.JOB)
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Hosts lost together, e.g. gpu07 or gpu[07-08]; each alone: each.", rich_help_panel=HOSTS),
    ] = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            help="A host, or a link such as gpu07:gpu09, as fast as others usually are; each: every host.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    add_hosts: Annotated[
        str | None, typer.Option(help="So many usual hosts more, e.g. 1,2,4.", rich_help_panel=HOSTS)
    ] = None,
    num_gpus: Annotated[
        str | None, typer.Option(help="GPUs of the same hosts, e.g. 64,96.", rich_help_panel=HOSTS)
    ] = None,
    link_speed: Annotated[
        str | None,
        typer.Option(help="All links between hosts so many times as fast, e.g. 0.5,2.", rich_help_panel=HOSTS),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Another kind of GPU in all hosts, e.g. h100,h200.", rich_help_panel=HOSTS)
    ] = None,
    global_batch_size: Annotated[str | None, typer.Option(help="E.g. 256,1024.", rich_help_panel=CHANGES)] = None,
    seq_length: Annotated[str | None, typer.Option(help="E.g. 4096,8192.", rich_help_panel=CHANGES)] = None,
    precision: Annotated[str | None, typer.Option(help="Of bf16, fp16, fp32 and fp8.", rich_help_panel=CHANGES)] = None,
    gpu_price: opt.GpuPrices = None,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds of all questions; by default 0.3 for a lost host and 4 for another job.",
            min=0.1,
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> None:
    """
    What would become of a plan: hosts lost or repaired, other links, GPUs, batches, formats and prices.

    Without any question: each host lost, each host repaired, one host more. Each row has the best plan found, the old
    plan as it is on the changed job where it can be there, and the time that no plan of what was searched undercuts.

    Example: [bold]pipette-opt whatif plan.json --without each --global-batch-size 256,1024 --gpu-price 2.5[/]

    Ctrl-C keeps the answers that are there (exit code 4).
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.cli.prices import priced
    from pipette_opt.library.plans import plan_on_cluster
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.plan import AS_GOOD
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.replan.whatif import WhatIf
    from pipette_opt.report.questions import answers_table

    old, instance, changed = plan_on_cluster(plan, cluster)
    if changed:  # what was proven is of another cluster
        old = replace(old, certificate=replace(old.certificate, lower_bound_s=0.0))
    instance, kinds = priced(instance, gpu_price or ())
    asked = {
        "without": without,
        "repair": repair,
        "add_hosts": add_hosts,
        "num_gpus": num_gpus,
        "link_speed": link_speed,
        "gpu": gpu,
        "global_batch_size": global_batch_size,
        "seq_length": seq_length,
        "precision": precision,
    }
    if all(value is None for value in asked.values()):
        if instance.cluster.num_nodes == 1:
            raise InputError("whatif", "needs a question: the plan has a single host, so there is none to lose.")
        asked |= {"without": ["each"], "repair": ["each"], "add_hosts": "1"}
    params = opt.checked(
        OptimizeParams,
        workers=opt.threads(workers),
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    watcher = Watcher(begun=begun)
    asking = WhatIf(old, instance, params, watcher)
    changes = questions(asking, asked, kinds)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        answers = asking.ask(changes, time_limit)
    rows = [asking.today(), *answers]
    if json:
        found = [asdict(one) | {"is_proven": one.is_proven} for one in rows]
        show_json({"plan": found[0], "answers": found[1:], "changed": changed})
    else:
        for line in changed:
            show(f"- since the plan was made: {line}")
        recorded_s, now_s = old.estimate.iteration_time_s, asking.now.iteration_time_s
        if not changed and abs(now_s / recorded_s - 1) > AS_GOOD:
            show(f"- the plan says {recorded_s:.4f} s, this version {now_s:.4f} s: what it proved does not count here")
        show(answers_table("Today", rows[:1]))
        for group, title in TITLES.items():
            some = [one for one in answers if one.group == group]
            if group == "without":
                some.sort(key=lambda one: -1.0 if one.change is None else one.change)
            elif group == "repaired":
                some.sort(key=lambda one: 1.0 if one.change is None else -one.change)
            if some:
                show(answers_table(title, some, rows[0].config))
        show("", *in_words(asked, changes, answers))
    if watcher.stop.is_set():
        say(f"stopped early: {len(answers)} of {counted(len(changes), 'question')} are answered")
        raise typer.Exit(STOPPED_EARLY)


def questions(asking: "WhatIf", asked: Mapping[str, Any], prices: Mapping[str, float]) -> "list[Change]":
    """The questions that the options ask, each checked before any is answered; prices of kinds of GPU are known."""
    from pipette_opt.library.jobs import check_precision
    from pipette_opt.read.gpus import read_gpu_entry
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.replan import changes as made
    from pipette_opt.specs.host_names import with_blocks

    job, hosts, found = asking.instance, asking.instance.cluster.hosts, []
    for text in asked["without"] or ():
        for group in [[host] for host in hosts] if text == EACH else [expand_hosts(text, "--without")]:
            found.append(made.without_hosts(job, with_blocks(tuple(group), hosts)))
    for text in asked["repair"] or ():
        one, colon, other = text.partition(":")
        if text == EACH:
            found += asking.repairs(hosts)
        elif colon and text not in hosts:
            found.append(made.repaired_link(job, one, other))
        else:
            found += [made.repaired_host(job, host) for host in expand_hosts(text, "--repair")]
    found += [made.more_hosts(job, count) for count in opt.sizes("--add-hosts", asked["add_hosts"]) or ()]
    found += [made.number_of_gpus(job, size) for size in opt.sizes("--num-gpus", asked["num_gpus"]) or ()]
    found += [made.faster_links(job, factor) for factor in numbers("--link-speed", asked["link_speed"])]
    for name in (asked["gpu"] or "").split(","):
        if name.strip():
            kind = read_gpu_entry(name.strip(), "--gpu").gpu.name
            found.append(made.other_gpu(job, kind, prices.get(kind)))
    for field, word in (("global_batch_size", "a batch of {:,}"), ("seq_length", "{:,} tokens a sequence")):
        for size in opt.sizes(f"--{field.replace('_', '-')}", asked[field]) or ():
            found.append(made.other_training(job, word.format(size), {field: size}))
    for name in (asked["precision"] or "").split(","):
        if name.strip():
            found.append(made.other_training(job, f"in {name.strip()}", _precision(name.strip())))
    for change in found:
        try:
            check_precision(change.instance.cluster, change.instance.training)
        except InputError as error:
            raise InputError(change.name, f"the precision {error.problem}") from None
    return found


def _precision(name: str) -> dict[str, Any]:
    """Fields of the training for a format; gradients are summed as Megatron does by default."""
    opt.one_of("--precision", name, ("bf16", "fp16", "fp32", "fp8"))
    if name == "fp8":
        return {"fp8": True}
    return {"precision": name, "fp8": False, "accumulate_allreduce_grads_in_fp32": name != "fp16"}


def numbers(option: str, text: str | None) -> list[float]:
    """Numbers separated by commas."""
    found = []
    for word in (text or "").split(","):
        if not word.strip():
            continue
        try:
            found.append(float(word))
        except ValueError:
            raise InputError(option, f"must be numbers separated by commas, got {word.strip()!r}.") from None
    return found


def in_words(asked: Mapping[str, Any], changes: "Sequence[Change]", answers: "Sequence[Answer]") -> list[str]:
    """The answers that one would repeat to others."""
    found = []
    lost = [one for one in answers if one.group == "without" and one.change is not None]
    if len(lost) > 1:
        least, most = max(lost, key=_gain), min(lost, key=_gain)
        if _gain(least) - _gain(most) < SAME:
            found.append(f"Each of these losses costs the same, {_gain(most):+.1%} tokens per second.")
        else:
            found.append(
                f"The dearest loss is {most.name.removeprefix('without ')}, {_gain(most):+.1%} tokens per second; the "
                f"cheapest {least.name.removeprefix('without ')}, {_gain(least):+.1%}."
            )
        if (
            _gain(least) - _gain(most) >= SAME
            and most.bound_s is not None
            and most.bound_s <= (least.iteration_time_s or 0.0)
        ):
            found.append("Which loss is the dearest is not proven: the searches leave more open than losses differ by.")
        idle = max(lost, key=lambda one: one.idle_hosts)
        if idle.idle_hosts and idle.iteration_time_s is not None:
            found.append(
                f"Of {idle.num_hosts + idle.idle_hosts} hosts {idle.num_hosts} are used: a plan for more shares the "
                "batch or the layers worse. `replan --micro-batches unequal` may use them."
            )
    if EACH in (asked["repair"] or ()):
        useful = [one for one in answers if one.group == "repaired" and _gain(one) > 0]
        if useful:
            best = max(useful, key=_gain)
            found.append(f"Repair {best.name.removesuffix(' repaired')} first: {_gain(best):+.1%} tokens per second.")
        elif len(answers) == len(changes):
            found.append("No host's repair alone helps this plan: its time does not wait for slow links.")
    for one in answers:
        if one.group == "more hosts" and one.change is not None:
            hosts = f"{one.num_hosts} of {one.num_hosts + one.idle_hosts} hosts"
            brings = f"brings {_gain(one):+.1%} tokens per second on" if _gain(one) >= SAME else "brings nothing: use"
            found.append(f"{one.name[0].upper()}{one.name[1:]} {brings} {hosts}.")
    searched = any(one.bound_s is not None for one in answers)
    if searched:
        found.append(
            "At best: no plan searched is faster; on equal hosts the usual splits of the layers were, and the plan's "
            "own. `solve` searches all splits."
        )
    if any(one.narrowed for one in answers):
        found.append("The time limit narrowed some searches; --time-limit gives them more.")
    return [f"- {line}" for line in found]


def _gain(answer: "Answer") -> float:
    return 0.0 if answer.change is None else answer.change
