"""
Contracts between the answers about one job: functions that return every contradiction, as sentences.

All are on one clock: within a job, expected over simulated seconds is one factor. :mod:`benchmarks.hardening.contracts`
checks them on random jobs, ``tests/test_contracts.py`` on tiny ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import pipette_opt as po
from pipette_opt.base.degrees import DEGREES
from pipette_opt.base.errors import InfeasibleError, PipetteError
from pipette_opt.candidates.coverage import DIMENSIONS
from pipette_opt.export.hosts import hosts_are_named
from pipette_opt.library.plans import plan_and_instance
from pipette_opt.library.whatif import Answers
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.read.exported import launch_in
from pipette_opt.replan.changes import Change, faster_links, more_hosts, repaired_host
from pipette_opt.replan.whatif import Answer
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.verify import recorded_space, verify

EXACT = 1e-9
"""Relative difference of two sums of equal times in different order."""

ROUNDING = 1e-6
"""Relative difference of one factor of a job, and of times that solver ticks cannot tell apart."""

MEASURED = 1e-4
"""Relative difference of a time that starts from a measured run: its logarithm keeps six decimals."""

CLOCKS = ("simulated", "expected")
"""Names of the two clocks."""

MACHINES = ("cluster", "nodes", "gpu", "nics", "gpus_per_node")
"""Arguments of ``solve`` that describe machines."""

OF_SEARCH = ("prefer", *DIMENSIONS)
"""Arguments of ``solve`` that say how to search, and nothing about a launch."""

EXPORTED = ("torchrun", "slurm")
"""Formats whose launch is read back."""

_Times = tuple[float, float]
"""Simulated and expected seconds of an iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    Job of which answers are compared.

    Parameters
    ----------
    folder
        Folder for plans, exported launches and traces.
    job
        Arguments of :func:`pipette_opt.solve` that describe the job.
    limits
        Arguments of all searches: ``time_limit_s``, ``workers`` and ``seed``.
    """

    folder: Path
    job: Mapping[str, Any]
    limits: Mapping[str, Any]

    def solve(self, name: str, **more: Any) -> Plan:
        """Return the plan of the job with further arguments, and write it to ``NAME.json``."""
        plan = po.solve(**{**self.job, **self.limits, "gap_limit": 0.0, **more})
        po.write_plan(plan, self.path(name))
        return plan

    def solve_on(self, cluster: ClusterSpec) -> Plan:
        """Return the plan of the job on other machines, which are in no file."""
        others = {name: value for name, value in self.job.items() if name not in MACHINES}
        return po.solve(cluster, **{**others, **self.limits, "gap_limit": 0.0})

    def path(self, name: str) -> Path:
        """Return the path of a plan's file."""
        return self.folder / f"{name}.json"

    def instance(self, name: str = "plan") -> Instance:
        """Return the job of a written plan."""
        return plan_and_instance(self.path(name), None)[1]

    def ask(self, name: str = "plan", **questions: Any) -> Answers:
        """Return the answers of ``whatif`` to questions about a written plan."""
        return po.whatif(self.path(name), **{**self.limits, **questions})


def times(estimate: IterationTime) -> _Times:
    """Return simulated and expected seconds."""
    return estimate.iteration_time_s, estimate.expected_s


def is_searched(plan: Plan, config: ParallelConfig) -> bool:
    """Return whether the search of a plan had every value of a configuration."""
    searched = plan.certificate.searched
    return all(getattr(config, DIMENSIONS[name]) in values for name, values in searched.items())


def is_whole(plan: Plan) -> bool:
    """Return whether the time limit left the whole space to the search of a plan; else its gap is of a part."""
    return not recorded_space(plan).narrowed


def beaten(plan: Plan, found: _Times, name: str) -> Iterator[str]:
    """Yield a sentence for each clock by which a time of the same job is below a plan's by more than its gap."""
    gap = plan.certificate.shown_gap
    for clock, ours, theirs in zip(CLOCKS, times(plan.estimate), found, strict=True):
        if theirs < ours * (1 - gap) * (1 - ROUNDING):
            yield (
                f"{name}: {theirs:.9g} s {clock}, but {plan.config.label()} takes {ours:.9g} s with a gap of "
                f"{gap:.3%}, so that nothing is below {ours * (1 - gap):.9g} s"
            )


def unlike(expected: _Times, found: _Times, name: str, within: float = EXACT) -> Iterator[str]:
    """Yield a sentence for each clock by which a plan does not have its time."""
    for clock, right, wrong in zip(CLOCKS, expected, found, strict=True):
        if abs(wrong - right) > within * right:
            yield f"{name}: {wrong:.9g} s {clock} is not {right:.9g} s ({wrong / right - 1:+.3%})"


def unlike_ratio(expected: _Times, found: _Times, name: str, within: float = ROUNDING) -> Iterator[str]:
    """Yield a sentence if two plans of a job have different ratios of expected and simulated time."""
    right, wrong = expected[1] / expected[0], found[1] / found[0]
    if abs(wrong / right - 1) > within:
        yield f"{name}: expected over simulated time is {wrong:.7f}, not {right:.7f} as for the plan"


def pins_never_beat(case: Case, plan: Plan, pins: Mapping[str, Any], **more: Any) -> Iterator[str]:
    """Yield contradictions between the free plan and the plan with pinned options, in either direction."""
    name = ", ".join(f"{option}={values}" for option, values in pins.items())
    is_pinned = all(getattr(plan.config, DIMENSIONS[option]) in values for option, values in pins.items())
    try:
        pinned = case.solve("pinned", **more, **pins)
    except InfeasibleError as error:
        if is_pinned:
            yield f"{name}: no plan ({error}), although {plan.config.label()} satisfies them"
        return
    name = f"{pinned.config.label()} by {name}"
    yield from unlike_ratio(times(plan.estimate), times(pinned.estimate), name)
    if is_searched(plan, pinned.config):
        yield from beaten(plan, times(pinned.estimate), name)
    if is_pinned and is_searched(pinned, plan.config):
        yield from beaten(pinned, times(plan.estimate), f"the free plan, which satisfies {name}")


def one_time(case: Case, plan: Plan) -> Iterator[str]:
    """Yield contradictions between the plan and its time in ``estimate``, ``whatif``, ``replan`` and ``explain``."""
    right, path = times(plan.estimate), case.path("plan")
    again = po.estimate(path)
    yield from unlike(right, times(again.estimate), "estimate of the file")
    yield from unlike(right, times(po.estimate(plan).estimate), "estimate of the plan")
    if [stage.predicted_bytes for stage in again.memory] != [stage.predicted_bytes for stage in plan.memory]:
        yield "estimate of the file: another memory than in the plan"
    asked = case.ask(num_gpus=plan.config.world_size)
    yield from unlike(right, _times_of(asked.today), "today of whatif")
    if not asked.is_as_recorded:
        yield "whatif: not as recorded"
    why = po.explain(plan.config.label(), plan=path, time_limit_s=1.0, workers=1).answers[0].why
    if why.verdict != "the plan" or why.best_s is None or abs(why.best_s / right[0] - 1) > EXACT:
        yield f"explain of the plan: {why.verdict}, {why.best_s} s in place of {right[0]:.9g} s"
    if len(plan.hosts) > 1:
        lost = plan.hosts[plan.placement.nodes_used[-1]]
        try:
            replanned = po.replan(path, lost=lost, **case.limits)
        except InfeasibleError:
            return
        yield from unlike(right, times(replanned.old.estimate), f"before of replan without {lost}")
        po.write_plan(replanned.chosen.plan, case.path("replanned"))
        yield from _verified(case, "replanned", f"replan without {lost}")


def _times_of(answer: Answer) -> _Times:
    """Return simulated and expected seconds of an answer that has a plan."""
    assert answer.simulated_s is not None
    assert answer.expected_s is not None
    return answer.simulated_s, answer.expected_s


def explained_as_proven(case: Case, plan: Plan) -> Iterator[str]:
    """Yield contradictions between ``explain`` of each alternative, and the plan's proof."""
    labels = [other.config.label() for other in plan.alternatives]
    if not labels:
        return
    limits = {**case.limits, "time_limit_s": min(1.0, case.limits["time_limit_s"])}
    for answer in po.explain(labels, plan=case.path("plan"), **limits).answers:
        proven_s, placed = plan.certificate.lower_bound_s, answer.placed
        if placed is not None and placed.iteration_time_s < proven_s * (1 - ROUNDING):
            yield f"explain {answer.asked}: placed in {placed.iteration_time_s:.9g} s, below the bound {proven_s:.9g} s"
        if answer.why.verdict in ("illegal", "too big", "cannot be placed"):
            why = "; ".join(answer.why.reasons[:2])
            yield f"explain {answer.asked}: {answer.why.verdict} ({why}), but it is an alternative of the plan"


def measured_as_predicted(case: Case, plan: Plan, factor: float = 1.0) -> Iterator[str]:
    """Yield changes by a measured run of the plan that took ``factor`` times the expected time, but for this factor."""
    path, (simulated_s, expected_s) = case.path("plan"), times(plan.estimate)
    runs = [f"{path}={factor * expected_s:.12g}s"]
    name = f"measured {factor:g} times as predicted"
    right = (simulated_s, factor * expected_s)
    yield from unlike(right, times(po.estimate(path, measured_runs=runs).estimate), f"{name}, estimate", MEASURED)
    known = case.solve("measured", measured_runs=runs)
    yield from _for_time(known, name)
    found = known.estimate.iteration_time_s, known.estimate.expected_s
    yield from unlike_ratio(right, found, f"{name}, {known.config.label()}", MEASURED)
    if is_searched(known, plan.config):
        yield from beaten(known, (simulated_s, factor * expected_s / (1 - MEASURED)), f"{name}, the plan before")
    if is_searched(plan, known.config) and _fits_unmeasured(plan, known):
        yield from beaten(plan, (found[0], found[0] * expected_s / simulated_s), f"{name}, {known.config.label()}")


def _for_time(plan: Plan, name: str) -> Iterator[str]:
    """Yield a sentence if the objective of a plan is not its time."""
    if plan.target is not None or plan.inputs.get("objective", "time") != "time":
        yield f"{name}: the objective is {plan.inputs.get('objective')}"


def _fits_unmeasured(plan: Plan, known: Plan) -> bool:
    """Return whether a plan that knows of a run fits by the stack of a plan before, too; runs that fitted give room."""
    return po.estimate(replace(known, inputs={**known.inputs, "stack": plan.inputs["stack"]})).is_to_fit


def runs_keep_one_ratio(case: Case, plan: Plan, ratios: Sequence[float]) -> Iterator[str]:
    """Yield contradictions after runs of the plan and of its alternatives, each so many times as long as predicted."""
    ran = {plan.config: ("plan", plan)}
    for number, other in enumerate(plan.alternatives):
        if len(ran) < len(ratios) and other.config not in ran:
            name = f"alternative{number}"
            alternative = case.solve(name, **near(plan, other.config))
            ran.setdefault(alternative.config, (name, alternative))
    runs = [
        f"{case.path(name)}={ratio * run.estimate.expected_s:.12g}s"
        for (name, run), ratio in zip(ran.values(), ratios, strict=False)
    ]
    name = f"{len(runs)} runs of {', '.join(f'{ratio:g}' for ratio in ratios)} times the prediction"
    known = case.solve("known", measured_runs=runs)
    yield from _for_time(known, name)
    yield from _verified(case, "known", name)
    right = times(known.estimate)
    yield from unlike(right, times(po.estimate(case.path("known")).estimate), f"{name}, estimate of the file")
    for other in known.alternatives[:2]:
        if other.iteration_time_s is None:
            continue
        pins = near(known, other.config)
        for problem in pins_never_beat(case, known, pins, measured_runs=runs):
            yield f"{name}, {problem}"
        yield from _verified(case, "pinned", f"{name}, {other.config.label()}")


def _verified(case: Case, name: str, when: str) -> Iterator[str]:
    """Yield the rules that a written plan breaks."""
    plan, instance = plan_and_instance(case.path(name), None)
    try:
        verify(instance, plan)
    except PipetteError as error:
        yield f"{when}: verify: {error}"


def pins_of(config: ParallelConfig, names: Sequence[str]) -> dict[str, Any]:
    """Return arguments of ``solve`` that pin dimensions to the values of a configuration."""
    return {name: (getattr(config, DIMENSIONS[name]),) for name in names}


def near(plan: Plan, config: ParallelConfig) -> dict[str, Any]:
    """
    Return arguments of ``solve`` that pin degrees, micro-batch and recomputation to those of a configuration.

    The number of chunks of a layout stays open: pinned, it needs layers that can be divided evenly.
    """
    names = {degree.option for degree in DEGREES} | {"recompute"}
    if config.pipeline_model_parallel_layout is not None:
        names.discard("virtual_pipeline")
    return pins_of(config, [name for name in plan.certificate.searched if name in names])


def more_is_not_worse(case: Case, plan: Plan) -> Iterator[str]:
    """Yield contradictions about faster links, a repaired host, and one more host."""
    instance = case.instance()
    if instance.cluster.num_nodes == 1:
        return
    host = plan.hosts[plan.placement.nodes_used[0]]
    questions: list[tuple[Change, dict[str, Any]]] = [
        (more_hosts(instance, 1), {"add_hosts": 1}),
        (faster_links(instance, 2.0), {"link_speed": 2}),
        (repaired_host(instance, host), {"repair": host}),
    ]
    together = case.ask(**{name: value for _, asked in questions for name, value in asked.items()})
    by_name = {answer.name: answer for answer in together.answers}
    for change, asked in questions:
        alone = case.ask(**asked)
        yield from _not_worse(alone, alone.answers[0], f"{change.name}, alone")
        yield from _not_worse(together, by_name[change.name], f"{change.name}, together")
        yield from agreed(alone.answers[0], by_name[change.name], change.name)
        solved = case.solve_on(change.instance.cluster)
        if is_whole(solved):
            yield from beaten(solved, times(plan.estimate), f"{change.name}: the plan before")
        for answer in (alone.answers[0], by_name[change.name]):
            yield from answered(solved, answer)


def a_lost_host_agrees(case: Case, plan: Plan) -> Iterator[str]:
    """Yield contradictions about the loss of a host: asked alone, with others, planned again, and solved."""
    if len(plan.hosts) == 1:
        return
    lost = plan.hosts[plan.placement.nodes_used[0]]
    alone, together = case.ask(without=lost), case.ask(without="each", add_hosts=1)
    answer = alone.answers[0]
    other = next(found for found in together.answers if found.name == answer.name)
    yield from agreed(answer, other, answer.name)
    try:
        solved = case.solve("lost", exclude_hosts=lost)
        replanned = po.replan(case.path("plan"), lost=lost, **case.limits).chosen.plan
    except InfeasibleError:
        return
    for found in (answer, other):
        yield from answered(solved, found)
        yield from _not_below(found, replanned, "replan")
    yield from unlike_ratio(times(solved.estimate), times(replanned.estimate), f"{answer.name}, replan")
    if is_searched(solved, replanned.config):
        yield from beaten(solved, times(replanned.estimate), f"{answer.name}, replan")


def _not_worse(asked: Answers, answer: Answer, name: str) -> Iterator[str]:
    """Yield a sentence if an answer is slower than the plan without the change."""
    if answer.simulated_s is None:
        yield f"{name}: {answer.why}"
        return
    if answer.as_it_is_s is None:
        yield f"{name}: the plan as it is cannot run"
    for clock, before, after in zip(CLOCKS, _times_of(asked.today), _times_of(answer), strict=True):
        if after > before * (1 + ROUNDING):
            yield f"{name}: {after:.9g} s {clock}, slower than {before:.9g} s before"


def agreed(first: Answer, second: Answer, name: str) -> Iterator[str]:
    """Yield contradictions between two answers to one question: a time below the bound of the other."""
    for answer, other in ((first, second), (second, first)):
        if answer.simulated_bound_s is None or other.simulated_s is None:
            continue
        if other.simulated_s < answer.simulated_bound_s * (1 - ROUNDING):
            yield (
                f"{name}: {other.simulated_s:.9g} s found, but {answer.simulated_bound_s:.9g} s at best when asked "
                f"{'alone' if answer is first else 'together'}"
            )
    if first.simulated_s is not None and second.simulated_s is not None:
        yield from unlike_ratio(_times_of(first), _times_of(second), name)


def answered(solved: Plan, answer: Answer) -> Iterator[str]:
    """Yield contradictions between an answer of ``whatif`` and the plan of the changed job."""
    if answer.simulated_s is None:
        return
    yield from unlike_ratio(times(solved.estimate), _times_of(answer), f"{answer.name}, whatif")
    if is_whole(solved):
        yield from beaten(solved, _times_of(answer), f"{answer.name}, whatif")
    yield from _not_below(answer, solved, "solve")


def _not_below(answer: Answer, plan: Plan, by: str) -> Iterator[str]:
    """Yield a sentence if a plan is below the bound of an answer."""
    found_s = plan.estimate.iteration_time_s
    if answer.simulated_bound_s is not None and found_s < answer.simulated_bound_s * (1 - ROUNDING):
        yield (
            f"{answer.name}: whatif has {answer.simulated_bound_s:.9g} s at best, but {by} finds {found_s:.9g} s with "
            f"{plan.config.label()}"
        )


def exported_is_the_plan(case: Case, plan: Plan) -> Iterator[str]:
    """Yield differences between the plan and its exported launch, read back and as a measured run."""
    nodes = list(dict.fromkeys(plan.placement.node.tolist()))  # in the order of their first ranks
    hosts = None if hosts_are_named(plan) else ",".join(plan.hosts[node] for node in nodes)
    job = {name: value for name, value in case.job.items() if name not in OF_SEARCH}
    for target in EXPORTED:
        folder = case.folder / target
        try:
            po.export(case.path("plan"), target, out=folder, force=True)
        except po.InputError:
            continue  # the format cannot express the plan
        read = po.estimate(launch=launch_in(folder), host_order=hosts, **job)
        overlap = plan.config.tp_comm_overlap  # read back as an option of the training, which costs the same
        if replace(read.config, tp_comm_overlap=overlap) != plan.config:
            yield f"{target}: read back as {read.config}, not as {plan.config}"
        if [stage.predicted_bytes for stage in read.memory] != [stage.predicted_bytes for stage in plan.memory]:
            yield f"{target}: read back with another memory"
        if hosts is None or _is_in_order(plan, nodes):
            yield from unlike(times(plan.estimate), times(read.estimate), f"{target}, read back")
        if hosts is None:
            runs = [f"{folder}={plan.estimate.expected_s:.12g}s"]
            known = po.estimate(case.path("plan"), measured_runs=runs)
            yield from unlike(times(plan.estimate), times(known.estimate), f"{target}, measured as predicted", MEASURED)


def _is_in_order(plan: Plan, nodes: Sequence[int]) -> bool:
    """Return whether ranks fill the hosts one after the other, as in a launch whose host order alone is known."""
    placement = plan.placement
    filled = identity_placement(plan.config, plan.gpus_per_node, np.array(nodes), placement.order)
    return bool((filled.node == placement.node).all() and (filled.local_rank == placement.local_rank).all())
