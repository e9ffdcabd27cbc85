"""Tables of ``whatif`` answers and of ``recommend`` offers."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import percent, three_digits
from pipette_opt.replan.recommend import Offer
from pipette_opt.replan.whatif import Answer
from pipette_opt.report.cells import BAD, GOOD, QUIET, columns_table, spaced, titled

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
    headers = ["what if", "iteration >", "tokens/s >", "change >", "plan as it is >", "at best >", "GPUs >"]
    table = columns_table(*headers, *(["price / 1M >"] if has_prices else []), "configuration")
    before: str | None = None
    for answer in answers:
        cells = [
            Text(answer.name),
            Text(_seconds(answer.expected_s)),
            Text("-" if answer.tokens_per_s is None else three_digits(answer.tokens_per_s)),
            _change(answer.change),
            Text(_seconds(answer.as_it_is_s)),
            Text(at_best(answer)),
            Text(str(answer.num_gpus or "-")),
        ]
        if has_prices:
            cost = answer.price_per_million_tokens
            cells.append(Text("-" if cost is None else three_digits(cost)))
        table.add_row(*cells, _configuration(answer, own, before))
        before = answer.config
    return titled(title, table)


def offers_table(offers: Sequence[Offer]) -> RenderableType:
    """Table with a row for each combination of GPU type and number of hosts."""
    has_runs = any(offer.run_s is not None for offer in offers)
    has_prices = any(offer.price is not None for offer in offers)
    headers = ["hosts", "GPUs >", "iteration >", "at best >", "tokens/s >"]
    headers += ["days >", "at worst >"] if has_runs else []
    headers += ["price >" if has_runs else "price / 1M tokens >"] if has_prices else []
    table = columns_table(*headers, "configuration")
    for offer in offers:
        cells = [
            f"{offer.num_hosts} of {offer.hosts}",
            str(offer.num_gpus),
            _seconds(offer.expected_s),
            _seconds(offer.bound_s),
            "-" if offer.tokens_per_s is None else three_digits(offer.tokens_per_s),
        ]
        if has_runs:
            cells += ["-" if run_s is None else f"{run_s / DAY_S:,.1f}" for run_s in (offer.run_s, offer.worst_run_s)]
        if has_prices:
            cells.append("-" if offer.price is None else three_digits(offer.price))
        table.add_row(*cells, Text(offer.why or offer.config, style=BAD if offer.why else ""))
    return spaced(table)


def at_best(answer: Answer) -> str:
    """Return the lower bound on the time of all searched plans, or ``proven`` if the plan found reaches it."""
    return "proven" if answer.is_proven else _seconds(answer.bound_s)


def _seconds(expected_s: float | None) -> str:
    return "-" if expected_s is None else f"{three_digits(expected_s)} s"


def _configuration(answer: Answer, own: str | None, before: str | None) -> Text:
    """Return the configuration, ``as it is`` or ``as above`` for a repeated one, or the reason why no plan exists."""
    if answer.why:
        return Text(answer.why, style=BAD)
    if answer.config in (own, before):
        return Text("as it is" if answer.config == own else "as above", style=QUIET)
    return Text(answer.config)


def _change(share: float | None) -> Text:
    if share is None:
        return Text("-")
    if abs(share) < NO_CHANGE:
        return Text("none", style=QUIET)
    return Text(percent(share, "+"), style=GOOD if share > 0 else BAD)
