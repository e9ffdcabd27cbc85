"""``tune`` on a real Slurm: jobs whose logs have scripted times, killed and started again."""

import json
import os
import sys
from pathlib import Path

import hosts
import pytest
from test_slurm import PROGRAMS, SERVERS

pytestmark = pytest.mark.client(programs=(*hosts.TOOLS, *PROGRAMS))

TESTS = Path(__file__).parents[1]

CLUSTER = """
name: two
nodes: [{hosts: "n[1-2]", gpu: a100-80gb, gpus_per_node: 4}]
intra_node: {bandwidth_gb_per_s: 235}
inter_node: {matrices: [{file: links.csv, concurrent_flows: 1}]}
"""

JOB = """
parallel:
  {tensor_parallel: [1, 2], context_parallel: 1, micro_batch_size: [1, 2], virtual_pipeline: 1, recompute: [none, full]}
"""

TRAINER = f"""
import os, sys
if os.environ["RANK"] == "0":
    sys.path.insert(0, {str(TESTS)!r})
    import fake_trainer
    with open("started", "a") as file:
        file.write("once\\n")
    sys.argv = ["fake_trainer.py", "plan.json", os.environ["SCRIPTED"]]
    sys.exit(fake_trainer.main())
"""

TUNE = """
tune() {
  python -m pipette_opt tune job.yaml --cluster cluster.yaml --model llama-3.2-1b \
    --global-batch-size 64 --seq-length 4096 --launcher slurm --num-gpus 8 --workers 1 \
    --run 'sbatch --wait --output={dir}/train.log {script}' --budget 3 --until 0 -o tuning "$@"
}
"""

KILLED = """
tune & first=$!
for _ in $(seq 600); do
  if grep -qs once tuning/trial-002/started; then break; fi
  sleep 0.1
done
kill -KILL $(pgrep -P $first) $first || true
wait $first || true
tune --json > answer.json || { cat tuning/*/*.log "$state"/slurmctld.log >&2; exit 1; }
"""


def test_trials_on_slurm(tmp_path: Path) -> None:
    """Pipelines are slower than predicted and two sequences run out; killed in its second trial, the search goes on."""
    hosts.require()
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "links.csv").write_text(",n1,n2\nn1,,20\nn2,20,\n")
    (tmp_path / "trainer.py").write_text(TRAINER)
    done = hosts.run_on(
        ["n1", "n2"],
        SERVERS + TUNE + KILLED,
        tmp_path,
        {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]),
            "PRETRAIN": str(tmp_path / "trainer.py"),
            "SCRIPTED": "'oom' if mbs == 2 and pp == 1 else sleep(3) or time_s * 1.2 * 1.5 ** log2(pp)",
        },
        timeout_s=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())
    trials = answer["trials"]
    assert [trial["trial"] for trial in trials] == [1, 2, 3]
    assert {trial["status"] for trial in trials} <= {"timed", "ran out"}
    assert len({json.dumps(trial["config"]) for trial in trials}) == 3
    for trial in trials:
        ran = tmp_path / "tuning" / f"trial-{trial['trial']:03d}" / "started"
        assert ran.read_text() == "once\n"
        assert trial["hosts"] == ["n1", "n2"]
    best = min((trial for trial in trials if trial["time_s"]), key=lambda trial: trial["time_s"])
    assert answer["best"] == best["trial"]
    assert (tmp_path / answer["plan"]).is_file()
