"""Tables of ``whatif`` answers and of ``recommend`` offers."""

from collections.abc import Sequence

from rich.console import RenderableType

from pipette_opt.base.table import BAD, GOOD, QUIET, Cell, Row, Table
from pipette_opt.base.units import percent, short_seconds, three_digits
from pipette_opt.replan.recommend import Offer
from pipette_opt.replan.whatif import Answer
from pipette_opt.report.cells import as_rich

DAY_S = 86400.0

NO_CHANGE = 5e-5
"""Largest relative change that is shown as none. Chosen: percentages have a digit after the point."""


def answers_table(title: str, answers: Sequence[Answer], own: str | None = None) -> RenderableType:
    """
    Table with a row for each answer; it has a price column if a price is known.

    Parameters
    ----------
    own
        Label of the plan's own configuration, which the table shows as ``as it is``.
    """
    has_prices = any(answer.price_per_million_tokens is not None for answer in answers)
    headers = (
        *("what if", "iteration >", "tokens/s >", "change >", "plan as it is >", "at best >", "GPUs >"),
        "price / 1M >" if has_prices else "",
        "configuration",
    )
    rows: list[Row] = []
    before: str | None = None
    for answer in answers:
        cells: Row = [
            answer.name,
            short_seconds(answer.expected_s),
            "-" if answer.tokens_per_s is None else three_digits(answer.tokens_per_s),
            _change(answer.change),
            short_seconds(answer.as_it_is_s),
            at_best(answer),
            str(answer.num_gpus or "-"),
            "-" if answer.price_per_million_tokens is None else three_digits(answer.price_per_million_tokens),
            _configuration(answer, own, before),
        ]
        rows.append(cells)
        before = answer.config
    return as_rich(Table(title=title, headers=headers, rows=rows))


def offers_table(offers: Sequence[Offer]) -> RenderableType:
    """Table with a row for each combination of GPU type and number of hosts."""
    has_runs = any(offer.run_s is not None for offer in offers)
    has_prices = any(offer.price is not None for offer in offers)
    of_runs = ("days >", "at worst >") if has_runs else ("", "")
    of_price = "" if not has_prices else "price >" if has_runs else "price / 1M tokens >"
    rows: list[Row] = [
        (
            f"{offer.num_hosts} of {offer.hosts}",
            str(offer.num_gpus),
            short_seconds(offer.expected_s),
            short_seconds(offer.bound_s),
            "-" if offer.tokens_per_s is None else three_digits(offer.tokens_per_s),
            *("-" if run_s is None else f"{run_s / DAY_S:,.1f}" for run_s in (offer.run_s, offer.worst_run_s)),
            "-" if offer.price is None else three_digits(offer.price),
            Cell(offer.why or offer.config, style=BAD if offer.why else ""),
        )
        for offer in offers
    ]
    headers = ("hosts", "GPUs >", "iteration >", "at best >", "tokens/s >", *of_runs, of_price, "configuration")
    return as_rich(Table(headers=headers, rows=rows))


def at_best(answer: Answer) -> str:
    """Return the lower bound on the time of all searched plans, or ``proven`` if the plan found reaches it."""
    return "proven" if answer.is_proven else short_seconds(answer.bound_s)


def _configuration(answer: Answer, own: str | None, before: str | None) -> Cell:
    """Return the configuration, ``as it is`` or ``as above`` for a repeated one, or the reason why no plan exists."""
    if answer.why:
        return Cell(answer.why, style=BAD)
    if answer.config in (own, before):
        return Cell("as it is" if answer.config == own else "as above", style=QUIET)
    return Cell(answer.config)


def _change(share: float | None) -> Cell:
    if share is None:
        return Cell("-")
    if abs(share) < NO_CHANGE:
        return Cell("none", style=QUIET)
    return Cell(percent(share, "+"), style=GOOD if share > 0 else BAD)
