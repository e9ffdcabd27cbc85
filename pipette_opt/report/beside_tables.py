"""Tables of other plans: the fastest found, the next best, and the fastest for each risk of running out of memory."""

import numpy as np
from rich.console import RenderableType

from pipette_opt.base.units import MIN_DIFFERENCE, counted, difference, three_digits
from pipette_opt.plans.plainness import WITHIN, is_in_order, unevenness
from pipette_opt.plans.plan import Alternative, Plan
from pipette_opt.plans.verdict import risk_words
from pipette_opt.report.cells import columns_table, expected_text, spaced

BEST_OF_KIND = "best searched"
"""Words for a plan than which no searched plan with the same degrees, micro-batch and recomputation is faster."""


AS_MOST = "as most run it"
"""Name of data parallelism alone on all GPUs in tables."""


UNCHECKED = ": no public run with experts checks it"
"""Reason why ZeRO 3 is not searched for models with experts."""


def fastest_line(plan: Plan) -> str:
    """Return a sentence on the fastest plan found and why a plainer plan is shown; empty if the plan is the fastest."""
    text = fastest_words(plan)
    why = f"Of plans within {100 * WITHIN:g} % of it the plainest is shown; --prefer fastest takes that one."
    return text and f"The fastest found: {text}. {why}"


def fastest_words(plan: Plan) -> str:
    """Return how much faster the fastest plan found is, and why it is less plain; empty if the plan is the fastest."""
    fastest = plan.fastest
    if fastest is None or fastest.iteration_time_s is None:
        return ""
    ratio = plan.estimate.iteration_time_s / fastest.iteration_time_s
    faster = difference(ratio, "faster", "slower", "as fast")
    if fastest.config == plan.config:
        return f"the plan with its ranks on hosts in another order is {faster}" if ratio >= 1 + MIN_DIFFERENCE else ""
    text = f"{fastest.config.label()} is {faster}"
    if less_plain := _less_plain(plan, fastest):
        text += f", with {', '.join(less_plain)}"
    return text


def _less_plain(plan: Plan, fastest: Alternative) -> list[str]:
    """Return the reasons why the fastest plan found is less plain than the chosen plan, the most important first."""
    config, found = fastest.config, []
    risks = [stage.oom_probability for stage in plan.memory]
    if unevenness(config) > unevenness(plan.config):
        found.append("uneven layers")
    if not is_in_order(np.array(list(map(plan.hosts.index, fastest.hosts)))):
        found.append("hosts in another order than listed")
    if config.pipeline_model_parallel_size != plan.config.pipeline_model_parallel_size:
        found.append(counted(config.pipeline_model_parallel_size, "stage"))
    if config.num_chunks != plan.config.num_chunks:
        found.append(counted(config.num_chunks, "model chunk"))
    if fastest.oom_probability is not None and fastest.oom_probability > max(risks, default=1.0):
        found.append(f"a risk of running out of memory of {_risk(fastest)}")
    return found


def order_words(plan: Plan) -> str:
    """Return what the order of the hosts saves against the listed order; empty if the plan has hosts as listed."""
    listed = plan.listed
    if listed is None:
        return ""
    if listed.iteration_time_s is None:
        return f"hosts in another order than listed: in the listed order the plan {listed.reason}"
    saved = difference(plan.estimate.iteration_time_s / listed.iteration_time_s, "more", "less", "as much")
    return f"hosts in another order than listed: this order takes {saved} time"


def overlap_words(plan: Plan) -> str:
    """Return why the reduction of gradients does not overlap with compute; empty if it does, or cannot."""
    other = plan.overlapped
    if other is None or other.iteration_time_s is None:
        return ""
    ratio = other.iteration_time_s / plan.estimate.iteration_time_s
    with_it = other.reason if ratio >= 1 + MIN_DIFFERENCE else difference(ratio, "slower", "faster", "as fast")
    pinned = ", as pinned" if (plan.inputs.get("search") or {}).get("overlap_grad_reduce") is False else ""
    return f"gradient reduction does not overlap with compute{pinned}: with overlap the plan is {with_it}"


def usual_words(plan: Plan) -> tuple[str, str] | None:
    """
    Return the name of data parallelism alone, as most run it, and how much slower it is, or why it is no choice.

    ``None`` if the plan does not record it.
    """
    usual, config = plan.usual, plan.config
    if usual is None:
        is_usual = config.data_parallel_size == config.world_size > 1
        return (AS_MOST, "this plan") if is_usual else None
    if usual.plan is None or usual.plan.iteration_time_s is None:
        return f"{AS_MOST}: data parallelism alone, with ZeRO 1 or 3", usual.problem
    ratio = usual.plan.iteration_time_s / plan.estimate.iteration_time_s
    has_experts = (plan.inputs.get("model") or {}).get("num_experts") is not None
    faster = f"faster, not searched{UNCHECKED if has_experts else ''}"
    return f"{AS_MOST}: {usual.plan.config.label()}", difference(ratio, "slower", faster, "as fast")


def alternatives_table(plan: Plan) -> RenderableType:
    """Table of the next best configurations, each with a lower bound for plans with such degrees."""
    table = columns_table("next best", "iteration >", "out of memory >", "its kind", "why not")
    for alternative in plan.alternatives:
        cells = [
            alternative.config.label(),
            expected_text(plan.estimate, alternative.iteration_time_s),
            _risk(alternative),
            _proof(plan, alternative),
            alternative.reason,
        ]
        table.add_row(*cells)
    if (named := usual_words(plan)) is not None:
        table.add_row(named[0], *_usual_figures(plan), "", named[1])
    return spaced(table)


def usual_risk(plan: Plan) -> str:
    """Return the risk of data parallelism alone to run out of memory; empty without such a plan."""
    return "" if plan.usual is None or plan.usual.plan is None else _risk(plan.usual.plan)


def _usual_figures(plan: Plan) -> tuple[str, str]:
    """Return time and risk of data parallelism alone; empty without such a plan."""
    usual = plan.usual and plan.usual.plan
    return (expected_text(plan.estimate, usual.iteration_time_s), _risk(usual)) if usual else ("", "")


def risks_table(plan: Plan) -> list[RenderableType]:
    """Table of the fastest plan for each accepted risk of running out of memory; empty if the search left it out."""
    if not plan.risks:
        return []
    table = columns_table("fastest with a risk of", "configuration", "iteration >", "risk >")
    for choice in plan.risks:
        cells = [
            f"at most {100 * choice.max_oom_risk:.2f} %",
            choice.plan.config.label(),
            expected_text(plan.estimate, choice.plan.iteration_time_s),
            _risk(choice.plan),
        ]
        table.add_row(*cells)
    return [spaced(table)]


def imbalance_line(plan: Plan) -> str:
    """Return a sentence on evenly loaded experts, with time and risk of an uneven load; empty without experts."""
    found = plan.imbalance
    if found is None:
        return ""
    slower = three_digits(100 * (found.iteration_time_s / plan.estimate.iteration_time_s - 1))
    return (
        f"Experts are assumed to be evenly loaded. With {found.expert_imbalance:g} times the mean tokens on the "
        f"busiest rank of experts an iteration takes {slower} % more, and the risk of running out of "
        f"memory is {risk_words(found.oom_probability)} (--expert-imbalance {found.expert_imbalance:g} plans for it)."
    )


def _risk(alternative: Alternative) -> str:
    return "-" if alternative.oom_probability is None else risk_words(alternative.oom_probability)


def _proof(plan: Plan, alternative: Alternative) -> str:
    """
    Return :data:`BEST_OF_KIND` if no searched plan with these degrees, micro-batch and recomputation is faster.

    Else the lower bound on such plans; empty if no bound is known.
    """
    if alternative.lower_bound_s is None:
        return ""
    if alternative.is_proven:
        return BEST_OF_KIND
    return f"open, at least {expected_text(plan.estimate, alternative.lower_bound_s)}"
