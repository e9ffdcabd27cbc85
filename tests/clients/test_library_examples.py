"""The examples of the library, run: the notebook cell by cell, the script as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clients_here import require_at_collection

require_at_collection("nbclient", "ipykernel")

import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

pytestmark = pytest.mark.client("nbclient", "ipykernel")


@pytest.mark.filterwarnings("default")
def test_notebook(tmp_path: Path) -> None:
    """Every cell runs; the first shows the plan as a table, the last leaves a plan and a page."""
    notebook = nbformat.read(EXAMPLES / "plan.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = next(cell for cell in notebook.cells if cell.cell_type == "code").outputs[-1]["data"]["text/html"]
    assert "Fits" in shown
    assert "<table" in shown
    assert (tmp_path / "plan.json").is_file()
    assert (tmp_path / "report.html").is_file()


def test_script(tmp_path: Path) -> None:
    """It leaves a plan and a page."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "solve_and_report.py")],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "tensor parallel 2: +" in done.stdout
    assert (tmp_path / "plan.json").is_file()
    assert (tmp_path / "report.html").is_file()
