"""The commands as a user runs them: what they print, write and return."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from factories import make_plan
from tables import table

from pipette_opt.baselines.compare import METHODS
from pipette_opt.baselines.megatron import identity_order
from pipette_opt.baselines.varuna import varuna
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result
from pipette_opt.report.plan_file import write_plan

Run = Callable[..., tuple[int, str, str]]

SMALL = ("--example", "lab-2x8", "--tensor-parallel", "8", "--time-limit", "3", "--workers", "2")
QUICK = (*SMALL, "--gap-limit", "0.5")


@pytest.fixture
def run(command: Run) -> Run:
    """See :func:`command`."""
    return command


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A plan of the two-host example, from a process without torch.

    The shipped network is evaluated in numpy: where torch is not installed, plans are made all the same.
    """
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    code = (
        f"import sys; sys.argv = ['pipette-opt', 'solve', *{QUICK!r}, '-o', {str(path)!r}]\n"
        "sys.modules['torch'] = None\n"
        "from pipette_opt.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_help_imports_nothing_heavy() -> None:
    """Help answers fast because it loads neither solver nor arrays nor torch."""
    code = (
        "import sys; sys.argv = ['pipette-opt', '--help']\n"
        "from pipette_opt.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'ortools', 'numba', 'torch', 'pandas', 'numpy', 'yaml'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "solve" in done.stdout


def test_what_needs_torch_says_so(tmp_path: Path) -> None:
    """Without torch, one line with the command that installs it; exit code 2, no traceback."""
    words = ["profile", "compute", "--model", "llama-3-8b", "--seq-length", "512", "--device", "cpu"]
    code = (
        f"import sys; sys.argv = ['pipette-opt', *{words!r}]\n"
        "sys.modules['torch'] = None\n"
        "from pipette_opt.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "pip install 'pipette-opt[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_solve_writes_a_plan_that_verifies(run: Run, solved: Path) -> None:
    """The plan has a certificate, every rank has a GPU, and all rules hold."""
    plan = json.loads(solved.read_text())
    assert plan["certificate"]["lower_bound_s"] <= plan["certificate"]["objective_s"]
    assert plan["certificate"]["num_pruned"] <= plan["certificate"]["num_candidates"]  # bounds may rule out all others
    assert len({(entry["host"], entry["local_rank"]) for entry in plan["placement"]}) == 16
    code, out, err = run("verify", str(solved))
    assert (code, out) == (0, "")
    assert "rules hold" in err


def test_solve_shows_tables_and_reports_progress(run: Run) -> None:
    """The first screen on standard output, all tables with ``-v``, progress on standard error, the plan in a file."""
    code, out, err = run("solve", *QUICK)
    assert code == 0
    assert len(out.splitlines()) <= 40
    assert "--tensor-model-parallel-size" in out
    assert "per iteration" in out
    assert "pipette-opt export plan.json" in out
    code, out, _ = run("solve", *QUICK, "-v")
    assert "Certificate" in out
    assert "bounding simulated times" in err
    assert "plan written to plan.json" in err
    assert Path("plan.json").is_file()


@pytest.mark.parametrize("more", [(), ("-q",)])
def test_solve_replaces_no_plan_of_another_job(run: Run, more: tuple[str, ...]) -> None:
    """Refused before the search, unless the file is given; its own plan is replaced."""
    write_plan(make_plan(), "plan.json")
    before = Path("plan.json").read_bytes()
    code, _, err = run("solve", *QUICK, *more)
    assert code == 2
    assert "plan.json: is the plan of another job: " in err
    assert Path("plan.json").read_bytes() == before
    for options in (("-o", "plan.json"), ()):
        assert run("solve", *QUICK, *options, *more)[0] == 0
    assert Path("plan.json").read_bytes() != before


def test_solve_as_json(run: Run) -> None:
    """One JSON document, nothing else: that of the file, the verdict, and the options that would pay."""
    code, out, _ = run("solve", *QUICK, "--json")
    assert code == 0
    document = json.loads(out)
    assert all(0 < one["saved_share"] < 1 for one in document.pop("would_pay"))
    assert document.pop("verdict").startswith("Fits")
    assert document == json.loads(Path("plan.json").read_text())


def test_estimate_of_a_plan_is_the_plans(run: Run, solved: Path) -> None:
    """The simulator says the same again."""
    code, out, _ = run("estimate", str(solved))
    assert code == 0
    assert "your current launch" not in out
    code, out, _ = run("estimate", str(solved), "--json")
    assert code == 0
    expected = json.loads(solved.read_text())["estimate"]["iteration_time_s"]
    assert json.loads(out)["estimate"]["iteration_time_s"] == pytest.approx(expected, rel=1e-9)


ARGUMENTS = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 1 --sequence-parallel"


def test_estimate_of_todays_arguments(run: Run) -> None:
    """The user's degrees on the user's host order; the reverse order is as legal."""
    code, out, _ = run(
        "estimate", "--example", "lab-2x8", "--launch", ARGUMENTS, "--host-order", "gpu02,gpu01", "--json"
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["hosts"] == ["gpu02", "gpu01"]
    assert answer["parallel"]["pipeline_model_parallel_size"] == 2
    assert sum(answer["estimate"]["breakdown"].values()) == pytest.approx(answer["estimate"]["iteration_time_s"])


def test_solve_beside_todays_arguments(run: Run) -> None:
    """The comparison says how much faster the plan is; all of it fits a screen, the lines to change among them."""
    code, out, _ = run("solve", *QUICK, "--compare", "--launch", ARGUMENTS)
    assert code == 0
    assert len(out.splitlines()) <= 44  # about 40: the search ends early, and some labels take two lines
    assert "Today" in out
    assert "tokens per second" in out or "equally fast" in out
    code, out, _ = run("solve", *QUICK, "--compare", "--launch", ARGUMENTS, "--json")
    assert code == 0
    found = json.loads(out)
    changed = {one["option"]: one["after"] for one in found["changes"]}
    parallel = found["parallel"]
    if parallel["tensor_model_parallel_size"] != 8:
        assert changed["--tensor-model-parallel-size"] == str(parallel["tensor_model_parallel_size"])
    assert found["current"]["estimate"]["iteration_time_s"] >= found["estimate"]["iteration_time_s"]


def test_a_current_launch_over_a_missing_link_is_compared(run: Run) -> None:
    """The slowest measured link stands in for the one that was not, which is named; the plan does without it."""
    links = "from/to,a,b,c\na,,,20\nb,,,20\nc,20,20,\n"
    Path("links.csv").write_text(links)
    Path("c.yaml").write_text(
        "name: c\nnodes: [{hosts: [a, b, c], gpu: a100-80gb, gpus_per_node: 8}]\n"
        "intra_node: {bandwidth_gb_per_s: 200}\n"
        "inter_node: {matrices: [{file: links.csv, concurrent_flows: 1}]}\n"
    )
    code, out, _ = run(
        *("solve", "--cluster", "c.yaml", "--model", "llama-3-8b", "--global-batch-size", "32"),
        *("--seq-length", "4096", "--num-gpus", "16", "--gap-limit", "0.5", "--tensor-parallel", "8"),
        *("--compare", "--launch", ARGUMENTS, "--host-order", "a,b"),
    )
    assert code == 0
    assert "links not measured a - b" in " ".join(out.split())
    assert "The plan has" in out
    used = {entry["host"] for entry in json.loads(Path("plan.json").read_text())["placement"]}
    assert "c" in used


@pytest.mark.parametrize("target", ["rankmap-json", "rankmap-csv", "megatron", "slurm"])
def test_export(run: Run, solved: Path, target: str) -> None:
    """Every target gives files, on standard output or in a folder."""
    code, out, _ = run("export", str(solved), "--format", target)
    assert code == 0
    assert out
    code, _, _ = run("export", str(solved), "--format", target, "-o", "launch")
    assert code == 0
    assert list(Path("launch").iterdir())


def test_benchmark_solve(run: Run) -> None:
    """The solver's plan is simulated no slower than the baselines', and the CSV has the same rows."""
    code, out, _ = run("benchmark", "solve", *SMALL, "--time-limit", "1", "--csv", "rows.csv", "--json")
    assert code == 0
    rows = {row["method"]: row for row in json.loads(out)}
    ours = rows["pipette-opt"]
    times_s = [row["iteration_time_s"] for row in rows.values()]
    assert all(seconds is None or ours["iteration_time_s"] <= seconds * (1 + 1e-9) for seconds in times_s)
    assert rows["Pipette's annealing"]["iteration_time_s"] is not None
    assert 0 < ours["lower_bound_s"] <= ours["iteration_time_s"]
    assert len(Path("rows.csv").read_text().splitlines()) == 1 + len(rows)


def test_an_interrupt_of_benchmark_solve_keeps_what_is_done(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the fourth method: three rows, exit code 4. The methods before it need little time here."""

    def at_once(data: ProblemData, *settings: object) -> Result:
        return identity_order(data)

    def interrupted(data: ProblemData) -> Result:
        signal.raise_signal(signal.SIGINT)
        return varuna(data)

    monkeypatch.setattr("pipette_opt.baselines.compare.pipette", at_once)
    monkeypatch.setattr("pipette_opt.baselines.compare.amp", at_once)
    monkeypatch.setattr("pipette_opt.baselines.compare.varuna", interrupted)
    code, out, err = run("benchmark", "solve", *SMALL, "--time-limit", "1", "--csv", "rows.csv", "--json")
    assert code == 4
    assert [row["method"] for row in json.loads(out)] == list(METHODS[:3])
    assert "stopped early: 3 of 6 methods are done" in err
    assert len(Path("rows.csv").read_text().splitlines()) == 4


def test_import_links_and_solve(run: Run) -> None:
    """A Pipette-style matrix becomes a cluster that solve reads."""
    rng = np.random.default_rng(0)
    matrix = {"gpus": ["x", "y"], "bandwidth": rng.uniform(10_000, 20_000, (2, 2)).tolist()}
    Path("links.json").write_text(json.dumps(matrix))
    code, _, err = run("import", "links", "links.json", "-o", "c.yaml", "--gpu", "a100-80gb", "--gpus-per-node", "8")
    assert code == 0
    assert "2 hosts written" in err
    assert yaml.safe_load(Path("c.yaml").read_text())["nodes"][0]["gpu"] == "a100-80gb"
    job = ("--cluster", "c.yaml", "--model", "llama-3.2-1b", "--global-batch-size", "16", "--seq-length", "2048")
    code, _, _ = run("solve", *job, "--time-limit", "2", "--gap-limit", "0.5")
    assert code == 0


def test_import_model(run: Run) -> None:
    """What was understood, and a file that is read back as the same model."""
    code, out, err = run("import", "model", "llama-3-8b", "-o", "mine.yaml")
    assert code == 0
    assert "num_layers: 32" in out
    assert "8.03 billion" in err
    code, out, _ = run("import", "model", "mine.yaml", "--json")
    assert json.loads(out)["num_parameters"] == 8_030_261_248


def test_import_model_from_arguments(run: Run) -> None:
    """Megatron's arguments as one word, as many, or after ``--``; our own options are still ours."""
    words = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64 --vocab-size 500"
    ways = ((words,), words.split(), ("-o", "m.yaml", *words.split()))
    found = [run("import", "model", *given, "--json") for given in ways]
    found.append(run("import", "model", "--json", "--", words))
    assert [code for code, _, _ in found] == [0, 0, 0, 0]
    assert len({out for _, out, _ in found}) == 1
    assert Path("m.yaml").is_file()


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["shows"])
def test_refused_commands(run: Run, solved: Path, row: dict[str, Any]) -> None:
    """Each command has the exit code and the parts of its error beside it, and lacks others."""
    two_on_one = json.loads(solved.read_text())
    two_on_one["placement"][1]["local_rank"] = two_on_one["placement"][0]["local_rank"]
    signs = {"{plan}": str(solved), "{plan with two ranks on a GPU}": json.dumps(two_on_one)}
    for name, text in row.get("files", {}).items():
        Path(name).write_text(signs.get(text, text))
    words = [part for word in row["words"] for part in (QUICK if word == "{quick}" else [signs.get(word, word)])]
    code, _, err = run(*words)
    assert code == row["code"]
    assert [part for part in row["err"] if part not in err] == []
    assert [part for part in row.get("lacks", ()) if part in err] == []
