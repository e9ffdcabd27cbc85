"""Options out of a command line or a script, and what the numbers make of each."""

import csv
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args
from pipette_opt.read.megatron_fields import LATENT, MODEL, TRAINING, WIDE, YARN
from pipette_opt.read.megatron_options import given_options
from pipette_opt.read.megatron_table import MegatronOption, field_of, megatron_options, parts_saved, table_rows
from pipette_opt.specs import TrainingSpec

RECIPES = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "recipes"
ON_RECIPES = pytest.mark.skipif(not RECIPES.is_dir(), reason=f"no folder {RECIPES}")

DENSE = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--micro-batch-size 1 --global-batch-size 16 --bf16"
)
"""A whole launch of a dense model; ``DENSE`` in a row of the tables."""


def rows(name: str) -> list[list[Any]]:
    """Rows of a table of the JSON file, each behind what its group shows; whole launches are written out."""
    return [
        [group, launch.replace("DENSE", DENSE), expected]
        for group, launches in table(__file__, name).items()
        for launch, expected in launches
    ]


def left_out(text: str) -> list[list[str]]:
    """Option, value, effect and direction of each argument that is not modelled."""
    entries = parse_megatron_args(text).not_modelled
    return [[entry.option, entry.value, entry.effect, entry.direction] for entry in entries]


def training(text: str) -> TrainingSpec:
    """The training that arguments say."""
    args = parse_megatron_args(text)
    return args.training(TrainingSpec(global_batch_size=8, seq_length=64, precision=args.precision or "bf16"))


MEANINGS: dict[str, Callable[[str], Any]] = {
    "given": lambda text: given_options(text, "here"),
    "launch": parse_megatron_args,
    "training": training,
    "model": lambda text: parse_megatron_args(text).model,
    "on 1 GPU": lambda text: parse_megatron_args(text).parallel_config(8, 1),
    "on 4 GPUs": lambda text: parse_megatron_args(text).parallel_config(8, 4),
    "on 8 GPUs": lambda text: parse_megatron_args(text).parallel_config(8, 8),
    "left out": left_out,
    "large": lambda text: [entry.effect for entry in parse_megatron_args(text).not_modelled if entry.is_large],
    "in part": lambda text: [entry.in_part for entry in parse_megatron_args(text).not_modelled],
}
"""Sides of a launch that a row may name; a field of one follows behind a dot."""


def meaning(text: str, name: str) -> str:
    """One side of a launch, or one field of it, in JSON, which tells 1, 1.0 and true apart."""
    side, _, field = name.partition(".")
    found = MEANINGS[side](text)
    return json.dumps(getattr(found, field) if field else found, sort_keys=True)


@pytest.mark.parametrize(("group", "launch", "means"), rows("MEANS"))
def test_launches(group: str, launch: str, means: dict[str, Any]) -> None:
    """Each launch, typed or in a script, means what stands beside it; the groups of the table say why."""
    for name, expected in means.items():
        assert meaning(launch, name) == json.dumps(expected, sort_keys=True), (group, name)


@pytest.mark.parametrize(("group", "launch", "problem"), rows("REFUSED"))
def test_refused(group: str, launch: str, problem: str) -> None:
    """Each launch is refused on 8 GPUs, in the words beside it; the groups of the table say why."""
    with pytest.raises(InputError, match=problem):
        parse_megatron_args(launch, "here").parallel_config(8, 8)


def test_a_strategy_that_is_not_given_is_said() -> None:
    """Its default differs between releases: today's is counted, and said."""
    option = "--data-parallel-sharding-strategy"
    entries = parse_megatron_args("--use-megatron-fsdp").not_modelled
    (why,) = [entry.why for entry in entries if entry.option == option]
    assert "optim_grads_params is assumed" in why


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--recompute-granularity", ("selective", "full")),
        ("--recompute-method", ("uniform", "block")),
        ("--moe-token-dispatcher-type", ("alltoall", "allgather", "flex")),
    ],
)
def test_words_are_checked(option: str, choices: tuple[str, ...]) -> None:
    """Each choice is taken as it is; any other word is an error that names them."""
    for word in choices:
        assert getattr(parse_megatron_args(f"{option} {word}"), option[2:].replace("-", "_")) == word
    with pytest.raises(InputError, match=f"{option} must be {' or '.join(choices)}.*, got 'other'"):
        parse_megatron_args(f"{option} other")


def test_words_that_no_release_knows() -> None:
    """Of every option with a list of words: another one is an error, the shell's variables are not looked at."""
    listed = {option.name: option for option in megatron_options().values() if option.choices}
    assert len(listed) > 40
    for name, option in listed.items():
        with pytest.raises(InputError, match=f"{name} must be .*{re.escape(option.choices[-1])}, got 'nonsense'"):
            given_options(f"{name} nonsense", "here")
    assert given_options("--moe-router-dtype $DTYPE", "here").values["moe_router_dtype"] == "$DTYPE"


@ON_RECIPES
def test_defaults_of_megatron_change_nothing() -> None:
    """An option that says what Megatron does without it is never refused, nor listed as left out."""
    launch = "--num-layers 8 --bf16 --num-experts 8 --moe-token-dispatcher-type alltoall --use-distributed-optimizer"
    with (RECIPES / "options.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["option"] and row["default"] not in ("", "None", "[]")]
    checked = 0
    for row in rows:
        option, value = megatron_options()[field_of(row["option"])], row["default"].strip("[]'")
        if option.kind != "flag":
            entries = given_options(f"{launch} {row['option']} {value}", "here").not_modelled
            assert option.name not in {entry.option for entry in entries}, row["option"]
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("words", "name"),
    [("--tp 8", "tensor-model-parallel-size"), ("--mbs=2", "micro-batch-size"), ("--seq-len 8192", "seq-length")],
)
def test_aliases_of_this_tool_are_no_options_of_megatron(words: str, name: str) -> None:
    """A launch with ``--tp 8`` was predicted without tensor parallelism."""
    with pytest.raises(InputError, match=f"Megatron-LM has no option .*; write --{name}"):
        given_options(words, "text")
    option, value = words.replace("=", " ").split()
    assert given_options(f"{words} --{name} {value}", "text").not_modelled[0].option == option
    with pytest.raises(InputError, match=f"sets {option} {value}, which .* not read"):
        given_options(f"{words} --{name} 4", "text")


def test_the_table_holds_together() -> None:
    """Every option once; who is off says where; who needs another names one that there is."""
    names = [name for row in table_rows() if row["option"] for name in (row["option"], *row["aliases"].split())]
    assert len(names) == len(set(names))
    for option in megatron_options().values():
        assert option.why.endswith("."), option.name
        off = option.time is not None or option.memory is not None
        assert off if option.status in ("in part", "approximated") else (not off or option.status == "modelled"), (
            option.name
        )
        for need in option.needs:
            assert field_of(need.partition("=")[0]) in megatron_options(), option.name


VALUES = {"flag": "", "whole": "7", "number": "0.5", "word": "other", "list": "other"}
"""A value of each kind that no row calls modelled."""


def value_for(option: MegatronOption) -> str:
    """A value that the option may have, if possible one that is not modelled."""
    return min(option.choices, key=option.modelled_values.__contains__, default=VALUES[option.kind])


@pytest.mark.parametrize("status", ["modelled", "priced", "harmless", "in part", "approximated", "refused"])
def test_every_option_does_what_the_table_says(status: str) -> None:
    """With what it needs and a value that is not modelled: read, passed over, listed or refused."""
    for option in megatron_options().values():
        if option.status != status:
            continue
        text = f"{option.name} {value_for(option)} --bf16"
        needs_refused = False
        needs = list(option.needs[:1])
        for need in needs:
            name, equals, value = need.partition("=")
            row = megatron_options()[field_of(name)]
            text += f" {name} {value if equals else value_for(row)}"
            needs_refused |= row.status == "refused" and value not in row.modelled_values
            needs += row.needs[:1]
        refusals = []
        try:
            found = given_options(text, "here")
            assert option.field in found.values
            listed = any(one.option == option.name for one in found.not_modelled)
            assert listed == (option.time is not None or option.memory is not None), option.name
        except InputError as error:
            refusals.append(str(error))
        assert bool(refusals) == (status == "refused" or needs_refused), option.name
        assert all(option.name in one for one in refusals) or needs_refused


def test_every_modelled_option_is_used() -> None:
    """Each of them sets a field in a table, or one of the readers asks for it by name."""
    folder = Path(__file__).parents[2] / "pipette_opt" / "read"
    tables = {"megatron_table", "megatron_fields"}
    readers = "".join(path.read_text() for path in folder.glob("megatron_*.py") if path.stem not in tables)
    set_by_row = {row.option or row.name for row in (*MODEL, *YARN, *LATENT, *TRAINING) if row.name} | set(WIDE)
    in_conflicts = set(re.findall(r"\w+", shipped_path("data", "megatron_conflicts.csv").read_text()))
    assumed = {"moe_grouped_gemm", "moe_router_force_load_balancing", "reuse_grad_buf_for_mxfp8_param_ag"}
    for option in megatron_options().values():
        if option.status == "modelled" and option.field not in assumed:
            named = option.field in set_by_row or option.field in MegatronArgs.__dataclass_fields__
            used = f'"{option.field}"' in readers or option.field in in_conflicts or named
            assert used, option.name


def test_every_priced_option_has_a_price() -> None:
    """A module of the costs or of memory asks for it by name, so that it is not passed over."""
    package = Path(__file__).parents[2] / "pipette_opt"
    prices = "".join(path.read_text() for room in ("costs", "memory") for path in (package / room).glob("*.py"))
    for option in megatron_options().values():
        if option.status == "priced":
            assert f'argument("{option.name}")' in prices, option.name


def test_parts_that_bound_what_is_saved() -> None:
    """Overlapped communication saves no more than all of it."""
    left_out = given_options("--use-sharp --delay-wgrad-compute", "here").not_modelled
    assert parts_saved(left_out) == {"--use-sharp": "data_parallel"}


@ON_RECIPES
def test_nothing_large_is_harmless() -> None:
    """No option that somebody else simulated large is passed over here, and none is missing."""
    known = megatron_options()
    with (RECIPES / "options.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["option"]]
    assert [row["option"] for row in rows if field_of(row["option"]) not in known] == []
    large = [row["option"] for row in rows if row["weight"] == "large"]
    assert [option for option in large if known[field_of(option)].status == "harmless"] == []


@pytest.mark.search
@ON_RECIPES
def test_every_recipe_is_read_or_refused() -> None:
    """Each option of each file is modelled, harmless or listed; or the file is refused with an option's name."""
    with (RECIPES / "recipes.jsonl").open() as file:
        num_gpus = {recipe["name"]: recipe["num_gpus"] for recipe in map(json.loads, file)}
    num_read, refused = 0, {}
    for path in sorted((RECIPES / "megatron_args").glob("*.args")):
        text = path.read_text()
        options = {word.partition("=")[0] for word in text.split() if word.startswith("--")}
        try:
            args = parse_megatron_args(text, path.stem)
            assert args.model is not None
            args.parallel_config(args.model.num_layers, num_gpus[path.stem])
        except InputError as error:
            refused[path.stem] = any(option in str(error) for option in options)
            continue
        num_read += 1
        given = given_options(text, path.stem)
        listed = {one.option for one in given.not_modelled}
        for option in options:
            row = megatron_options()[field_of(option)]
            fine = not row.unlike(given.values[row.field]) or not row.matters(given.values)
            assert row.status in ("modelled", "priced", "harmless") or fine or row.name in listed, option
    assert all(refused.values()), refused
    assert num_read >= 90


@pytest.mark.parametrize(
    "value",
    ["$(hostname)", '"$(date)"', "/x/$(date +%F)", "$(pwd)/x", "`whoami`", "$(date)", "$RANDOM", "${SECONDS}-a"],
)
@pytest.mark.parametrize("option", ["--save ", "--log-dir ", "--save=", "--log-dir="])
def test_values_that_no_number_depends_on_may_be_unknown(option: str, value: str) -> None:
    """Paths of Megatron-LM, and of options that it does not have, where no word can be an option; they are named."""
    found = given_options(f"torchrun pretrain_gpt.py {option}{value} --num-layers 4", "here")
    assert found.values["num_layers"] == 4
    (note,) = found.notes
    assert note.startswith("known only when the script runs, and not needed: ")
