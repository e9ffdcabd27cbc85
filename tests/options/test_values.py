"""Values of options from command lines, cells, files and programs."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.options.description import field_of, fields_of
from pipette_opt.options.links import LinkOptions
from pipette_opt.options.questions import ReplanOptions, WhatifOptions
from pipette_opt.options.values import check_declared, field_value, sizes


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tensor_parallel", "4,8", (4, 8)),
        ("tensor_parallel", [4, 8], (4, 8)),
        ("tensor_parallel", 4, (4,)),
        ("tensor_parallel", None, None),
        ("recompute", "none,full", (None, "full")),
        ("recompute", ["none", None, "moe_act+layernorm"], (None, None, "moe_act+layernorm")),
        ("data_parallel_sharding_strategy", "optim", ("optim",)),
        ("seq_length", "8192", 8192),
        ("seq_length", 8192.0, 8192),
        ("fp8", "true", True),
        ("fp8", None, False),
        ("expert_imbalance", "1.5", 1.5),
        ("nodes", 16, "16"),
        ("cluster", "cluster.yaml", Path("cluster.yaml")),
        ("gpu_price", {"gpu[01-02]": 2.5}, ["gpu[01-02]=2.5"]),
        ("gpu_price", 2.5, ["2.5"]),
        ("env", ["A=1", "B=2"], ["A=1", "B=2"]),
    ],
)
def test_what_fits(name: str, value: Any, expected: Any) -> None:
    """Each form that people write gives what is declared."""
    assert field_value(field_of(name), value, name) == expected


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("tensor_parallel", "4,a", "must be whole numbers >= 1, separated by commas, such as 1,2; got '4,a'"),
        ("tensor_parallel", [4, 0], "must be whole numbers >= 1"),
        ("tensor_parallel", True, "must be whole numbers >= 1"),
        ("seq_length", "long", "must be a whole number, got 'long'"),
        ("seq_length", 1.5, "must be a whole number, got 1.5"),
        ("fp8", "maybe", "must be true or false, got 'maybe'"),
        ("expert_imbalance", "nan", "must be a finite number"),
        ("nodes", [1, 2], "must be text"),
        ("env", True, "must be text or a list of texts"),
    ],
)
def test_what_does_not(name: str, value: Any, problem: str) -> None:
    """The error names the place, the value and what would be right."""
    with pytest.raises(InputError, match=r"^here: ") as found:
        field_value(field_of(name), value, "here")
    assert problem in str(found.value)


def test_lists_of_options() -> None:
    """Sizes and numbers between commas, or in a list."""
    assert (sizes("--num-hosts", "1,2"), sizes("--num-hosts", None)) == ((1, 2), None)
    factors = fields_of(WhatifOptions)["link_speed"]
    assert field_value(factors, "0.5, 2", "--link-speed") == field_value(factors, [0.5, 2], "x") == (0.5, 2.0)
    problem = r"--link-speed: must be numbers separated by commas, such as 0\.5,2; got 'x,2'"
    with pytest.raises(InputError, match=problem):
        field_value(factors, "x,2", "--link-speed")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (WhatifOptions(precision=("bf16", "int4")), "--precision: must be one of bf16, fp16, fp32, fp8, got 'int4'"),
        (ReplanOptions(max_moves=-1), "--max-moves: must be >= 0, got -1"),
        (LinkOptions(fill="zero"), "--fill: must be one of exclude, worst, median, switch, got 'zero'"),  # type: ignore[arg-type]
        (LinkOptions(nics_per_node=0), "--nics-per-node: must be >= 1, got 0"),
    ],
)
def test_words_and_least_values_are_checked_as_declared(given: object, problem: str) -> None:
    """Of every class of options, also in programs."""
    with pytest.raises(InputError, match=re.escape(problem)):
        check_declared(given)
