"""First screen of an answer: verdict, job, plan, time, memory, proof and next commands, in at most 40 lines."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.table import QUIET, Row, Table
from pipette_opt.base.typed import typed
from pipette_opt.base.units import (
    MIN_DIFFERENCE,
    above_best,
    chosen_percent,
    counted,
    difference,
    gib,
    listed,
    percent,
    short_seconds,
    three_digits,
    words,
)
from pipette_opt.plans.certificate import Regret, Robust
from pipette_opt.plans.notes import DOCUMENTS
from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Alternative, IterationTime, Plan, StageMemory
from pipette_opt.plans.predicted import fullness
from pipette_opt.plans.releases import release_words
from pipette_opt.plans.tables import BEST_OF_KIND, nine_in_ten, risk_cell, usual_words
from pipette_opt.plans.verdict import risk_words
from pipette_opt.report.beside_tables import (
    fastest_words,
    imbalance_words,
    order_words,
    overlap_words,
)
from pipette_opt.report.best_mfu import above_best_words, best_of_plan, mfu_words
from pipette_opt.report.cells import shown_tables
from pipette_opt.report.tables import configuration_words, folded_hosts, host_grid, verdict_line
from pipette_opt.simulate.paying import PayingOption
from pipette_opt.specs import NotModelled
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.not_modelled import LARGE_EFFECT, by_size
from pipette_opt.specs.stack import FITS, StackSpec
from pipette_opt.worlds.best_mfu import BestRun
from pipette_opt.worlds.factor import misses

MAX_ALTERNATIVES, MAX_OPTIONS, MAX_NOT_MODELLED, MAX_CAUSES = 3, 2, 3, 3
"""
Maximum number of alternatives, unsearched options, left-out options and causes on the first screen.

``--verbose`` shows all. Chosen to fit 40 lines.
"""

OPEN_FROM = 0.01
"""Share of the time from which a choice that may save it is named as open. Chosen: the search ends below it."""

MAX_RUNS = 3
"""Maximum number of measured runs on the first screen; the others are counted. Chosen."""

MIN_SHARE = 0.005
"""Smallest share of an iteration for which a cause is named. Chosen."""

MAX_HOSTS_SHOWN = 60
"""Maximum characters for stages and hosts; a longer list shows its first and last row. Chosen: a line."""


WRITES_ADAPTERS = ("accelerate", "axolotl", "llamafactory", "msswift", "nemo")
"""Formats of ``export`` that write adapters; the latter those on 16-bit weights."""

FORMATS_OF_SOFTWARE = ("torchtitan", "deepspeed")
"""Software stacks whose name is that of the format to export plans in."""


def first_screen(
    plan: Plan,
    *,
    flags: Sequence[Sequence[str]] = (),
    paying: Sequence[PayingOption] = (),
    today: Sequence[str] = (),
    next_steps: Sequence[str] = (),
) -> list[RenderableType]:
    """
    Return the first screen of an answer.

    Parameters
    ----------
    flags
        Options of the launcher for the plan, each with its values; empty if the launcher cannot express the plan.
    paying
        Unsearched options that would save time, the largest saving first.
    today
        Sentences that compare the plan with today's launch.
    """
    rows = (
        ("Job", job_words(plan)),
        ("Plan", configuration_words(plan.config, plan.global_batch_size)),
        ("Needs", needs_words(plan)),
        ("Flags", " ".join(launcher_flags(plan, flags))),
        ("Hosts", "\n".join(filter(None, (hosts_words(plan), order_words(plan))))),
        ("Overlap", overlap_words(plan)),
        ("Time", time_words(plan.estimate, best_of_plan(plan))),
        ("Documents", document_words(plan.notes)),
        ("Measured", measured_words(_recorded(plan, "stack"))),
        ("Memory", memory_words(plan.memory)),
        ("Proof", _proof_words(plan)),
        ("Upper end", robust_words(plan.certificate.robust)),
        ("Regret", regret_words(plan.certificate.regret)),
        ("Measure", experiment_words(plan.certificate.regret)),
        ("Fastest", _fastest_words(plan)),
        ("Less risk", _less_risk_words(plan)),
        ("Experts", imbalance_words(plan)),
        ("Best at", _target_words(plan)),
        ("Would pay", paying_words(paying)),
        ("Left out", not_modelled_words(plan.not_modelled)),
        ("Today", "\n".join(today)),
    )
    return [verdict_line(plan.verdict), Text(), facts(rows), *shown_tables(_next_best(plan)), *steps_lines(next_steps)]


def needs_words(plan: Plan) -> str:
    """Return the release of Megatron-Core that a plan needs; empty if the plan does not record its model."""
    groups = _recorded(plan, "model").get("num_query_groups")
    return "" if groups is None else release_words(plan.config, groups)


def facts(rows: Iterable[tuple[str, str]]) -> RenderableType:
    """Table of names and sentences; rows without a sentence are left out."""
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        if text:
            table.add_row(name, Text(text))
    return table


def steps_lines(next_steps: Sequence[str]) -> list[RenderableType]:
    """Return the next commands after an empty line; empty without commands."""
    return [Group(Text(), *(Text(step, overflow="fold") for step in next_steps))] if next_steps else []


def job_words(plan: Plan) -> str:
    """Return model, batch, sequence length, precision and machines of a plan, as far as the plan records them."""
    model, training = _recorded(plan, "model"), _recorded(plan, "training")
    trained = [str(model["name"])] if model.get("name") else []
    trained += adapter_words(model)
    if training:
        trained += training_words(training, plan.global_batch_size)
    return ", ".join([*trained, machines_words(len(plan.hosts), plan.gpus_per_node, _recorded(plan, "gpus"))])


def adapter_words(model: Mapping[str, Any]) -> list[str]:
    """Return rank and base of the adapters of a recorded model, in words; empty without adapters."""
    adapters = model.get("adapters")
    if not adapters:
        return []
    base = "16 bits" if adapters["base"] == "16-bit" else adapters["base"]
    return [f"adapters of rank {adapters['rank']} on frozen weights in {base}"]


def training_words(training: Mapping[str, Any], global_batch_size: int) -> list[str]:
    """Return batch size, sequence length and precision of recorded training settings, in words."""
    is_packed, has_lengths = training.get("packed"), training.get("documents") is not None
    each = " packed sequences of" if is_packed else " documents of at most" if has_lengths else " of"
    return [f"batch {global_batch_size:,}{each} {training['seq_length']:,} tokens", _precision_words(training)]


def document_words(notes: Sequence[str]) -> str:
    """Return the note on lengths of documents without its first word; empty without lengths."""
    return next((note.removeprefix(DOCUMENTS) for note in notes if note.startswith(DOCUMENTS)), "")


def machines_words(num_hosts: int, gpus_per_node: int, gpus: Iterable[str]) -> str:
    """Return the number of hosts, GPUs per host and GPU types, in words."""
    return f"{counted(num_hosts, 'host')} of {gpus_per_node} {'/'.join(gpus) or 'GPUs'}"


def _precision_words(training: Mapping[str, Any]) -> str:
    narrow = "fp8" if training.get("fp8") else "fp4" if training.get("fp4") else None
    return f"{narrow} with {training['precision']}" if narrow else str(training["precision"])


def _recorded(plan: Plan, name: str) -> Mapping[str, Any]:
    found = plan.inputs.get(name)
    return found if isinstance(found, Mapping) else {}


def _fastest_words(plan: Plan) -> str:
    """Return the fastest plan found and the option that selects it; empty if the plan is the fastest."""
    found = fastest_words(plan)
    return found and f"{found}; take it with --prefer fastest"


def _against(plan: Plan, other: Alternative) -> str:
    """Return how much slower another plan is than this plan, in words; of a faster one, why it was not taken."""
    if other.iteration_time_s is None:
        return "not placed"
    ratio = other.iteration_time_s / plan.estimate.iteration_time_s
    if ratio > 1 - MIN_DIFFERENCE:
        return difference(ratio, "slower", "faster", "as fast")
    proof, target = plan.certificate, plan.target
    objective = "regret" if proof.regret else "upper end" if proof.robust else target and words(target.objective)
    return f"no better by {objective}" if objective else f"within {chosen_percent(WITHIN)}, less plain"


def hosts_words(plan: Plan) -> str:
    """Return the number of hosts in use, the unused hosts, and the stages on each host."""
    used = f"{len(plan.placement.nodes_used)} of {len(plan.hosts)}"
    if plan.unused_hosts:
        used += f", without {compress_hosts(tuple(plan.unused_hosts))}"
    rows = [
        f"stage{'s' if '-' in stages else ''} {stages} on {folded_hosts(hosts)}" for stages, hosts in host_grid(plan)
    ]
    where = "; ".join(rows)
    if len(where) > MAX_HOSTS_SHOWN and len(rows) > 1:
        where = f"{rows[0]}; ...; {rows[-1]}"
    return f"{used}; {where}"


def time_words(estimate: IterationTime, best: BestRun | None) -> str:
    """
    Return expected time, tokens per second with error band, MFU, and the largest causes of the time.

    Parameters
    ----------
    best
        Public run with the highest MFU of this kind; a lower one than the plan's has a line of its own.
    """
    causes = sorted(estimate.breakdown.items(), key=lambda item: -item[1])[:MAX_CAUSES]
    shares = ((name, seconds / estimate.iteration_time_s) for name, seconds in causes)
    where = ", ".join(f"{words(name)} {percent(share, decimals=0)}" for name, share in shares if share >= MIN_SHARE)
    rate, band = estimate.expected_tokens_per_s, ""
    if estimate.band is not None:
        least, most = (rate * estimate.expected_s / end for end in (estimate.band.high_s, estimate.band.low_s))
        band = f" ({three_digits(least)} to {three_digits(most)})"
    line = (
        f"{short_seconds(estimate.expected_s)}: {three_digits(rate)} tokens/s{band}, "
        f"{three_digits(estimate.expected_tokens_per_s_per_gpu)} per GPU, {mfu_words(estimate, best)}; {where}"
    )
    return "\n".join(filter(None, (line, above_best_words(estimate, best))))


def measured_words(stack: Mapping[str, Any]) -> str:
    """
    Return the measured runs that time and memory start from, as lines; at most ``MAX_RUNS`` of each.

    The expected times are a fit over several runs, so each run's line says by how much it misses.
    """
    times = [anchor["run"] for anchor in stack.get("anchors", ())]
    if len(times) > 1:
        missed = misses(typed(StackSpec, stack, "inputs.stack"))
        fitted = [f"about {percent(abs(miss), decimals=1)} {'more' if miss > 0 else 'less'}" for miss in missed]
        times = [f"{run}; the fit over all runs expects {by_it}" for run, by_it in zip(times, fitted, strict=True)]
    timed = {f"{anchor['run'].rpartition(': ')[0]}: {FITS}" for anchor in stack.get("anchors", ())}
    memories = [run["run"] for run in stack.get("memory_runs", ()) if run["run"] not in timed]
    return "\n".join([*_first_runs(times), *_first_runs(memories)])


def _first_runs(runs: Sequence[str]) -> list[str]:
    """Return the first ``MAX_RUNS`` lines, and a line that counts the others."""
    more = len(runs) - MAX_RUNS
    return [*runs[:MAX_RUNS], *([f"and {counted(more, 'more run')}"] if more > 0 else [])]


def memory_words(memory: Sequence[StageMemory]) -> str:
    """Return the memory of the fullest stage, GiB: predicted, capacity, and the range over nine in ten stacks."""
    if not memory:
        return ""
    fullest = max(memory, key=fullness)
    where = f"stage {fullest.stage} is fullest: " if len(memory) > 1 else ""
    return (
        f"{where}{gib(fullest.predicted_bytes):.1f} of {gib(fullest.capacity_bytes):.1f} GiB; {nine_in_ten(fullest)} "
        "in nine of ten stacks"
    )


def _proof_words(plan: Plan) -> str:
    """
    Return the proven lower bound on the expected time, the number of choices that were not searched, and those that
    leave the gap open.
    """
    proof, least_s = plan.certificate, plan.estimate.expected_of(plan.certificate.lower_bound_s)
    searched = counted(proof.num_candidates, "configuration")
    least = f"none of {searched} takes less than {short_seconds(least_s)}"
    left = f"; {counted(len(proof.not_searched), 'choice')} not searched" if proof.not_searched else ""
    choices = proof.open_choices(OPEN_FROM)
    saves = "; ".join(f"{choice} may save up to {percent(share)}" for choice, share in choices)
    return "\n".join(filter(None, (f"{least}{left}", saves and f"open: {saves}")))


def robust_words(robust: Robust | None) -> str:
    """Return the upper end of the band of the time, its lower bound and gap; empty with other objectives."""
    if robust is None:
        return ""
    return (
        f"{short_seconds(robust.value_s)} over the fastest links, {above_best(robust.shown_gap)}: no plan of "
        f"{counted(robust.groups, 'group')} of configurations has less than {short_seconds(robust.lower_bound_s)}"
    )


def regret_words(regret: Regret | None) -> str:
    """Return the slowdown against the best possible, by bounds and by plans found; empty if none is known."""
    if regret is None:
        return ""
    high, mean, found = map(percent, (regret.high, regret.mean, regret.over_found_high))
    before, confidence = "", f"with {chosen_percent(regret.quantile)} confidence"
    if regret.unmeasured_high is not None:
        before = f"; {percent(regret.unmeasured_high)} in the same worlds without a measurement"
        if regret.high > regret.unmeasured_high:
            before += (
                " (more with it: it is unlike public runs, so other layouts may be off by other factors; a run of "
                "another layout tells)"
            )
    return (
        f"{confidence} at most {high} slower than the fastest plan can be{before}; {mean} in the mean; at most {found} "
        "slower than the best plan found"
    )


def experiment_words(regret: Regret | None) -> str:
    """Return the measurement that would lower the regret most, and its cost; empty if none is worth it."""
    experiment = None if regret is None else regret.experiment
    if experiment is None:
        return ""
    name = f"pipette-opt {experiment.command}" if experiment.command else f"a run of {experiment.run}"
    return (
        f"{name}: lowers the mean to about {percent(experiment.regret)}, for {three_digits(experiment.gpu_minutes)} "
        "GPU-minutes"
    )


def _less_risk_words(plan: Plan) -> str:
    """
    Return the fastest plans with lower risks of running out of memory than the plan's.

    Plans in the table of the next best are left out.
    """
    own = max((stage.oom_probability for stage in plan.memory), default=0.0)
    listed = [other.config for other in _others(plan)]
    lines = []
    for choice in plan.risks:
        other, chance = choice.plan, choice.plan.oom_probability
        if other.iteration_time_s is None or chance is None:
            continue
        if own <= choice.max_oom_risk or other.config in listed:
            continue
        lines.append(f"{other.config.label()}: {_against(plan, other)}, risk {risk_words(chance)}")
    return "\n".join(dict.fromkeys(lines))


def _target_words(plan: Plan) -> str:
    """Return value and gap of an objective other than the time; empty for the time."""
    target = plan.target
    if target is None:
        return ""
    value = three_digits(target.expected_of(target.value, plan.estimate))
    return f"{target.objective}: {value} {target.unit}, {target.distance}"


def paying_words(paying: Sequence[PayingOption]) -> str:
    """Return unsearched options that would save time, each with its gain and condition."""
    lines = [
        f"{paid.option}: {difference(1 / (1 - paid.saved_share), 'more', 'fewer', 'as many')} tokens per second "
        f"({paid.condition})"
        for paid in paying[:MAX_OPTIONS]
    ]
    if len(paying) > MAX_OPTIONS:
        lines[-1] += f"; {len(paying) - MAX_OPTIONS} more"
    return "\n".join(lines)


def not_modelled_words(not_modelled: Iterable[NotModelled]) -> str:
    """Return the options that the predictions leave out or count in part; a line for those with large effects."""
    large, others, in_part = by_size(not_modelled)
    lines = [f"{listed(large, MAX_NOT_MODELLED)}: {LARGE_EFFECT}"] if large else []
    lines += [listed(others, MAX_NOT_MODELLED)] if others else []
    return "\n".join([*lines, *([f"counted in part: {listed(in_part, MAX_NOT_MODELLED)}"] if in_part else [])])


def _next_best(plan: Plan) -> Table:
    """Return the next best plans: time, risk, and whether a faster plan with such degrees is excluded."""
    rows: list[Row] = []
    for other in _others(plan):
        proof = "" if other.lower_bound_s is None else BEST_OF_KIND if other.is_proven else "open"
        rows.append((other.config.label(), _against(plan, other), risk_cell(other.oom_probability), proof))
    if (usual := usual_words(plan)) is not None:
        known = None if plan.usual is None else plan.usual.plan
        rows.append((*usual, "" if known is None else risk_cell(known.oom_probability), ""))
    return Table(headers=("next best", "time", "risk >", "its kind"), rows=rows)


def _others(plan: Plan) -> list[Alternative]:
    """Return the next best plans for the first screen; the fastest plan and data parallelism alone have own lines."""
    usual = None if plan.usual is None else plan.usual.plan
    named = [known.config for known in (plan.fastest, usual) if known is not None]
    return [other for other in plan.alternatives if other.config not in named][:MAX_ALTERNATIVES]


def next_steps(plan: Plan, out: str) -> list[str]:
    """
    Return commands to type next, each with its purpose.

    Parameters
    ----------
    out
        Path of the plan file.
    """
    steps = {
        "start it": export_command(plan, out),
        "ask why": f'pipette-opt explain "tp8 pp4" --plan {out}',
        "see all": f"pipette-opt report {out} -o report.html",
    }
    return [f"{purpose:<9}  {command}" for purpose, command in steps.items()]


def export_command(plan: Plan, out: str) -> str:
    """Return the command that writes the launch files of the plan in file ``out``."""
    software, framework = plan.inputs.get("stack", {}).get("name"), plan.inputs.get("framework")
    target: str = plan.launcher if plan.launcher in ("slurm", "mpi") else "torchrun"
    target = software if software in FORMATS_OF_SOFTWARE else target
    target = framework if framework not in (None, "megatron") else target
    if adapter_words(_recorded(plan, "model")) and target not in WRITES_ADAPTERS:
        is_wide = _recorded(plan, "model")["adapters"]["base"] == "16-bit"
        target = "nemo" if is_wide and software not in FORMATS_OF_SOFTWARE else "rankmap-csv"
    return f"pipette-opt export {out} --format {target} -o launch/"


def launcher_flags(plan: Plan, flags: Iterable[Sequence[str]]) -> list[str]:
    """Return Megatron-LM's options for a plan, quoted for a shell; empty if other software trains."""
    software = plan.inputs.get("stack", {}).get("name")
    return [] if software in FORMATS_OF_SOFTWARE else [shlex.join(option) for option in flags]
