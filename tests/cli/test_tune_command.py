"""``tune`` as a user types it."""

import csv
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

TRAINER = Path(__file__).parents[1] / "fake_trainer.py"

RUNS = """gpu,gpus_per_node,model,num_layers,hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,num_gpus,iter_time_s,oom
a100-80gb,8,gpt,24,2048,16,50257,2048,64,1,1,1,8,8,2.5,false
a100-80gb,8,gpt,24,2048,16,50257,2048,64,1,2,1,4,8,2.9,false
a100-80gb,8,gpt,24,2048,16,50257,2048,64,8,1,1,8,8,,true
"""

JOB = """example: lab-2x8
cluster: {num_gpus: 8}
parallel: {tp: [4, 8], pp: 1, cp: 1, mbs: 1, recompute: full}
"""

Command = Callable[..., tuple[int, str, str]]


def test_replay(command: Command, tmp_path: Path) -> None:
    """Every row is tried once; the file and the document agree."""
    Path("runs.csv").write_text(RUNS)
    code, out, err = command("tune", "--replay", "runs.csv", "-o", "trials.csv", "--json")
    assert code == 0, err
    with Path("trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["row"] for row in rows) == ["0", "1", "2"]
    assert [row["best_so_far_s"] for row in rows][-1] == "2.5"
    found = json.loads(out)
    assert [str(step["row"]) for step in found["trials"]] == [row["row"] for row in rows]
    assert found["summary"].startswith("After 1, 2, 3 trials the best is ")
    assert found["summary"].endswith("0.00 % slower than the job's fastest row (mean of 1 job).")


def test_trials_on_a_cluster(command: Command, tmp_path: Path) -> None:
    """Two trials by a scripted command; typed again, the same answer without a further run."""
    run = f"{shlex.quote(sys.executable)} {shlex.quote(str(TRAINER))} {{plan}} 'time_s * 1.6'"
    Path("job.yaml").write_text(JOB)
    arguments = ("tune", "job.yaml", "--run", run, "--budget", "2", "--until", "0", "-o", "tuning", "--workers", "1")
    code, out, err = command(*arguments)
    assert code == 0, err
    assert out.startswith("Fastest of 2 trials: tp")
    assert "plan: tuning/trial-00" in err
    again = command(*arguments)
    assert again[:2] == (0, out)
    assert len(list(Path("tuning").glob("trial-*"))) == 2
    launch = "--tensor-model-parallel-size 8 --micro-batch-size 1 --recompute-granularity full"
    for measured, runs in (("tuning", 2), ("tuning/trial-001/plan.json=20s", 1), ("tuning/trial-001", 1)):
        job = ("--example", "lab-2x8", "--num-gpus", "8", "--launch", launch)
        _, out, err = command("estimate", *job, "--measured", measured)
        assert f"by {runs} run" in " ".join(out.split()), err
    Path("mine.json").write_text(Path("tuning/trial-001/plan.json").read_text())
    arguments = (*arguments[:-3], "other", *arguments[-2:], "--measured", "mine.json=8s")
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["best"] is None
    assert found["fastest"] == found["own"][0]
    assert found["own"][0]["place"] == "mine.json"
    assert "1 run of your own" in found["verdict"]
    for plan in (found["plan"], "other/trial-001/plan.json", "tuning/trial-001/plan.json"):
        assert command("verify", plan)[0] == 0
