"""Tables of what-if answers and of recommendations."""

from collections.abc import Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import three_digits
from pipette_opt.report.cells import BAD, GOOD, QUIET, columns_table, spaced, titled


class AnswerLike(Protocol):
    """What a row needs; see :class:`~pipette_opt.replan.whatif.Answer`."""

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
    """What a row needs; see :class:`~pipette_opt.replan.recommend.Offer`."""

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
"""Changes below this share are shown as none; chosen, as they are shown with one digit after the point."""


def answers_table(title: str, answers: Sequence[AnswerLike], own: str | None = None) -> RenderableType:
    """
    A row for each answer; a column of prices where any is known.

    Parameters
    ----------
    own
        The plan's configuration, which is not written out again.
    """
    has_prices = any(one.price_per_million_tokens is not None for one in answers)
    headers = ["what if", "iteration >", "tokens/s >", "change >", "plan as it is >", "at best >", "GPUs >"]
    table = columns_table(*headers, *(["price / 1M >"] if has_prices else []), "configuration")
    before: str | None = None
    for one in answers:
        cells = [
            Text(one.name),
            Text(_expected(one, one.iteration_time_s)),
            Text("-" if one.tokens_per_s is None else three_digits(one.tokens_per_s)),
            _change(one.change),
            Text(_expected(one, one.as_it_is_s)),
            Text(at_best(one)),
            Text(str(one.num_gpus or "-")),
        ]
        if has_prices:
            cost = one.price_per_million_tokens
            cells.append(Text("-" if cost is None else three_digits(cost)))
        table.add_row(*cells, _configuration(one, own, before))
        before = one.config
    return titled(title, table)


def offers_table(offers: Sequence[OfferLike]) -> RenderableType:
    """A row for each number and kind of hosts."""
    has_runs = any(one.run_s is not None for one in offers)
    has_prices = any(one.price is not None for one in offers)
    headers = ["hosts", "GPUs >", "iteration >", "at best >", "tokens/s >"]
    headers += ["days >", "at worst >"] if has_runs else []
    headers += ["price >" if has_runs else "price / 1M tokens >"] if has_prices else []
    table = columns_table(*headers, "configuration")
    for one in offers:
        cells = [
            f"{one.num_hosts} of {one.hosts}",
            str(one.num_gpus),
            _expected(one, one.iteration_time_s),
            _expected(one, one.bound_s),
            "-" if one.tokens_per_s is None else three_digits(one.tokens_per_s),
        ]
        if has_runs:
            cells += ["-" if run_s is None else f"{run_s / DAY_S:,.1f}" for run_s in (one.run_s, one.worst_run_s)]
        if has_prices:
            cells.append("-" if one.price is None else three_digits(one.price))
        table.add_row(*map(Text, cells), Text(one.why or one.config, style=BAD if one.why else ""))
    return spaced(table)


def at_best(answer: AnswerLike) -> str:
    """What is proven: the time that no plan of what was searched undercuts."""
    return "proven" if answer.is_proven else _expected(answer, answer.bound_s)


def _expected(row: AnswerLike | OfferLike, simulated_s: float | None) -> str:
    """A simulated time of a row as the time to expect: as far above it as the row's own expected time is."""
    if simulated_s is None:
        return "-"
    if row.expected_s is None or row.iteration_time_s is None:
        return f"{three_digits(simulated_s)} s"
    return f"{three_digits(simulated_s * row.expected_s / row.iteration_time_s)} s"


def _configuration(answer: AnswerLike, own: str | None, before: str | None) -> Text:
    """The configuration, once; or why there is none."""
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
