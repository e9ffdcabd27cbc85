"""Limits of any prediction, against hand counts, draws and brute force."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_runs import measured_run

from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import usable_for_memory
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.lab.backtest.memory_ceiling import (
    FREE_FIT,
    LEAST_ERROR,
    OUR_FIT,
    STATIC_COLUMN,
    Pair,
    furthest_off,
    held_gib,
    hindsight,
    labelled_room,
    least_refusals,
    on_full_device,
    relative_errors,
    reversals,
    twins,
)
from pipette_opt.memory.framework import COLUMNS, Framework
from pipette_opt.read.runs import read_runs

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[3].parent / "shared")) / "measured"

BARE = Framework(base_gib=0.0, group_gib=0.0, unusable_gib=0.0)


def pair(
    *,
    mbs: int,
    tp: int = 1,
    dp: int = 1,
    pp: int = 1,
    zero_stage: int = 0,
    peak: float | None = None,
    ran_out: bool | None = None,
    static: float = 10.0,
    counted: float = 20.0,
) -> Pair:
    """A row of 128 sequences and one stage of it, GiB, on 80 GiB."""
    run = measured_run(
        num_gpus=tp * dp * pp,
        gbs=128,
        mbs=mbs,
        tp=tp,
        pp=pp,
        dp=dp,
        zero_stage=zero_stage,
        extra={STATIC_COLUMN: str(static)},
    )
    columns = np.zeros((2, len(COLUMNS)))
    columns[:, COLUMNS.index("counted")] = counted, static
    memory = MemoryRun(
        columns=columns, measured_rows=np.array([0, 1]), capacity_gib=80.0, peak_gib=peak, ran_out=ran_out
    )
    return run, memory


def test_a_twin_brings_its_work_to_another_state() -> None:
    """Peaks of 30 and 36 over 10 held are 20 and 26 of work, 23 in the middle; over 4 held that is 27."""
    known = [pair(mbs=2, dp=2, peak=30.0), pair(mbs=2, dp=4, peak=36.0), pair(mbs=4, dp=2, peak=99.0)]
    [twin] = twins(known, [pair(mbs=2, dp=8, peak=28.0, static=4.0)], BARE)
    assert (twin.peak_gib, twin.twin_gib, twin.predicted_gib) == (28.0, pytest.approx(27.0), pytest.approx(20.0))


@pytest.mark.parametrize(("zero_stage", "dp", "held"), [(0, 2, 17.0), (1, 1, 17.0), (1, 2, 12.0), (1, 4, 12.5)])
def test_what_a_step_gathers_does_not_stay(zero_stage: int, dp: int, held: float) -> None:
    """Of 2^30 parameters: 4 bytes and 2 over the replicas, where there are several that share the state."""
    run, _ = pair(mbs=1, dp=dp, zero_stage=zero_stage, static=17.0)
    assert held_gib(replace(run, extra=run.extra | {"local_params_rank0": str(2.0**30)})) == pytest.approx(held)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="no measured runs beside the project")
def test_what_stays_is_as_many_bytes_as_counted() -> None:
    """H100 sweep, jobs without tensor ranks: 2 + 4 + 12 a parameter, shared or with buckets of 2; all within 1.1 %."""
    runs = [
        run
        for run in read_runs(FOLDER / "hf_ultrascale_h100.csv")
        if run.peak_mem_bytes and run.tp == 1 and usable_for_memory(run)
    ]
    assert len(runs) > 60
    for run in runs:
        assert run.dp is not None
        counted = 6 + 12 / run.dp if run.zero_stage else 18 + 2 * (run.dp > 1)
        more = held_gib(run) - counted * float(run.extra["local_params_rank0"]) / GIB
        assert abs(more) < 0.011 * float(run.extra[STATIC_COLUMN])


@pytest.mark.parametrize(
    "judged",
    [
        pytest.param(pair(mbs=2, dp=1, peak=28.0), id="no gradients to reduce"),
        pytest.param(pair(mbs=2, dp=8, peak=28.0, zero_stage=1), id="another state"),
        pytest.param(pair(mbs=2, dp=8, pp=16, peak=28.0), id="no other of this pipeline"),
        pytest.param(pair(mbs=2, dp=8), id="no peak"),
    ],
)
def test_other_work_is_no_twin(judged: Pair) -> None:
    """What differs in anything but the number of replicas is left out, and so is a pipeline that is not filled."""
    known = [pair(mbs=2, dp=2, peak=30.0), pair(mbs=2, dp=4, pp=32, peak=30.0)]
    assert twins(known, [judged], BARE) == []


@pytest.mark.parametrize(
    ("mbs", "tp", "static", "found"),
    [(4, 4, 9.0, 1), (4, 2, 9.0, 1), (1, 1, 9.0, 0), (4, 8, 9.0, 0), (4, 4, 5.5, 0), (4, 4, 6.5, 1)],
)
def test_reversals_have_no_less_to_hold(mbs: int, tp: int, static: float, found: int) -> None:
    """Beside a dead job of micro-batch 2 and two tensor ranks, 10 GiB of state: larger, with as much on a rank."""
    dead = pair(mbs=2, tp=2, ran_out=True)
    lived = pair(mbs=mbs, tp=tp, static=static, ran_out=False)
    assert len(reversals([dead], [lived])) == found
    assert reversals([lived], [dead]) == []


def test_a_pipeline_or_replicas_make_no_reversal() -> None:
    """Both change what is held besides."""
    dead = pair(mbs=2, tp=2, ran_out=True)
    assert reversals([dead], [pair(mbs=4, tp=4, pp=2, ran_out=False)]) == []
    assert reversals([dead], [pair(mbs=4, tp=4, dp=2, ran_out=False)]) == []


@pytest.mark.parametrize(("counted", "found"), [(70.0, 1), (50.0, 0), (90.0, 0)])
@pytest.mark.parametrize("name", ["run_ahead_buffers", "pile_up_buffers", "step_bytes"])
def test_a_full_device_has_what_could_be_taken_back(name: str, counted: float, found: int) -> None:
    """Twenty buffers of one GiB fill 80 GiB beside 70, not beside 50; and 90 are too many without them."""
    run, memory = pair(mbs=1, counted=counted)
    memory.columns[0, COLUMNS.index(name)] = 1.0
    framework = replace(BARE, **{name: 20.0})  # type: ignore[arg-type]
    assert len(on_full_device(framework, [(run, memory)])) == found


def test_rows_furthest_off_come_first() -> None:
    """Twenty counted: of peaks of 25, 16 and 20 the second is off by a quarter; a row without a peak has no error."""
    rows = [pair(mbs=1, peak=peak) for peak in (25.0, 16.0, 20.0, None)]
    found = furthest_off(BARE, rows)
    assert [error for error, _ in found] == pytest.approx([0.25, 0.2, 0.0], abs=1e-5)
    assert [memory.peak_gib for _, (_, memory) in found] == [16.0, 25.0, 20.0]


def test_hindsight_is_no_worse_than_the_fit_it_starts_from() -> None:
    """Peaks of 1.2 times what is counted: all fits find that, the last one at least as well as the first."""
    rng = np.random.default_rng(0)
    runs = [
        pair(mbs=1, peak=float(1.2 * size * np.exp(rng.normal(0, 0.05))), counted=size)[1]
        for size in rng.uniform(10, 60, 30)
    ]
    found = hindsight(runs, BARE)
    errors = {name: relative_errors(framework, runs).mean() for name, framework in found.items()}
    assert set(errors) == {OUR_FIT, FREE_FIT, LEAST_ERROR}
    assert errors[LEAST_ERROR] <= errors[OUR_FIT] < relative_errors(BARE, runs).mean()
    assert abs(found[FREE_FIT].counted - 1.2) < abs(found[OUR_FIT].counted - 1.2) + 0.02


def test_labels_alone_have_no_mean_error() -> None:
    """Then two fits are left."""
    runs = [pair(mbs=1, counted=size, ran_out=size > 80)[1] for size in (40.0, 60.0, 75.0, 85.0, 90.0, 120.0)]
    assert set(hindsight(runs, BARE)) == {OUR_FIT, FREE_FIT}


def test_room_is_of_labelled_runs() -> None:
    """A need of 40 on 80 GiB, and one of 160; what has no label is left out."""
    runs = [pair(mbs=1, counted=size)[1] for size in (40.0, 160.0, 50.0)]
    labelled = [replace(run, ran_out=label) for run, label in zip(runs, (False, True, None), strict=True)]
    over, ran_out = labelled_room(BARE, labelled)
    assert over == pytest.approx([-np.log(2), np.log(2)])
    assert ran_out.tolist() == [False, True]


def test_least_refusals_against_draws() -> None:
    """Verdicts of a hundred thousand noisy predictions that keep to the risk; wrong sides are forgiven."""
    over, ran_out = (
        np.array([-0.3, -0.05, -0.02, 0.04, 0.01, -0.01]),
        np.array([False, False, False, False, True, True]),
    )
    spread, risk = 0.03, 0.05
    found = least_refusals(over, ran_out, spread, risk)
    draws = np.random.default_rng(0).normal(0, spread, (100_000, 1))
    refused = over + draws > -1.6448536 * spread
    shares = refused.mean(axis=0)
    assert found.refused == pytest.approx(shares[:3].sum(), abs=0.01)
    assert found.missed == pytest.approx(1 - shares[4], abs=0.01)
    assert (found.fitted, found.ran_out) == (4, 2)
    assert found.accuracy == pytest.approx(1 - (shares[:3].sum() + 1 - shares[4]) / 6, abs=0.01)
