"""Interleaving in groups of more micro-batches than stages."""

import pytest

from pipette_opt.parallel.schedule import build_schedule, has_group, max_in_flight, num_in_flight


def test_order_of_a_smaller_last_group_by_hand() -> None:
    """Five micro-batches in groups of three on two stages of two chunks: the last group has two."""
    schedule = build_schedule(2, 5, 2, 3)
    assert schedule.text().splitlines()[1] == (
        "F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.0 B0.0 F4.0 B1.0 F3.1 B2.0 F4.1 B3.1 B4.1 B3.0 B4.0"
    )
    assert max_in_flight(schedule).tolist() == [6, 4]
    assert num_in_flight(2, 0, 2, 6) == max_in_flight(build_schedule(2, 6, 2))[0] == 5


@pytest.mark.parametrize(
    ("stages", "microbatches", "smallest"), [(5, 86, 8), (5, 85, 5), (8, 129, 10), (4, 5, 5), (4, 3, None), (2, 3, 3)]
)
def test_groups_that_exist(stages: int, microbatches: int, smallest: int | None) -> None:
    """The last group is whole or has a micro-batch for each stage: 86 are ten groups of eight and one of six."""
    sizes = [one for one in range(1, microbatches + 3) if has_group(stages, microbatches, one)]
    assert sizes[:1] == ([] if smallest is None else [smallest])
    for size in range(stages, microbatches):
        if not has_group(stages, microbatches, size):
            with pytest.raises(ValueError, match="last group is whole"):
                build_schedule(stages, microbatches, 2, size)
