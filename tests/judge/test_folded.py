"""The steady state written once is the steady state."""

import itertools

import numpy as np
import pytest

from pipette_opt.base.types import P2PMode
from pipette_opt.judge._fold_kernel import event_edges
from pipette_opt.judge.cycles import longest_walks
from pipette_opt.judge.folded import _waves, fold
from pipette_opt.judge.program import megatron_program

WAYS: list[tuple[P2PMode, bool]] = [("async", True), ("blocking", True), ("blocking", False)]


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_no_edge_goes_to_an_earlier_wave(p2p: P2PMode, overlap: bool) -> None:
    """Nor more than two waves on; and the first stage's last forward is where the derivation says."""
    for pp, chunks, groups in itertools.product((2, 3, 4, 7), (2, 3, 5), (3, 4, 6)):
        m = groups * pp
        program = megatron_program(pp, m, chunks, p2p, overlap)
        num_ops, num_messages = 2 * m * chunks, 2 * m * chunks * pp
        (source, target), _ = event_edges(program.rows, pp, num_ops, num_messages)
        wave = _waves(program, num_messages)
        assert set(wave[target] - wave[source]) <= {0, 1, 2}
        last_forward = num_ops - 2 - program.kind[0, ::-1].tolist().index(0) + 1
        assert wave[last_forward] == m * chunks - (chunks + 1) * pp + 1


@pytest.mark.parametrize(("p2p", "overlap"), WAYS)
def test_more_groups_fold_to_the_same_graph(p2p: P2PMode, overlap: bool) -> None:
    """Two groups or four in the middle: as many edges, and with random times walks of the same lengths."""
    rng = np.random.default_rng(50)
    for pp, chunks in itertools.product((2, 3, 4, 7), (2, 3, 5)):
        few, many = fold(pp, chunks, p2p, overlap), fold(pp, chunks, p2p, overlap, 4)
        assert len(few.source) == len(many.source)
        for _ in range(5):
            seconds, ready = rng.uniform(0, 1, few.row.max() + 1), rng.uniform(0, 9, (chunks, pp))
            found, other = longest_walks(few, seconds, ready), longest_walks(many, seconds, ready)
            assert found.rate == pytest.approx(other.rate, rel=1e-12)
            for one, its_other in ((few.finish, many.finish), (few.launch, many.launch)):
                np.testing.assert_allclose(found.length[one], other.length[its_other], rtol=1e-10)


def test_size_by_hand() -> None:
    """
    Two stages of two chunks: four groups of two micro-batches, of four operations each way.

    That is 4 x 2 x 8 operations, and 3 borders between layer groups, crossed both ways: 4 x 2 x 6 messages.
    """
    graph = fold(2, 2, "async", True)
    assert len(graph.row) == 4 * 2 * 8 + 4 * 2 * 6
    assert (graph.stage >= 0).sum() == 2 * 8
    assert set(graph.wraps) == {0, 1}
