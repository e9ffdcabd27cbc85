"""Bands of predicted times: by kind of job, from the shipped table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import FEW_RUNS, Band
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import GpuSpec, Instance, ModelSpec
from pipette_opt.worlds.bands import (
    ANY_JOB,
    GENERATIONS,
    SHARE,
    gain_band,
    job_band,
    job_kind,
    read_bands,
    shipped_bands,
    with_band,
)


def job(gpu: str = "a100-80gb", **training: object) -> Instance:
    """Llama 3 8B on two hosts of a GPU from the catalogue."""
    given = make_job(make_cluster(2, kinds=(read_gpu_catalogue()[gpu].gpu,)), LLAMA_8B)
    return replace(given, training=replace(given.training, **training))


OTHER_GPU = GpuSpec(name="mi300x", memory_bytes=10**11, peak_flops={"bf16": 1e15}, memory_bytes_per_s=5e12)
"""A kind of GPU of which no run was measured."""

MIXTURE = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)


def width(band: Band) -> float:
    """Ratio of the ends."""
    return band.high_s / band.low_s


def test_kinds() -> None:
    """Shape, size, precision and generation; GPUs that nobody measured, or of several kinds, stand for themselves."""
    assert job_kind(job()) == "dense, 16 bit, Ampere or older"
    assert job_kind(job("h100-80gb", fp8=True)) == "dense, fp8, Hopper"
    assert job_kind(job("h100-80gb", precision="fp32")) == "dense, fp32, Hopper"
    assert job_kind(replace(job(), model=TINY)) == "dense, small model, 16 bit, Ampere or older"
    assert job_kind(replace(job("gb200"), model=MIXTURE)) == "mixture of experts, 16 bit, Blackwell"
    assert job_kind(make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B)) == "dense, 16 bit, mi300x"
    a100 = read_gpu_catalogue()["a100-80gb"].gpu
    assert (
        job_kind(make_job(make_cluster(2, kinds=(a100, OTHER_GPU)), LLAMA_8B)) == "dense, 16 bit, several kinds of GPU"
    )


def test_the_shipped_table_is_what_it_says() -> None:
    """Kinds are as a job can have, and those with fewer sources are wider than those with more."""
    table = read_bands()
    for size in ("", ", small model"):
        known = [row for name, row in table.kinds.items() if (", small model" in name) == bool(size)]
        assert min(known, key=lambda row: row.spread).sources > 1
        assert max(known, key=lambda row: row.spread) is table.kinds[ANY_JOB + size]
        assert all(0 < row.within < row.spread for row in known)
    assert {name.rsplit(", ", 1)[-1] for name in table.kinds if not name.startswith(ANY_JOB)} <= set(GENERATIONS)
    assert table.row("dense, fp32, Hopper") == table.kinds[ANY_JOB]
    assert table.row("dense, small model, 16 bit, mi300x") == table.kinds[f"{ANY_JOB}, small model"]


def test_a_band_scales_the_time() -> None:
    """Middle and spread times the prediction."""
    table = shipped_bands()
    row = table.kinds["dense, 16 bit, Ampere or older"]
    band = job_band(job(), make_config(tp=8), 20.0)
    assert band.middle_s == pytest.approx(20 * row.middle)
    assert band.high_s == pytest.approx(20 * row.middle * np.exp(table.reach * row.spread))
    assert band.low_s * band.high_s == pytest.approx(band.middle_s**2)
    assert (band.share, band.runs, band.apart) == (SHARE, row.runs, table.apart)
    assert band.source == f"{row.runs} public runs like this (dense, 16 bit, Ampere or older)"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (job("h100-80gb", precision="fp32"), "none of them like this (dense, fp32, Hopper)"),
        (replace(job("h100-80gb"), model=MIXTURE), "1 of them like this (mixture of experts, 16 bit, Hopper)"),
        (make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B), "none of them like this (dense, 16 bit, mi300x)"),
    ],
)
def test_fewer_runs_make_a_wider_band(given: Instance, said: str) -> None:
    """By all runs of models of its size; who reads it learns that few are like it."""
    known, few = job_band(job("h100-80gb"), make_config(tp=8), 10.0), job_band(given, make_config(tp=8), 10.0)
    assert width(few) > width(known)
    assert few.runs < FEW_RUNS <= known.runs
    assert few.source == f"{shipped_bands().kinds[ANY_JOB].runs} public runs, {said}"


def random_config(rng: np.random.Generator, num_gpus: int, model: ModelSpec) -> ParallelConfig:
    """Degrees of two, for so many GPUs."""
    tp, pp = (2 ** int(rng.integers(0, 4)) for _ in range(2))
    tp = min(tp, num_gpus)
    pp = min(pp, num_gpus // tp)
    return make_config(tp=tp, pp=pp, dp=num_gpus // tp // pp, num_layers=model.num_layers)


@pytest.mark.search
@pytest.mark.parametrize("name", list_models())
def test_every_job_has_a_band(name: str) -> None:
    """Each preset on every kind of GPU, in every precision, from 8 to 16,384 GPUs: the more, the wider."""
    rng, model = np.random.default_rng(0), read_model(name)
    for gpu in rng.permutation(sorted(read_gpu_catalogue()))[:2]:
        for changes in ({}, {"precision": "fp32"}, {"fp8": True}):
            given = replace(job(str(gpu), **changes), model=model)
            widths = []
            for num_gpus in 8 * 2 ** np.arange(12):
                band = job_band(given, random_config(rng, int(num_gpus), model), 3.0)
                assert 0 < band.low_s < band.middle_s < band.high_s
                widths.append(width(job_band(given, make_config(dp=int(num_gpus), num_layers=model.num_layers), 3.0)))
            assert (np.diff(widths) >= 0).all()
            assert widths[-1] > widths[0]


def test_beyond_what_runs_had_bands_are_wider() -> None:
    """About the middle; in several ways by the largest variance."""
    table, given = shipped_bands(), job("h100-80gb")
    row, seen = table.kinds["dense, 16 bit, Hopper"], table.kinds[ANY_JOB].seen
    inside = job_band(given, make_config(tp=8, dp=8), 10.0)
    most = seen["tensor_model_parallel_size"]
    farther = job_band(given, make_config(tp=2 * most), 10.0)
    spread = np.sqrt(row.spread**2 + table.beyond["tensor_model_parallel_size"])
    assert farther.middle_s == inside.middle_s
    assert farther.high_s == pytest.approx(10 * row.middle * np.exp(table.reach * spread))
    assert farther.source == f"{inside.source}, with less tensor parallelism"
    larger = job_band(given, make_config(dp=8 * row.largest_gpus), 10.0)
    spread = np.sqrt(row.spread**2 + 3 * table.beyond["world_size"])
    assert larger.high_s == pytest.approx(10 * row.middle * np.exp(table.reach * spread))
    assert larger.source == f"{inside.source}, with less GPUs"
    both = job_band(given, make_config(tp=2 * most, dp=row.largest_gpus), 10.0)
    assert both.high_s == pytest.approx(farther.high_s)


def test_gains_are_surer_than_times() -> None:
    """The ratio of two plans of one job lies in its band, which is narrower than that of either time."""
    for ratio in (0.8, 1.0, 1.12, 1.5):
        low, high = gain_band(ratio)
        assert low < ratio < high
        assert high / low < width(job_band(job(), make_config(tp=8), 1.0))
    assert gain_band(1.3)[1] / 1.3 > gain_band(1.1)[1] / 1.1
    assert gain_band(1.1, 0.5) == gain_band(1.1, 2.0)
    assert gain_band(1.1, 2.0)[1] > gain_band(1.1)[1]


def test_an_estimate_gets_its_band() -> None:
    """With nothing else changed; what people are shown is its middle."""
    from factories import llama_plan

    plan = llama_plan()
    given = job()
    found = with_band(plan.estimate, given, plan.config, plan.placement)
    assert found.band == job_band(given, plan.config, plan.estimate.iteration_time_s)
    assert replace(found, band=None) == plan.estimate
    assert found.expected_s == found.band.middle_s
    assert found.expected_tokens_per_s * found.expected_s == pytest.approx(found.tokens_per_s * found.iteration_time_s)


def test_a_damaged_table_names_the_kind(tmp_path: Path) -> None:
    """A negative middle."""
    text = (
        "share: 0.9\nreach: 1.7\nbeyond: {}\npairs: {equal: 0.1, grows: 0.1}\napart: {ratio: 1.1}\n"
        "kinds:\n  dense: {middle: -1, within: 0.1, spread: 0.2, runs: 30, sources: 2, largest_gpus: 8}\n"
    )
    path = tmp_path / "bands.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="dense: middle"):
        read_bands(path)
    path.write_text(text.replace("-1", "1"), encoding="utf-8")
    assert read_bands(path).kinds["dense"].sources == 2
    with pytest.raises(InputError, match=r"bands\.yaml"):
        read_bands(tmp_path / "missing" / "bands.yaml")
