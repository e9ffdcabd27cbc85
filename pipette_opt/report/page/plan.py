"""Panel of the plan in words, with its hosts and the launcher's flags."""

from collections.abc import Sequence

from pipette_opt.plans.plan import Plan
from pipette_opt.report.first_screen import export_command, hosts_words, launcher_flags, needs_words
from pipette_opt.report.page.markup import Panel, element, paragraph
from pipette_opt.report.tables import configuration_words


def plan_panel(plan: Plan, flags: Sequence[Sequence[str]], file: str) -> Panel:
    """
    Panel of the plan in words, its hosts, and the launcher's flags to copy.

    Parameters
    ----------
    flags
        Megatron-LM's options for the plan, each with its values; empty if Megatron-LM cannot express the plan.
    file
        Name of the plan file.
    """
    needs = needs_words(plan)
    options = (element("span", option) for option in launcher_flags(plan, flags))
    spaced = [part for option in options for part in (option, " ")][:-1]
    body = [
        paragraph(element("strong", f"{configuration_words(plan.config, plan.global_batch_size)}.")),
        paragraph(f"Hosts: {hosts_words(plan)}." + (f" Needs {needs}." if needs else "")),
    ]
    if spaced:
        body += [
            paragraph("Flags of Megatron-LM for this plan, to copy into your launch:"),
            element("pre", *spaced, class_="flags", tabindex="0", aria_label="Flags of the plan"),
        ]
    written = "The launch files, with the hosts in the plan's order, are written by "
    body += [
        paragraph(written, element("code", export_command(plan, file)), "."),
        paragraph("Tables and figures call it ", element("code", plan.config.label()), "."),
    ]
    return Panel(name="plan", title="Plan", body=body)
