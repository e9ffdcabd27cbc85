"""The one sentence that sums an answer up."""

from dataclasses import replace

import pytest
from plans import small_plan

from pipette_opt.base.units import GIB
from pipette_opt.plans.plan import Band, Certificate, IterationTime, StageMemory
from pipette_opt.plans.verdict import verdict

UNMEASURED = "nobody knows how far off the time is: no run like this was ever measured, or too few."


def stage(*, predicted: int = 60, upper: int = 65, oom: float = 0.001, at_most: bool = True) -> StageMemory:
    """One stage on a GPU of 77 GiB."""
    return StageMemory(
        stage=3,
        predicted_bytes=predicted * GIB,
        upper_bytes=upper * GIB,
        capacity_bytes=77 * GIB,
        oom_probability=oom,
        oom_probability_at_most=at_most,
    )


def time(band: Band | None = None) -> IterationTime:
    """Ten seconds."""
    return replace(small_plan().estimate, iteration_time_s=10.0, band=band)


def proof(bound_s: float, status: str) -> Certificate:
    """A bound on the iteration time."""
    return replace(small_plan().certificate, lower_bound_s=bound_s, status=status)


@pytest.mark.parametrize(
    ("one", "accepted", "said"),
    [
        (stage(), 0.01, "Fits (risk of running out of memory at most 0.1 %)"),
        (stage(oom=0.0042, at_most=False), 0.01, "Fits (risk of running out of memory 0.4 %)"),
        (stage(oom=1e-5, at_most=True), None, "Fits (risk of running out of memory less than 0.1 %)"),
        (stage(oom=1e-5, at_most=False), None, "Fits (risk of running out of memory less than 0.1 %)"),
        (stage(oom=0.02, at_most=False), 0.01, "May not fit (risk of running out of memory 2.0 %)"),
        (stage(oom=0.05, at_most=False), 0.2, "May not fit (risk of running out of memory 5.0 %, as accepted)"),
        (stage(upper=78, oom=0.12, at_most=False), None, "May not fit (risk of running out of memory 12 %)"),
        (
            stage(predicted=85, upper=92, oom=0.97, at_most=False),
            0.01,
            "Does not fit: stage 3 needs 85.0 GiB of 77.0 (risk of running out of memory 97 %)",
        ),
        (
            stage(predicted=85, upper=92, oom=0.97, at_most=False),
            1.0,
            "Does not fit: stage 3 needs 85.0 GiB of 77.0 (risk of running out of memory 97 %), but memory was not "
            "counted, as asked",
        ),
        (stage(), 1.0, "Fits (risk of running out of memory at most 0.1 %), but memory was not counted, as asked"),
    ],
)
def test_memory(one: StageMemory, accepted: float | None, said: str) -> None:
    """By the worst stage; nothing is said of a search where there was none."""
    assert verdict([stage(oom=0.0), one], time(), max_oom_risk=accepted) == f"{said}; {UNMEASURED}"


@pytest.mark.parametrize(
    ("bound_s", "status", "said"),
    [
        (10.0, "OPTIMAL", "proven optimal among what was searched"),
        (9.9999, "FEASIBLE", "at most 0.1 % above the best of the searched space"),
        (9.9, "FEASIBLE", "at most 1.1 % above the best of the searched space"),
        (8.0, "FEASIBLE", "at most 25 % above the best of the searched space"),
        (0.0, "FEASIBLE", "nothing is proven about how far it is from the best of the searched space"),
    ],
)
def test_proof(bound_s: float, status: str, said: str) -> None:
    """The distance from the bound, rounded up: 10 s are 1.01 % above 9.9 s."""
    found = verdict([stage()], time(), certificate=proof(bound_s, status))
    assert found == f"Fits (risk of running out of memory at most 0.1 %); {said}; {UNMEASURED}"


def test_band() -> None:
    """Ends as percentages of the predicted time."""
    band = Band(low_s=8.8, high_s=12.5, share=0.9, source="public runs like this", runs=1234)
    said = "time within -12 % to +25 %, as nine in ten of 1,234 public runs like this."
    assert verdict([stage()], time(band)).endswith(f"; {said}")
    assert "as 80 % of 1,234" in verdict([stage()], time(replace(band, share=0.8)))


@pytest.mark.parametrize(
    ("low_s", "high_s", "said"), [(12.0, 21.9, "20 to 119 % more time"), (6.9, 9.0, "10 to 31 % less time")]
)
def test_a_band_beside_the_prediction(low_s: float, high_s: float, said: str) -> None:
    """Where nearly all runs were slower, or faster, than predicted, that is what to expect."""
    band = Band(low_s=low_s, high_s=high_s, share=0.9, source="public runs like this", runs=49)
    assert f"; expect {said}, as nine in ten of 49 public runs" in verdict([stage()], time(band))
