"""Search by trials on a cluster, with a command that prints a scripted log."""

import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import make_cluster, make_job
from fake_trainer import PEAK
from plain_worlds import plain_worlds

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.units import GIB, three_digits
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams
from pipette_opt.report.plan_file import read_plan
from pipette_opt.specs import DEFAULT_STACK, Instance
from pipette_opt.tune import launch, loop
from pipette_opt.tune.folder import RECORD, OwnRun, TuneFolder
from pipette_opt.tune.jobs import host_groups, trial_space
from pipette_opt.tune.loop import Progress, Tuned, Tuner
from pipette_opt.tune.settings import TuneSettings
from pipette_opt.tune.words import problems, verdict

pytestmark = pytest.mark.search

TRAINER = Path(__file__).parents[1] / "fake_trainer.py"

SPACE = SearchSpace(
    num_gpus=8,
    tensor_parallel=(1, 2, 4),
    context_parallel=(1,),
    micro_batch_size=(1, 2),
    recompute=(None,),
    max_virtual_pipeline=1,
    uneven_layers=False,
)

SLOW_PIPELINE = "time_s * 1.2 * 1.5 ** log2(pp)"


def job(hosts: int = 2, gpus: int = 4) -> Instance:
    """A tiny model on a few hosts."""
    return make_job(make_cluster(hosts, gpus=gpus), launcher="slurm", stack=DEFAULT_STACK)


def command(expression: str) -> str:
    """The command of a trial: a log with this time, written as the log of the run."""
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(TRAINER))} {{plan}} {shlex.quote(expression)}"


def tuner(
    folder: Path, expression: str, *, instance: Instance | None = None, own: Sequence[OwnRun] = (), **settings: object
) -> Tuner:
    """A search with a scripted command."""
    given = {"run": command(expression), "budget": 3, "until": None, **settings}
    instance = instance or job()
    return Tuner(
        instance,
        SPACE,
        inputs_of(instance),
        worlds=plain_worlds(),
        folder=TuneFolder(folder),
        settings=TuneSettings(**given),  # type: ignore[arg-type]
        own=own,
    )


def inputs_of(instance: Instance) -> dict[str, object]:
    """Inputs that plans record."""
    from dataclasses import asdict

    return {"model": asdict(instance.model), "training": asdict(instance.training)}


@pytest.fixture(autouse=True)
def no_shared_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are there when a command ends."""
    monkeypatch.setattr(loop, "LATE_S", 0.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    """A search of four trials; pipelines are slower than predicted."""
    folder = tmp_path_factory.mktemp("tuning") / "state"
    return folder, tuner(folder, SLOW_PIPELINE, budget=4).run()


def test_trials_are_exported_run_and_read(tuned: tuple[Path, Tuned]) -> None:
    """Each trial has its plan, launch files, log and record; the best is the fastest measured."""
    folder, found = tuned
    assert [record.status for record in found.records] == ["timed"] * 4
    for record in found.records:
        assert record.time_s == pytest.approx(
            record.predicted_s * 1.2 * 1.5 ** np.log2(record.config.pipeline_model_parallel_size), rel=1e-3
        )
        plan = json.loads((folder / f"trial-{record.trial:03d}" / "plan.json").read_text())
        peak_gib = max(stage["predicted_gib"] for stage in plan["memory"])
        assert record.peak_bytes == pytest.approx(PEAK * peak_gib * GIB, rel=1e-3)
        there = {file.name for file in (folder / f"trial-{record.trial:03d}").iterdir()}
        assert {"job.sbatch", "megatron_args.sh", "plan.json", "run.log", RECORD} <= there
        assert "--train-iters 12" in (folder / f"trial-{record.trial:03d}" / "megatron_args.sh").read_text()
    assert found.best is not None
    assert found.best.time_s == min(record.time_s or np.inf for record in found.records)
    assert found.plan == folder / f"trial-{found.best.trial:03d}" / "plan.json"
    assert found.reason == "the budget of 4 trials is spent"
    assert len({record.config for record in found.records}) == 4
    assert 0 <= found.regret < 1


def test_the_fastest_may_be_a_run_of_the_users_own(tuned: tuple[Path, Tuned], tmp_path: Path) -> None:
    """A faster run of the user's own is the answer, with its plan, and is not tried again; a slower one is not."""
    _, other = tuned
    tried = {record.config: record.time_s or np.inf for record in other.records}
    (slowest, slow_s), (config, fast_s) = max(tried.items(), key=lambda one: one[1]), (other.records[1].config, 1e-3)
    for time_s, words in ((fast_s, "your run mid.sh"), (slow_s, "trial ")):
        own = (OwnRun(place="mid.sh", config=config if time_s == fast_s else slowest, time_s=time_s),)
        folder = tmp_path / words.split()[0]
        found = tuner(folder, SLOW_PIPELINE, own=own, budget=2).run()
        assert own[0].config not in {record.config for record in found.records}
        assert found.best is not None
        assert found.plan is not None
        assert verdict(found).startswith("Fastest of 2 trials and 1 run of your own: ")
        assert f" s an iteration, {words}" in verdict(found)
        assert (found.best == own[0]) is (time_s == fast_s)
        assert read_plan(found.plan).config == found.best.config
    assert found.plan.name == "plan.json"


def test_runs_outside_of_the_search_are_no_answer(tuned: tuple[Path, Tuned], tmp_path: Path) -> None:
    """A run that pins exclude, a trial of the folder that is given as a run, and a failure, which is not tried."""
    folder, other = tuned
    config = other.records[0].config
    pinned = OwnRun(place="other.sh", config=replace(config, micro_batch_size=4), time_s=1e-3)
    again = OwnRun(place="trial-001", config=config, time_s=other.records[0].time_s)
    found = tuner(folder, SLOW_PIPELINE, own=(pinned, again), budget=4).run()
    assert not found.own
    assert found.best == other.best
    failed = OwnRun(place="failed.sh", config=config, time_s=None)
    found = tuner(tmp_path / "state", SLOW_PIPELINE, own=(failed,), budget=2).run()
    assert found.own == (failed,)
    assert config not in {record.config for record in found.records}


def test_the_accepted_risk_bounds_that_of_each_trial(tmp_path: Path) -> None:
    """No configuration is listed at a larger risk of running out of memory."""
    search = tuner(tmp_path / "state", "time_s", search=OptimizeParams(max_oom_risk=1e-3))
    assert set(search.listing.risks) == {1e-3}
    assert {USUAL_RISK, 0.5} >= set(tuner(tmp_path / "other", "time_s").listing.risks)


def test_a_larger_budget_goes_on_without_repeating(tuned: tuple[Path, Tuned]) -> None:
    """The same folder with one more trial runs one more, and keeps the others."""
    folder, before = tuned
    again = tuner(folder, SLOW_PIPELINE, budget=5).run()
    assert again.records[:4] == before.records
    assert len({record.config for record in again.records}) == 5


def test_failures_are_recorded_and_the_loop_goes_on(tmp_path: Path) -> None:
    """Out of memory teaches; a failed command and a log without a step are refused, each with its reason."""
    expression = "('oom' if mbs == 2 else 'fail' if pp == 2 else 'silent' if tp == 2 else time_s)"
    found = tuner(tmp_path / "state", expression, budget=8).run()
    assert {"ran out", "timed", "refused"} == {record.status for record in found.records}
    refused = {record.problem for record in found.records if record.status == "refused"}
    assert any("exit code 3, and run.log reports no iteration; it printed last: Traceback" in text for text in refused)
    assert "run.log reports no iteration" in refused


def test_a_wrong_command_ends_the_search(tmp_path: Path) -> None:
    """Two failures that differ only in numbers are enough: trials 1, 2 failed alike."""
    folder = tmp_path / "state"
    found = tuner(folder, "'other layout'", budget=8).run()
    assert len(found.records) == 2
    assert found.best is None
    assert found.reason == "trials 1, 2 failed alike in a row; the command is likely wrong"
    assert re.search("micro_batch_size 4 instead of 2|micro_batch_size 2 instead of 1", found.records[1].problem)
    again = tuner(folder, "time_s", budget=3).run()
    assert [record.status for record in again.records] == ["timed"] * 3
    assert [record.config for record in again.records[:2]] == [record.config for record in found.records]


def test_with_an_equal_command_other_configurations_follow(tmp_path: Path) -> None:
    """Typed again without a change, failed trials stay refused; failures of an earlier start do not count."""
    folder, expression = tmp_path / "state", "'fail' if mbs == 2 else time_s"
    first = tuner(folder, "'fail'", budget=3).run()
    assert [record.status for record in first.records] == ["refused"] * 2
    second = tuner(folder, "'fail'", budget=3).run()
    assert [record.status for record in second.records] == ["refused"] * 3
    assert second.reason == "the budget of 3 trials is spent"
    third = tuner(folder, expression, budget=3).run()
    assert {record.status for record in third.records} <= {"timed", "refused"}


def test_unlike_failures_in_a_row_end_the_search_later(tmp_path: Path) -> None:
    """Failures for different reasons count to three."""
    fails = "'silent' if mbs == 2 else 'fail'"
    found = tuner(tmp_path / "state", fails, budget=8).run()
    assert len(found.records) in (2, 3)
    assert "failed" in found.reason


def test_a_slurm_job_of_a_stopped_command_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ignores SIGTERM and printed the number of its job: it is killed, and the job cancelled."""
    scancel = tmp_path / "bin" / "scancel"
    scancel.parent.mkdir()
    scancel.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/cancelled\n')
    scancel.chmod(0o755)
    monkeypatch.setenv("PATH", str(scancel.parent), prepend=os.pathsep)
    monkeypatch.setattr(launch, "GRACE_S", 0.3)
    folder = tmp_path / "trial"
    folder.mkdir()
    launch.start("trap '' TERM; echo Submitted batch job 41 on cluster b; while :; do sleep 0.05; done", folder)
    while not (folder / launch.OUTPUT).read_text():
        time.sleep(0.01)
    assert launch.stop(folder) == "stopped; Slurm job 41 was cancelled"
    assert not launch.is_running(folder)
    assert (tmp_path / "cancelled").read_text() == "--clusters=b 41\n"
    assert launch.stop(folder) == "over by then"
    scancel.write_text("#!/bin/sh\necho Invalid job id >&2\nexit 1\n")
    launch.start("echo Submitted batch job 41; sleep 60", folder)
    while not (folder / launch.OUTPUT).read_text():
        time.sleep(0.01)
    assert launch.stop(folder) == "stopped; Slurm job 41 may still run, as scancel failed: Invalid job id"


def test_a_log_may_appear_after_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a command that ended well is waited for."""
    monkeypatch.setattr(loop, "LATE_S", 30.0)
    late = f"{command('time_s')} > part; (sleep 1; mv part train.log) > /dev/null 2>&1 &"
    found = tuner(tmp_path / "state", "", run=late, log="{dir}/train.log", budget=1).run()
    assert found.records[0].status == "timed"


def test_logs_of_earlier_runs_do_not_count(tmp_path: Path) -> None:
    """A pattern outside the trial's folder finds logs of other runs; those older than the trial are left out."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "other.log").write_text("iteration 9/12 | elapsed time per iteration (ms): 15000 |\n" * 6)
    pattern = f"{logs}/*.log"
    refused = tuner(tmp_path / "state", "", run="true", log=pattern, budget=1).run().records[0]
    assert refused.problem == f"no log that matches --log {pattern} was written since it began"
    times = "; ".join(["echo 'iteration 2/9 | elapsed time per iteration (ms): 2000 |'"] * 3)
    record = tuner(tmp_path / "state", "", run=f"({times}) > {logs}/own.log", log=pattern, budget=1).run().records[0]
    assert (record.status, record.time_s) == ("timed", 2.0)
    assert record.note == "layout not checked, as own.log prints no arguments of Megatron-LM"


def test_a_trial_begins_before_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick command writes its log before its process is noted; the log counts as written since the trial began."""
    noted = launch.Process.of

    def later(number: int) -> launch.Process:
        found = noted(number)
        while launch.exit_code(tmp_path) is None:
            time.sleep(0.01)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(launch.Process, "of", later)
    launch.start("echo done > own.log", tmp_path)
    assert 0 < launch.started(tmp_path) <= launch.written(tmp_path / "own.log")


def test_a_job_that_was_only_submitted(tmp_path: Path) -> None:
    """``sbatch`` without ``--wait`` returns at once; the trial says so."""
    found = tuner(tmp_path / "state", "", run="echo Submitted batch job 41", budget=1).run()
    assert found.records[0].problem.endswith("; the command ended before its Slurm job: use sbatch --wait")


def test_two_logs_with_other_times(tmp_path: Path) -> None:
    """The latest counts, and the other is named."""
    both = f"{command('time_s')} > a.log; sleep 0.05; {command('2 * time_s')} > b.log"
    found = tuner(tmp_path / "state", "", run=both, log="{dir}/?.log", budget=1).run()
    record = found.records[0]
    assert record.note == f"b.log counts, as the latest; a.log says {three_digits((record.time_s or 0.0) / 2)} s"
    assert problems(found.records) == [f"- trial 1: {record.note}"]


def test_options_that_no_trial_can_have_end_the_search(tmp_path: Path) -> None:
    """A missing image and a full disk are no faults of a configuration."""
    with pytest.raises(InputError, match="--image: is required"):
        tuner(tmp_path / "state", "time_s", format="kubernetes").run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_folder", full_disk)
        with pytest.raises(InputError, match="No space left"):
            tuner(tmp_path / "other", "time_s").run()


def full_disk(folder: Path, files: object) -> None:
    """Fail as on a full disk."""
    raise InputError(str(folder), "cannot be opened: No space left on device.")


def test_implausible_times_are_refused(tmp_path: Path) -> None:
    """Faster than the peak of the GPUs, and a thousand times slower than predicted."""
    fast = tuner(tmp_path / "fast", "time_s / 100", budget=1).run().records[0]
    slow = tuner(tmp_path / "slow", "time_s * 1000", budget=1).run().records[0]
    assert "faster than the GPUs' peak allows" in fast.problem
    assert "1000 times the predicted time" in slow.problem


def test_a_command_that_hangs_is_stopped(tmp_path: Path) -> None:
    """After the timeout the command and its processes are ended, and the trial is refused."""
    begun = time.monotonic()
    found = tuner(tmp_path / "state", "'hang'", budget=1, run_timeout=0.5).run()
    assert time.monotonic() - begun < 60
    assert "did not end within 0.5 s (--run-timeout)" in found.records[0].problem
    deadline = time.monotonic() + 10
    while launch.is_running(tmp_path / "state" / "trial-001") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not launch.is_running(tmp_path / "state" / "trial-001")


def test_an_interrupted_search_waits_for_its_command(tmp_path: Path) -> None:
    """A command that outlives its search runs once; the next search reads its result."""
    folder = tmp_path / "state"
    slow = f"sleep 1; echo ran >> {tmp_path}/count; {command('time_s')}"
    first = tuner(folder, "time_s", run=slow, budget=1)
    stop = threading.Event()
    first.stop = stop

    def interrupt(progress: Progress) -> None:
        if progress.records and progress.records[0].status == "started":
            stop.set()

    first.report = interrupt
    found = first.run()
    assert (found.reason, found.advice) == ("interrupted", "Trial 1 still runs. Type the same command to go on.")
    assert launch.is_running(folder / "trial-001")
    again = tuner(folder, "time_s", run=slow, budget=1).run()
    assert [record.status for record in again.records] == ["timed"]
    assert (tmp_path / "count").read_text() == "ran\n"


def test_a_trial_whose_command_was_killed_starts_again(tmp_path: Path) -> None:
    """With no process, no exit code and no result, the trial of that number runs again."""
    folder = tmp_path / "state"
    tuner(folder, "time_s", budget=1).run()
    trial = folder / "trial-001"
    for name in (launch.EXIT, launch.LOCK, launch.OUTPUT):
        (trial / name).unlink()
    record = trial / RECORD
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"status": "started", "time_s": None}))
    found = tuner(folder, "time_s", budget=1).run()
    assert [(one.trial, one.status) for one in found.records] == [(1, "timed")]


def test_without_a_command_the_user_puts_the_log(tmp_path: Path) -> None:
    """The search says what to start, and goes on when the log is there."""
    folder = tmp_path / "state"
    search = tuner(folder, "", run=None, budget=1)
    asked: list[str] = []

    def put(progress: Progress) -> None:
        asked.append(progress.message)
        if "waits for a log" in progress.message:
            launch.start(launch.command(command("time_s"), search._values(progress.records[0])), folder / "trial-001")

    search.report = put
    threading.Timer(30, search.stop.set).start()
    found = search.run()
    assert found.records[0].status == "timed"
    assert any("waits for a log" in text and "job.sbatch" in text for text in asked)


def test_trials_at_once_have_hosts_of_their_own(tmp_path: Path) -> None:
    """Two trials of two hosts each on four hosts overlap in time, not in hosts."""
    instance = job(hosts=4)
    found = tuner(
        tmp_path / "state", "time_s", instance=instance, budget=2, parallel=2, run=f"sleep 0.5; {command('time_s')}"
    ).run()
    first, second = found.records
    assert {first.status, second.status} == {"timed"}
    assert not set(first.hosts) & set(second.hosts)
    assert abs((first.started or 0) - (second.started or 0)) < 60
    assert first.config != second.config


def test_more_trials_at_once_wait_for_their_hosts(tmp_path: Path) -> None:
    """A trial on all hosts still runs when the search goes on with two trials at once: they wait for it."""
    instance, folder = job(hosts=4), tmp_path / "state"
    first = tuner(folder, "time_s", instance=instance, budget=1, run=f"sleep 1; {command('time_s')}")
    first.report = lambda progress: first.stop.set() if progress.records[-1:] and progress.records[-1].started else None
    assert not first.run().records[0].is_over
    found = tuner(folder, "time_s", instance=instance, budget=3, parallel=2).run()
    assert [record.status for record in found.records] == ["timed"] * 3


def test_groups_of_hosts() -> None:
    """Without a number of GPUs trials share the hosts equally; the hosts must be enough."""
    assert host_groups(job(hosts=5), SearchSpace(), 2) == [("n0", "n1"), ("n2", "n3")]
    assert trial_space(job(hosts=5), SearchSpace(), 2).num_gpus == 8
    with pytest.raises(InputError, match="--parallel: must be at most the 2 hosts of the cluster, got 3"):
        host_groups(job(), SearchSpace(), 3)
    with pytest.raises(InputError, match="need 4 hosts; the cluster has 2"):
        host_groups(job(), SPACE, 2)
    assert host_groups(job(hosts=4), SPACE, 2) == [("n0", "n1"), ("n2", "n3")]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"budget": 0}, "--budget: must be >= 1, got 0."),
        ({"steps": 3}, "--steps: must be more than the 3 of --warm-up"),
        ({"run_timeout": 0.0}, "--run-timeout: must be more than 0"),
        ({"format": "paper"}, "--format: must be one of"),
        ({"run": "sbatch {scrpt}"}, "--run: has the unknown placeholder {scrpt}"),
        ({"log": "{dir"}, "--log: has a brace without a partner"),
    ],
)
def test_wrong_settings(settings: dict[str, object], problem: str) -> None:
    """Each is refused by its option."""
    with pytest.raises(InputError) as caught:
        TuneSettings(**settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith(problem)
