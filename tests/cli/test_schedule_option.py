"""``estimate --schedule``: other orders than the launch's own."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app

ARGS = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --micro-batch-size 1"
CHUNKS = f"{ARGS} --num-virtual-stages-per-pipeline-rank 2"


def estimate(schedule: str | None, args: str = ARGS, p2p: str = "async", *more: str) -> tuple[int, str]:
    """Exit code and output of an estimate as JSON, or the error."""
    chosen = [] if schedule is None else ["--schedule", schedule]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        job.write_text(f"software: {{p2p: {p2p}}}\n")
        command = [
            "estimate",
            str(job),
            "--example",
            "lab-16x8",
            "--global-batch-size",
            "32",
            "--launch",
            args,
            "--json",
        ]
        result = CliRunner().invoke(app, [*command, *chosen, *more])
    if isinstance(result.exception, InputError):  # what `main` turns into exit code 2
        return 2, str(result.exception)
    return result.exit_code, result.output


def of(schedule: str | None, args: str = ARGS, p2p: str = "async") -> dict:
    """The answer."""
    code, output = estimate(schedule, args, p2p)
    assert code == 0, output
    return json.loads(output)


def test_named_schedules() -> None:
    """
    1F1B is the launch's own; eight micro-batches on four stages.

    GPipe holds all of them, ZB-H1 four on every stage, ZB-V eight halves of a stage; zero bubble is faster.
    """
    plain, own, gpipe, zb_h1 = (of(name) for name in (None, "1f1b", "gpipe", "zb-h1"))
    assert own["estimate"] == plain["estimate"]
    assert own["memory"] == plain["memory"]
    assert own["schedule"]["max_in_flight"] == [4, 3, 2, 1]
    assert gpipe["schedule"]["max_in_flight"] == [8] * 4
    assert zb_h1["schedule"]["max_in_flight"] == [4] * 4
    assert zb_h1["estimate"]["iteration_time_s"] < plain["estimate"]["iteration_time_s"]
    peaks = [[stage["predicted_bytes"] for stage in one["memory"]] for one in (plain, zb_h1, gpipe)]
    assert peaks[0][0] == peaks[1][0] < peaks[2][0]
    assert peaks[0][3] < peaks[1][3] < peaks[2][3]
    zb_v = of("zb-v", CHUNKS)
    assert zb_v["schedule"]["layout"] == "vee"
    assert zb_v["schedule"]["max_in_flight"] == [8] * 4
    assert zb_v["estimate"]["breakdown"]["bubble"] < zb_h1["estimate"]["breakdown"]["bubble"]
    assert of("interleaved", CHUNKS, "blocking")["estimate"] == of(None, CHUNKS, "blocking")["estimate"]


def test_an_order_of_ones_own(tmp_path: Path) -> None:
    """What --json prints as stages is read back, and gives the same times."""
    named = of("zb-v", CHUNKS)
    path = tmp_path / "order.json"
    path.write_text(json.dumps(named["schedule"] | {"max_in_flight": None}))
    assert of(str(path), CHUNKS)["estimate"] == named["estimate"]
    text = tmp_path / "order.txt"
    text.write_text("\n".join(of("gpipe")["schedule"]["stages"]) + "\n# all forwards first\n")
    assert of(str(text))["estimate"] == of("gpipe")["estimate"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["F0 B0", "F0 B0"], "1 chunks and 1 micro-batches, but the launch has 4 stages with 1 chunks and 8"),
        (["F0 F1 B0 B1", "B0 F0 F1 B1"], "deadlocks: stages [0, 1] wait for each other"),
        (["F0 F1 B0 B0", "F0 F1 B0 B1"], "stage 0 does not do each of 2 micro-batches"),
        (["F0 X1", "F0 B0"], "'X1' is no operation"),
    ],
)
def test_wrong_orders(lines: list[str], said: str, tmp_path: Path) -> None:
    """Orders of another launch, stages that wait for each other, work left out, words that mean nothing."""
    path = tmp_path / "order.txt"
    path.write_text("\n".join(lines))
    code, output = estimate(str(path))
    assert code == 2
    assert said in " ".join(output.split())


def test_trace_of_a_schedule(tmp_path: Path) -> None:
    """The trace is of the schedule asked for, and ends with its iteration time."""
    path = tmp_path / "trace.json"
    code, output = estimate("zb-h1", ARGS, "async", "--trace", str(path))
    assert code == 0
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in events} >= {"backward (inputs)", "backward (weights)", "send", "optimizer"}
    last = max(event["ts"] + event["dur"] for event in events)
    np.testing.assert_allclose(last / 1e6, json.loads(output)["estimate"]["iteration_time_s"])


def test_experts_keep_the_launch_s_dispatcher() -> None:
    """Which the arguments say, or Megatron's default; another schedule does not change it."""
    args = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 8 "
    args += "--sequence-parallel --use-distributed-optimizer --micro-batch-size 1"
    command = ["estimate", "--example", "lab-16x8", "--model", "mixtral-8x7b", "--global-batch-size", "64"]
    command += ["--launch", args, "--json"]
    plain, own = (CliRunner().invoke(app, [*command, *more]) for more in ((), ("--schedule", "1f1b")))
    assert plain.exit_code == own.exit_code == 0, own.output
    assert json.loads(own.output)["estimate"] == json.loads(plain.output)["estimate"]
