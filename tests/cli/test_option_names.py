"""Options by Megatron-LM's names and short ones, on every command that has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from factories import make_plan

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.library.arguments import described
from pipette_opt.options.description import JobOptions, SpaceOptions
from pipette_opt.options.names import OTHER_NAMES, names_like, usual_name
from pipette_opt.report.plan_file import write_plan

Run = Callable[..., tuple[int, str, str]]


def commands(group: Any = None, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Each command by its words."""
    found = {}
    for name, one in (typer.main.get_command(app) if group is None else group).commands.items():
        found |= commands(one, (*words, name)) if hasattr(one, "commands") else {" ".join((*words, name)): one}
    return found


COMMANDS = commands()
CASES = [
    (command, own, other)
    for command, parsed in COMMANDS.items()
    for own, others in OTHER_NAMES.items()
    for other in others
    if any(f"--{own}" in one.opts for one in parsed.params)
]
"""Each other name on each command that has its option."""


def parameter_of(command: str, option: str) -> Any:
    """The option of a command, as click has it."""
    return next(one for one in COMMANDS[command].params if f"--{option}" in one.opts)


def parsed(command: str, *words: str) -> dict[str, Any]:
    """What a command makes of the words after its name, positions that it needs apart."""
    one = COMMANDS[command]
    context = one.context_class(one, info_name=command, **one.context_settings)
    needed = [parameter for parameter in one.params if parameter.required]
    for parameter in needed:
        parameter.required = False
    try:
        one.parse_args(context, list(words))
    finally:
        for parameter in needed:
            parameter.required = True
    return dict(context.params)


@pytest.mark.parametrize(("command", "own", "other"), CASES, ids=lambda value: value)
def test_each_name_on_each_command(command: str, own: str, other: str) -> None:
    """It parses to the option's value, with a blank or an equal sign, and with underscores."""
    name = parameter_of(command, own).name
    wanted = parsed(command, f"--{own}", "4")[name]
    assert wanted in (4, "4")
    for words in ([f"--{other}", "4"], [f"--{other}=4"], [f"--{other.replace('-', '_')}", "4"]):
        assert parsed(command, *words)[name] == wanted
    assert parsed(command, f"--{other}", "4", f"--{own}", "4")[name] == wanted
    with pytest.raises(InputError, match=f"--{own}: is given under two names with different values, --{other} 4"):
        parsed(command, f"--{other}", "4", f"--{own}=8")


def test_names_that_people_type_most() -> None:
    """Megatron-LM's own, and the short ones, on the commands that plan."""
    for command in ("solve", "explain"):
        covered = {other for one, _, other in CASES if one == command}
        assert {"tp", "pp", "dp", "cp", "ep", "etp", "vpp", "mbs", "gbs", "tensor-model-parallel-size"} <= covered


def test_numbers_with_units_in_a_job_file(command: Run, tmp_path: Path) -> None:
    """The key is named as the option is."""
    (tmp_path / "job.yaml").write_text(
        "model: llama-3-8b\ncluster: {nodes: 2, gpu: h100}\ntraining: {seq_length: 8k}\n"
    )
    code, _, err = command("solve", str(tmp_path / "job.yaml"))
    assert code == 2
    assert "must be a whole number, got '8k'." in " ".join(err.split())


@pytest.mark.parametrize(
    ("typed", "meant"), [("sbatch", "slurm"), ("k8s", "kubernetes"), ("MPIRUN", "mpi"), ("slrum", "slurm")]
)
def test_a_program_is_no_format(typed: str, meant: str, command: Run, tmp_path: Path) -> None:
    """The format that the program starts is named."""
    write_plan(make_plan(), tmp_path / "plan.json")
    code, _, err = command("export", str(tmp_path / "plan.json"), "--format", typed)
    assert code == 2
    assert f"got '{typed}'. Did you mean {meant}?" in " ".join(err.split())


def test_values_that_look_like_options_stay(command: Run) -> None:
    """What follows an option is its value; what follows two dashes is no option."""
    code, _, err = command("explain", "--model", "--tp", "8")
    assert code == 2
    assert "No such option" not in err
    assert parsed("import model", "--num-layers", "3", "--tensor-model-parallel-size", "8")["source"]


def test_help_has_the_short_names(command: Run) -> None:
    """Beside the option's own, in one line."""
    code, out, _ = command("solve", "--help")
    assert code == 0
    assert "--tp, --tensor-parallel" in out
    assert "--tensor-model-parallel-size" not in out


def test_other_names_are_those_of_one_option() -> None:
    """No name stands for two options, nor for an option of a command beside its own."""
    every = [other for others in OTHER_NAMES.values() for other in others]
    assert len(every) == len(set(every))
    options = {name[2:] for one in COMMANDS.values() for parameter in one.params for name in parameter.opts}
    assert not options & set(every)


def test_arguments_of_functions() -> None:
    """As options; a degree is a number or several."""
    given = {"tensor_model_parallel_size": 8, "micro_batch_size": (1, 2), "gbs": 64}
    job, degrees, _ = described(None, None, None, given)
    assert usual_name("tensor_model_parallel_size") == "tensor-parallel"
    with pytest.raises(InputError, match="tensor_parallel: is given under two names, one of them tp; leave tp out"):
        described(None, None, None, {"tensor_model_parallel_size": 8, "tp": 8})
    assert job == JobOptions(global_batch_size=64)
    assert degrees == SpaceOptions(tensor_parallel=(8,), micro_batch_size=(1, 2))


def test_names_like_none() -> None:
    """Nothing is suggested for what is like nothing."""
    assert names_like("frobnicate", ["tensor-parallel"]) == ()
