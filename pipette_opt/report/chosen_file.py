"""Reading the objective by which a plan was chosen."""

from pipette_opt.plans.chosen import Choice, ChoiceStep
from pipette_opt.report.entries import Entries


def read_choice(chosen: Entries) -> Choice:
    """Read ``certificate.chosen_by``. ``InputError`` names the field that is damaged."""
    return Choice(
        objective=chosen.text("objective"),
        value=chosen.number("value"),
        lower_bound=chosen.number("lower_bound"),
        gap=chosen.number("gap"),
        rest_factor=chosen.optional("rest_factor", chosen.number),
        steps=tuple(
            ChoiceStep(
                limits=tuple(step.texts("limits")),
                plan=step.text("plan"),
                factor=step.number("factor"),
                iteration_time_s=step.number("iteration_time_s"),
                lower_bound_s=step.number("lower_bound_s"),
            )
            for step in chosen.mappings("steps")
        ),
        shown_value=chosen.optional("shown_value", chosen.positive) if "shown_value" in chosen.data else None,
    )
