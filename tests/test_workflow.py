"""The workflow runs ``.ci/run`` on every push and pull request, in the Pythons that it tries."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import pipette_opt

ROOT = Path(__file__).resolve().parents[1]
CI = ROOT / ".ci" / "run"
WORKFLOW = ROOT / ".github" / "workflows" / "checks.yml"


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    """Return the workflow file, parsed. YAML 1.1 reads its key ``on`` as true."""
    parsed = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert isinstance(parsed, dict)
    return parsed


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return the steps of the only job."""
    (job,) = workflow["jobs"].values()
    return list(job["steps"])


def test_the_workflow_runs_the_checks(workflow: dict[Any, Any]) -> None:
    """On pushes, which include tags, and on pull requests of all branches; the only command is ``.ci/run``."""
    assert workflow[True] == {"push": None, "pull_request": None}
    assert [step["run"] for step in steps(workflow) if "run" in step] == [".ci/run"]
    assert CI.stat().st_mode & 0o100


def test_the_workflow_installs_the_pythons_that_the_checks_try(workflow: dict[Any, Any]) -> None:
    """Newest first, as the last one is ``python3``: the oldest that is allowed, which made the lock file."""
    (setup,) = (step for step in steps(workflow) if step.get("uses", "").startswith("actions/setup-python@"))
    versions = setup["with"]["python-version"].split()
    (tried,) = re.findall(r"^for version in (.*); do$", CI.read_text("utf-8"), re.MULTILINE)
    assert versions == tried.split()[::-1]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"] == (
        f">={versions[-1]}"
    )
    assert (ROOT / ".ci" / "constraints.txt").read_text("utf-8").startswith(f"# Python {versions[-1]};")


def test_the_workflow_may_only_read_and_knows_no_secret_and_no_server(workflow: dict[Any, Any]) -> None:
    """Its token reads the repository; actions are GitHub's own; no address of an index or registry stands in it."""
    assert workflow["permissions"] == {"contents": "read"}
    assert all(step["uses"].startswith("actions/") for step in steps(workflow) if "uses" in step)
    assert not re.search(r"secrets|://|index-url", WORKFLOW.read_text("utf-8"), re.IGNORECASE)


def test_the_checks_read_the_version_that_a_tag_must_have() -> None:
    """``.ci/run`` refuses a tag that is not the version: it looked for the version where it no longer was."""
    (line,) = re.findall(r"^version=.*$", CI.read_text("utf-8"), re.MULTILINE)
    printed = subprocess.run(
        ["bash", "-euc", f'{line}; printf %s "$version"'], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert printed.stdout == pipette_opt.__version__
