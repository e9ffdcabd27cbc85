"""Fine-tuning as options and as columns of measured runs."""

from pathlib import Path
from typing import Any

import pytest
from tables import table, tuples

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.job.read import Job, read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.read.reserved import with_reserved
from pipette_opt.read.runs import read_row, read_runs

JOB = {"nodes": "1", "gpu": "h100", "model": "llama-3.1-8b", "global_batch_size": 8, "seq_length": 2048}

ROW = {"source": "own", "gpu": "A100-80GB", "num_gpus": "1", "gpus_per_node": "8"}


def job_with(**given: Any) -> Job:
    """A job on one host, with more options."""
    return read_job(JobOptions(**{**JOB, **given}))


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: str(row["given"]))
def test_options_that_do_not_go_together(row: dict[str, Any]) -> None:
    """One message that names the option, its value and what would be right."""
    if row.get("fits"):
        assert job_with(**row["given"])
        return
    with pytest.raises(InputError, match=row["error"]):
        job_with(**row["given"])


@pytest.mark.parametrize("row", table(__file__, "APPLIED"), ids=lambda row: str(row["given"]))
def test_methods_are_part_of_the_job(row: dict[str, Any]) -> None:
    """The model has the adapters, in the order of its layers; the plan's record has both."""
    job = job_with(**row["given"])
    adapters, training = job.instance.model.adapters, job.instance.training
    for name in ("rank", "base", "targets"):
        if name in row:
            assert getattr(adapters, name) == tuples(row[name])
    assert (adapters is None) is ("rank" not in row)
    assert {name: getattr(training, name) for name in row.get("training", {})} == row.get("training", {})
    assert (job.inputs["model"]["adapters"] is None) is (adapters is None)


def test_reserved_memory_is_not_the_jobs() -> None:
    """On every GPU, in GiB or GB, and recorded for those who read the plan again."""
    whole, job = job_with(), job_with(reserve_memory="20GiB")
    before, after = (each.instance.cluster.gpu_kinds[0].memory_bytes for each in (whole, job))
    assert before - after == 20 * GIB
    assert job.inputs["reserve_memory"] == "20GiB"
    assert job.inputs["gpus"] == whole.inputs["gpus"]
    assert with_reserved(whole.instance.cluster, "20GB").gpu_kinds[0].memory_bytes == before - 20 * 10**9
    assert with_reserved(whole.instance.cluster, None) is whole.instance.cluster


@pytest.mark.parametrize("row", table(__file__, "ROWS"), ids=lambda row: row["shows"])
def test_rows_of_fine_tuning(row: dict[str, Any]) -> None:
    """Cells that people publish, as they stand."""
    run = read_row("runs.csv, line 2", 0, {**ROW, **row["cells"]}, Path())
    if "reason" in row:
        assert row["reason"] in run.unpredictable
        return
    assert run.unpredictable == ""
    assert run.launch.model is not None
    adapters = run.launch.model.adapters
    for name, value in row.get("adapters", {}).items():
        assert getattr(adapters, name) == tuples(value)
    assert (adapters is None) is ("adapters" not in row)
    config = run.launch.parallel_config(run.launch.model.num_layers, run.num_gpus)
    assert config.recompute_granularity == row.get("recompute", config.recompute_granularity)
    assert config.sharding_stage == row.get("zero", config.sharding_stage)
    if "seconds" in row:
        assert run.iter_time_s == row["seconds"]
    fields = run.launch.training_fields
    assert {name: fields.get(name) for name in row.get("training", {})} == row.get("training", {})


@pytest.mark.parametrize("row", table(__file__, "REFUSED_ROWS"), ids=lambda row: str(row["cells"]))
def test_rows_that_are_not_priced(row: dict[str, Any]) -> None:
    """They are left out with the reason."""
    with pytest.raises(InputError, match=row["error"]):
        read_row("runs.csv, line 2", 0, {**ROW, "seq_len": "2048", "mbs": "1", **row["cells"]}, Path())


UNPACKED = {"model": "llama-2-7b", "method": "lora", "seq_len": "1304", "mbs": "2", "peak_mem_gib": "27"}


@pytest.mark.parametrize(("packing", "time_s"), [("no", "0.1"), ("no", "0.4"), ("yes", "0.1"), ("", "0.1")])
def test_times_of_short_documents(packing: str, time_s: str) -> None:
    """A time that only shorter documents explain is dropped, the rest of the row counts; else the row is wrong."""
    cells = {**ROW, **UNPACKED, "packing": packing, "iter_time_s": time_s}
    if not packing:
        with pytest.raises(InputError, match=r"iter_time_s=0\.1 is impossible"):
            read_row("runs.csv, line 2", 0, cells, Path())
        return
    run = read_row("runs.csv, line 2", 0, cells, Path())
    assert run.peak_mem_bytes == 27 * GIB
    assert run.iter_time_s == (None if time_s == "0.1" else 0.4)
    assert run.dropped_time.startswith("documents are shorter than seq_len: iter_time_s=0.1") is (time_s == "0.1")


def test_no_time_follows_from_the_rate_of_short_samples() -> None:
    """Tokens per second count the samples' own tokens, not those of the longest."""
    rows = [{**ROW, **UNPACKED, "packing": word, "tokens_per_s_per_gpu": "2608"} for word in ("no", "yes", "")]
    assert [read_row("runs.csv, line 2", 0, cells, Path()).iter_time_s for cells in rows] == [None, 1.0, 1.0]


def test_a_table_of_fine_tuning_needs_few_columns(tmp_path: Path) -> None:
    """Degrees and batch have usual values; other tables still need their columns."""
    path = tmp_path / "runs.csv"
    path.write_text("gpu,num_gpus,model,method,seq_len,mbs,peak_mem_gib\nA100-80GB,1,llama-3.1-8b,lora,2048,1,30\n")
    assert read_runs(path)[0].launch.model is not None
    path.write_text("gpu,num_gpus,model,seq_len,mbs,peak_mem_gib\nA100-80GB,1,llama-3.1-8b,2048,1,30\n")
    with pytest.raises(InputError, match="needs the column gbs"):
        read_runs(path)
