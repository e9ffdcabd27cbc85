import json
import sys
from pathlib import Path

import pytest

from pipette_opt.cli import main


def test_estimate_writes_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """``--trace`` writes a file for Perfetto that ends with the iteration time shown."""
    path = tmp_path / "trace.json"
    arguments = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 1"
    command = ["pipette-opt", "estimate", "--example", "lab-2x8", "--launch", arguments, "--json", "--trace", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    shown = json.loads(capsys.readouterr().out)["estimate"]["expected_s"]
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    last = max(event["ts"] + event["dur"] for event in events)
    assert last == pytest.approx(1e6 * shown)
