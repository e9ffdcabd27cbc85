"""The table of bands: quantiles by kind, only where they hold, of the jobs that the clock knows."""

from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import loaded
from measured_runs import measured_run

from pipette_opt.read.runs import BANDWIDTH_COLUMN


@pytest.fixture(scope="module")
def bands() -> ModuleType:
    """The module."""
    return loaded("bands")


def points(bands: ModuleType, **ratios: list[float]) -> list[object]:
    """Runs of one kind, by source."""
    return [
        bands.Point(kind="dense", source=source, gpu="a100-80gb", num_gpus=8 * (index + 1), ratio=ratio)
        for source, listed in ratios.items()
        for index, ratio in enumerate(listed)
    ]


def test_quantiles_of_two_sources_that_agree(bands: ModuleType) -> None:
    """
    101 ratios from 1 to 2: 5 % lie below 1.05 and above 1.95.

    What one source shows holds for the other, and what smaller jobs show for larger ones, nearly without a stretch.
    """
    ratios = np.random.default_rng(0).permutation(np.linspace(1, 2, 101)).tolist()
    row = bands.bands_of(points(bands, one=ratios[::2], two=ratios[1::2]))["kinds"]["dense"]
    assert row["stretch"] <= 1.15
    assert 0.95 <= row["low"] <= 1.05
    assert 1.94 <= row["high"] <= 2.1
    assert (row["runs"], row["sources"], row["largest_gpus"]) == (101, 2, 8 * 51)
    assert min(row["left_out"], row["larger"]) >= 0.9


def test_a_band_is_stretched_until_larger_jobs_lie_inside(bands: ModuleType) -> None:
    """Larger jobs take an eighth longer: quantiles alone hold for few of them, the band for nine in ten."""
    rng, factor = np.random.default_rng(1), np.repeat([1.0, 1.12], 50)
    ratios = np.exp(0.05 * rng.normal(size=100)) * factor
    listed = points(bands, one=ratios[::2].tolist(), two=ratios[1::2].tolist())
    row = bands.bands_of(listed)["kinds"]["dense"]
    low, high = np.quantile(ratios[:50], [0.05, 0.95])
    assert ((ratios[50:] > low) & (ratios[50:] < high)).mean() < 0.6
    assert row["stretch"] > 1.5
    assert min(row["left_out"], row["larger"]) >= 0.9
    assert row["low"] < np.quantile(ratios, 0.05)


@pytest.mark.parametrize(
    "ratios",
    [
        {"one": [1.0] * 10, "two": [1.1] * 5},
        {"one": [1.0 + index / 100 for index in range(40)]},
        {"one": [1.0 + index / 100 for index in range(20)], "two": [3.0 + index / 100 for index in range(20)]},
    ],
)
def test_no_band_where_it_would_promise_too_much(bands: ModuleType, ratios: dict[str, list[float]]) -> None:
    """Too few runs, one source, or sources that contradict each other; how many there are is still said."""
    row = bands.bands_of(points(bands, **ratios))["kinds"]["dense"]
    assert row["low"] is row["high"] is None
    assert row["runs"] == sum(map(len, ratios.values()))


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
    assert bands._is_this_job(measured_run(**changes)) is counts


def test_what_rows_do_not_say_is_as_usual(bands: ModuleType) -> None:
    """NICs of the machine, unless the row has them."""
    row = bands._as_usual(measured_run())
    assert row.gpu is not None
    usual = row.gpu.usual_host
    assert usual is not None
    expected = usual.nics.host_bytes_per_s / usual.gpus_per_node * row.gpus_per_node / 1e9
    assert float(row.extra[BANDWIDTH_COLUMN]) == pytest.approx(expected)
    told = measured_run(extra={BANDWIDTH_COLUMN: "7"})
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
