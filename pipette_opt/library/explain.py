"""``explain``: why configurations are not the plan."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.units import MIN_DIFFERENCE
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.conflicts import conflicts
from pipette_opt.certify.labels import pinned as pinned_by_label
from pipette_opt.certify.labels import separate
from pipette_opt.certify.why import Why, against, why
from pipette_opt.job.models import check_one_model
from pipette_opt.job.read import LAUNCH, read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    described,
    params_of,
    plan_or_file,
    texts,
    watcher_of,
)
from pipette_opt.library.layout_rules import RuleRow, check_rules
from pipette_opt.library.plans import plan_and_instance, plan_of_job
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.options.description import JobOptions, SpaceOptions, fields_of
from pipette_opt.options.names import option_name, usual_field
from pipette_opt.options.questions import ExplainOptions, LimitOptions
from pipette_opt.options.values import given_of
from pipette_opt.plans.plan import AS_GOOD, Plan
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.plans.watcher import Watcher
from pipette_opt.replan.space import pinned_space
from pipette_opt.specs import ClusterSpec, Instance, ModelSpec, TrainingSpec

PLACED = ("slower", "not faster", "may win", "not searched")
"""Verdicts for which a placement is searched, to show where the time of the configuration goes."""

OF_LAUNCH = {"launch", "env"}
"""Options of a job that describe a configuration of the plan's job, too."""

PLACE_S, RULE_S = 5.0, 15.0
"""Default time limits, in seconds: of the search of a placement, and of a solve with or without a rule. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """
    The best placement found for a configuration, compared with the plan.

    Parameters
    ----------
    config
        Label of the configuration.
    iteration_time_s, plan_iteration_time_s, fastest_s
        Simulated seconds of an iteration of the configuration, of the plan, and of the fastest plan found.
    lower_bound_s
        Lower bound, in seconds, on the iteration time of every placement of the configuration.
    causes
        Simulated seconds by cause, such as bubble; ``asked_s`` for the configuration and ``plan_s`` for the plan.
    factor
        Expected over simulated time of the job's plans.
    """

    config: str
    iteration_time_s: float
    lower_bound_s: float
    plan_iteration_time_s: float
    fastest_s: float
    factor: float
    causes: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """
    Reason why a configuration is not the plan.

    Parameters
    ----------
    asked
        The configuration as the user wrote it.
    placed
        Comparison with the plan; ``None`` without a plan, or if no placement was found.
    """

    asked: str
    why: Why
    placed: Placed | None = None

    @property
    def answer(self) -> str:
        """The answer in one line, with the time of the best placement found if there is one."""
        placed = self.placed
        if placed is None:
            return self.why.answer
        own_s, plan_s = placed.iteration_time_s, placed.plan_iteration_time_s
        answer = against("the plan", placed.factor * own_s, placed.factor * plan_s)
        if own_s < (1 - MIN_DIFFERENCE) * plan_s:
            is_new = own_s < (1 - AS_GOOD) * placed.fastest_s
            answer += "; solve again with it pinned" if is_new else ", but less plain; --prefer fastest"
        return answer

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences that explain the answer; a placement replaces those on hosts in listed order."""
        if self.placed is None:
            return (*self.why.reasons, *self.why.listed)
        return (f"the fastest found is {self.placed.config}", *self.why.reasons)

    def __repr__(self) -> str:
        return lines_at_most(f"{self.asked}: {self.answer}", self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as a document for ``--json``."""
        found = {name: value for name, value in asdict(self.why).items() if name != "space"}
        return {**found, "placed": None if self.placed is None else asdict(self.placed)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explained:
    """
    Answers of ``explain``.

    Parameters
    ----------
    answers
        Explanation of each configuration that the user asked about.
    conflicts
        Sets of requirements that cannot be met together. Searched only if no configuration was asked about; empty if a
        plan exists.
    rules
        Rules of the layouts study, if asked about; fewer if stopped.
    """

    answers: tuple[Explanation, ...] = ()
    conflicts: tuple[tuple[str, ...], ...] = ()
    rules: tuple[RuleRow, ...] = ()

    def __repr__(self) -> str:
        if self.rules:
            return lines_at_most(f"{len(self.rules)} rules", [f"{row.rule}: {row.verdict}" for row in self.rules])
        if not self.answers:
            found = [", ".join(names) for names in self.conflicts]
            return lines_at_most(
                "cannot be met together" if found else "the job has legal configurations that fit", found
            )
        if len(self.answers) == 1:
            return repr(self.answers[0])
        lines = [f"{answer.asked}: {answer.answer}" for answer in self.answers]
        return lines_at_most(f"{len(lines)} configurations", lines)


@argument_errors(asked="the configuration")
def explain(
    asked: str | Iterable[str] | None = None,
    *,
    plan: Plan | Named | None = None,
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    on_progress: Told | None = None,
    **options: Any,
) -> Explained:
    """
    Explain why configurations are not the plan, which requirements cannot be met together, or which rules hold.

    Parameters
    ----------
    asked
        Configurations: labels of tables such as ``tp8 pp2``, or ``tp=8,pp=2,recompute=full``; by default that of
        ``launch``, if given.
    plan
        The plan to compare with, or its file; its job is used unless another job is given.
    cluster, model, training, space
        The job and its search space, as in :func:`~pipette_opt.solve`.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    options
        The job, as in :func:`~pipette_opt.solve`, and fields of
        :class:`~pipette_opt.options.questions.ExplainOptions` and
        :class:`~pipette_opt.options.questions.LimitOptions`. ``time_limit_s`` is that of each placement, which is
        searched only with ``plan``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    """
    job, pinned, made, how, limits = described(cluster, model, training, options, ExplainOptions, LimitOptions)
    given, words = None if plan is None else plan_or_file(plan), texts(asked)
    if how.rules and (words is not None or given is not None):
        raise InputError("--rules", "checks the whole job; leave out configurations and --plan.")
    if words and job.launch is not None and given is not None:
        raise InputError(LAUNCH, "has no effect beside configurations and --plan; leave it out.")
    params = params_of(limits, time_limit_s=how.time_limit or (RULE_S if how.rules else PLACE_S))
    is_object = any(part is not None for part in (cluster, model, training, space))
    has_job = is_object or {usual_field(name) for name in options} & fields_of(JobOptions).keys() - OF_LAUNCH
    if given is not None and not has_job:
        instance, space, old = _job_of_plan(given, pinned)
    else:
        read = read_job(job, made)
        old = None if given is None else plan_of_job(given, read.instance)
        instance, space = read.instance, search_space(read, pinned, space)
    watcher = watcher_of(on_progress)
    if how.rules:
        return Explained(rules=tuple(check_rules(instance, space, params, watcher)))
    if words:
        labels = separate(words)
    elif job.launch is not None:
        labels = [_label_of(instance, space, job.launch, job.env)]
    else:
        found = conflicts(instance, space, params.max_oom_risk)
        return Explained(conflicts=tuple(found))
    for label in labels:
        pinned_by_label(space, label)  # a slip in the last one is said before the first is placed
    return Explained(answers=tuple(_explanation(instance, space, old, label, params, watcher) for label in labels))


def _job_of_plan(plan: Plan | Path, pinned: SpaceOptions) -> tuple[Instance, SearchSpace, Plan | None]:
    """Return the job of a plan, its space with the options that its user pinned, and the plan; no others are pinned."""
    for name in given_of(pinned):
        raise InputError(option_name(name), "has no effect on the job of --plan; give the options of the job, too.")
    found, instance = plan_and_instance(plan, None)
    return instance, replace(pinned_space(found), num_gpus=found.config.world_size), found


def _label_of(instance: Instance, space: SearchSpace, text: str, env: Sequence[str] | None) -> str:
    """Return the label of a launch's configuration."""
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment

    given = read_megatron_args(text, LAUNCH, script_environment(env))
    check_one_model(instance.model, instance.training, given)
    size = space.num_gpus or instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return given.parallel_config(instance.model.num_layers, size).label()


def _explanation(
    instance: Instance, space: SearchSpace, plan: Plan | None, label: str, params: OptimizeParams, watcher: Watcher
) -> Explanation:
    """Explain a configuration; with a plan to compare with, also search its best placement."""
    if plan is not None and pinned_by_label(space, label).data_parallel != space.data_parallel:
        space = replace(space, num_gpus=None)  # a label with its replicas says how many GPUs it is on
    answer = why(instance, space, label, params.max_oom_risk, plan)
    if plan is None or answer.verdict not in PLACED:
        return Explanation(asked=label, why=answer)
    own_clock = Watcher(on_progress=watcher.on_progress, stop=watcher.stop, begun=watcher.begun)
    with contextlib.suppress(InfeasibleError):
        placed = optimize(instance, answer.space, params, own_clock)
        found = _placed(placed, plan)
        if found.iteration_time_s < (1 - AS_GOOD) * found.fastest_s:  # with layers that the plan's search did not have
            answer = replace(answer, verdict="not searched", ruled_out_by="")
        return Explanation(asked=label, why=answer, placed=found)
    return Explanation(asked=label, why=answer)


def _placed(placed: Plan, plan: Plan) -> Placed:
    own, best = placed.estimate, plan.estimate
    return Placed(
        config=placed.config.label(),
        iteration_time_s=own.iteration_time_s,
        lower_bound_s=placed.certificate.lower_bound_s,
        plan_iteration_time_s=best.iteration_time_s,
        fastest_s=plan.certificate.best_s,
        factor=best.factor,
        causes={
            cause: {"asked_s": own.breakdown.get(cause, 0.0), "plan_s": best.breakdown.get(cause, 0.0)}
            for cause in {**own.breakdown, **best.breakdown}
        },
    )
