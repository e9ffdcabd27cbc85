"""Job files: the same job as the options, errors with their place, and launches from degrees."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pipette_opt as po
from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.job.file import read_job_file
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions

JOB = """\
model: llama-3-8b
cluster: {nodes: 2, gpu: h100, nics: 8x400}
training: {global_batch_size: 64, seq_length: 4096}
parallel: {tensor_model_parallel_size: 8, pp: 2, micro_batch_size: 1}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of two hosts."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def run(*words: str | Path) -> tuple[int, str, str]:
    """Run a command; return exit code, output and messages."""
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
    error = f"{found.exception}" if found.exception is not None else ""
    return found.exit_code, found.output, f"{found.stderr}{error}"


def test_a_file_is_the_job_of_the_options(job: Path) -> None:
    """Keys under Megatron-LM's names, short ones and the product's own."""
    given = po.read_job(job)
    assert given["tensor_parallel"] == (8,)
    assert given["pipeline_parallel"] == (2,)
    said = {name: value for name, value in given.items() if name in JobOptions.__dataclass_fields__}
    options = JobOptions(model="llama-3-8b", nodes="2", gpu="h100", nics="8x400", global_batch_size=64, seq_length=4096)
    assert JobOptions(**said) == options
    assert read_job(JobOptions(**said)).instance.training.global_batch_size == 64


def test_files_are_found_beside_the_job_file(tmp_path: Path) -> None:
    """A path as written, or else beside the job file; a section may be a single text."""
    (tmp_path / "mine.yaml").write_text("x")
    path = tmp_path / "job.yaml"
    path.write_text("cluster: mine.yaml\nsoftware: {name: megatron-core}\n")
    found = read_job_file(path)
    assert found.given == {"cluster": tmp_path / "mine.yaml", "software": "megatron-core"}
    assert found.place("cluster") == "cluster.cluster"
    path.write_text("software: torchtitan\n")
    assert read_job_file(path).given == {"software": "torchtitan"}
    path.write_text("software: mine.yaml\n")
    assert read_job_file(path).given == {"software": str(tmp_path / "mine.yaml")}


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("modle: llama-3-8b", "modle", "is no key of a job file. Did you mean model"),
        ("args: train.sh", "args", "is no key of a job file. Did you mean launch"),
        ("training: {nodes: 2}", "training.nodes", "stands in the wrong section; write it as cluster.nodes"),
        ("training: {gbs: 8, global_batch_size: 8}", "training.global_batch_size", "given twice, under two names"),
        ("training: {seq_length: long}", "training.seq_length", "must be a whole number, got 'long'"),
        ("training: 5", "training", "must be a mapping of global_batch_size"),
        ("parallel: {tp: [4, x]}", "parallel.tp", "must be whole numbers >= 1"),
        ("cluster: 5", "cluster", "must be a mapping of cluster, nodes"),
        ("measured: {iter_time_s: soon}", "measured.iter_time_s", "must be a number, got 'soon'"),
        ("measured: {iter_time_s: 0}", "measured.iter_time_s", "must be > 0, got 0"),
        ("- model", "", "must be a mapping with model"),
        ("", "", "must be a mapping with model"),
    ],
)
def test_wrong_files_are_refused_with_the_place(tmp_path: Path, text: str, place: str, problem: str) -> None:
    """File, key, value and what would be right."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        read_job_file(path)
    assert found.value.where == (f"{path}, {place}" if place else str(path))
    assert problem in found.value.problem


def test_degrees_are_a_launch(job: Path) -> None:
    """What ``estimate`` simulates; options of Megatron-LM may stand beside the degrees, but no search takes them."""
    job.write_text(JOB.replace("pp: 2,", "pp: 2, sequence_parallel: true, recompute: full, vpp: 1,"))
    words = (read_job_file(job).whole_launch() or "").split()
    assert words[:4] == ["--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size", "2"]
    assert {"--sequence-parallel", "--recompute-granularity"} < set(words)
    assert "--num-virtual-stages-per-pipeline-rank" not in words
    with pytest.raises(InputError, match=r"parallel\.sequence_parallel: is no option that the search can choose"):
        po.read_job(job)


@pytest.mark.parametrize(
    ("degrees", "problem"),
    [
        ("tp: [4, 8]", "tensor_parallel: must be a single value"),
        ("tp: 8, dp: 2", "data_parallel: follows from the GPUs of a launch: write cluster.num_gpus: 16"),
        ("recompute: block", "recompute: leaves a choice"),
        ("offload: optimizer", "offload: has an effect on searches only"),
    ],
)
def test_a_choice_is_no_launch(job: Path, degrees: str, problem: str) -> None:
    """A field that leaves a choice, or that no option of Megatron-LM says."""
    job.write_text(f"parallel: {{{degrees}}}")
    with pytest.raises(InputError) as found:
        read_job_file(job).whole_launch()
    assert problem in str(found.value)


def test_estimate_compares_with_what_was_measured(job: Path) -> None:
    """The prediction of the launch that the file says, beside its measured time and memory."""
    job.write_text(f"{JOB}measured: {{iter_time_s: 10, oom: true}}\n")
    code, out, _ = run("estimate", job)
    assert code == 0
    assert "Measured 10.0 s an iteration: predicted" in out
    assert "The run ran out of memory; predicted to fit." in out
    code, out, _ = run("estimate", job, "--json")
    found = json.loads(out)
    expected_s = found["estimate"]["expected_s"]
    assert found["measured"]["time_error"] == pytest.approx(expected_s / 10 - 1)


@pytest.mark.parametrize("section", ["[train.sh=9s]", "train.sh=9s", "{runs: [train.sh=9s]}"])
def test_measured_runs_are_words_of_the_option(job: Path, section: str) -> None:
    """A list, a text or the key ``runs``; launches are looked for beside the job file."""
    (job.parent / "train.sh").write_text("--tensor-model-parallel-size 8 --micro-batch-size 1 --bf16")
    job.write_text(f"{JOB}measured: {section}\n")
    assert po.read_job(job)["measured_runs"] == [f"{job.parent / 'train.sh'}=9s"]
    code, out, _ = run("estimate", job)
    assert code == 0
    assert "by 1 run of your own" in " ".join(out.split())


def test_figures_of_the_launch_are_measured_runs_of_a_search(job: Path) -> None:
    """``solve`` starts from the time of ``launch``; without ``launch`` it says that the figures have no effect."""
    (job.parent / "train.sh").write_text("--tensor-model-parallel-size 8 --micro-batch-size 1 --bf16")
    job.write_text(f"{JOB}launch: train.sh\nmeasured: {{iter_time_s: 9, oom: false}}\n")
    assert read_job_file(job).measured_runs() == [f"{job.parent / 'train.sh'}=9.0s"]
    job.write_text(f"{JOB}measured: {{iter_time_s: 9}}\n")
    assert read_job_file(job).measured_runs() == []
    messages = run("recommend", job)[2]
    assert "the section measured has no effect" in messages


def test_the_command_line_counts_before_the_file(job: Path) -> None:
    """What is replaced is said; the rest is the file's."""
    code, out, messages = run("estimate", job, "--gbs", "32", "--json")
    assert code == 0
    assert json.loads(out[out.index("{") :])["parallel"]["tensor_model_parallel_size"] == 8
    assert "--global-batch-size 32 on the command line overrides training.global_batch_size" in messages


def test_what_a_command_has_no_use_for_is_refused(job: Path) -> None:
    """A key that has no effect is named; measured figures are only mentioned."""
    job.write_text(JOB.replace("nics: 8x400", "nics: 8x400, num_gpus: 8"))
    code, _, messages = run("recommend", job)
    assert code != 0
    assert "cluster.num_gpus: has no effect on the command recommend" in messages


def test_explain_takes_it_as_an_option(job: Path) -> None:
    """A command with arguments of its own has ``--job``."""
    code, out, _ = run("explain", "tp=8,pp=4", "--job", job)
    assert code == 0
    assert "illegal" in out


def test_a_launch_is_no_job_file(tmp_path: Path) -> None:
    """The error says what the file looks like, and which option reads it; a job file's own errors do not."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("ARGS:\n  micro_batch_size: 1\n")
    with pytest.raises(InputError, match=r"is no key of a job file.* It looks like .*Megatron-LM, .*--launch"):
        read_job_file(recipe)
    job = tmp_path / "job.yaml"
    job.write_text("launch: >\n  --tensor-model-parallel-size 8\nwrong: 1\n")
    with pytest.raises(InputError, match=r"wrong: is no key of a job file.*lists all keys\.$"):
        read_job_file(job)
