"""Words on other plans: the fastest found, the listed order, overlap, experts; the fastest plan for each risk."""

import numpy as np

from pipette_opt.base.table import Cell, Table
from pipette_opt.base.units import MIN_DIFFERENCE, chosen_percent, counted, difference
from pipette_opt.plans.plainness import WITHIN, is_in_order, unevenness
from pipette_opt.plans.plan import Alternative, Plan
from pipette_opt.plans.tables import placed, time_and_risk
from pipette_opt.plans.verdict import risk_words


def fastest_line(plan: Plan) -> str:
    """Return a sentence on the fastest plan found and why a plainer plan is shown; empty if the plan is the fastest."""
    text = fastest_words(plan)
    why = f"Of plans within {chosen_percent(WITHIN)} of it the plainest is shown; --prefer fastest takes that one."
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
        found.append(f"a risk of running out of memory of {risk_words(fastest.oom_probability)}")
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


def risks(plan: Plan) -> Table:
    """Return the fastest plan for each accepted risk of running out of memory; without rows if none was searched."""
    others = [(at, other) for at, role, other in placed(plan) if role == "less risk"]
    rows = [
        (
            Cell(f"at most {chosen_percent(choice.max_oom_risk)}"),
            other.config.label(),
            *time_and_risk(plan, other, at),
        )
        for choice, (at, other) in zip(plan.risks, others, strict=True)
    ]
    return Table(
        title="The fastest plans by accepted risk of running out of memory",
        headers=("accepted", "configuration", "iteration >", "risk >"),
        rows=rows,
    )


def imbalance_words(plan: Plan) -> str:
    """Return the assumption of evenly loaded experts, and time and risk of an uneven load; empty without experts."""
    found = plan.imbalance
    if found is None:
        return ""
    slower = difference(found.iteration_time_s / plan.estimate.iteration_time_s, "slower", "faster", "as fast")
    return (
        f"assumed to be evenly loaded; {found.expert_imbalance:g} times the mean on the busiest rank: "
        f"{slower}, risk {risk_words(found.oom_probability)}"
    )


def imbalance_line(plan: Plan) -> str:
    """Return a sentence on unevenly loaded experts, and the key that plans for them; empty without experts."""
    text = imbalance_words(plan)
    key = f"expert_imbalance: {plan.imbalance.expert_imbalance:g} in a job file" if plan.imbalance else ""
    return text and f"Experts are {text} ({key} plans for it)."
