"""Functions with the command line's names: equal answers to ``--json``, errors that name arguments, short ``repr``."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands_here import typed
from factories import TINY, make_cluster

import pipette_opt as po
from pipette_opt.library.backtest import backtest
from pipette_opt.library.benchmark import compare
from pipette_opt.library.links import links
from pipette_opt.library.verify import verify
from pipette_opt.plans.summary import MAX_LINES

PINNED = {"tp": 8, "pp": (1, 2), "cp": 1, "vpp": 1, "mbs": 1, "workers": 1}
RUNS = """gpu,gpus_per_node,model,num_layers,hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,num_gpus,iter_time_s
a100-80gb,8,gpt,24,2048,16,50257,2048,64,1,1,1,8,8,2.5
a100-80gb,8,gpt,24,2048,16,50257,2048,64,1,2,1,4,8,2.9
"""
TODAY = "--tensor-model-parallel-size 8 --micro-batch-size 1"
NAMES = ("calibrate", "estimate", "explain", "export", "pack", "recommend", "replan", "solve", "whatif")


@pytest.fixture(scope="module")
def plan() -> po.Plan:
    """Solved once, in memory."""
    return po.solve(example="lab-2x8", **PINNED, time_limit_s=3, gap_limit=0.3)


@pytest.fixture(scope="module")
def folder(plan: po.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan as a file."""
    path = tmp_path_factory.mktemp("functions")
    po.write_plan(plan, path / "plan.json")
    return path


def answer_of(folder: Path, *arguments: str) -> Any:
    """The JSON document of a command."""
    code, out, err = typed(folder, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def as_json(found: Any) -> Any:
    """An object as its document is read back."""
    return json.loads(json.dumps(found.as_dict()))


def is_short(*objects: object) -> bool:
    """Whether each is shown in at most ten lines."""
    return all(0 < len(repr(one).splitlines()) <= MAX_LINES for one in objects)


def test_names_stay_functions_beside_rooms_of_the_same_name() -> None:
    """Importing a room does not put it in the place of the function."""
    for room in ("calibrate.fit", "export.targets", "replan.whatif"):
        importlib.import_module(f"pipette_opt.{room}")
    assert all(callable(getattr(po, name)) for name in NAMES)


@pytest.mark.search
def test_estimate(plan: po.Plan, folder: Path) -> None:
    """A plan in memory, in a file, and a launch of today."""
    assert as_json(po.estimate(plan)) == answer_of(folder, "estimate", "plan.json")
    assert as_json(po.estimate(folder / "plan.json", schedule="gpipe")) == answer_of(
        folder, "estimate", "plan.json", "--schedule", "gpipe"
    )
    today = po.estimate(launch=TODAY, example="lab-2x8", host_order="gpu[02,01]")
    options = ("--launch", TODAY, "--example", "lab-2x8", "--host-order", "gpu[02,01]")
    assert as_json(today) == answer_of(folder, "estimate", *options)
    assert is_short(plan, today)


@pytest.mark.search
def test_a_trace_is_written_where_asked(plan: po.Plan, tmp_path: Path) -> None:
    """Nowhere else."""
    po.estimate(plan, trace=tmp_path / "trace.json")
    assert [one.name for one in tmp_path.iterdir()] == ["trace.json"]


def test_estimate_of_specs_in_memory() -> None:
    """A launch on machines that are in no file."""
    training = po.TrainingSpec(global_batch_size=8, seq_length=1024)
    found = po.estimate(launch="--micro-batch-size 1", cluster=make_cluster(2, gpus=2), model=TINY, training=training)
    assert found.config.data_parallel_size == 4


@pytest.mark.search
def test_explain(plan: po.Plan, folder: Path) -> None:
    """One configuration, several, and none."""
    asked = ["tp3", "tp8 pp2 mbs1"]
    found = po.explain(asked, plan=plan, time_limit_s=1, workers=1)
    options = ("--plan", "plan.json", "--time-limit", "1", "--workers", "1")
    documents = answer_of(folder, "explain", *asked, *options)
    assert [one.as_dict()["verdict"] for one in found.answers] == [one["verdict"] for one in documents]
    assert [list(one.as_dict()) for one in found.answers] == [list(one) for one in documents]
    assert [one.asked for one in found.answers] == asked
    nothing = po.explain(example="lab-2x8", tp=8, pp=1, dp=2, mbs=1)
    pins = ("--tp", "8", "--pp", "1", "--dp", "2", "--mbs", "1")
    assert answer_of(folder, "explain", "--example", "lab-2x8", *pins) == {"feasible": True, "conflicts": []}
    assert nothing.conflicts == ()
    assert is_short(found, *found.answers, nothing)


@pytest.mark.search
def test_whatif(plan: po.Plan, folder: Path) -> None:
    """Questions in the order of the command's."""
    found = po.whatif(plan, without="each", link_speed=(0.5, 2), gpu_price="2.5", time_limit_s=2, workers=1)
    options = ("--without", "each", "--link-speed", "0.5,2", "--gpu-price", "2.5", "--time-limit", "2")
    document = answer_of(folder, "whatif", "plan.json", *options, "--workers", "1")
    assert [one.name for one in found.answers] == [one["name"] for one in document["answers"]]
    assert found.today.expected_s == document["plan"]["expected_s"]
    assert found.today.price_per_hour == document["plan"]["price_per_hour"]
    assert is_short(found)


@pytest.mark.search
def test_replan(plan: po.Plan, folder: Path) -> None:
    """On the host that is left; the plan is there, and no file."""
    found = po.replan(plan, lost="gpu02", time_limit_s=1.5, workers=1)
    options = ("--lost", "gpu02", "--time-limit", "1.5", "--workers", "1", "-o", "new.json")
    document = answer_of(folder, "replan", "plan.json", *options)
    assert found.chosen.plan.config == po.read_plan(folder / "new.json").config
    assert found.chosen.num_loads == document["num_hosts_to_load"]
    assert found.chosen in found.options
    assert is_short(found, found.chosen)


@pytest.mark.search
def test_replan_of_another_objective(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plan of the least regret is planned again for the least time, which is said, and holds."""
    launch = folder / "mine.json"
    po.write_plan(po.read_plan(folder / "plan.json"), launch)
    seconds = f"{launch}={1.1 * po.read_plan(launch).estimate.iteration_time_s}s"
    asked = {"objective": "regret", "time_limit_s": 3, "gap_limit": 0.3}
    old = po.solve(example="lab-2x8", **PINNED, measured_runs=[seconds], **asked)
    new = po.replan(old, lost="gpu02", measured_runs=[seconds], time_limit_s=1.5, workers=1).chosen.plan
    assert "replan searches for the least time; the objective of the plan, regret, does not count" in caplog.text
    assert new.inputs["objective"] == "time"
    po.write_plan(new, folder / "new.json")
    assert typed(folder, "verify", "new.json")[0] == 0


@pytest.mark.search
def test_recommend(folder: Path) -> None:
    """A row for each number of hosts."""
    limits = {"tp": 8, "cp": 1, "vpp": 1, "mbs": 1, "workers": 1, "time_limit_s": 2}
    found = po.recommend(example="lab-2x8", num_hosts=(1, 2), tokens=1e9, **limits)
    options = ("--num-hosts", "1,2", "--tokens", "1e9", "--time-limit", "2")
    (folder / "job.yaml").write_text("example: lab-2x8\nparallel: {tp: 8, cp: 1, vpp: 1, mbs: 1}\n")
    document = answer_of(folder, "recommend", "job.yaml", *options, "--workers", "1")
    assert [one.num_hosts for one in found.offers] == [one["num_hosts"] for one in document["offers"]]
    assert {word: found.offers.index(one) for word, one in found.choices.items()} == document["choices"]
    assert is_short(found)


@pytest.mark.parametrize("function", [po.estimate, po.whatif, po.replan])
def test_variables_are_for_measured_scripts(function: Callable[..., object], plan: po.Plan, tmp_path: Path) -> None:
    """They reach the script, and are refused where nothing reads them."""
    with pytest.raises(po.InputError, match=r"^env: has no effect without --measured"):
        function(plan, env="TP=8")
    (script := tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size ${SIZE:?}\n")
    with pytest.raises(po.InputError, match="--tensor-model-parallel-size must be a whole number >= 1, got 'many'"):
        function(plan, measured_runs=f"{script}=9s", env="SIZE=many")


def test_export(plan: po.Plan, folder: Path, tmp_path: Path) -> None:
    """Files by name, written where asked; or the lines of a script."""
    found = po.export(plan, "slurm", partition="gpu", out=tmp_path / "launch")
    assert found.files == answer_of(folder, "export", "plan.json", "--format", "slurm", "--partition", "gpu")
    written = {one.name: one.read_text() for one in (tmp_path / "launch").iterdir()}
    assert written.pop(".pipette-opt-export.json")  # which of them export wrote
    assert written == found.files
    changes = po.export(plan, "megatron", launch=TODAY).changes
    document = answer_of(folder, "export", "plan.json", "--format", "megatron", "--launch", TODAY)
    assert [one.option for one in changes] == [one["option"] for one in document]
    (script := tmp_path / "train.sh").write_text(f"torchrun pretrain_gpt.py {TODAY.replace('8', '${TP:?}')}\n")
    assert len(po.export(plan, "megatron", launch=script, env="TP=8").changes) == len(changes)
    with pytest.raises(po.InputError, match=r"^env: has no effect without --launch, the script"):
        po.export(plan, "megatron", env="TP=8")
    assert is_short(found)


@pytest.mark.search
def test_calibrate(folder: Path) -> None:
    """The stack, its notes and rows left out; written where asked."""
    runs = folder / "runs.csv"
    runs.write_text(RUNS)
    found = po.calibrate(runs, out=folder / "mine.yaml", validate=False)
    document = answer_of(folder, "calibrate", "runs.csv", "-o", "stack.yaml", "--no-validate")
    assert document["notes"] == list(found.notes)
    assert (folder / "mine.yaml").read_text().replace("name: mine", "name: stack") == (
        folder / "stack.yaml"
    ).read_text()
    assert is_short(found)


@pytest.mark.parametrize(
    ("ask", "where"),
    [
        (lambda plan: po.estimate(), "plan"),
        (lambda plan: po.estimate(plan, seq_length=4096), "seq_length"),
        (lambda plan: po.estimate(plan, max_oom_risk=2), "max_oom_risk"),
        (lambda plan: po.estimate(launch=TODAY, example="lab-2x8", host_order="gpu99"), "host_order"),
        (lambda plan: po.estimate(launch=f"{TODAY} --seq-length 1", example="lab-2x8"), "launch"),
        (lambda plan: po.explain("tp8 cabbage", plan=plan), "asked"),
        (lambda plan: po.explain("tp8"), "cluster"),
        (lambda plan: po.explain("tp8", plan=plan, tp=8), "tensor_parallel"),
        (lambda plan: po.explain("tp8", rules=True, example="lab-2x8"), "rules"),
        (lambda plan: po.explain(example="lab-2x8", time_limit_s=0.01), "time_limit_s"),
        (lambda plan: po.whatif(plan, link_speed="fast"), "link_speed"),
        (lambda plan: po.whatif(plan, add_hosts=0), "add_hosts"),
        (lambda plan: po.whatif(plan, workers=0), "workers"),
        (lambda plan: po.whatif("nowhere.json"), "nowhere.json"),
        (lambda plan: po.replan(plan, lost="gpu99"), "lost"),
        (lambda plan: po.replan(plan, micro_batches="odd"), "micro_batches"),
        (lambda plan: po.replan(plan, time_limit_s=-1.0), "time_limit_s"),
        (lambda plan: po.recommend(deadline="30d"), "deadline"),
        (lambda plan: po.recommend(example="lab-2x8", num_hosts=9), "num_hosts"),
        (lambda plan: po.recommend(example="lab-2x8", num_gpus=8), "num_gpus"),
        (lambda plan: po.tune(example="lab-2x8", until="two"), "until"),
        (lambda plan: po.tune(example="lab-2x8", steps=2), "steps"),
        (lambda plan: po.tune(example="lab-2x8", format="pbs"), "format"),
        (lambda plan: compare(example="lab-2x8", vpp=2), "virtual_pipeline"),
        (lambda plan: backtest("runs.csv", max_oom_risk=1), "max_oom_risk"),
        (lambda plan: links(["nowhere.yaml"]), "nowhere.yaml"),
        (lambda plan: verify("plan.json", time_limit_s=1), "time_limit_s"),
        (lambda plan: po.export(plan, "pbs"), "format"),
        (lambda plan: po.export(plan, "megatron", partition="gpu"), "partition"),
        (lambda plan: po.export(plan, "slurm", launch=TODAY), "launch"),
        (lambda plan: po.calibrate("nowhere.csv"), "nowhere.csv"),
        (lambda plan: po.calibrate("runs.csv", seed=-1), "seed"),
        (lambda plan: po.solve(example="lab-2x8", time_limit_s=-1.0), "time_limit_s"),
    ],
)
def test_errors_name_arguments(plan: po.Plan, ask: Callable[[po.Plan], object], where: str) -> None:
    """Not options of the command line."""
    with pytest.raises(po.InputError) as raised:
        ask(plan)
    assert raised.value.where == where, str(raised.value)


@pytest.mark.search
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/library.md with every function, as it is written there."""
    page = (Path(__file__).parents[2] / "docs" / "library.md").read_text()
    block = next(one.split("```")[0] for one in page.split("```python\n")[1:] if "po.recommend(" in one)
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(RUNS)
    exec(compile(block, "docs/library.md", "exec"), {})
    assert all(f"po.{name}(" in block for name in NAMES)
    assert {"plan.json", "stack.yaml", "launch"} <= {one.name for one in tmp_path.iterdir()}
    assert capsys.readouterr().out.startswith("Plan tp8 ")
