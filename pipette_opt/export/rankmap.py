"""The rank map alone, for launchers that are not among the targets."""

import csv
import io
import json

from pipette_opt.plans.plan import Plan, RankRow, rank_rows


def export_rankmap_json(plan: Plan) -> dict[str, str]:
    """One JSON object: world size, rank order, and an entry for each rank."""
    entries = ",\n".join(f"    {json.dumps(row._asdict(), ensure_ascii=False)}" for row in rank_rows(plan))
    text = (
        "{\n"
        f'  "world_size": {plan.config.world_size},\n'
        f'  "rank_order": {json.dumps(plan.placement.order)},\n'
        f'  "ranks": [\n{entries}\n  ]\n'
        "}\n"
    )
    return {"rankmap.json": text}


def export_rankmap_csv(plan: Plan) -> dict[str, str]:
    """A header and a line for each rank."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(RankRow._fields)
    writer.writerows(rank_rows(plan))
    return {"rankmap.csv": text.getvalue()}
