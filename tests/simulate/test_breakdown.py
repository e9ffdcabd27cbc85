"""Where the time goes: of the mean rank, and along the critical path."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from pipelines import causes, pipeline, random_pipeline

from pipette_opt.base.types import P2PMode
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.orders import named_schedule

CAUSES = {"compute", "tensor_parallel", "bubble", "pipeline_parallel", "data_parallel", "optimizer"}
MODES: tuple[P2PMode, ...] = ("blocking", "async")


@pytest.mark.parametrize(("num_chunks", "p2p"), list(product([1, 2], MODES)))
@pytest.mark.parametrize("kind", ["equal", "near", "uneven", "wild", "binary"])
def test_adds_up(num_chunks: int, p2p: P2PMode, kind: str) -> None:
    """The causes are non-negative and add up, and work is the work of all ranks, whatever the pipeline."""
    rng = np.random.default_rng(5)
    for num_stages in range(2, 8):
        plain = random_pipeline(rng, kind, num_stages, 4, num_chunks)
        reduction = rng.uniform(0, 5, num_stages)
        times = replace(plain, reduction_s=reduction, optimizer_s=0.25, embedding_s=float(rng.choice([0.0, 0.5])))
        m = num_stages * int(rng.integers(1, 4))
        found = causes(times, m, p2p)
        assert set(found.pipeline) == set(found.critical_path) == CAUSES
        work = m * (times.forward_s + times.backward_s).sum(axis=0).mean()
        own = found.pipeline["compute"] + found.pipeline["tensor_parallel"]
        assert own == pytest.approx(work, rel=1e-9, abs=1e-9)
        path = found.critical_path
        assert path["tensor_parallel"] == pytest.approx((path["tensor_parallel"] + path["compute"]) / 10, abs=1e-9)


def test_waits_for_launches_are_no_compute() -> None:
    """A part of the passes, in the pipeline and on the critical path; the rest stays as it is."""
    plain = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.5, 1.0], 0.125)
    waits = replace(plain, launch_forward_s=0.5 * plain.forward_s, launch_backward_s=0.25 * plain.backward_s)
    before, found = causes(plain, 2, "blocking"), causes(waits, 2, "blocking")
    for causes_before, causes_now in ((before.pipeline, found.pipeline), (before.critical_path, found.critical_path)):
        both = causes_now["compute"] + causes_now["waiting_for_launches"]
        assert both == pytest.approx(causes_before["compute"])
    assert found.pipeline["waiting_for_launches"] == pytest.approx(2 * (0.5 + 0.25))
    few = replace(plain, launch_forward_s=1e-4 * plain.forward_s, launch_backward_s=1e-4 * plain.backward_s)
    assert causes(few, 2, "blocking") == before  # too few to tell apart
    assert list(found.pipeline) == ["compute", "waiting_for_launches", *list(before.pipeline)[1:]]


def test_by_hand() -> None:
    """
    Two stages, two micro-batches, blocking, all operations and transfers 1 s: stage 0 ends at 9, stage 1 at 7.

    Stage 0 works 4 s, waits for 3 transfers and idles 2 s; stage 1 works 4 s, waits for 2 transfers, idles 1 s, and
    after its reduction 1.5 s more. The path: a forward, both micro-batches of stage 1, a backward; three transfers.
    """
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.5, 1.0], 0.125)
    simulated = simulate_times(times, 2, "blocking")
    assert (simulated.critical_stage, simulated.critical_replica, simulated.iteration_time_s) == (0, 0, 9.625)
    found = causes(times, 2, "blocking")
    assert found.pipeline == pytest.approx(
        {
            "compute": 3.6,
            "tensor_parallel": 0.4,
            "pipeline_parallel": 2.5,
            "data_parallel": 0.75,
            "bubble": 2.25,
            "optimizer": 0.125,
        }
    )
    assert found.critical_path == pytest.approx(
        {
            "compute": 5.4,
            "tensor_parallel": 0.6,
            "pipeline_parallel": 3.0,
            "data_parallel": 0.5,
            "bubble": 0.0,
            "optimizer": 0.125,
        }
    )


def test_the_bubble_is_that_of_the_pipeline_not_of_the_last_stage() -> None:
    """
    Equal stages, no transfers, the first reduction slow: (pp - 1) / (m + pp - 1) of the time nobody works.

    The first stage, which is finished last, has the same bubble; the critical path has none.
    """
    pp, m = 8, 4
    found = causes(pipeline([1.0] * pp, [2.0] * pp), m, "async")
    assert found.pipeline["bubble"] == pytest.approx(3.0 * (pp - 1))
    slow = causes(pipeline([1.0] * pp, [2.0] * pp, reduction=[8.0] + [0.0] * (pp - 1)), m, "async")
    assert slow.pipeline["data_parallel"] == pytest.approx(1.0)  # one stage of eight
    assert slow.pipeline["bubble"] == pytest.approx(3.0 * (pp - 1) + 7.0)
    assert slow.critical_path["data_parallel"] == pytest.approx(8.0)


def test_a_slow_replica_makes_the_others_wait() -> None:
    """One of four replicas takes twice as long: three wait half of the time, and the path is the slow one's."""
    forward = np.ones((1, 1, 4))
    forward[0, 0, 2] = 2.0
    found = causes(pipeline(forward, forward), 3, "async")
    assert found.pipeline["bubble"] == pytest.approx(0.75 * 6)
    assert found.critical_path["compute"] == pytest.approx(0.9 * 12)


def test_split_backwards_count_once() -> None:
    """Halves of backwards add up to the whole."""
    times = pipeline([1.0] * 4, [2.0] * 4)
    zero, plain = (causes(times, 8, "async", one) for one in (named_schedule("zb-h1", 4, 8), None))
    assert zero.pipeline["compute"] == pytest.approx(plain.pipeline["compute"])
    assert zero.pipeline["tensor_parallel"] == pytest.approx(plain.pipeline["tensor_parallel"])
    assert zero.pipeline["bubble"] < plain.pipeline["bubble"]


@pytest.mark.parametrize("p2p", MODES)
def test_shortening_what_is_on_the_path_shortens_the_iteration(p2p: P2PMode) -> None:
    """Work that the path has shrinks with the iteration, to first order."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        times = random_pipeline(rng, "near", 5, 2)
        path, little = causes(times, 7, p2p).critical_path, 1e-6
        quicker = replace(
            times,
            send_forward_s=times.send_forward_s * (1 - little),
            send_backward_s=times.send_backward_s * (1 - little),
        )
        saved = critical_path(times, 7, p2p).max() - critical_path(quicker, 7, p2p).max()
        assert saved / little == pytest.approx(path["pipeline_parallel"], rel=1e-3, abs=1e-6)
