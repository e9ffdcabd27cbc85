"""Tables of what-if answers and of recommendations."""

from collections.abc import Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import three_digits
from pipette_opt.report.cells import BAD, GOOD, QUIET, columns_table, spaced, titled


class AnswerLike(Protocol):
    """Fields of a row of answers; see :class:`~pipette_opt.replan.whatif.Answer`."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def iteration_time_s(self) -> float | None: ...  # noqa: D102
    @property
    def expected_s(self) -> float | None: ...  # noqa: D102
    @property
    def tokens_per_s(self) -> float | None: ...  # noqa: D102
    @property
    def change(self) -> float | None: ...  # noqa: D102
    @property
    def as_it_is_s(self) -> float | None: ...  # noqa: D102
    @property
    def bound_s(self) -> float | None: ...  # noqa: D102
    @property
    def is_proven(self) -> bool: ...  # noqa: D102
    @property
    def config(self) -> str: ...  # noqa: D102
    @property
    def num_gpus(self) -> int: ...  # noqa: D102
    @property
    def price_per_million_tokens(self) -> float | None: ...  # noqa: D102
    @property
    def why(self) -> str: ...  # noqa: D102


class OfferLike(Protocol):
    """Fields of a row of offers; see :class:`~pipette_opt.replan.recommend.Offer`."""

    @property
    def hosts(self) -> str: ...  # noqa: D102
    @property
    def num_hosts(self) -> int: ...  # noqa: D102
    @property
    def num_gpus(self) -> int: ...  # noqa: D102
    @property
    def config(self) -> str: ...  # noqa: D102
    @property
    def iteration_time_s(self) -> float | None: ...  # noqa: D102
    @property
    def bound_s(self) -> float | None: ...  # noqa: D102
    @property
    def expected_s(self) -> float | None: ...  # noqa: D102
    @property
    def tokens_per_s(self) -> float | None: ...  # noqa: D102
    @property
    def run_s(self) -> float | None: ...  # noqa: D102
    @property
    def worst_run_s(self) -> float | None: ...  # noqa: D102
    @property
    def price(self) -> float | None: ...  # noqa: D102
    @property
    def why(self) -> str: ...  # noqa: D102


DAY_S = 86400.0

NO_CHANGE = 5e-5
"""Largest change, as a share, that is shown as none; one digit after the point is shown. Chosen."""


def answers_table(title: str, answers: Sequence[AnswerLike], own: str | None = None) -> RenderableType:
    """
    Table with a row for each answer, and a column of prices if any is known.

    Parameters
    ----------
    own
        Label of the plan's own configuration, which is shown as ``as it is``.
    """
    has_prices = any(answer.price_per_million_tokens is not None for answer in answers)
    headers = ["what if", "iteration >", "tokens/s >", "change >", "plan as it is >", "at best >", "GPUs >"]
    table = columns_table(*headers, *(["price / 1M >"] if has_prices else []), "configuration")
    before: str | None = None
    for answer in answers:
        cells = [
            Text(answer.name),
            Text(_expected(answer, answer.iteration_time_s)),
            Text("-" if answer.tokens_per_s is None else three_digits(answer.tokens_per_s)),
            _change(answer.change),
            Text(_expected(answer, answer.as_it_is_s)),
            Text(at_best(answer)),
            Text(str(answer.num_gpus or "-")),
        ]
        if has_prices:
            cost = answer.price_per_million_tokens
            cells.append(Text("-" if cost is None else three_digits(cost)))
        table.add_row(*cells, _configuration(answer, own, before))
        before = answer.config
    return titled(title, table)


def offers_table(offers: Sequence[OfferLike]) -> RenderableType:
    """Table with a row for each number and kind of hosts."""
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
            _expected(offer, offer.iteration_time_s),
            _expected(offer, offer.bound_s),
            "-" if offer.tokens_per_s is None else three_digits(offer.tokens_per_s),
        ]
        if has_runs:
            cells += ["-" if run_s is None else f"{run_s / DAY_S:,.1f}" for run_s in (offer.run_s, offer.worst_run_s)]
        if has_prices:
            cells.append("-" if offer.price is None else three_digits(offer.price))
        table.add_row(*map(Text, cells), Text(offer.why or offer.config, style=BAD if offer.why else ""))
    return spaced(table)


def at_best(answer: AnswerLike) -> str:
    """Return the time that no searched plan undercuts, or ``proven``."""
    return "proven" if answer.is_proven else _expected(answer, answer.bound_s)


def _expected(row: AnswerLike | OfferLike, simulated_s: float | None) -> str:
    """Scale a simulated time of a row to an expected one, by the ratio of the row's own two times."""
    if simulated_s is None:
        return "-"
    if row.expected_s is None or row.iteration_time_s is None:
        return f"{three_digits(simulated_s)} s"
    return f"{three_digits(simulated_s * row.expected_s / row.iteration_time_s)} s"


def _configuration(answer: AnswerLike, own: str | None, before: str | None) -> Text:
    """Return the configuration, written out once, or the reason why there is none."""
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
    return Text(f"{share:+.1%}", style=GOOD if share > 0 else BAD)
