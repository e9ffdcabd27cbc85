import itertools
from dataclasses import replace

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.types import P2PMode
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.judge.critical_path import critical_path, walk
from pipette_opt.judge.cycles import exact_period_s, interleaved_bounds
from pipette_opt.judge.interleaved import interleaved_lower_s, interleaved_period_s

KINDS = ("equal", "near", "uneven", "wild", "binary")
MODES: tuple[P2PMode, ...] = ("blocking", "async")
WAYS: list[tuple[P2PMode, bool]] = [("async", True), ("blocking", True), ("blocking", False)]


def beside_collectives(rng: np.random.Generator, times: PlacedTimes) -> PlacedTimes:
    """The same with first forwards that wait for parameters, and longer first and last operations of each chunk."""
    shape = times.forward_s.shape
    ready, first, last = rng.uniform(0, 20, shape), rng.uniform(0, 1, shape), rng.uniform(0, 1, shape)
    return replace(times, ready_s=ready, first_extra_s=first, last_extra_s=last)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_forms_enclose_the_critical_path(kind: str, p2p: P2PMode, overlap: bool) -> None:
    """
    Lower <= critical path <= upper, at the end of every stage and where every reduction may start.

    For 1,200 random pipelines of each kind and way to send, a third of them beside collectives.
    """
    rng = np.random.default_rng(32)
    for trial in range(150):
        pp, chunks, groups = int(rng.integers(2, 9)), int(rng.integers(2, 6)), int(rng.integers(1, 17))
        times = replace(random_pipeline(rng, kind, pp, 8, chunks), overlap_p2p=overlap)
        if trial % 3 == 0:
            times = beside_collectives(rng, times)
        lower, upper = interleaved_bounds(times, groups * pp, p2p)
        for least, exact, most in zip(lower, walk(times, groups * pp, p2p), upper, strict=True):
            tolerance = 1e-9 * (1 + exact)
            assert (least <= exact + tolerance).all()
            assert (exact <= most + tolerance).all()


def counted_ends(rng: np.random.Generator, pp: int, chunks: int) -> PlacedTimes:
    """
    Chunks of one to three equal layers, of which the first and the last lack one.

    In its place they have an embedding and a head, of half a layer's to two layers' time.
    """
    layers = np.full((chunks, pp, 8), float(rng.integers(1, 4)))
    layers[0, 0] += rng.uniform(-0.5, 1.0) - 1
    layers[-1, -1] += rng.uniform(-0.5, 1.0) - 1
    speed, sends = rng.uniform(0.9, 1.1, (pp, 8)), rng.uniform(0.0, 0.3, (2, pp, 8))
    layers = np.maximum(layers, 0.0)
    return pipeline(layers * speed, 2.0 * layers * speed, sends[0], sends[1])


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_forms_enclose_chunks_with_a_layer_less(p2p: P2PMode, overlap: bool) -> None:
    """Embedding and head in the place of layers: lower <= critical path <= upper, within two percent of it."""
    rng = np.random.default_rng(36)
    for _ in range(100):
        pp, chunks, groups = int(rng.integers(2, 9)), int(rng.integers(2, 9)), int(rng.integers(1, 17))
        times = replace(counted_ends(rng, pp, chunks), overlap_p2p=overlap)
        lower, upper = interleaved_bounds(times, groups * pp, p2p)
        for least, exact, most in zip(lower, walk(times, groups * pp, p2p), upper, strict=True):
            tolerance = 1e-9 * (1 + exact)
            assert (least <= exact + tolerance).all()
            assert (exact <= most + tolerance).all()
        exact = critical_path(times, groups * pp, p2p)[0]
        assert (upper.finish_s[0] <= 1.02 * exact).all()
        assert (lower.finish_s[0] >= 0.98 * exact).all()
        assert (interleaved_lower_s(times, groups * pp, p2p)[0] <= exact * (1 + 1e-9)).all()


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_forms_are_close(p2p: P2PMode, overlap: bool) -> None:
    """Stages, chunks and links that differ: upper within 0.2 % on average, lower 0.05 %, both 2 % always."""
    rng = np.random.default_rng(33)
    above, below = [], []
    for kind, pp, chunks, groups in itertools.product(("near", "uneven"), (2, 3, 4, 8), (2, 4), (4, 7, 16)):
        times = replace(random_pipeline(rng, kind, pp, 16, chunks), overlap_p2p=overlap)
        exact = critical_path(times, groups * pp, p2p)[0]
        lower, upper = interleaved_bounds(times, groups * pp, p2p)
        above.append(upper.finish_s[0] / exact - 1)
        below.append(1 - lower.finish_s[0] / exact)
    assert np.mean(above) < 0.002
    assert np.mean(below) < 0.0005
    assert max(np.max(above), np.max(below)) < 0.02


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_forms_are_exact_with_equal_stages(p2p: P2PMode, overlap: bool) -> None:
    """Both are the critical path; with free transfers ``(m v + pp - 1) (f + b)``, from the smallest ``m`` on."""
    rng = np.random.default_rng(34)
    for pp, chunks, groups in itertools.product((2, 3, 5, 8), (2, 3, 4), (1, 3, 4, 9)):
        times = replace(random_pipeline(rng, "equal", pp, 4, chunks), overlap_p2p=overlap)
        free = pipeline(np.ones((chunks, pp, 1)), np.full((chunks, pp, 1), 2.0))
        for least_or_most in (0, 1):
            found = interleaved_bounds(times, groups * pp, p2p)[least_or_most].finish_s
            np.testing.assert_allclose(found, critical_path(times, groups * pp, p2p), rtol=1e-9)
            found = interleaved_bounds(free, groups * pp, p2p)[least_or_most].finish_s
            assert found[0, 0] == pytest.approx(3 * (groups * pp * chunks + pp - 1), rel=1e-9)


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_forms_grow_by_one_period_for_each_micro_batch(p2p: P2PMode, overlap: bool) -> None:
    """No form of smaller slope is an upper form: in the long run the critical path grows by the period, too."""
    rng = np.random.default_rng(35)
    for kind in KINDS:
        pp, chunks = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        times = replace(random_pipeline(rng, kind, pp, 1, chunks), overlap_p2p=overlap)
        period, more = exact_period_s(times, p2p), 840 * pp
        few, many = (interleaved_bounds(times, m, p2p)[1].finish_s[0, 0] for m in (more, 2 * more))
        assert (many - few) / more == pytest.approx(period, rel=1e-9, abs=1e-9)
        exact = critical_path(times, 2 * more, p2p)[0, 0] - critical_path(times, more, p2p)[0, 0]
        assert exact / more == pytest.approx(period, rel=1e-9, abs=1e-9)


def test_forms_by_hand() -> None:
    """
    Two stages of two chunks, four groups: stage 0 has 1 + 1 s, stage 1 has 2 + 2 s, all else is free.

    Stage 1 waits 1 s for its first input, does 8 x 2 x 4 s, and stage 0 one backward behind it.
    """
    work = np.array([1.0, 2.0])[None, :, None] * np.ones((2, 2, 1))
    for p2p in MODES:
        lower, upper = interleaved_bounds(pipeline(work, work), 8, p2p)
        assert upper.finish_s[0, 0] == pytest.approx(1 + 64 + 1)
        assert lower.finish_s[0, 0] == pytest.approx(1 + 64 + 1)


def test_micro_batches_come_in_groups() -> None:
    """Nine are no groups of two."""
    with pytest.raises(ValueError, match="9 micro-batches"):
        interleaved_bounds(pipeline(np.ones((2, 2, 1)), np.ones((2, 2, 1))), 9, "async")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_exact_period(kind: str, p2p: P2PMode) -> None:
    """In the long run one micro-batch more costs one period, to rounding, also with unequal chunks."""
    rng = np.random.default_rng(30)
    for _ in range(12):
        num_stages, num_chunks = int(rng.integers(2, 6)), int(rng.integers(2, 5))
        times = random_pipeline(rng, kind, num_stages, 1, num_chunks)
        more = 840 * num_stages
        before, after = (float(critical_path(times, m, p2p)[0, 0]) for m in (more, 2 * more))
        assert exact_period_s(times, p2p) == pytest.approx((after - before) / more, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_the_period(kind: str) -> None:
    """The closed form is never below the exact period, the busiest stage never above it, and blocking never shorter."""
    rng = np.random.default_rng(31)
    for _ in range(150):
        times = random_pipeline(rng, kind, int(rng.integers(2, 7)), 2, int(rng.integers(2, 5)))
        for replica in (0, 1):
            exact = exact_period_s(times, "async", replica)
            tolerance = 1e-9 * (1 + exact)
            busiest = (times.forward_s + times.backward_s)[:, :, replica].sum(axis=0).max()
            assert busiest - tolerance <= exact <= interleaved_period_s(times)[replica] + tolerance
            assert exact <= exact_period_s(times, "blocking", replica) + tolerance


def test_blocking_period_by_hand() -> None:
    """
    Two stages of two chunks, chunk times 1 + 1 s, 3 s from stage 0 to 1, all else free.

    Asynchronous, forwards go round in 1 + 3 + 1 s, twice for two micro-batches: 5 s at the most, above the 4 of work.
    Blocking, a receive is posted after the forward before: stage 1 has one forward every 1 + 3 s, two per micro-batch.
    """
    work = np.ones((2, 2, 1))
    times = pipeline(work, work, [3.0, 0.0])
    assert interleaved_period_s(times)[0] == 5.0
    assert exact_period_s(times, "blocking") == 8.0
