"""Hosts of a plan that is asked again, checked against the cluster that there is now."""

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.library.plans import check_hosts


@pytest.mark.parametrize(
    ("lost", "joined", "message"),
    [
        (["n9"], [], "--lost: host 'n9' is not among the hosts of the plan"),
        (["n01"], [], r"\. Did you mean n1\?"),
        (["n1"], ["n1"], "host 'n1' is also given with --joined"),
        ([], ["n1"], "host 'n1' is a host of the plan already"),
        ([], ["n7"], "host 'n7' is not in the cluster file"),
    ],
)
def test_wrong_hosts(lost: list[str], joined: list[str], message: str) -> None:
    """Each says which host."""
    with pytest.raises(InputError, match=message):
        check_hosts(["n0", "n1", "n5"], ["n0", "n1"], lost, joined)


def test_hosts_now() -> None:
    """In the cluster's order; a spare that nobody names is not used."""
    assert check_hosts(["n5", "n0", "n1", "n6"], ["n0", "n1"], ["n1"], ["n5"]) == ["n5", "n0"]
    with pytest.raises(InputError, match="--cluster: lacks host 'n1' of the plan"):
        check_hosts(["n0"], ["n0", "n1"], [], [])
