"""The table of bands: middles and spreads by kind, of the jobs that the clock knows."""

from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import loaded
from factories import make_run

from pipette_opt.read.runs import BANDWIDTH_COLUMN


@pytest.fixture(scope="module")
def bands() -> ModuleType:
    """The module."""
    return loaded("bands")


def points(bands: ModuleType, kind: str = "dense", gpus: int = 8, **ratios: list[float]) -> list[object]:
    """Runs of one kind, by source."""
    return [
        bands.Point(kind=kind, source=source, gpu="a100-80gb", num_gpus=gpus, ratio=ratio)
        for source, listed in ratios.items()
        for ratio in listed
    ]


def drawn(bands: ModuleType, seed: int, between: float = 0.2, within: float = 0.1) -> list[object]:
    """Five kinds of six sources with ten runs each; kinds differ as much as sources do."""
    rng, found = np.random.default_rng(seed), list[object]()
    for kind in "abcde":
        middle = between * rng.normal()
        means = middle + between * rng.normal(size=6)
        logs = means[:, None] + within * rng.normal(size=(6, 10))
        found += points(bands, kind, **{f"source{index}": np.exp(own).tolist() for index, own in enumerate(logs)})
    return found


@pytest.mark.search
def test_spreads_are_those_that_were_drawn(bands: ModuleType) -> None:
    """Between sources and within them; a kind without runs is as uncertain as kinds and sources together."""
    tables = [bands._spreads_of(drawn(bands, seed)) for seed in range(20)]
    rows = [table["kinds"]["a"] for table in tables]
    assert np.mean([row["within"] for row in rows]) == pytest.approx(0.1, rel=0.1)
    assert np.mean([row["spread"] for row in rows]) == pytest.approx(np.sqrt(0.2**2 * (1 + 1 / 7) + 0.1**2), rel=0.1)
    unknown = [table["kinds"][bands.ANY_JOB]["spread"] for table in tables]
    assert np.mean(unknown) == pytest.approx(np.sqrt(2 * 0.2**2 + 0.1**2), rel=0.1)


def test_nine_in_ten_of_a_source_left_out_lie_inside(bands: ModuleType) -> None:
    """On average, of runs drawn as the table says."""
    tables = [drawn(bands, seed) for seed in range(6)]
    shares = [bands._share(runs, bands._sources_left_out(runs, "a")[:1]) for runs in tables]
    assert 0.85 < np.mean(shares) < 0.97


def test_a_kind_with_one_source_is_drawn_half_way_to_the_others(bands: ModuleType) -> None:
    """Its one source and the mean of all count as much; a kind with many sources stays where it is."""
    many = points(bands, "many", **{f"source{index}": [1.0, 1.0] for index in range(9)})
    table = bands._spreads_of(many + points(bands, "few", one=[2.0] * 3))["kinds"]
    middle = np.log(table[bands.ANY_JOB]["middle"])
    assert 0 < middle < np.log(2)
    assert np.log(table["few"]["middle"]) == pytest.approx((np.log(2) + middle) / 2, abs=1e-3)
    assert np.log(table["many"]["middle"]) == pytest.approx(middle / 10, abs=1e-3)
    assert (table["few"]["runs"], table["few"]["sources"], table["many"]["sources"]) == (3, 1, 9)


def test_small_models_are_a_table_of_their_own(bands: ModuleType) -> None:
    """Their times depend on the host, and say nothing of large ones."""
    large = drawn(bands, 0)
    alone = bands._spreads_of(large)["kinds"]
    slow = points(bands, f"dense{bands.SMALL_MODEL}", one=[3.0] * 9, two=[5.0] * 9)
    both = bands._spreads_of(large + slow)["kinds"]
    assert {kind: both[kind] for kind in alone} == alone
    assert both[f"{bands.ANY_JOB}{bands.SMALL_MODEL}"]["middle"] > 3


def test_larger_jobs_that_differ_more_widen_bands(bands: ModuleType) -> None:
    """Each doubling of the GPUs of a source adds a random step of a tenth; without that nothing is added."""
    rng, found, still = np.random.default_rng(0), list[object](), list[object]()
    for source in range(40):
        steps, noise = np.cumsum(0.1 * rng.normal(size=5)), 0.02 * rng.normal(size=(5, 9))
        for index, gpus in enumerate((8, 16, 32, 64, 128)):
            found += points(bands, gpus=gpus, **{f"source{source}": np.exp(steps[index] + noise[index]).tolist()})
            still += points(bands, gpus=gpus, **{f"source{source}": np.exp(noise[index]).tolist()})
    assert bands.beyond_of(still, "world_size") < 1e-3
    assert 0.1**2 / 3 < bands.beyond_of(found, "world_size") < 0.1**2 * 1.5


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"notes": "SFT Performance"}, False),
        ({"model": "Nemotron-H-56B"}, False),
        ({"extra": {"is_lora": "True"}}, False),
        ({"source": "MegatronBridge-25.09", "precision": ""}, False),
    ],
)
def test_other_jobs_do_not_count(bands: ModuleType, changes: dict[str, object], counts: bool) -> None:
    """Fine-tuning, layers that nobody models, and tables that do not name the precision."""
    assert bands._is_this_job(make_run(**changes)) is counts


def test_what_rows_do_not_say_is_as_usual(bands: ModuleType) -> None:
    """NICs of the machine, unless the row has them."""
    row = bands._as_usual(make_run())
    assert row.gpu is not None
    usual = row.gpu.usual_host
    assert usual is not None
    expected = usual.nics.host_bytes_per_s / usual.gpus_per_node * row.gpus_per_node / 1e9
    assert float(row.extra[BANDWIDTH_COLUMN]) == pytest.approx(expected)
    told = make_run(extra={BANDWIDTH_COLUMN: "7"})
    assert bands._as_usual(told).extra[BANDWIDTH_COLUMN] == "7"


def test_order_of_pairs_of_one_job(bands: ModuleType) -> None:
    """Pairs predicted less than 20 % apart are in either order, others in the predicted one."""
    predicted = np.exp(0.03 * np.arange(30))
    measured = predicted * np.exp(np.where(np.arange(30) % 2, 0.1, -0.1))
    runs = [
        bands.Point(
            kind="dense", source="one", gpu="a100-80gb", num_gpus=8, ratio=seen / said, predicted_s=said, job=job
        )
        for job in ("first", "second")
        for said, seen in zip(predicted, measured, strict=True)
    ]
    row = bands.apart_of(runs)
    assert row["pairs"] == 2 * 30 * 29 // 2
    assert 1.02 < row["ratio"] < 1.22
    assert bands.apart_of(runs[:5])["ratio"] is None


@pytest.mark.search
def test_errors_of_pairs_grow_with_their_distance(bands: ModuleType) -> None:
    """By 0.02 of variance for each e-fold, from 0.01 on; a job with many pairs says no more than others."""
    rng, runs = np.random.default_rng(0), list[object]()
    for job in range(2000):
        gap = float(rng.uniform(0.01, 1.0))
        error = float(np.sqrt(0.01 + 0.02 * gap) * rng.normal())
        for predicted, ratio in ((1.0, 1.0), (float(np.exp(gap)), float(np.exp(error)))):
            runs.append(
                bands.Point(
                    kind="dense", source="one", gpu="t4", num_gpus=8, ratio=ratio, predicted_s=predicted, job=job
                )
            )
    found = bands.pairs_of(runs)
    assert found["equal"] == pytest.approx(0.01, rel=0.25)
    assert found["grows"] == pytest.approx(0.02, rel=0.25)
    sweep = [
        bands.Point(
            kind="dense", source="one", gpu="t4", num_gpus=8, ratio=float(ratio), predicted_s=float(said), job="sweep"
        )
        for said, ratio in zip(rng.uniform(1, 2, 60), np.exp(rng.normal(size=60)), strict=True)
    ]
    assert bands.pairs_of(runs + sweep)["equal"] < 0.02


@pytest.mark.parametrize(("degrees", "right"), [(5, 2.0150), (10, 1.8125), (21, 1.7207), (1e9, 1.6449)])
def test_reach_is_that_of_students_t(bands: ModuleType, degrees: float, right: float) -> None:
    """Against the table."""
    assert bands.student_reach(degrees) == pytest.approx(right, rel=2e-3)
