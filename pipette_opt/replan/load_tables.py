"""Tables, CSV and JSON of the parameters that hosts must load for a new plan."""

import csv
import io
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.table import Cell, Table
from pipette_opt.base.units import GB, counted, difference, percent, short_seconds, three_digits
from pipette_opt.plans.moves import Move
from pipette_opt.plans.plan import Plan
from pipette_opt.replan.changed_hosts import Option
from pipette_opt.report.cells import as_rich

MAX_HOSTS = 24
"""Maximum number of hosts in the table; the CSV has all. Chosen."""


def replan_tables(old: Plan, chosen: Option, options: Sequence[Option]) -> list[RenderableType]:
    """Return a headline, the table of plans by number of loads, and the loads of the chosen plan."""
    return [_headline(old, chosen.plan), _trade_off(chosen, options), *_moves_tables(chosen.moves)]


def moves_csv(moves: Sequence[Move]) -> str:
    """Return CSV text with a line for each rank that must load parameters."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "host", "local_rank", "stage", "was_rank", "layers", "parameter_gb", "optimizer_gb"])
    for move in moves:
        was = "" if move.was is None else move.was
        writer.writerow(
            [
                move.rank,
                move.host,
                move.local_rank,
                move.stage,
                was,
                runs(move.layers),
                f"{move.parameter_bytes / GB:.3f}",
                f"{move.optimizer_bytes / GB:.3f}",
            ]
        )
    return out.getvalue()


def moves_to_dict(chosen: Option, options: Sequence[Option], unequal: Option | None = None) -> dict[str, Any]:
    """Return the loads as a document for ``--json``; ``unequal`` is the plan with unequal numbers of micro-batches."""
    return {
        "iteration_time_s": chosen.plan.estimate.iteration_time_s,
        "num_hosts_to_load": chosen.num_loads,
        "bytes_to_load": chosen.bytes_to_load,
        "moves": [
            {
                "rank": move.rank,
                "host": move.host,
                "local_rank": move.local_rank,
                "stage": move.stage,
                "was_rank": move.was,
                "layers": list(move.layers),
                "parameter_bytes": move.parameter_bytes,
                "optimizer_bytes": move.optimizer_bytes,
            }
            for move in chosen.moves
        ],
        "options": [
            {
                "parallel": option.plan.config.label(),
                "num_hosts_to_load": option.num_loads,
                "bytes_to_load": option.bytes_to_load,
                "iteration_time_s": option.plan.estimate.iteration_time_s,
            }
            for option in options
        ],
        "unequal_microbatches": unequal
        and {
            "parallel": unequal.plan.config.label(),
            "num_gpus": unequal.plan.config.world_size,
            "iteration_time_s": unequal.plan.estimate.iteration_time_s,
        },
    }


def runs(numbers: Sequence[int]) -> str:
    """Format numbers as ranges, such as ``0-4 8 10-11``."""
    parts = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return " ".join(parts)


def _headline(old: Plan, new: Plan) -> Text:
    before, after = old.estimate, new.estimate
    change = difference(before.iteration_time_s / after.iteration_time_s, "more", "fewer", "as many")
    text = Text()
    text.append(f"\n{new.config.label()}", style="bold")
    used, listed = len(new.placement.nodes_used), counted(len(new.hosts), "host")
    text.append(f"  on {used} of {listed}, {counted(new.config.world_size, 'GPU')}\n")
    text.append(f"{three_digits(after.expected_tokens_per_s)} tokens/s, {change} than before ")
    gpus = counted(old.config.world_size, "GPU")
    text.append(f"({three_digits(before.expected_s)} s with {old.config.label()} on {gpus})")
    return text


def _trade_off(chosen: Option, options: Sequence[Option]) -> RenderableType:
    scale = chosen.plan.estimate.expected_s / chosen.plan.estimate.iteration_time_s
    fastest = min(option.plan.estimate.iteration_time_s for option in options)
    rows = []
    for option in options:
        slower = option.plan.estimate.iteration_time_s / fastest - 1
        texts = (
            str(option.num_loads),
            three_digits(option.bytes_to_load / GB),
            short_seconds(scale * option.plan.estimate.iteration_time_s),
            percent(slower) if slower > 0 else "fastest",
            "taken" if option is chosen else "",
            option.plan.config.label(),
        )
        rows.append([Cell(text, style="bold" if option is chosen else "") for text in texts])
    table = Table(
        title="Hosts that need other parameters, and speed",
        headers=("hosts >", "to load, GB >", "iteration >", "slower >", "choice", "plan"),
        rows=rows,
    )
    return as_rich(table)


def _moves_tables(moves: Sequence[Move]) -> list[RenderableType]:
    by_host = {host: list(group) for host, group in groupby(_by_host(moves), key=lambda move: move.host)}
    if not by_host:
        return [Text("\nNothing has to be loaded.")]
    rows = []
    for host, of_host in list(by_host.items())[:MAX_HOSTS]:
        were = runs([move.was for move in of_host if move.was is not None])
        cells = (
            host,
            runs([move.rank for move in of_host]),
            were or "-",
            runs(sorted({move.stage for move in of_host})),
            runs(sorted({layer for move in of_host for layer in move.layers})) or "-",
            three_digits(sum(move.parameter_bytes for move in of_host) / GB),
            three_digits(sum(move.optimizer_bytes for move in of_host) / GB),
        )
        rows.append(cells)
    headers = ("host", "ranks", "were", "stage", "layers", "parameters, GB >", "optimizer, GB >")
    parts = [as_rich(Table(title="What hosts load", headers=headers, rows=rows))]
    if len(by_host) > MAX_HOSTS:
        more = counted(len(by_host) - MAX_HOSTS, "more host")
        parts.append(Text(f"and {more}; --moves FILE writes all.", style="dim"))
    return parts


def _by_host(moves: Sequence[Move]) -> list[Move]:
    first_rank: dict[str, int] = {}
    for move in moves:
        first_rank.setdefault(move.host, move.rank)
    return sorted(moves, key=lambda move: (first_rank[move.host], move.rank))
