"""Why configurations are not the plan, as a function."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.units import three_digits
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.conflicts import conflicts
from pipette_opt.certify.labels import pinned, separate
from pipette_opt.certify.why import Why, why
from pipette_opt.job.read import Job, Made, read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    described,
    plan_or_file,
    texts,
    watcher_of,
)
from pipette_opt.library.models import check_one_model
from pipette_opt.library.plans import plan_and_instance, plan_of_job
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.options.description import JobOptions
from pipette_opt.options.values import checked, threads
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.plans.watcher import Watcher
from pipette_opt.replan.space import pinned_space
from pipette_opt.specs import ClusterSpec, Instance, ModelSpec, TrainingSpec

PLACED = ("slower", "not faster", "may win", "not searched")
"""Verdicts after which the configuration is placed, to say where its time goes."""

PLACE_S = 5.0
"""Seconds of each placement, unless a time limit is given. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """
    The best placement found of a configuration, against the plan.

    Parameters
    ----------
    config
        Label of the configuration.
    iteration_time_s, plan_iteration_time_s
        Simulated seconds of an iteration: its, and the plan's.
    lower_bound_s
        No placement of what was asked for is faster.
    causes
        Seconds by cause, of it (``asked_s``) and of the plan (``plan_s``).
    """

    config: str
    iteration_time_s: float
    lower_bound_s: float
    plan_iteration_time_s: float
    causes: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """
    Why one configuration is not the plan.

    Parameters
    ----------
    asked
        The configuration as it was asked for.
    why
        Verdict and reasons.
    placed
        Where its time goes; ``None`` without a plan, or where no placement was found.
    """

    asked: str
    why: Why
    placed: Placed | None = None

    def __repr__(self) -> str:
        placed = self.placed
        lines = list(self.why.reasons)
        if placed is not None:
            ours, theirs = three_digits(placed.iteration_time_s), three_digits(placed.plan_iteration_time_s)
            lines.append(f"placed, {placed.config} takes {ours} s, the plan {theirs} s")
        return lines_at_most(f"{self.asked}: {self.why.verdict}", lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation for machines."""
        found = {name: value for name, value in asdict(self.why).items() if name != "space"}
        return {**found, "placed": None if self.placed is None else asdict(self.placed)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explained:
    """
    Answers to ``explain``.

    Parameters
    ----------
    answers
        An explanation of each configuration asked for.
    conflicts
        Sets of requirements that cannot be met together, looked for where no configuration was asked for; none: there
        is a plan.
    """

    answers: tuple[Explanation, ...] = ()
    conflicts: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        if not self.answers:
            found = [", ".join(names) for names in self.conflicts]
            return lines_at_most("cannot be met together" if found else "something is legal and fits", found)
        if len(self.answers) == 1:
            return repr(self.answers[0])
        lines = [f"{one.asked}: {one.why.verdict}; {next(iter(one.why.reasons), '')}" for one in self.answers]
        return lines_at_most(f"{len(lines)} configurations", lines)


def explain(
    asked: str | Iterable[str] | None = None,
    *,
    args: Named | None = None,
    plan: Plan | Named | None = None,
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    max_oom_risk: float = 0.01,
    time_limit_s: float = PLACE_S,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Told | None = None,
    **job: Any,
) -> Explained:
    """
    Why configurations are not the plan; without one, which requirements cannot be met together.

    Parameters
    ----------
    asked
        Configurations: labels of tables such as ``tp8 pp2``, or ``tp=8,pp=2,recompute=full``.
    args
        Megatron arguments instead, or a file that has them.
    plan
        The plan to compare with, or its file; its job is meant unless one is given.
    cluster, model, training, space, job
        The job and its space, as in :func:`~pipette_opt.solve`.
    max_oom_risk
        Accepted probability of running out of memory, in (0, 1].
    time_limit_s
        Seconds to place each configuration, which is done where there is a plan.
    workers
        Threads; all cores by default.
    seed
        Seed of every random choice.
    on_progress
        Told how far it is.

    Raises
    ------
    InputError
        If something given is wrong; ``where`` names the argument, or the file and its field.
    """
    with argument_errors(asked="the configuration"):
        options, pinned, made = described(cluster, model, training, job)
        has_job = any(part is not None for part in (cluster, model, training, space)) or bool(job)
        given = None if plan is None else plan_or_file(plan)
        asked_of = options if has_job or plan is None else None
        question = question_of(given, asked_of, lambda read: search_space(read, pinned, space), made)
        params = params_of(time_limit_s, workers, seed, max_oom_risk)
        words = texts(asked)
        text = None if args is None else fspath(args)
        return explained(question, words, text, params, watcher_of(on_progress), options.env)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A job, its space, and the plan to compare with."""

    instance: Instance
    space: SearchSpace
    plan: Plan | None


def question_of(
    plan: Plan | Path | None,
    options: JobOptions | None,
    space: Callable[[Job], SearchSpace],
    made: Made | None = None,
) -> Question:
    """
    Read the job that configurations are asked about.

    Parameters
    ----------
    options
        The job; ``None``: the plan's, with what its user pinned.
    space
        Configurations to search of a job that is given.
    """
    if options is None and plan is not None:
        found, instance = plan_and_instance(plan, None)
        own = replace(pinned_space(found), num_gpus=found.config.world_size)
        return Question(instance=instance, space=own, plan=found)
    job = read_job(options or JobOptions(), made)
    old = None if plan is None else plan_of_job(plan, job.instance)
    return Question(instance=job.instance, space=space(job), plan=old)


def params_of(time_limit_s: float, workers: int | None, seed: int, max_oom_risk: float) -> OptimizeParams:
    """Return the settings of each placement."""
    return checked(
        OptimizeParams, time_limit_s=time_limit_s, workers=threads(workers), seed=seed, max_oom_risk=max_oom_risk
    )


def explained(
    question: Question,
    asked: Sequence[str] | None,
    args: str | None,
    params: OptimizeParams,
    watcher: Watcher,
    env: Sequence[str] | None = None,
) -> Explained:
    """
    Explain each configuration, or what cannot be met together; see :func:`explain`.

    Errors name options of the command line. ``env``: variables of a launch script that ``args`` names.
    """
    if asked is not None and args is not None:
        raise InputError("--args", "is a configuration, too; give one.")
    if args is not None:
        labels = [_label_of(question, args, env)]
    elif asked:
        labels = separate(asked)
    else:
        found = conflicts(question.instance, question.space, params.max_oom_risk)
        return Explained(conflicts=tuple(found))
    for label in labels:
        pinned(question.space, label)  # a slip in the last one is said before the first is placed
    return Explained(answers=tuple(_explanation(question, label, params, watcher) for label in labels))


def _label_of(question: Question, text: str, env: Sequence[str] | None) -> str:
    """Return Megatron arguments as a label."""
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment

    instance, space = question.instance, question.space
    given = read_megatron_args(text, "the configuration", script_environment(env))
    check_one_model(instance.model, instance.training, given)
    size = space.num_gpus or instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return given.parallel_config(instance.model.num_layers, size).label()


def _explanation(question: Question, label: str, params: OptimizeParams, watcher: Watcher) -> Explanation:
    """Explain one configuration, placed where there is a plan to compare with."""
    plan = question.plan
    answer = why(question.instance, question.space, label, params.max_oom_risk, plan)
    if plan is None or answer.verdict not in PLACED:
        return Explanation(asked=label, why=answer)
    own_clock = Watcher(on_progress=watcher.on_progress, stop=watcher.stop, begun=watcher.begun)
    with contextlib.suppress(InfeasibleError):
        placed = optimize(question.instance, answer.space, params, own_clock)
        return Explanation(asked=label, why=answer, placed=_placed(placed, plan))
    return Explanation(asked=label, why=answer)


def _placed(placed: Plan, plan: Plan) -> Placed:
    own, best = placed.estimate, plan.estimate
    return Placed(
        config=placed.config.label(),
        iteration_time_s=own.iteration_time_s,
        lower_bound_s=placed.certificate.lower_bound_s,
        plan_iteration_time_s=best.iteration_time_s,
        causes={
            cause: {"asked_s": own.breakdown.get(cause, 0.0), "plan_s": best.breakdown.get(cause, 0.0)}
            for cause in {**own.breakdown, **best.breakdown}
        },
    )
