"""A training script that only says where it runs, and what it should have said."""

import json
from pathlib import Path
from typing import Any

from pipette_opt.export.targets import export
from pipette_opt.plans.plan import Plan, rank_rows

SCRIPT = """
import json, os, socket, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
found = {name: os.environ.get(name) for name in names}
found |= {"host": socket.gethostname(), "cores": len(os.sched_getaffinity(0)), "args": sys.argv[1:]}
with open(f"report.{found['RANK']}", "w") as file:
    json.dump(found, file)
"""


def write_job(plan: Plan, target: str, folder: Path) -> dict[str, str]:
    """The exported files and the script, in a folder."""
    files = export(plan, target)
    for name, text in {**files, "report.py": SCRIPT}.items():
        (folder / name).write_text(text)
    return files


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """What the ranks said, in rank order."""
    reports = [json.loads(path.read_text()) for path in folder.glob("report.[0-9]*")]
    return sorted(reports, key=lambda report: int(report["RANK"]))


def assert_as_planned(plan: Plan, reports: list[dict[str, Any]]) -> None:
    """Every rank ran once, on its host, with its GPU."""
    assert [(int(one["RANK"]), one["host"], int(one["LOCAL_RANK"])) for one in reports] == [
        (row.rank, row.host, row.local_rank) for row in rank_rows(plan)
    ]
    assert {one["WORLD_SIZE"] for one in reports} == {str(plan.config.world_size)}
    assert {one["MASTER_ADDR"] for one in reports} == {rank_rows(plan)[0].host}
