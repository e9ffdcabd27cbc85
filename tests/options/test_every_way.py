"""Each declared option, said on the command line, in a job file and in a program: the same value in the same field."""

import json
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from typer.testing import CliRunner

from pipette_opt.cli.spread import spread
from pipette_opt.job.file import read_job_file
from pipette_opt.library.arguments import described
from pipette_opt.options.description import Field, JobOptions, SpaceOptions, fields_of
from pipette_opt.options.names import OTHER_NAMES, WITHOUT_OPTION, option_name

FIELDS = {**fields_of(JobOptions), **fields_of(SpaceOptions)}
LISTS = {"gpu_price": "2.5", "speed": "n[0-1]=0.8", "env": "A=1"}
"""Values of options that may be repeated."""
WORDS = {"offload": "none,layers:8", "recompute": "none,moe_act+layernorm"}
"""Values of options whose words the declaration does not list."""


def text_of(field: Field) -> str:
    """Return a text that the option takes and that is not its default."""
    kind = field.plain_kind
    if field.name in LISTS | WORDS:
        return (LISTS | WORDS)[field.name]
    if field.option.words:
        return next(word for word in field.option.words if word != field.default)
    if get_origin(kind) is tuple:
        return "4,8" if int in get_args(kind) else "optim_grads,no_shard"
    return {int: "24", float: "1.25", bool: str(not field.default).lower()}.get(kind, "mine.yaml")


def on_the_command_line(field: Field, option: str) -> Any:
    """Return the field of a command with every declared option, called with a single one of them."""
    found: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @spread
    def record(job: JobOptions, space: SpaceOptions) -> None:
        found.update({name: getattr(holder, name) for holder in (job, space) for name in type(holder).__slots__})

    flags = {"true": [option], "false": [option.replace("--", "--no-", 1)]}
    words = flags[text_of(field)] if field.plain_kind is bool else [option, text_of(field)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{words}: {done.output}"
    return found[field.name]


def in_a_job_file(field: Field, folder: Path) -> Any:
    """Return the field of a job file that says nothing else."""
    path = folder / "job.yaml"
    value: Any = text_of(field)
    content = {
        field.name: [value] if field.name in LISTS else json.loads(value) if value in ("true", "false") else value
    }
    section = field.option.section
    path.write_text(json.dumps({section: content} if section else content))
    return read_job_file(path).given[field.name]


def in_a_program(field: Field) -> Any:
    """Return the field of a function's keyword."""
    job, space, _ = described(None, None, None, {field.name: text_of(field)})
    return getattr(job if hasattr(job, field.name) else space, field.name)


@pytest.mark.parametrize("name", FIELDS)
def test_each_way_gives_the_same_value(name: str, tmp_path: Path) -> None:
    """The value is not the default, so an option that is read nowhere is seen."""
    field = FIELDS[name]
    value = in_a_job_file(field, tmp_path)
    assert value != field.default
    if name not in WITHOUT_OPTION:
        assert on_the_command_line(field, option_name(name)) == value
    assert in_a_program(field) == value


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in OTHER_NAMES.items() for other in others])
def test_other_names_are_read_in_job_files_and_programs(name: str, other: str) -> None:
    """Megatron-LM's names and short names; ``tests/cli`` tries them on every command."""
    field = FIELDS.get(name.replace("-", "_"))
    if field is None:
        pytest.skip(f"{name} is an option of commands, not of jobs")
    job, space, _ = described(None, None, None, {other.replace("-", "_"): text_of(field)})
    assert getattr(job if hasattr(job, field.name) else space, field.name) == in_a_program(field)
