"""Laws of kernels: what they refuse, and attention between head sizes."""

import pytest

from pipette_opt.specs.efficiency import AttentionLaw

LAW = AttentionLaw(head_sizes=(64, 128), shares=(0.4, 0.6), half_seq=0.0, start_s=0.0)


@pytest.mark.parametrize(("size", "share"), [(32, 0.4 * 0.5 * 128 / 96), (64, 0.4), (96, 0.5), (128, 0.6), (256, 0.6)])
def test_shares_between_head_sizes(size: int, share: float) -> None:
    """Linear between the measured ones; below them the softmax, as long as products of 64, decides more."""
    assert LAW.share(size) == pytest.approx(share)
