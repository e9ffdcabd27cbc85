"""``whatif``: predictions for changed hosts, links, GPUs and training settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import MIN_DIFFERENCE, difference
from pipette_opt.job.read import check_precision
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    cluster_or_file,
    options_of,
    params_of,
    plan_or_file,
    watcher_of,
)
from pipette_opt.library.measured import variables_of_runs, with_anchors
from pipette_opt.library.plans import plan_on_cluster
from pipette_opt.options.questions import LimitOptions, WhatifOptions
from pipette_opt.plans.plan import AS_GOOD, Plan
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.plans.verdict import times_words
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.prices import parse_prices, with_prices
from pipette_opt.replan import changes as made
from pipette_opt.replan.changes import Change
from pipette_opt.replan.whatif import Answer, WhatIf
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.specs.host_names import with_blocks
from pipette_opt.worlds.bands import jobs_of_bands
from pipette_opt.worlds.jobs import unmeasured_gpus

SAME = 5e-4
"""Difference of relative losses below which losses count as equal. Chosen: output shows a digit after the point."""

QUESTIONS = (
    "without",
    "repair",
    "add_hosts",
    "num_gpus",
    "link_speed",
    "gpu",
    "global_batch_size",
    "seq_length",
    "precision",
)
"""Options that ask a question."""

EACH = "each"
"""Word that stands for all hosts, each in a question of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """
    Answers to questions about a plan.

    Parameters
    ----------
    today
        The plan on the job as it is now.
    answers
        An answer to each question, in the order of the questions; fewer if stopped.
    changed
        Sentences on what changed in the cluster since the plan was made.
    recorded_s
        Simulated seconds of an iteration, as recorded in the plan.
    sentences
        Sentences that summarise the most useful answers.
    notes
        Sentences on how far times and bounds can be trusted.
    """

    today: Answer
    answers: tuple[Answer, ...]
    num_questions: int
    changed: tuple[str, ...]
    recorded_s: float
    sentences: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [f"today: {self.today.config}", *map(_line, self.answers)]
        return lines_at_most(f"{len(self.answers)} of {self.num_questions} questions answered", lines)

    @property
    def is_as_recorded(self) -> bool:
        """Return whether the recorded time equals the time simulated now, so that the certificate is still valid."""
        now_s = self.today.simulated_s
        return now_s is not None and abs(now_s / self.recorded_s - 1) <= AS_GOOD


def _line(answer: Answer) -> str:
    """Return a line: gain in tokens per second and configuration, or why the question has no answer."""
    found = answer.why or ("-" if answer.change is None else _gain_words(answer))
    return ", ".join(word for word in (f"{answer.name}: {found}", answer.config) if word)


@argument_errors()
def whatif(
    plan: Plan | Named,
    cluster: Named | ClusterSpec | None = None,
    *,
    on_progress: Told | None = None,
    **asked: Any,
) -> Answers:
    """
    Predict how a plan changes: hosts lost or repaired, other links, GPUs, batches, precisions and prices.

    Without any question: each host lost, each host repaired, one more host.

    Parameters
    ----------
    plan
        A plan or its file.
    cluster
        The cluster as it is today; the plan's own by default.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    asked
        Questions and limits, fields of :class:`~pipette_opt.options.questions.WhatifOptions` and
        :class:`~pipette_opt.options.questions.LimitOptions`. Several values are a list or a text with commas:
        ``add_hosts=[1, 2]``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    """
    options, limits = options_of(asked, WhatifOptions, LimitOptions)
    asked = {name: getattr(options, name) for name in QUESTIONS}
    plan, instance, changed = plan_on_cluster(plan_or_file(plan), cluster_or_file(cluster))
    runs = options.measured_runs or ()
    variables = variables_of_runs(options.env, runs)
    instance = with_anchors(instance, runs, plan.config.world_size, environment=variables)
    if changed:  # what was proven is of another cluster
        plan = replace(plan, certificate=replace(plan.certificate, lower_bound_s=0.0))
    prices = parse_prices(options.gpu_price or (), instance.cluster)
    instance = replace(instance, cluster=with_prices(instance.cluster, prices.of_hosts))
    if all(value is None for value in asked.values()):
        if instance.cluster.num_nodes == 1:
            raise InputError(
                "whatif",
                "needs an option such as --add-hosts 1: the plan has a single host, so the default questions do "
                "not apply.",
            )
        asked |= {"without": [EACH], "repair": [EACH], "add_hosts": (1,)}
    limit_s = options.time_limit
    if limit_s is not None and not limit_s > 0:
        raise InputError("--time-limit", f"must be > 0, got {limit_s:g}.")
    asking = WhatIf(plan, instance, params_of(limits), watcher_of(on_progress))
    changes = questions(asking, asked, prices.of_kinds)
    answers = asking.ask(changes, limit_s)
    return Answers(
        today=asking.today(),
        answers=tuple(answers),
        num_questions=len(changes),
        changed=tuple(changed),
        recorded_s=plan.estimate.iteration_time_s,
        sentences=tuple(in_words(asked, changes, answers)),
        notes=tuple(filter(None, (_band_words(asking.today(), instance), *_notes(changes, answers)))),
    )


def questions(asking: WhatIf, asked: Mapping[str, Any], prices: Mapping[str, float]) -> list[Change]:
    """
    Return the changes that the options ask about, all checked before any is answered.

    ``prices`` holds prices per GPU-hour by GPU type.
    """
    job, hosts, found = asking.instance, asking.instance.cluster.hosts, []
    for text in asked["without"] or ():
        for group in [[host] for host in hosts] if text == EACH else [expand_hosts(text, "--without")]:
            found.append(made.without_hosts(job, with_blocks(tuple(group), hosts)))
    for text in asked["repair"] or ():
        host, colon, other = text.partition(":")
        if text == EACH:
            found += asking.repairs(hosts)
        elif colon and text not in hosts:
            found.append(made.repaired_link(job, host, other))
        else:
            found += [made.repaired_host(job, host) for host in expand_hosts(text, "--repair")]
    found += [made.more_hosts(job, count) for count in asked["add_hosts"] or ()]
    found += [made.number_of_gpus(job, size) for size in asked["num_gpus"] or ()]
    found += [made.faster_links(job, factor) for factor in asked["link_speed"] or ()]
    for name in asked["gpu"] or ():
        kind = read_gpu_entry(name, "--gpu").gpu.name
        found.append(made.other_gpu(job, kind, prices.get(kind)))
    for field, word in (("global_batch_size", "a batch of {:,}"), ("seq_length", "{:,} tokens a sequence")):
        for size in asked[field] or ():
            found.append(made.other_training(job, word.format(size), {field: size}))
    for name in asked["precision"] or ():
        found.append(made.other_training(job, f"in {name}", _precision(name)))
    for change in found:
        try:
            check_precision(change.instance.cluster, change.instance.training)
        except InputError as error:
            raise InputError(change.name, f"the precision of this change {error.problem}") from None
    return found


def _precision(name: str) -> dict[str, Any]:
    """Return the training settings of a precision; gradients are accumulated in fp32 unless the precision is fp16."""
    if name == "fp8":
        return {"fp8": True}
    return {"precision": name, "fp8": False, "accumulate_allreduce_grads_in_fp32": name != "fp16"}


def in_words(asked: Mapping[str, Any], changes: Sequence[Change], answers: Sequence[Answer]) -> list[str]:
    """Return sentences that summarise the most useful answers."""
    found = []
    lost = [answer for answer in answers if answer.group == "without" and answer.change is not None]
    if len(lost) > 1:
        least, most = max(lost, key=_gain), min(lost, key=_gain)
        if _gain(least) - _gain(most) < SAME:
            found.append(f"Each lost host costs the same, {_gain_words(most)}.")
        else:
            found.append(
                f"The most expensive loss is {most.name.removeprefix('without ')}, {_gain_words(most)}; the "
                "cheapest is "
                f"{least.name.removeprefix('without ')}, {_gain_words(least)}."
            )
        if (
            _gain(least) - _gain(most) >= SAME
            and most.bound_s is not None
            and most.bound_s <= (least.expected_s or 0.0)
        ):
            found.append(
                "Which loss is the most expensive is not proven: the gaps of the searches exceed the differences."
            )
        idle = max(lost, key=lambda answer: answer.idle_hosts)
        if idle.idle_hosts and idle.expected_s is not None:
            found.append(
                f"Only {idle.num_hosts} of {idle.num_hosts + idle.idle_hosts} hosts are used: on more hosts, batch or "
                "layers divide less evenly. `replan --micro-batches unequal` may use all hosts."
            )
    if EACH in (asked["repair"] or ()):
        repaired = [answer for answer in answers if answer.group == "repaired"]
        useful = [answer for answer in repaired if _gain(answer) >= MIN_DIFFERENCE]
        if useful:
            best = max(useful, key=_gain)
            found.append(f"Repair {best.name.removesuffix(' repaired')} first: {_gain_words(best)}.")
        elif len(answers) == len(changes):
            found.append("The repair of a single host does not make this plan faster: slow links do not delay it.")
    for answer in answers:
        if answer.group == "more hosts" and answer.change is not None:
            hosts = f"{answer.num_hosts} of {answer.num_hosts + answer.idle_hosts} hosts"
            brings = (
                f"brings {_gain_words(answer)} on" if _gain(answer) >= SAME else "brings nothing: the best plan uses"
            )
            found.append(f"{answer.name[0].upper()}{answer.name[1:]} {brings} {hosts}.")
    return found


def _notes(changes: Sequence[Change], answers: Sequence[Answer]) -> list[str]:
    """Return sentences on bounds, GPUs without public runs, and searches that had too little time."""
    found = []
    searched = any(answer.bound_s is not None for answer in answers)
    if searched:
        found.append("The column 'at best' is a lower bound: no plan of the search space is faster.")
    for change in changes:
        strange = unmeasured_gpus(change.instance.cluster)
        if change.group == "GPU" and strange:
            found.append(f"No public run on {strange}: the times of {change.name} may be further off.")
    if any(answer.narrowed for answer in answers):
        found.append(
            "Some searches left configurations out for lack of time (--time-limit). 'At best' holds for these, too, by "
            "their compute alone."
        )
    return found


def _band_words(today: Answer, instance: Instance) -> str:
    """Return a sentence on the error band of the predicted times; empty if no band is known."""
    if today.low_s is None or today.high_s is None or today.expected_s is None:
        return ""
    low, high = (end / today.expected_s for end in (today.low_s, today.high_s))
    return f"{times_words(low, high, jobs_of_bands([instance]))} Ranges in brackets hold for nine of ten, too."


def _gain_words(answer: Answer) -> str:
    """Return the change in tokens per second, with its error range if one is known."""
    change = f"{difference(1 + _gain(answer), 'more', 'fewer', 'as many')} tokens per second"
    if answer.least_change is None or answer.most_change is None:
        return change
    return f"{change} ({100 * answer.least_change:+.0f} % to {100 * answer.most_change:+.0f} %)"


def _gain(answer: Answer) -> float:
    return 0.0 if answer.change is None else answer.change
