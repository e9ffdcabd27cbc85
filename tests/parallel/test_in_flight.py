"""How many micro-batches are in flight: one count for the simulator, the memory formula and the trace."""

import warnings

import numpy as np
import pytest

from pipette_opt.parallel.schedule import build_schedule, max_in_flight, num_in_flight, num_warmup_forwards


def count(pp: int, stage: int, chunks: int, microbatches: int) -> int:
    """One count as a plain number."""
    return int(num_in_flight(*(np.array(x) for x in (pp, stage, chunks, microbatches))))


@pytest.mark.parametrize(
    ("pp", "stage", "chunks", "microbatches", "expected"),
    [
        (1, 0, 1, 8, 1),
        (4, 0, 1, 8, 4),  # the first stage holds as many as there are stages,
        (4, 3, 1, 8, 1),  # the last one,
        (8, 0, 1, 3, 3),  # and nobody more than there are micro-batches
        (4, 0, 2, 8, 3 * 2 + 4 + 1),  # interleaved: 2 (pp - stage - 1) + (vpp - 1) pp, and the running one
        (4, 3, 2, 8, 4 + 1),
        (4, 0, 2, 4, 8),
    ],
)
def test_in_flight_by_hand(pp: int, stage: int, chunks: int, microbatches: int, expected: int) -> None:
    """Megatron-Core's counts, by hand."""
    assert count(pp, stage, chunks, microbatches) == expected


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (2, 1), (3, 1), (8, 1), (2, 2), (3, 2), (3, 3), (8, 3)])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_closed_count_is_what_the_schedule_holds(pp: int, chunks: int, rounds: int) -> None:
    """Counting along the order that is timed gives the closed form, stage by stage."""
    held = max_in_flight(build_schedule(pp, rounds * pp, chunks))
    assert [count(pp, stage, chunks, rounds * pp) for stage in range(pp)] == held.tolist()


@pytest.mark.client("megatron.core")
def test_counts_agree_with_megatron_core() -> None:
    """The warm-up is what megatron-core computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.pipeline_parallel import schedules

    class Communicator:
        """What ``get_pp_rank_microbatches`` asks for."""

        def __init__(self, size: int, rank: int, chunks: int | None) -> None:
            self.virtual_pipeline_model_parallel_size = chunks
            self.pp_group = self
            self.size, self.rank = (lambda: size), (lambda: rank)

    for pp, chunks, m in [(2, None, 4), (4, None, 2), (4, 2, 8), (8, 3, 8)]:
        for stage in range(pp):
            group = None if chunks is None else pp
            found = schedules.get_pp_rank_microbatches(
                m, chunks or 1, group, p2p_communicator=Communicator(pp, stage, chunks)
            )
            ours = num_warmup_forwards(*(np.array(x) for x in (pp, stage, chunks or 1, m)))
            assert found[2] == int(ours)
