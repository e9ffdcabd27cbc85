"""By which objective a plan was chosen, in its file."""

from pipette_opt.plans.chosen import Choice, ChoiceStep
from pipette_opt.report.entries import Entries


def read_choice(chosen: Entries) -> Choice:
    """What a file says about the objective; errors name the field."""
    return Choice(
        objective=chosen.text("objective"),
        value=chosen.number("value"),
        lower_bound=chosen.number("lower_bound"),
        gap=chosen.number("gap"),
        rest_factor=chosen.optional("rest_factor", chosen.number),
        steps=tuple(
            ChoiceStep(
                limits=tuple(one.texts("limits")),
                plan=one.text("plan"),
                factor=one.number("factor"),
                iteration_time_s=one.number("iteration_time_s"),
                lower_bound_s=one.number("lower_bound_s"),
            )
            for one in chosen.mappings("steps")
        ),
        shown_value=chosen.optional("shown_value", chosen.positive) if "shown_value" in chosen.data else None,
    )
