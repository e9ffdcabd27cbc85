"""Measured runs of the user that predicted times start from."""

import json
import re
from dataclasses import asdict, replace
from math import exp
from math import log as log_of
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import A100_80, TINY, make_cluster, make_config, make_job, make_plan, small_instance
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import SMALLEST_RISK
from pipette_opt.base.units import GIB
from pipette_opt.candidates import legal_candidates
from pipette_opt.export.folder import write_folder
from pipette_opt.export.targets import export
from pipette_opt.job.read import Job
from pipette_opt.job.space import search_space
from pipette_opt.library.current import current_of
from pipette_opt.library.measured import own_runs, variables_of_runs, with_anchors, with_measured
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import keep_fitting, predicted_memory
from pipette_opt.options.description import SpaceOptions
from pipette_opt.parallel import Placement, identity_placement, with_whole_layers
from pipette_opt.plans.verdict import verdict
from pipette_opt.prepare import load_predictor
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.read.exported import SCRIPTS
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.read.scripts import read_script
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.report.first_screen import measured_words
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.specs import DEFAULT_STACK, Instance
from pipette_opt.worlds.bands import job_band
from pipette_opt.worlds.factor import job_factor

LAUNCH = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16 "
    "--use-distributed-optimizer"
)
CONFIG = make_config(tp=2, pp=2, dp=4, num_layers=TINY.num_layers, use_distributed_optimizer=True)


@pytest.fixture
def job() -> Instance:
    """A model on two hosts of eight A100."""
    return make_job(make_cluster(2), TINY)


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A launch of the job."""
    path = tmp_path / "train.args"
    path.write_text(LAUNCH)
    return str(path)


def placed() -> Placement:
    """Ranks in order on both hosts."""
    return identity_placement(CONFIG, 8, np.arange(2), "tp-cp-ep-dp-pp")


def simulated_s(job: Instance) -> float:
    """Time of a run that is as long as simulated."""
    return estimate(job, CONFIG, placed()).iteration_time_s


def test_a_measured_launch_moves_time_and_narrows_band(job: Instance, script: str) -> None:
    """A run 1.3 times as long as simulated moves the shown time of the launch there; the band is far narrower."""
    time_s = simulated_s(job)
    known = with_anchors(job, [f"{script}={1.3 * time_s:.6f}s"])
    band, before = job_band(known, CONFIG, time_s), job_band(job, CONFIG, time_s)
    assert known.stack.anchors[0].log_ratio == pytest.approx(0.262, abs=0.001)
    assert band.middle_s == pytest.approx(1.3 * time_s, rel=0.05)
    assert band.high_s / band.low_s < before.high_s / before.low_s
    assert band.is_own


def test_stack_files_and_plans_keep_the_runs(job: Instance, script: str, tmp_path: Path) -> None:
    """A stack with anchors is read as it was written, and a job's inputs record it."""
    given = Job(instance=job, num_gpus=None, inputs={"stack": {}})
    known = with_measured(given, [f"{script}={simulated_s(job):.6f}s"])
    write_stack(known.instance.stack, tmp_path / "stack.yaml")
    assert read_stack(tmp_path / "stack.yaml").anchors == known.instance.stack.anchors
    assert len(known.inputs["stack"]["anchors"]) == 1
    assert with_measured(given, None) is given


LOG = """\
------------------------ arguments ------------------------
  tensor_model_parallel_size ...................... {tp}
  micro_batch_size ................................ 1
-------------------- end of arguments ---------------------
""" + "".join(
    f" iteration {step}/ 12 | elapsed time per iteration (ms): {{ms:.1f}} | global batch size: 64 |\n"
    for step in range(1, 13)
)


TORCHRUN = "torchrun --nnodes {hosts} --nproc_per_node 8 pretrain_gpt.py " + LAUNCH
ON_HALF = make_config(tp=2, pp=2, dp=2, num_layers=TINY.num_layers, use_distributed_optimizer=True)


def on_half_s(job: Instance) -> float:
    """Time of a run on one of the two hosts that is as long as simulated."""
    return estimate(job, ON_HALF, identity_placement(ON_HALF, 8, np.arange(1), "tp-cp-ep-dp-pp")).iteration_time_s


def is_on_half(job: Instance, known: Instance) -> bool:
    """Whether the only measured run was predicted on one of the two hosts, with a time of one second."""
    return known.stack.anchors[0].log_ratio == pytest.approx(log_of(1.0 / on_half_s(job)), abs=1e-4)


def filled(text: str, folder: Path, job: Instance) -> str:
    """
    Return a text of a row with its signs replaced.

    ``{LAUNCH}`` is that of the job; ``{2x}`` is twice its simulated time in seconds, ``{2h}`` that on one host;
    ``{log 4 2}`` is a log with tensor parallelism of 4 and twice the simulated time.
    """
    text = text.replace("{folder}", str(folder)).replace("{LAUNCH}", LAUNCH)
    text = re.sub(
        r"{log (\d) ([0-9.]+)}", lambda m: LOG.format(tp=m[1], ms=1000 * float(m[2]) * simulated_s(job)), text
    )
    text = re.sub(r"{([0-9.]+)x}", lambda m: f"{float(m[1]) * simulated_s(job):.6f}", text)
    return re.sub(r"{([0-9.]+)h}", lambda m: f"{float(m[1]) * on_half_s(job):.6f}", text)


def measured(row: dict[str, Any], job: Instance, folder: Path) -> Instance:
    """Write the files of a row beside the launch of the job; return the job with the runs of the row's words."""
    for name, text in {"train.args": "{LAUNCH}", **row.get("files", {})}.items():
        (folder / name).write_text(filled(text, folder, job))
    given = job
    if "memory_gib" in row:
        given = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(row["memory_gib"] * GIB)),)), TINY)
    if "precision" in row:
        given = replace(job, training=replace(job.training, precision=row["precision"]))
    for words in row.get("before", ()):
        given = with_anchors(given, [filled(word, folder, job) for word in words])
    return with_anchors(given, [filled(word, folder, job) for word in row["words"]])


@pytest.mark.parametrize("row", table(__file__, "MEASURED"), ids=lambda row: row["shows"])
def test_measured_runs(job: Instance, tmp_path: Path, caplog: pytest.LogCaptureFixture, row: dict[str, Any]) -> None:
    """
    Words of ``--measured`` are the runs beside them.

    ``ratios`` has measured over predicted time of each timed run, or its bounds; ``names`` are patterns; ``memory`` has
    what runs say about memory; ``warned`` has parts of each warning; ``same_as`` other words that mean it.
    """
    stack = measured(row, job, tmp_path).stack
    ratios = [exp(anchor.log_ratio) for anchor in stack.anchors]
    for ratio, expected in zip(ratios, row.get("ratios", ratios), strict=True):
        assert (
            expected[0] < ratio < expected[1] if isinstance(expected, list) else ratio == pytest.approx(expected, 1e-3)
        )
    names = [anchor.run for anchor in stack.anchors]
    assert all(re.search(name, run) for name, run in zip(row.get("names", ()), names, strict="names" in row))
    if "memory" in row:
        assert [run.run.partition("train.args: ")[2] for run in stack.memory_runs] == row["memory"]
    assert re.search(row.get("shown", ""), measured_words(asdict(stack)))
    assert len(caplog.messages) == len(row.get("warned", ()))
    for message, parts in zip(caplog.messages, row.get("warned", ()), strict=True):
        assert all(part in message for part in parts)
    if "same_as" in row:
        assert measured({**row, "words": row["same_as"], "before": []}, job, tmp_path).stack == stack


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["error"])
def test_wrong_runs(job: Instance, tmp_path: Path, row: dict[str, Any]) -> None:
    """Impossible times and peaks, other units, no figure, no known file, contradictions: one line each."""
    with pytest.raises(InputError, match=row["error"]):
        measured(row, job, tmp_path)


@pytest.mark.parametrize("target", ["slurm", "torchrun", "mpi"])
def test_an_exported_launch(target: str, tmp_path: Path) -> None:
    """The main script of an export, and its folder, are the launch of the plan, on the hosts that the files name."""
    plan, folder = make_plan("torchrun" if target == "torchrun" else "slurm"), tmp_path / "launch"
    write_folder(folder, export(plan, target))
    instance = small_instance()
    main = next(folder / name for name in SCRIPTS if (folder / name).exists())
    time_s = estimate(instance, plan.config, plan.placement).iteration_time_s
    runs = [with_anchors(instance, [f"{place}={time_s}s"]).stack.anchors[0] for place in (main, folder)]
    assert runs[0].terms == runs[1].terms
    assert [run.log_ratio for run in runs] == [0.0, 0.0]
    given = read_megatron_args(str(main), "--measured")
    assert given.parallel_config(instance.model.num_layers, plan.config.world_size) == plan.config
    with pytest.raises(InputError, match=r"is a launch without a figure and without a log; give .*launch=98"):
        with_anchors(instance, [str(folder)])


@pytest.mark.parametrize("target", ["slurm", "torchrun", "mpi"])
def test_an_exported_launch_of_today(target: str, tmp_path: Path) -> None:
    """Its placement is the plan's, on four of five hosts; on a cluster without these it is not, which is said."""
    plan, folder = make_plan("torchrun" if target == "torchrun" else "slurm"), tmp_path / "launch"
    write_folder(folder, export(plan, target))
    given = read_megatron_args(str(next(folder / name for name in SCRIPTS if (folder / name).exists())), "--launch")
    found = current_of(Job(instance=small_instance(), num_gpus=None, inputs={}, launch=given), None)
    assert found.estimate.iteration_time_s == plan.estimate.iteration_time_s
    assert (found.placement.node == plan.placement.node).all()
    assert found.remarks == ()
    fewer = replace(small_instance(), cluster=make_cluster(4, gpus=4))
    assert replace(read_model(given.where), name="") == replace(
        given.model, name=""
    )  # also the script as the job's model
    elsewhere = current_of(Job(instance=fewer, num_gpus=None, inputs={}, launch=given), None)
    assert elsewhere.hosts == fewer.cluster.hosts
    assert "names other hosts or GPUs" in elsewhere.remarks[0]


@pytest.mark.parametrize("task", ["", "LOCAL_RANKS=(\n  0 1\n)\n", "HOSTS=(\n  a b\n)\nLOCAL_RANKS=(\n  0 x\n)\n"])
def test_an_exported_launch_whose_hosts_are_unknown(task: str, tmp_path: Path) -> None:
    """Files that name no hosts, or were changed, say nothing about hosts."""
    write_folder(tmp_path / "launch", export(make_plan(), "slurm"))
    (tmp_path / "launch" / "task.sh").write_text(task)
    assert read_megatron_args(str(tmp_path / "launch" / "job.sbatch"), "--launch").ranks == ()


def test_an_exported_script_without_its_arguments(tmp_path: Path) -> None:
    """The file that it reads was not copied with it."""
    write_folder(tmp_path / "launch", export(make_plan(), "slurm"))
    (tmp_path / "launch" / "megatron_args.sh").unlink()
    with pytest.raises(InputError, match=r"reads its arguments from megatron_args\.sh, which is not beside it"):
        with_anchors(small_instance(), [f"{tmp_path}/launch/job.sbatch=4s"])


@pytest.mark.parametrize(
    ("memory_gib", "figure", "way"),
    [(2.6, "oom", 1), (80.0, "0.5GiB", -1), (80.0, "2GiB", 1), (80.0, "4GiB:nvidia-smi", 1)],
)
def test_measured_memory_moves_predicted_memory(script: str, memory_gib: float, figure: str, way: int) -> None:
    """A failure or a higher peak raises the predicted need, a lower peak lowers it."""
    small = replace(A100_80, memory_bytes=int(memory_gib * GIB))
    job = make_job(make_cluster(2, kinds=(small,)), TINY)
    known = with_anchors(job, [f"{script}={figure}"])
    memories = [stage_memory(given, CONFIG, placed(), load_predictor(0.01, given), 0.01) for given in (job, known)]
    before, after = (max(stage.predicted_bytes for stage in memory) for memory in memories)
    assert way * (after - before) > 0


@pytest.mark.parametrize("figure", ["2s", "1.5GiB"])
@pytest.mark.parametrize("memory_gib", [1.8, 2.6, 3.0, 3.1])
def test_a_run_with_a_time_or_a_peak_fits(script: str, memory_gib: float, figure: str) -> None:
    """A launch that ran fits, even where the prediction rules it out; on fewer replicas it is still only predicted."""
    job = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(memory_gib * GIB)),)), TINY)
    known = with_anchors(job, [f"{script}={figure.replace('2s', f'{simulated_s(job)}s')}"])
    before, after = (stage_memory(given, CONFIG, placed(), load_predictor(0.01, given), 0.01) for given in (job, known))
    time = estimate(job, CONFIG, placed())
    assert not verdict(before, time).startswith("Fits")
    assert verdict(after, time).startswith("Fits: ")
    assert max(stage.oom_probability for stage in after) <= SMALLEST_RISK
    assert all(sum(stage.components.values()) == stage.predicted_bytes for stage in after)
    fewer = replace(CONFIG, data_parallel_size=2)
    (other,) = predicted_memory(known, load_predictor(0.01, known), [fewer], 0.01)
    assert (other.spread >= known.stack.memory.spread * 0.5).all()


@pytest.mark.parametrize(("memory_gib", "peak_gib"), [(80.0, 0.75), (80.0, 6.0), (80.0, 20.0), (8.0, 7.95)])
def test_no_prediction_is_below_a_measured_peak(
    script: str, caplog: pytest.LogCaptureFixture, memory_gib: float, peak_gib: float
) -> None:
    """The measured configuration is shown with its peak at least, and fits; a peak far from the prediction warns."""
    job = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(memory_gib * GIB)),)), TINY)
    known = with_anchors(job, [f"{script}={peak_gib}GiB"])
    for risk in (0.01, 0.5):
        shown = stage_memory(known, CONFIG, placed(), load_predictor(risk, known), risk)
        assert max(stage.predicted_bytes for stage in shown) >= peak_gib * GIB * (1 - 1e-9)
        assert all(stage.predicted_bytes <= stage.upper_bytes for stage in shown)
        assert verdict(shown, estimate(job, CONFIG, placed())).startswith("Fits")
    assert ("is far from the predicted" in caplog.text) is (peak_gib > 1)


def test_peaks_are_kept_in_stack_files(job: Instance, script: str, tmp_path: Path) -> None:
    """A stack that starts from a peak is read as it was written."""
    known = with_anchors(job, [f"{script}=6GiB"]).stack
    write_stack(known, tmp_path / "stack.yaml")
    assert read_stack(tmp_path / "stack.yaml").memory.peaks == known.memory.peaks
    assert list(known.memory.peaks.values()) == [6.0]


def test_more_recomputed_layers_than_a_run_that_fitted_fit(tmp_path: Path) -> None:
    """Where the prediction rules out all numbers of layers, those from the run's number on fit."""
    path = tmp_path / "train.args"
    path.write_text(f"{LAUNCH} --recompute-granularity full --recompute-method block --recompute-num-layers 1")
    job = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(2.4 * GIB)),)), TINY)
    most = TINY.num_layers // 2
    known = with_anchors(job, [f"{path}={10 * simulated_s(job)}s"])
    listed = [with_whole_layers(CONFIG, "block", 1)]
    before, after = (check_memory(given, listed, load_predictor(0.01, given), 0.01) for given in (job, known))
    assert [checked.config.recompute_num_layers for checked in before.rejected] == [most]
    assert [checked.config.recompute_num_layers for checked in after.fitting] == [1]
    full = [with_whole_layers(CONFIG, "uniform", 1), with_whole_layers(CONFIG, "block", most)]
    predictor = load_predictor(0.01, known)
    assert len(keep_fitting(known, full, predictor).fitting) == 2
    assert not keep_fitting(known, [CONFIG], predictor).fitting


def test_a_time_moves_the_need_of_other_configurations(script: str, caplog: pytest.LogCaptureFixture) -> None:
    """A run on GPUs that are predicted to be just too small lowers other needs; one with room moves nothing."""
    larger = replace(CONFIG, micro_batch_size=2)
    moved = []
    for memory_gib in (3.0, 80.0):
        job = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(memory_gib * GIB)),)), TINY)
        known = with_anchors(job, [f"{script}={simulated_s(job)}s"])
        needs = [predicted_memory(given, load_predictor(0.01, given), [larger], 0.01)[0] for given in (job, known)]
        moved.append(int(needs[1].predicted_bytes.max()) - int(needs[0].predicted_bytes.max()))
    assert moved[0] < 0 == moved[1]
    assert not caplog.text


def test_a_peak_narrows_what_is_unknown_about_the_stack(script: str, tmp_path: Path) -> None:
    """Of another configuration by a third at least; its own part stays. A file keeps what the run told."""
    job = make_job(make_cluster(2, kinds=(replace(A100_80, memory_bytes=int(5 * GIB)),)), TINY, stack=DEFAULT_STACK)
    known = with_anchors(job, [f"{script}=2.6GiB"])
    write_stack(known.stack, tmp_path / "stack.yaml")
    again = replace(known, stack=read_stack(tmp_path / "stack.yaml"))
    other = replace(CONFIG, micro_batch_size=2)
    wide, narrow, read = (
        predicted_memory(given, load_predictor(0.01, given), [other], 0.01)[0] for given in (job, known, again)
    )
    assert (narrow.spread < 0.7 * wide.spread).all()
    assert (narrow.spread >= narrow.own_spread).all()
    assert narrow.own_spread == pytest.approx(wide.own_spread)
    assert read.spread == pytest.approx(narrow.spread, rel=0.01)


def test_kinds_of_peaks(job: Instance, script: str) -> None:
    """An allocated peak stands for more reserved memory, one by nvidia-smi for less."""
    kinds = (":allocated", "", ":nvidia-smi")
    found = {tuple(with_anchors(job, [f"{script}=30GiB{kind}"]).stack.memory.vector()) for kind in kinds}
    assert len(found) == 3


def test_a_captured_launch_is_a_measured_run(job: Instance, tmp_path: Path) -> None:
    """With its degrees and its number of GPUs, as the script that it was captured from."""
    found = read_script("#!/bin/bash\n#SBATCH --nodes=1\nsrun python pretrain_gpt.py " + LAUNCH, "train.sh")
    (path := tmp_path / "captured.json").write_text(json.dumps(found.document()))
    assert is_on_half(job, with_anchors(job, [f"{path}=1s"]))


def test_variables_of_a_measured_script(job: Instance, tmp_path: Path) -> None:
    """Options and the number of GPUs may depend on them."""
    path = tmp_path / "train.sh"
    path.write_text(TORCHRUN.format(hosts="$HOSTS").replace("parallel-size 2", "parallel-size $SIZE"))
    words = [f"{path}=1s"]
    variables = {"HOSTS": "1", "SIZE": "2"}
    assert is_on_half(job, with_anchors(job, words, environment=variables))
    given = Job(instance=job, num_gpus=None, inputs={}, environment=variables)
    assert is_on_half(job, with_measured(given, words).instance)
    assert [run.config for run in own_runs(given, words)] == [ON_HALF]
    with pytest.raises(InputError, match="not set"):
        with_anchors(job, words)


def test_variables_without_a_measured_run() -> None:
    """Nothing would read them."""
    with pytest.raises(InputError, match=r"--env: has no effect without --measured"):
        variables_of_runs(["TP=8"], ())


def test_a_run_under_two_paths_counts_once(job: Instance, script: str, caplog: pytest.LogCaptureFixture) -> None:
    """A link and another spelling of the path are the same run, and a line says so; another time is another run."""
    time_s, link = simulated_s(job), Path(script).with_name("link.args")
    link.symlink_to(script)
    other = f"{link.parent}/../{link.parent.name}/train.args"
    known = with_anchors(job, [f"{path}={time_s:.4f}s" for path in (script, link, other)])
    assert len(known.stack.anchors) == 1
    assert caplog.text.count("counts once: it is the run of") == 2
    again = with_anchors(job, [f"{script}={time_s:.4f}s", f"{link}={1.1 * time_s:.4f}s"])
    assert len(again.stack.anchors) == 2


def test_a_measured_configuration_is_searched(job: Instance, tmp_path: Path) -> None:
    """Unequal stages of a launch that took this time are searched, unless options exclude them; a failure is not."""
    path, given = tmp_path / "train.args", Job(instance=job, num_gpus=None, inputs={})
    half = TINY.num_layers // 2
    path.write_text(f"{LAUNCH} --pipeline-model-parallel-layout Et*{half + 1}|t*{half - 1}L")
    timed, failed = (with_measured(given, [f"{path}={figure}"]) for figure in (f"{simulated_s(job)}s", "oom"))
    (config,) = search_space(timed, SpaceOptions()).more_configs
    assert config.layers_per_stage == (half + 1, half - 1)
    assert config in legal_candidates(job, search_space(timed, SpaceOptions()))
    assert not search_space(timed, SpaceOptions(tensor_parallel=(4,))).more_configs
    assert not search_space(failed, SpaceOptions()).more_configs
    fewer = replace(search_space(timed, SpaceOptions()), max_gpus=8)
    assert config not in legal_candidates(job, fewer)


def test_a_single_surprising_run_is_warned_of(job: Instance, script: str, caplog: pytest.LogCaptureFixture) -> None:
    """A run that nine times in a thousand is as long as that widens all bands; a usual one is no surprise."""
    usual_s = job_factor(job) * simulated_s(job)
    with_anchors(job, [f"{script}={1.2 * usual_s}s"])
    assert not caplog.records
    with_anchors(job, [f"{script}={7 * usual_s}s"])
    assert "is 7.00 times the expected time, so other layouts have wide bands" in caplog.text


def test_the_fit_over_several_runs_says_what_it_misses(job: Instance, script: str, tmp_path: Path) -> None:
    """The line of each run has the difference to the time that is shown for its launch; a single run has none."""
    time_s, other = simulated_s(job), tmp_path / "other.args"
    other.write_text(LAUNCH.replace("micro-batch-size 1", "micro-batch-size 4"))
    first = f"{script}={time_s:.4f}s"
    assert "the fit" not in measured_words(asdict(with_anchors(job, [first]).stack))
    known = with_anchors(job, [first, f"{other}={1.5 * time_s:.4f}s"])
    shown_s = job_band(known, CONFIG, estimate(known, CONFIG, placed()).iteration_time_s, placed()).middle_s
    miss = 100 * (shown_s / round(time_s, 4) - 1)
    line = measured_words(asdict(known.stack)).splitlines()[0]
    said = re.search(r"; the fit over all runs expects about ([0-9.]+) % (more|less)", line)
    assert said is not None
    assert (1 if said[2] == "more" else -1) * float(said[1]) == pytest.approx(miss, abs=0.5)  # two digits


def test_a_launch_on_more_hosts_than_are_left(job: Instance, tmp_path: Path) -> None:
    """A run before a host was lost counts on the hosts that there were."""
    path = tmp_path / "train.sh"
    path.write_text(TORCHRUN.format(hosts=2))
    left = replace(job, cluster=subset_cluster(job.cluster, job.cluster.hosts[:1]))
    with pytest.raises(InputError, match="starts 16 GPUs, but the job's hosts have 8"):
        with_anchors(left, [f"{path}={simulated_s(job)}s"])
    known = with_anchors(left, [f"{path}={simulated_s(job)}s"], cluster=job.cluster)
    assert known.cluster == left.cluster
    assert known.stack.anchors[0].log_ratio == pytest.approx(0.0, abs=1e-5)


PRINTED = """\
------------------------ arguments ------------------------
{arguments}
-------------------- end of arguments ---------------------
"""
LIKE_MEGATRON = """\
world_size 16, tensor_model_parallel_size 2, pipeline_model_parallel_size 2, num_layers 24, hidden_size 2048,
ffn_hidden_size 8192, num_attention_heads 16, seq_length 2048, micro_batch_size 1, global_batch_size 64,
padded_vocab_size 51200, max_position_embeddings 2048, bf16 True, use_distributed_optimizer True"""


def test_errors_of_logs_name_the_log(job: Instance, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not a row of a table that the user never saw: neither in errors nor in the name of the run."""
    words = [word.split() for word in LIKE_MEGATRON.split(",")]
    arguments = "\n".join(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in words)
    steps = LOG.partition("end of arguments ---------------------\n")[2]
    (tmp_path / "good.log").write_text(PRINTED.format(arguments=arguments) + steps.format(ms=9000.0))
    found = with_anchors(job, [str(tmp_path)])
    assert found.stack.anchors[0].run == f"{tmp_path}/good.log: 9.00 s"
    memory = "[Rank 0] (after 12 iterations) memory (MB) | allocated: 900.0 | max reserved: 900000.0\n"
    (tmp_path / "wrong.log").write_text((tmp_path / "good.log").read_text() + memory)
    caplog.clear()
    assert len(with_anchors(job, [str(tmp_path)]).stack.anchors) == 1
    assert re.search(r"wrong\.log.*left out.*peak_mem_gib", caplog.text)
    with pytest.raises(InputError, match=r"wrong\.log.*left out.*peak_mem_gib"):
        with_anchors(job, [str(tmp_path / "wrong.log")])
