"""Comparison of a plan with the launch that runs today."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.table import BAD, GOOD, Table
from pipette_opt.base.units import MIN_DIFFERENCE, difference, percent, short_seconds, three_digits, words
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Band, IterationTime, Plan
from pipette_opt.plans.tables import expected_text
from pipette_opt.plans.verdict import jobs_words
from pipette_opt.report.cells import as_rich


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """
    Effects of options that the predicted time of a launch leaves out.

    Parameters
    ----------
    saved_s, parts
        For each option, the most simulated seconds that it can save, and the part of the critical path that limits
        the saving.
    others
        Number of options that change the time by an unknown amount.
    """

    saved_s: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    others: int = 0

    def least_s(self, estimate: IterationTime) -> float:
        """Return the simulated seconds of an iteration if every option saves the most that it can."""
        saved = {self.parts[option]: seconds for option, seconds in self.saved_s.items()}
        return estimate.iteration_time_s - sum(saved.values())

    def lines(self, estimate: IterationTime) -> list[str]:
        """Return a sentence for each part of the critical path that options shorten, one for unknown effects."""
        by_part: dict[str, list[str]] = {}
        for option, part in self.parts.items():
            if self.saved_s[option] > 0:
                by_part.setdefault(part, []).append(option)
        found = []
        for part, options in by_part.items():
            save = "saves" if len(options) == 1 else "save"
            most = f"{expected_text(estimate, self.saved_s[options[0]])}, all {words(part)} of the critical path"
            found.append(f"Not counted: {', '.join(options)} {save} today's launch up to {most}.")
        if self.others:
            more, plural = "more " if found else "", "option changes" if self.others == 1 else "options change"
            found.append(f"Not counted: {self.others} {more}{plural} today's time by an unknown amount, see above.")
        return found


def comparison(
    config: ParallelConfig,
    estimate: IterationTime,
    plan: Plan,
    title: str,
    uncounted: Uncounted,
    ends: tuple[float, float] | None,
    *,
    fits: bool = True,
) -> RenderableType:
    """
    Table of the expected times of a launch and of the plan, and a sentence on the plan's gain with its range.

    Parameters
    ----------
    ends, fits
        Parameters of :func:`faster_words`.
    """
    rows = [
        (
            name,
            label,
            short_seconds(time.expected_s),
            three_digits(time.expected_tokens_per_s),
            percent(time.expected_mfu),
        )
        for name, label, time in (
            (title, config.label(), estimate),
            ("the plan", plan.config.label(), plan.estimate),
        )
    ]
    table = Table(headers=("launch", "configuration", "iteration >", "tokens/s >", "MFU >"), rows=rows)
    return Group(as_rich(table), Text(), faster_words(estimate, plan.estimate, uncounted, ends, fits=fits))


def faster_words(
    estimate: IterationTime,
    plan: IterationTime,
    uncounted: Uncounted,
    ends: tuple[float, float] | None,
    *,
    fits: bool = True,
) -> Text:
    """
    Return sentences on the gain of a plan over a launch, with its range, and on effects that are left out.

    Parameters
    ----------
    ends
        Ends of the measured ratio of the launch's time to the plan's, see
        :func:`~pipette_opt.worlds.ratios.ratio_ends`; ``None`` if no range is known.
    fits
        Whether the launch is predicted to run; otherwise the gain is conditional.
    """
    ratio = estimate.expected_s / plan.expected_s
    kept = uncounted.least_s(estimate) / estimate.iteration_time_s
    subject = "The plan has" if fits else "If the launch fitted, the plan would have"
    gain = f"between {_gain(kept * ratio)} and {_gain(ratio)}" if kept < 1 else _gain(ratio)
    text = Text(f"{subject} {gain} tokens per second{_range_words(ratio, plan, kept, ends)}.")
    is_judged = fits and kept == 1 and abs(ratio - 1) >= MIN_DIFFERENCE
    text.stylize(f"bold {GOOD if ratio > 1 else BAD}" if is_judged else "bold")
    for line in uncounted.lines(estimate):
        text.append(f"\n{line}")
    return text


def _range_words(ratio: float, plan: IterationTime, kept: float, ends: tuple[float, float] | None) -> str:
    """
    Return the range of a gain as text, which holds the expected gain.

    Parameters
    ----------
    ratio
        Expected ratio of the launch's time to the plan's.
    kept
        Share of the launch's time if options save the most they can.
    """
    if ends is None:
        return ""
    low, high = _gain(kept * min(ends[0], ratio)), _gain(max(ends[1], ratio))
    return f" ({low} to {high} in nine of ten {_jobs_words(plan.band)})"


def _jobs_words(band: Band | None) -> str:
    """Return words for the jobs whose times the worlds describe: by the user's own runs, or by public runs."""
    return jobs_words(band.runs, is_own=True) if band is not None and band.is_own else "jobs like this"


def _gain(ratio: float) -> str:
    """Return a ratio as text: ``12.3 % more``, ``12.3 % fewer`` or ``as many``."""
    return difference(ratio, "more", "fewer", "as many")
