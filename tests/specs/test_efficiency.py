"""Laws of kernels: what they refuse, and attention between head sizes."""

from dataclasses import replace

import pytest

from pipette_opt.specs.efficiency import ASSUMED_EFFICIENCY, AttentionLaw

LAW = AttentionLaw(head_sizes=(64, 128), shares=(0.4, 0.6), half_seq=0.0, start_s=0.0)


@pytest.mark.parametrize(("size", "share"), [(32, 0.4 * 0.5 * 128 / 96), (64, 0.4), (96, 0.5), (128, 0.6), (256, 0.6)])
def test_shares_between_head_sizes(size: int, share: float) -> None:
    """Linear between the measured ones; below them the softmax, as long as products of 64, decides more."""
    assert LAW.share(size) == pytest.approx(share)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_sizes": (128, 64)}, "head_sizes must be whole numbers >= 1 that rise"),
        ({"head_sizes": ()}, "head_sizes must be"),
        ({"shares": (0.4,)}, "shares must be one in"),
        ({"shares": (0.4, 1.1)}, "shares must be one in"),
        ({"half_seq": -1.0}, "half_seq must be >= 0, got -1"),
        ({"start_s": float("inf")}, "start_s must be >= 0, got inf"),
        ({"flash2": 0.0}, "flash2 must be in .0, 1., got 0"),
        ({"flash2": 1.1}, "flash2 must be in .0, 1., got 1.1"),
    ],
)
def test_wrong_laws_of_attention(changes: dict[str, object], message: str) -> None:
    """With the value."""
    with pytest.raises(ValueError, match=message):
        replace(LAW, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "message"), [({"share": 0}, "must be in"), ({"half_inner": -1}, ">= 0")])
def test_wrong_laws_of_products(changes: dict[str, object], message: str) -> None:
    """With the value."""
    with pytest.raises(ValueError, match=message):
        replace(ASSUMED_EFFICIENCY.wide, **changes)  # type: ignore[arg-type]
