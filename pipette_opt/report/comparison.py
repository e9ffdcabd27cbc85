"""A plan beside what runs today."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.report.cells import BAD, GOOD, columns_table, percent, seconds_text, spaced, words

EQUAL = 5e-5
"""Relative difference that two digits of a percentage do not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """
    What a time leaves out.

    Parameters
    ----------
    saved_s, parts
        By option: at most so many seconds less, since it saves no more than a part of the critical path, and which.
    others
        Options that change the time by nobody knows how much.
    """

    saved_s: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    others: int = 0

    def least_s(self, estimate: IterationTime) -> float:
        """The time if each part that may be saved were saved whole."""
        saved = {self.parts[option]: seconds for option, seconds in self.saved_s.items()}
        return estimate.iteration_time_s - sum(saved.values())

    def lines(self) -> list[str]:
        """The same for people, one sentence each."""
        by_part: dict[str, list[str]] = {}
        for option, part in self.parts.items():
            if self.saved_s[option] > 0:
                by_part.setdefault(part, []).append(option)
        found = []
        for part, options in by_part.items():
            save = "saves" if len(options) == 1 else "save"
            most = f"{seconds_text(self.saved_s[options[0]])}, all {words(part)} of the critical path"
            found.append(f"Not counted: {', '.join(options)} {save} today's launch up to {most}.")
        if self.others:
            more, plural = "more " if found else "", "option changes" if self.others == 1 else "options change"
            found.append(f"Not counted: {self.others} {more}{plural} today's time by an unknown amount, see above.")
        return found


def comparison(
    config: ParallelConfig, estimate: IterationTime, plan: Plan, title: str, uncounted: Uncounted
) -> RenderableType:
    """Two rows of times, and how much faster the plan is, in a range where something is not counted."""
    table = columns_table("", "configuration", "iteration >", "tokens/s >", "MFU >")
    for name, label, time in (
        (title, config.label(), estimate),
        ("the plan", plan.config.label(), plan.estimate),
    ):
        table.add_row(
            Text(name),
            Text(label),
            Text(seconds_text(time.iteration_time_s)),
            Text(f"{time.tokens_per_s:,.0f}"),
            Text(percent(time.mfu)),
        )
    return Group(spaced(table), Text(), _faster(estimate, plan.estimate, uncounted))


def _faster(estimate: IterationTime, plan: IterationTime, uncounted: Uncounted) -> Text:
    """One sentence, and what it leaves out."""
    saved = estimate.iteration_time_s - plan.iteration_time_s
    share, least_s = saved / estimate.iteration_time_s, uncounted.least_s(estimate)
    if least_s < estimate.iteration_time_s:
        low = (least_s - plan.iteration_time_s) / least_s
        text = Text(f"The plan is between {_word(share)} and {_word(low)}.", style="bold")
    elif abs(share) < EQUAL:
        text = Text("The plan is equally fast.", style="bold")
    else:
        text = Text(f"The plan is {_word(share)}: {seconds_text(abs(saved))} per iteration.")
        text.stylize(f"bold {GOOD if saved > 0 else BAD}")
    for line in uncounted.lines():
        text.append(f"\n{line}")
    return text


def _word(share: float) -> str:
    """``22.52% faster``, or slower, or equally fast."""
    if abs(share) < EQUAL:
        return "equally fast"
    return f"{percent(abs(share))} {'faster' if share > 0 else 'slower'}"
