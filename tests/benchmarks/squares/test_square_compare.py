"""Layers on squares beside tensor parallelism: by hand, and where neither can be."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from benchmarks.squares.compare import claims, compare_squares
from pipette_opt.base.errors import InputError


def test_what_is_sent_and_kept() -> None:
    """Four GPUs, two samples of 1,024 tokens: elements of the products' operands, twice a quarter each."""
    row = next(compare_squares(make_job(make_cluster(1)), (1,)))
    hidden, weights = 2048 * 1024, 12 * 1024**2
    assert (row.ranks, row.micro_batch) == (4, 2)
    assert row.square_sent_bytes == 2 * 2 * (16 * hidden + weights) / 4
    assert row.megatron_sent_bytes == pytest.approx(2 * 10 * 3 / 4 * hidden)  # 4 forward, 6 backward
    # inputs of the products (7 hidden), queries, keys, values (3), the MLP's middle (4), inputs of two norms (2)
    kept = 16 * hidden / 4
    assert row.megatron_kept_bytes == 2 * (kept + hidden)
    assert row.plain_kept_bytes == 2 * (kept + 4 * hidden * 3 / 4)
    assert row.square_kept_bytes == 2 * (kept + (4 * hidden + 4 * 1024**2) / 4)


def test_faster_only_by_what_is_hidden() -> None:
    """Without any cost of messages and starts neither waits; with slow links the square waits less inside a host."""
    for one in compare_squares(make_job(make_cluster(1)), (8,)):
        assert one.square_messages_s < one.megatron_messages_s
        assert one.speedup == pytest.approx(one.megatron_s / one.square_s)
        assert 0.0 <= one.hidden <= 1.0


def test_squares_that_fit_the_cluster() -> None:
    """A side of at most a host's GPUs, and no more ranks than there are."""
    assert [row.ranks for row in compare_squares(make_job(make_cluster(2)), (1,))] == [4, 16]
    assert [row.ranks for row in compare_squares(make_job(make_cluster(8, gpus=2)), (1,))] == [4]
    with pytest.raises(InputError, match="4, 16 or 64"):
        list(compare_squares(make_job(make_cluster(1, gpus=2))))
    with pytest.raises(InputError, match="4, 16 or 64"):
        list(compare_squares(make_job(make_cluster(1), replace(TINY, num_attention_heads=6, num_query_groups=6))))
    job = make_job(make_cluster(2))
    for tokens, ranks in ((1032, [4]), (1040, [4, 16])):
        one = replace(job, training=replace(job.training, seq_length=tokens))
        assert [row.ranks for row in compare_squares(one, (1,))] == ranks
    with pytest.raises(InputError, match=r"multiple of .* 4 or 16, got 1022"):
        list(compare_squares(replace(job, training=replace(job.training, seq_length=1022))))


def test_claims_follow_the_rows() -> None:
    """A claim agrees where a row reaches it."""
    rows = list(compare_squares(make_job(make_cluster(1)), (1, 8)))
    fast = replace(rows[0], megatron_s=2.0, square_s=1.0)
    assert [claim.agrees for claim in claims(rows)][2] is False
    assert [claim.agrees for claim in claims([*rows, fast])][2] is True


def test_the_faster_for_each_half() -> None:
    """Never slower than either for the whole layer; a mixture pays for the change of layout."""
    for spec in (make_cluster(1), make_cluster(2), make_cluster(1, intra_node_bytes_per_s=3e9)):
        for row in compare_squares(make_job(spec), (1, 8)):
            assert row.mixed_s <= min(row.megatron_s, row.square_s) * (1 + 1e-12)
            if row.mixed == "square, square":
                assert row.mixed_s == pytest.approx(row.square_s)
            if row.mixed == "tensor, tensor":
                assert row.mixed_s == pytest.approx(row.megatron_s)
