"""Network cards as people write them."""

import pytest

from pipette_opt.base.units import GB
from pipette_opt.read.nics import NIC_EFFICIENCY, parse_nics


@pytest.mark.parametrize("text", ["8x400", "8 x 400", "8X400G", "8*400Gbps", "8\u00d7400", "8x400 Gbit/s", "8x400Gb/s"])
def test_spellings(text: str) -> None:
    """Number of NICs, then Gbit/s of each."""
    assert str(parse_nics(text, "--nics")) == "8x400"


@pytest.mark.parametrize(
    ("text", "flows", "flow_share"),
    [
        ("8x400", 8, 1 / 8),  # one NIC for each of eight GPUs
        ("4x200", 4, 1 / 4),  # two GPUs share a NIC
        ("32x100", 8, 1 / 8),  # a GPU has four NICs
    ],
)
def test_what_nics_promise(text: str, flows: int, flow_share: float) -> None:
    """All flows of a host together attain a share of the nominal rate; a flow its part of that."""
    nics = parse_nics(text, "--nics")
    count, rate = map(int, text.split("x"))
    assert nics.flows(8) == flows
    assert nics.host_bytes_per_s == pytest.approx(NIC_EFFICIENCY * count * rate / 8 * GB)
    assert nics.flow_bytes_per_s(8) == pytest.approx(flow_share * nics.host_bytes_per_s)
