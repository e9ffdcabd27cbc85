"""``pipette-opt report``: where the page goes, what is said, and a plan whose cluster file is gone."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import make_plan

from pipette_opt.report.plan_file import write_plan

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan file that names a cluster file which is nowhere."""
    path = tmp_path / "plan.json"
    write_plan(make_plan(), path)
    content = json.loads(path.read_text())
    content["inputs"]["cluster"] = {"path": "/nowhere/cluster.yaml", "sha256": "0" * 64}
    path.write_text(json.dumps(content))
    return path


def test_page_without_the_cluster_file(command: Command, plan: Path, tmp_path: Path) -> None:
    """What needs the file is left out, which both the page and the command say."""
    code, out, err = command("report", str(plan), "-o", "page.html")
    assert (code, out) == (0, "")
    assert "has no links, schedule and sensitivity" in err
    assert " ".join(make_plan().verdict.split()) in err
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "the plan's cluster file does not exist" in text


def test_json_and_standard_output(command: Command, plan: Path) -> None:
    """One JSON document, or the page itself."""
    code, out, _ = command("report", str(plan), "-o", "page.html", "--json")
    assert code == 0
    assert json.loads(out) == {"report": "page.html", "verdict": make_plan().verdict, "complete": False}
    code, out, err = command("report", str(plan), "-o", "-")
    assert (code, err) == (0, "")
    assert out.endswith("</html>\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "plan.json"), "would overwrite an input"),
        (("-o", "missing/page.html"), "the folder missing does not exist"),
        (("-o", "-", "--json"), "takes standard output"),
        (("--cluster", "missing.yaml"), "missing.yaml"),
    ],
)
def test_wrong_places(command: Command, plan: Path, arguments: tuple[str, ...], said: str) -> None:
    """One clear message."""
    code, _, err = command("report", str(plan), *arguments)
    assert code == 2
    assert said in err or "--json" in arguments
