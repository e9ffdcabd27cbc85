"""Bands of predicted times: by kind of job, from the shipped table or from a calibrated stack."""

from dataclasses import replace
from pathlib import Path

import pytest
from specs_for_tests import LLAMA_8B, TINY, cluster, config, instance

from pipette_opt.base.errors import InputError
from pipette_opt.read.bands import (
    FEWEST_RUNS,
    GENERATIONS,
    NEVER_MEASURED,
    beyond,
    job_band,
    job_kind,
    read_bands,
    runs_by_gpu,
    told_apart,
    with_band,
)
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import GpuSpec, Instance


def job(gpu: str = "a100-80gb", **training: object) -> Instance:
    """Llama 3 8B on two hosts of a GPU from the catalogue."""
    given = instance(cluster(2, kinds=(read_gpu_catalogue()[gpu].gpu,)), LLAMA_8B)
    return replace(given, training=replace(given.training, **training))


def test_every_gpu_of_the_catalogue_has_a_generation() -> None:
    """A new GPU must be put into one, or be called never measured, which no run contradicts."""
    families = {family for members in GENERATIONS.values() for family in members}
    known = {name.split("-")[0] for name in read_gpu_catalogue()}
    assert known - families == set(NEVER_MEASURED)
    assert not {name.split("-")[0] for name in runs_by_gpu()} & set(NEVER_MEASURED)


def test_runs_by_gpu_are_those_of_the_bands() -> None:
    """Each compared run is of one kind of job and of one kind of GPU."""
    assert sum(runs_by_gpu().values()) == sum(row.runs for row in read_bands().values())
    assert set(runs_by_gpu()) <= set(read_gpu_catalogue())


def test_kinds() -> None:
    """Shape, size, precision and generation; none for GPUs of which no run is known, or of two kinds."""
    assert job_kind(job()) == "dense, 16 bit, Ampere or older"
    assert job_kind(job("h100-80gb", fp8=True)) == "dense, fp8, Hopper"
    assert job_kind(replace(job(), model=TINY)) == "dense, small model, 16 bit, Ampere or older"
    mixture = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)
    assert job_kind(replace(job("gb200"), model=mixture)) == "mixture of experts, 16 bit, Blackwell"
    other = GpuSpec(name="mi300x", memory_bytes=10**11, peak_flops={"bf16": 1e15}, memory_bytes_per_s=5e12)
    assert job_kind(instance(cluster(2, kinds=(other,)), LLAMA_8B)) is None
    a100 = read_gpu_catalogue()["a100-80gb"].gpu
    assert job_kind(instance(cluster(2, kinds=(a100, other)), LLAMA_8B)) is None


def test_the_shipped_table_is_what_it_says() -> None:
    """Bands enclose something, rest on enough runs, and every kind is one that a job can have."""
    table = read_bands()
    for name, row in table.items():
        if row.low is not None and row.high is not None:
            assert 0 < row.low < row.high
            assert row.runs >= FEWEST_RUNS
        assert name.rsplit(", ", 1)[-1] in GENERATIONS
    assert table["dense, 16 bit, Ampere or older"].low is not None


def test_a_band_scales_the_time() -> None:
    """Quantiles times the prediction; a job larger than every run has none."""
    row = read_bands()["dense, 16 bit, Ampere or older"]
    band = job_band(job(), config(tp=8), 20.0)
    assert band is not None
    assert row.low is not None
    assert band.low_s == pytest.approx(20 * row.low)
    assert (band.share, band.runs) == (0.9, row.runs)
    assert band.apart == told_apart()
    assert band.source == "public runs like this (dense, 16 bit, Ampere or older)"
    assert job_band(job(), config(tp=8, dp=row.largest_gpus // 8, num_layers=8), 20.0) is not None
    assert job_band(job(), config(tp=8, dp=row.largest_gpus // 8 + 1, num_layers=8), 20.0) is None
    mixture = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)
    assert job_band(replace(job(), model=mixture), config(tp=8), 20.0) is None


def test_beyond_what_runs_had_bands_are_wider() -> None:
    """The larger of both stretches, about the median; a kind whose own is larger stays as it is."""
    table, stretches = read_bands(), beyond()
    row, given = table["dense, 16 bit, Hopper"], job("h100-80gb")
    assert row.low is not None
    assert row.high is not None
    inside, farther = job_band(given, config(dp=8), 10.0), job_band(given, config(tp=8), 10.0)
    assert inside is not None
    assert farther is not None
    wider = stretches["tensor_model_parallel_size"] / row.stretch
    assert wider > 1
    assert farther.high_s == pytest.approx(10 * row.middle * (row.high / row.middle) ** wider)
    assert farther.low_s == pytest.approx(10 * row.middle * (row.low / row.middle) ** wider)
    assert (inside.low_s, inside.high_s) == (pytest.approx(10 * row.low), pytest.approx(10 * row.high))
    assert farther.source == f"{inside.source}, with less tensor parallelism"
    wide = table["dense, 16 bit, Ampere or older"]
    assert wide.stretch > max(stretches.values())
    band = job_band(job(), config(tp=4, pp=64, num_layers=64), 10.0)
    assert band is not None
    assert band.high_s == pytest.approx(10 * (wide.high or 0))


def test_a_calibrated_stack_knows_what_more_of_something_costs() -> None:
    """Errors of the runs with the most tensor ranks, predicted without them, are those of configurations beyond."""
    given = job()
    fitted = {
        "num_runs": 40,
        "ranges": {"num_gpus": [8, 64], "tp": [1, 2], "pp": [1, 2]},
        "p90_error": {"held_out_groups": 0.1, "more_tp": 0.2, "more_pp": 0.05},
    }
    own = replace(given, stack=replace(given.stack, fitted=fitted))
    ends = [job_band(own, one, 8.0) for one in (config(tp=2, pp=2), config(tp=4), config(pp=4))]
    assert [one and one.high_s for one in ends] == [pytest.approx(8 / 0.9), pytest.approx(10), pytest.approx(8 / 0.9)]
    hopeless = fitted | {"p90_error": {"held_out_groups": 0.1, "more_tp": 1.2}}
    assert job_band(replace(given, stack=replace(given.stack, fitted=hopeless)), config(tp=4), 8.0) is None


def test_a_calibrated_stack_has_its_own() -> None:
    """A tenth off in nine of ten runs left out; one that records no such errors says whose band it is."""
    given = job()
    fitted = {"num_runs": 40, "ranges": {"num_gpus": [8, 64]}, "p90_error": {"fit": 0.05, "held_out_groups": 0.1}}
    own = replace(given, stack=replace(given.stack, fitted=fitted))
    band = job_band(own, config(tp=8), 22.0)
    assert band is not None
    assert (band.low_s, band.high_s, band.runs) == (pytest.approx(20.0), pytest.approx(22 / 0.9), 40)
    assert band.apart is None
    told = replace(given, stack=replace(given.stack, fitted=fitted | {"apart": {"held_out_groups": 1.04}}))
    own_band = job_band(told, config(tp=8), 22.0)
    assert own_band is not None
    assert own_band.apart == 1.04
    assert job_band(own, config(tp=8, dp=16, num_layers=8), 22.0) is None
    old = replace(given, stack=replace(given.stack, fitted={"num_runs": 40}))
    band = job_band(old, config(tp=8), 22.0)
    assert band is not None
    assert "predicted by the shipped stack" in band.source


def test_an_estimate_gets_its_band() -> None:
    """With nothing else changed."""
    from plans import llama_plan

    plan = llama_plan()
    given = job()
    found = with_band(plan.estimate, given, plan.config)
    assert found.band == job_band(given, plan.config, plan.estimate.iteration_time_s)
    assert replace(found, band=None) == plan.estimate


def test_a_damaged_table_names_the_kind(tmp_path: Path) -> None:
    """A negative quantile."""
    path = tmp_path / "bands.yaml"
    path.write_text("share: 0.9\nkinds:\n  dense: {low: -1, high: 2, runs: 30, largest_gpus: 8}\n", encoding="utf-8")
    with pytest.raises(InputError, match="dense"):
        read_bands(path)
