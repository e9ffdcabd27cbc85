"""The one sentence that sums an answer up."""

import re
from dataclasses import replace

import numpy as np
import pytest
from factories import make_plan

from pipette_opt.base.units import GIB
from pipette_opt.plans.certificate import Robust
from pipette_opt.plans.plan import Band, Certificate, IterationTime, StageMemory
from pipette_opt.plans.verdict import verdict

SIMULATED = "about 10.0 s per iteration, as simulated."


def stage(*, predicted: int = 60, oom: float = 0.001, spread: float = 0.05) -> StageMemory:
    """One stage on a GPU of 77 GiB; ``spread`` is the deviation of the logarithm of its peak."""
    return StageMemory(
        stage=3,
        predicted_bytes=predicted * GIB,
        upper_bytes=65 * GIB,
        capacity_bytes=77 * GIB,
        oom_probability=oom,
        spread=spread,
    )


def time(band: Band | None = None) -> IterationTime:
    """Ten seconds."""
    return replace(make_plan().estimate, iteration_time_s=10.0, band=band)


def proof(bound_s: float, status: str) -> Certificate:
    """A bound on the iteration time."""
    return replace(make_plan().certificate, lower_bound_s=bound_s, status=status)


@pytest.mark.parametrize(
    ("one", "accepted", "said"),
    [
        (stage(), 0.1, "Fits: 60.0 of 77.0 GiB (risk of running out of memory 0.1 %)"),
        (stage(oom=1e-4), None, "Fits: 60.0 of 77.0 GiB (risk of running out of memory less than 0.1 %)"),
        (
            stage(oom=0.042, spread=0.25),
            0.1,
            "Fits: 60.0 of 77.0 GiB (risk of running out of memory 4.2 %, one measured peak narrows it)",
        ),
        (stage(oom=0.005, spread=0.25), 0.1, "Fits: 60.0 of 77.0 GiB (risk of running out of memory 0.5 %)"),
        (stage(oom=0.02), 0.01, "Fits: 60.0 of 77.0 GiB (risk of running out of memory 2.0 %)"),
        (stage(oom=0.12), 0.1, "May not fit: 60.0 of 77.0 GiB (risk of running out of memory 12 %)"),
        (stage(oom=0.15), 0.2, "May not fit: 60.0 of 77.0 GiB (risk of running out of memory 15 %, as accepted)"),
        (
            stage(predicted=85, oom=0.97),
            0.1,
            "Does not fit: stage 3 needs 85.0 of 77.0 GiB (risk of running out of memory 97 %)",
        ),
        (
            stage(predicted=85, oom=1.0),
            1.0,
            "Does not fit: stage 3 needs 85.0 of 77.0 GiB (risk of running out of memory more than 99 %), but memory "
            "was not counted, as asked",
        ),
        (
            stage(),
            1.0,
            "Fits: 60.0 of 77.0 GiB (risk of running out of memory 0.1 %), but memory was not counted, as asked",
        ),
    ],
)
def test_memory(one: StageMemory, accepted: float | None, said: str) -> None:
    """By the worst stage; nothing is said of a search where there was none."""
    assert verdict([stage(oom=0.0), one], time(), max_oom_risk=accepted) == f"{said}; {SIMULATED}"


@pytest.mark.parametrize(
    ("bound_s", "status", "said"),
    [
        (10.0, "OPTIMAL", "proven optimal among what was searched"),
        (9.9999, "FEASIBLE", "at most 0.01 % above the best of the searched space"),
        (9.9, "FEASIBLE", "at most 1.02 % above the best of the searched space"),
        (8.0, "FEASIBLE", "at most 25.0 % above the best of the searched space"),
        (0.0, "FEASIBLE", "nothing is proven about how far it is from the best of the searched space"),
    ],
)
def test_proof(bound_s: float, status: str, said: str) -> None:
    """The distance from the bound, rounded up: 10 s are 1.01 % above 9.9 s."""
    found = verdict([stage()], time(), certificate=proof(bound_s, status))
    assert found == f"Fits: 60.0 of 77.0 GiB (risk of running out of memory 0.1 %); {said}; {SIMULATED}"


@pytest.mark.parametrize(
    ("bound_s", "said"),
    [
        (15.0, "proven to have the least upper end of its time among what was searched"),
        (14.9999, "the upper end of its time is at most 0.01 % above the best of the searched space"),
        (14.0, "the upper end of its time is at most 7.15 % above the best of the searched space"),
    ],
)
def test_proof_of_the_upper_end(bound_s: float, said: str) -> None:
    """By its own bound, whatever the proof of the time says: 15 s are 7.14 % above 14 s."""
    gap = 1 - bound_s / 15
    robust = Robust(
        value_s=15.0, best_s=15.0, lower_bound_s=bound_s, gap=gap, factor=1.5, share=0.9, measured_runs=0, groups=2
    )
    found = verdict([stage()], time(), certificate=replace(proof(9.0, "FEASIBLE"), robust=robust))
    assert found == f"Fits: 60.0 of 77.0 GiB (risk of running out of memory 0.1 %); {said}; {SIMULATED}"


def test_band() -> None:
    """The middle, and the ends in the same line; three digits."""
    band = Band(low_s=8.8, middle_s=10.46, high_s=12.512, share=0.9, source="runs", runs=1234)
    said = "about 10.5 s per iteration (8.80 to 12.5 s in nine of ten jobs like this)."
    assert verdict([stage()], time(band)).endswith(f"; {said}")
    assert "12.5 s in 80 % of jobs like this)" in verdict([stage()], time(replace(band, share=0.8)))


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (0, "nine of ten jobs; no run like this was measured, so the band is wide)"),
        (1, "nine of ten jobs; few runs like this were measured: 1, so the band is wide)"),
        (20, "nine of ten jobs like this)"),
    ],
)
def test_few_runs_are_said(runs: int, said: str) -> None:
    """A band of few runs, or of none."""
    band = Band(low_s=66.0, middle_s=88.0, high_s=123.4, share=0.9, source="runs", runs=runs)
    assert verdict([stage()], time(band)).endswith(f"; about 88.0 s per iteration (66.0 to 123 s in {said}.")


def test_a_gpu_that_no_public_run_used_is_said() -> None:
    """By the larger factor to an end: 200 over 100 s, not 100 over 62.5 s."""
    band = Band(low_s=62.5, middle_s=100.0, high_s=200.0, share=0.9, source="runs", runs=0)
    strange = replace(band, unmeasured="a GPU of generation cdna3")
    said = "no public run on a GPU of generation cdna3: the time may be off by a factor of 2."
    assert verdict([stage()], time(strange)).endswith(f"(62.5 to 200 s in nine of ten jobs); {said}")
    assert "by a factor of 4." in verdict([stage()], time(replace(strange, low_s=25.0)))


def test_runs_of_ones_own_are_said() -> None:
    """A band of a calibrated stack is narrow, however few its runs are."""
    source = "3 runs that the stack was calibrated with"
    band = Band(low_s=66.0, middle_s=88.0, high_s=123.4, share=0.9, source=source, runs=3)
    assert verdict([stage()], time(band)).endswith("(66.0 to 123 s in nine of ten jobs, by 3 runs of your own).")


@pytest.mark.parametrize("seed", range(20))
def test_the_time_that_people_read_is_inside_its_band(seed: int) -> None:
    """Also after rounding."""
    middle, factor = np.random.default_rng(seed).uniform((0.01, 1.0), (300.0, 2.0)).tolist()
    band = Band(low_s=middle / factor, middle_s=middle, high_s=middle * factor, share=0.9, source="runs", runs=30)
    said = re.fullmatch(r".*about (\S+) s per iteration \((\S+) to (\S+) s in .*", verdict([stage()], time(band)))
    assert said is not None
    expected, low, high = map(float, said.groups())
    assert low <= expected <= high
    assert expected == pytest.approx(middle, rel=6e-3)
