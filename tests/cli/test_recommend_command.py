"""``recommend``."""

import json
from collections.abc import Callable

import pytest

Command = Callable[..., tuple[int, str, str]]

JOB = ("--model", "llama-3-8b", "--global-batch-size", "64", "--seq-length", "4096")
HOSTS = ("--nodes", "2", "--gpu", "h100,a100-80gb")
PINS = ("--tensor-parallel", "4,8", "--virtual-pipeline", "1", "--context-parallel", "1", "--micro-batch-size", "1")


def test_kinds_and_numbers(command: Command) -> None:
    """A row for each; a choice for each question, and a kind without a price has none."""
    options = ("--tokens", "1e9", "--deadline", "30d", "--gpu-price", "h100=3", "--time-limit", "4", "--json")
    code, out, err = command("recommend", *HOSTS, *JOB, *PINS, *options)
    assert code == 0, err
    found = json.loads(out)
    rows = [(one["hosts"], one["num_hosts"]) for one in found["offers"]]
    assert rows == [("h100-80gb", 1), ("h100-80gb", 2), ("a100-80gb", 1), ("a100-80gb", 2)]
    assert [one["price"] is None for one in found["offers"]] == [False, False, True, True]
    assert found["choices"]["fastest"] == 1
    assert set(found["choices"]) == {"fastest", "cheapest", "fewest GPUs in time", "cheapest in time"}
    for one in found["offers"]:
        assert one["run_s"] == pytest.approx(1e9 / one["tokens_per_s"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--deadline", "30d"), "--deadline: needs --tokens"),
        (("--tokens", "1e9", "--deadline", "soon"), "--deadline: must be a number of hours, days or weeks"),
        (("--tokens", "0"), "--tokens: must be > 0"),
        (("--hosts", "4"), "--hosts: must be at most 2, the number of hosts"),
    ],
)
def test_wrong_options(command: Command, options: tuple[str, ...], message: str) -> None:
    """Refused before anything is searched."""
    code, _, err = command("recommend", *HOSTS, *JOB, *options)
    assert code == 2
    assert message in err
