"""Memory of measured runs: the stage that a source watches, columns of a back-test, and real runs where they are."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import (
    fit_memory,
    measured_stages,
    memory_columns,
    memory_notes,
    memory_run,
    memory_runs,
    usable_for_memory,
)
from pipette_opt.memory.formula import parameters
from pipette_opt.memory.predictor import stage_works
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model import read_model
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.memory_constants import MOMENTS, REGRESSORS, MemoryConstants

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "measured"
HEADER = (
    "source,gpu,gpu_mem_gib,num_gpus,model,num_layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gbs,mbs,tp,pp,dp,"
    "seq_parallel,zero_stage,precision,peak_mem_gib,oom,iter_time_s,peak_mem_stage\n"
)
needs_measurements = pytest.mark.skipif(not FOLDER.is_dir(), reason="no measured runs beside the project")


def write_rows(path: Path, rows: list[tuple[int, str, str, str]], source: str = "ours") -> Path:
    """Rows of one model on 8 GPUs, tp 2, pp 2, dp 2: micro-batch, peak, oom, stage."""
    lines = [
        f"{source},H100-80GB,80,8,llama-3b,28,3072,8192,24,8,128256,4096,64,{mbs},2,2,2,True,1,bf16,{peak},{oom},3.0,"
        f"{stage}\n"
        for mbs, peak, oom, stage in rows
    ]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return path


def test_stages_that_sources_watch(tmp_path: Path) -> None:
    """A column says it; else the software whose log it is; else the largest of all."""
    rows = [(1, "20", "False", "last"), (1, "20", "False", ""), (1, "20", "False", "0")]
    last, largest, zero = read_runs(write_rows(tmp_path / "a.csv", rows))
    assert measured_stages(last, 4).tolist() == [3]
    assert measured_stages(largest, 4).tolist() == [0, 1, 2, 3]
    assert measured_stages(zero, 4).tolist() == [0]
    (first,) = read_runs(write_rows(tmp_path / "b.csv", [(1, "20", "False", "")], source="nanotron"))
    assert measured_stages(first, 4).tolist() == [0]


@pytest.mark.search
def test_five_runs_correct_a_stack(tmp_path: Path) -> None:
    """Peaks a third above what is counted: five of them bring the sixth within 8 %; the file keeps the constants."""
    stack = read_stack()
    plain = read_runs(write_rows(tmp_path / "plain.csv", [(mbs, "", "False", "") for mbs in (1, 2, 4, 8, 1, 2)]))
    cases = [case for case in make_cases(plain, stack) if isinstance(case, Case)]
    true = [1.3 * memory_columns(case, MemoryConstants())["predicted_peak_mem_gib"] for case in cases]
    assert max(true) < 77
    rows = [(mbs, f"{peak:.2f}", "False", "") for mbs, peak in zip((1, 2, 4, 8, 1, 2), true, strict=True)]
    runs = read_runs(write_rows(tmp_path / "runs.csv", rows))
    fitted, _ = fit_memory(runs[:5], stack)
    write_stack(replace(stack, memory=fitted), tmp_path / "stack.yaml")
    kept = read_stack(tmp_path / "stack.yaml").memory
    found = memory_columns(cases[5], kept)
    assert found["predicted_peak_mem_gib"] == pytest.approx(true[5], rel=0.08)
    assert found["upper_peak_mem_gib"] > found["predicted_peak_mem_gib"]
    assert 0 < found["oom_probability"] < 0.01
    assert "fewer than 20" in memory_notes(kept)[-1]


def test_a_bound_ends_at_the_card(tmp_path: Path) -> None:
    """
    A log shows at most a full card, and a job that fits does not die: both columns say the same.

    Only what does not fit by the prediction itself lies above the card, and then it dies.
    """
    rows = [(mbs, "", "False", "") for mbs in (1, 2, 4, 8, 16, 32)]
    runs = read_runs(write_rows(tmp_path / "runs.csv", rows))
    found = [memory_columns(case, MemoryConstants(), 1e-3) for case in make_cases(runs, read_stack())]
    card = runs[0].gpu.gpu.memory_bytes / GIB if runs[0].gpu else 0.0
    assert any(one["upper_peak_mem_gib"] == card > one["predicted_peak_mem_gib"] for one in found)
    for one in found:
        assert one["upper_peak_mem_gib"] <= max(card, one["predicted_peak_mem_gib"])
        assert one["upper_peak_mem_gib"] <= card or one["oom_probability"] > 0.5


def test_rows_of_unexplained_failures_do_not_teach(tmp_path: Path) -> None:
    """``after_pp_fix`` False and a pipeline: left out of a fit."""
    path = write_rows(tmp_path / "runs.csv", [(1, "20", "False", "")])
    text = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{text[0]},after_pp_fix\n{text[1]},False\n{text[1]},True\n", encoding="utf-8")
    assert [usable_for_memory(run) for run in read_runs(path)] == [False, True]


def test_jobs_that_ran_and_then_ran_out_have_no_label(tmp_path: Path) -> None:
    """The notes say both; and a version is read where the file has the column."""
    path = write_rows(tmp_path / "runs.csv", [(1, "20", "False", "")])
    header, cells = path.read_text(encoding="utf-8").splitlines()
    notes = "job logged a throughput and then an OOM"
    path.write_text(f"{header},notes,stack_version\n{cells},{notes},2.1\n{cells},fine,2.2\n", encoding="utf-8")
    both, fine = memory_runs(read_runs(path), read_stack())
    assert (both.ran_out, fine.ran_out) == (None, False)
    assert both.peak_gib == fine.peak_gib
    assert (both.version, fine.version) == ("2.1", "2.2")


def test_rows_and_plans_name_work_alike(tmp_path: Path) -> None:
    """A short run of a preset's shape on 8 and on 16 GPUs: the same work as a plan of that preset for 32."""
    lines = [
        f"ours,H100-80GB,80,{4 * dp},llama-3-8b,32,4096,14336,32,8,128256,4096,64,1,2,2,{dp},True,1,bf16,30,False,3,\n"
        for dp in (2, 4)
    ]
    (tmp_path / "runs.csv").write_text(HEADER + "".join(lines), encoding="utf-8")
    eight, sixteen = memory_runs(read_runs(tmp_path / "runs.csv"), read_stack())
    plan = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=8,
        micro_batch_size=1,
        layers_per_stage=(16, 16),
        sequence_parallel=True,
        use_distributed_optimizer=True,
    )
    training = TrainingSpec(global_batch_size=256, seq_length=4096)
    work = stage_works(read_model("llama-3-8b"), training, [plan], gpus_per_node=8)
    assert eight.work == sixteen.work == work * MOMENTS
    assert len(eight.work) == len(eight.regressors)


def test_notes_say_how_alike_twins_are() -> None:
    """With the number of works that are remembered."""
    notes = memory_notes(MemoryConstants(largest_job=16, alike=0.6, twins={"a": 0.5, "b": -0.5}))
    assert any("correlation 0.60); 2 works are remembered" in note for note in notes)


def test_notes_say_versions_and_larger_jobs() -> None:
    """What a version takes over the last row's, and how much further bounds of larger jobs reach."""
    notes = memory_notes(MemoryConstants(largest_job=16, errors=(0.1,), versions={"2.1": 0.1}, shift=1.4))
    assert any("version 2.1 takes 1.105 times" in note for note in notes)
    assert notes[-1].endswith("beyond 16 GPUs they are 1.4 times as wide")


@pytest.mark.search
@needs_measurements
def test_first_stages_hold_what_nanotron_says() -> None:
    """Parameters of the first rank within 0.5 % for every run with a pipeline."""
    runs = [
        run
        for run in read_runs(FOLDER / "hf_ultrascale_h100.csv")
        if run.peak_mem_bytes and run.launch.pipeline_model_parallel_size > 1 and usable_for_memory(run)
    ]
    near = []
    for case in make_cases(runs, read_stack()):
        assert isinstance(case, Case)
        table = stage_table(case.instance.model, case.instance.training, [case.config], stage=0)
        near.append(abs(float(case.run.cells["local_params_rank0"]) / parameters(table)[0] - 1) < 0.005)
    assert len(near) > 100
    assert np.mean(near) == 1


@pytest.mark.search
@needs_measurements
def test_memory_run_says_what_the_row_says() -> None:
    """Peak, label and capacity of the first row of the sweep."""
    case = next(iter(make_cases(read_runs(FOLDER / "hf_ultrascale_h100.csv")[:1], read_stack())))
    assert isinstance(case, Case)
    found = memory_run(case)
    assert (found.peak_gib, found.ran_out) == (pytest.approx(50.18), False)
    assert 78 < found.capacity_gib < 81


def test_unnamed_kernels_have_other_columns(tmp_path: Path) -> None:
    """A row that names no attention kernel may have run without flash, with scores; one that names it has not."""
    path = write_rows(tmp_path / "runs.csv", [(1, "20", "False", "")])
    (case,) = make_cases(read_runs(path), read_stack())
    assert isinstance(case, Case)
    unnamed = memory_run(case)
    assert unnamed.other_regressors is not None
    counted = REGRESSORS.index("counted")
    assert (unnamed.other_regressors[:, counted] >= unnamed.regressors[:, counted]).all()
    assert unnamed.other_regressors[:, counted].max() > unnamed.regressors[:, counted].max()
    named = replace(case, run=replace(case.run, cells={"attention_kernel": "flash_attention2"}))
    assert memory_run(named).other_regressors is None
