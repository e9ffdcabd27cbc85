"""What there is beside a plan, for people: the fastest found, the next best, and the trade between time and risk."""

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import counted, gib
from pipette_opt.plans.plainness import WITHIN, unevenness
from pipette_opt.plans.plan import Alternative, Plan
from pipette_opt.report.cells import columns_table, risk, seconds_text, spaced


def fastest_line(plan: Plan) -> str:
    """What the fastest plan found is, and why it is not shown; empty where the plan is the fastest."""
    text = fastest_words(plan)
    why = f"Of plans within {100 * WITHIN:g} % of it the plainest is shown; --prefer fastest takes that one."
    return text and f"The fastest found: {text}. {why}"


def fastest_words(plan: Plan) -> str:
    """What the fastest plan found is, and what the plainer one costs; empty where the plan is the fastest."""
    fastest = plan.fastest
    if fastest is None or fastest.iteration_time_s is None:
        return ""
    faster = 1 - fastest.iteration_time_s / plan.estimate.iteration_time_s
    text = f"{fastest.config.label()} is {_percent(faster)} faster"
    if less_plain := _less_plain(plan, fastest):
        text += f", with {', '.join(less_plain)}"
    return text


def _less_plain(plan: Plan, fastest: Alternative) -> list[str]:
    """What makes the fastest less plain than the plan, the weightiest first."""
    config, found = fastest.config, []
    risks = [one.oom_probability for one in plan.memory]
    if fastest.oom_probability is not None and fastest.oom_probability > max(risks, default=1.0):
        found.append(f"a risk of running out of memory of {_risk(fastest)}")
    if config.pipeline_model_parallel_size != plan.config.pipeline_model_parallel_size:
        found.append(counted(config.pipeline_model_parallel_size, "stage"))
    if config.num_chunks != plan.config.num_chunks:
        found.append(counted(config.num_chunks, "model chunk"))
    if unevenness(config) > unevenness(plan.config):
        found.append("uneven layers")
    return found


def alternatives_table(plan: Plan) -> RenderableType:
    """The next best kinds of configuration, each with whether anything of its kind can be faster."""
    table = columns_table("next best", "iteration >", "out of memory >", "its kind", "why not")
    for one in plan.alternatives:
        cells = [one.config.label(), seconds_text(one.iteration_time_s), _risk(one), _proof(one), one.reason]
        table.add_row(*map(Text, cells))
    return spaced(table)


def risks_table(plan: Plan) -> list[RenderableType]:
    """The trade between time and the risk of running out of memory; nothing where it was not looked at."""
    if not plan.risks:
        return []
    table = columns_table("fastest with a risk of", "configuration", "iteration >", "at most >", "of >", "risk >")
    for one in plan.risks:
        cells = [
            f"at most {one.max_oom_risk:.2%}",
            one.plan.config.label(),
            seconds_text(one.plan.iteration_time_s),
            f"{gib(one.upper_bytes):.1f} GiB",
            f"{gib(one.capacity_bytes):.1f} GiB",
            _risk(one.plan),
        ]
        table.add_row(*map(Text, cells))
    return [spaced(table)]


def imbalance_line(plan: Plan) -> str:
    """That experts are taken to be evenly loaded, and what the plan would take if they are not; empty otherwise."""
    found = plan.imbalance
    if found is None:
        return ""
    slower = found.iteration_time_s / plan.estimate.iteration_time_s - 1
    return (
        f"Experts are assumed to be evenly loaded. With {found.expert_imbalance:g} times the mean tokens on the "
        f"busiest rank of experts an iteration takes {_percent(slower)} more, and the risk of running out of memory is "
        f"{risk(found.oom_probability)} (--expert-imbalance {found.expert_imbalance:g} plans for it)."
    )


def _risk(one: Alternative) -> str:
    return "-" if one.oom_probability is None else risk(one.oom_probability, at_most=one.oom_probability_at_most)


def _proof(one: Alternative) -> str:
    """Whether the best of a kind of configuration is proven, or what it takes at least."""
    if one.lower_bound_s is None:
        return ""
    return "proven" if one.is_proven else f"open, at least {seconds_text(one.lower_bound_s)}"


def _percent(share: float) -> str:
    """One digit after the point below 10 %."""
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
