"""How plain configurations are."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_config

from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plainness import is_in_order, kind_of, num_changes, plainness, unevenness


def of(layers: tuple[int, ...], **options: object) -> ParallelConfig:
    """A pipeline of such stages."""
    return replace(
        make_config(tp=1, pp=len(layers), dp=1, num_layers=4 * len(layers)), layers_per_stage=layers, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [((4,), 0), ((4, 4, 4), 0), ((3, 5), 1), ((3, 4, 4, 5), 1), ((4, 3, 5, 4), 2), ((8, 9, 10, 11, 11, 9), 2)],
)
def test_layers_that_people_can_say(layers: tuple[int, ...], expected: int) -> None:
    """Equal stages; only the first and the last differ, for which there are options; anything else."""
    assert unevenness(of(layers)) == expected


def test_a_layout_of_chunks_is_uneven() -> None:
    """Its stages have equally many layers, and its chunks do not."""
    plain = of((4, 4), virtual_pipeline_model_parallel_size=2)
    laid_out = replace(plain, pipeline_model_parallel_layout="Et*1|t*1|t*3|t*3L")
    assert (unevenness(plain), unevenness(laid_out)) == (0, 2)


def test_the_order_of_what_counts() -> None:
    """Risk, layers, order of hosts, stages, chunks, what runs today."""
    safe, risky = 0.004, 0.006
    interleaved = of((8, 8), virtual_pipeline_model_parallel_size=2)
    today = make_config(tp=1, pp=4, dp=1, num_layers=16)
    ranked = [
        (of((16,)), risky, True),
        (of((8, 8)), safe, True),
        (interleaved, safe, True),
        (today, safe, True),
        (replace(today, recompute_granularity="full"), safe, True),
        (of((16,)), safe, False),
        (of((7, 9)), safe, True),
        (replace(interleaved, pipeline_model_parallel_layout="Et*4|t*3|t*4|t*5L"), safe, True),
    ]
    ranks = [plainness(one, risk, 0.01, in_order=in_order, today=today) for one, risk, in_order in ranked]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    assert plainness(of((16,)), risky, 1.0) < plainness(today, safe, 1.0)  # memory does not count


@pytest.mark.parametrize(
    ("hosts", "order", "expected"),
    [
        ((0, 0, 1, 1, 3, 3), (), True),
        ((0, 0, 3, 3, 1, 1), (), False),
        ((0, 1, 0, 1), (), False),
        ((3, 3, 1, 1), (3, 1, 0, 2), True),
        ((1, 1, 3, 3), (3, 1, 0, 2), False),
    ],
)
def test_hosts_in_their_usual_order(hosts: tuple[int, ...], order: tuple[int, ...], expected: bool) -> None:
    """Consecutive ranks fill one host after the other; hosts may be left out; today's order may be the usual."""
    assert is_in_order(np.array(hosts), order) == expected


def test_half_of_the_accepted_risk_is_safe() -> None:
    """The edge, from both sides."""
    assert plainness(of((16,)), 0.005, 0.01)[4] == 0
    assert plainness(of((16,)), 0.0051, 0.01)[4] == 1


def test_kinds_and_changes() -> None:
    """Splits, chunks and what is sent beside compute make no other kind of configuration; degrees do."""
    one = of((4, 4), use_distributed_optimizer=True)
    alike = replace(one, layers_per_stage=(3, 5), overlap_grad_reduce=True)
    assert kind_of(one) == kind_of(alike)
    assert kind_of(one) != kind_of(replace(one, micro_batch_size=2))
    assert kind_of(one) != kind_of(replace(one, recompute_granularity="full"))
    assert num_changes(alike, one) == 2
    assert num_changes(alike, None) == 0
