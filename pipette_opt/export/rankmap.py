"""The rank map as JSON or CSV, for other launchers; hosts without names are numbered from 0."""

import csv
import io
import json
from typing import Any

from msgspec.structs import asdict

from pipette_opt.export.hosts import hosts_are_named, node_of_ranks
from pipette_opt.plans.plan import Plan, rank_rows


def export_rankmap_json(plan: Plan) -> dict[str, str]:
    """Return ``rankmap.json``: world size, rank order, and an entry per rank."""
    entries = ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in rank_entries(plan))
    text = (
        "{\n"
        f'  "world_size": {plan.config.world_size},\n'
        f'  "rank_order": {json.dumps(plan.placement.order)},\n'
        f'  "ranks": [\n{entries}\n  ]\n'
        "}\n"
    )
    return {"rankmap.json": text}


def export_rankmap_csv(plan: Plan) -> dict[str, str]:
    """Return ``rankmap.csv``: a header, and a line per rank."""
    text = io.StringIO()
    entries = rank_entries(plan)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(entries[0])
    writer.writerows(entry.values() for entry in entries)
    return {"rankmap.csv": text.getvalue()}


def rank_entries(plan: Plan) -> list[dict[str, Any]]:
    """Return the entry of each rank, with its host, or ``node``, the host's number if hosts have no names."""
    rows = rank_rows(plan)
    if hosts_are_named(plan):
        return [asdict(row) for row in rows]
    numbered = zip(rows, node_of_ranks(rows), strict=True)
    return [
        {
            ("node" if name == "host" else name): (node if name == "host" else value)
            for name, value in asdict(row).items()
        }
        for row, node in numbered
    ]
