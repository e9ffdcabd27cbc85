"""Prices of GPU-hours, as people give them."""

import pytest
from factories import make_cluster

from pipette_opt.read.prices import parse_prices, recorded_prices, with_prices
from pipette_opt.read.speeds import folded_by_value

HOSTS = ("n0", "n1", "n2")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], {}),
        (["2.5"], {"n0": 2.5, "n1": 2.5, "n2": 2.5}),
        (["n[0-1]=1"], {"n0": 1.0, "n1": 1.0}),
        (["3", "n1=1"], {"n0": 3.0, "n1": 1.0, "n2": 3.0}),
        (["a100-80gb=3", "n1=1", "7"], {"n0": 3.0, "n1": 1.0, "n2": 3.0}),
        (["h100=3"], {}),
    ],
)
def test_prices_of_hosts(entries: list[str], expected: dict[str, float]) -> None:
    """A price without hosts is for all that no other names; what is recorded gives the same."""
    found = parse_prices(entries, make_cluster(3)).of_hosts
    assert found == expected
    assert recorded_prices(folded_by_value(found), "plan") == expected
    spec = with_prices(make_cluster(3), found)
    assert [node.price_per_gpu_hour for node in spec.nodes] == [expected.get(host) for host in HOSTS]
