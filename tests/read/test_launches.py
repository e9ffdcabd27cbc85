"""Which training program a command line starts, and with which arguments."""

import shlex

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.launchers import known_launchers
from pipette_opt.read.launches import (
    LAUNCH_KEYS,
    Launch,
    OtherCommand,
    ShellScript,
    ShellText,
    inside,
    launch_document,
    launch_of,
)

ARGUMENTS = "--num-layers 32 --bf16"


@pytest.mark.parametrize("line", table(__file__, "STARTS"))
def test_program_and_arguments(line: str) -> None:
    """Options of launchers and wrappers end where the program begins."""
    found = launch_of(shlex.split(f"{line} {ARGUMENTS}"))
    assert isinstance(found, Launch)
    assert (found.program, " ".join(found.arguments)) == ("pretrain_gpt.py", ARGUMENTS)


@pytest.mark.parametrize(
    ("line", "program", "names"),
    [
        ("python -m megatron.training.pretrain --num-layers 2", "megatron.training.pretrain", ()),
        ("torchrun -m torchtitan.train --job.config_file x.toml", "torchtitan.train", ("torchrun",)),
        ("torchrun --module torchtitan.train", "torchtitan.train", ("torchrun",)),
        ("deepspeed --module pkg.sft", "pkg.sft", ("deepspeed",)),
        ("srun torchrun --nproc-per-node 8 -m pkg.train", "pkg.train", ("srun", "torchrun")),
        ("uv run -m pkg.train", "pkg.train", ("uv run",)),
    ],
)
def test_modules(line: str, program: str, names: tuple[str, ...]) -> None:
    """``-m`` of Python and of launchers makes the program a module."""
    found = launch_of(line.split())
    assert isinstance(found, Launch)
    assert (found.program, found.is_module) == (program, True)
    assert tuple(starter.name for starter in found.launchers) == names


@pytest.mark.parametrize("line", table(__file__, "other_commands"))
def test_other_commands(line: str) -> None:
    """Commands beside a training are none."""
    assert isinstance(launch_of(shlex.split(line)), OtherCommand)


@pytest.mark.parametrize(
    ("line", "text", "arguments", "names"),
    [
        ("srun -N 2 bash -c 'torchrun a.py $1' x y", "torchrun a.py $1", ("x", "y"), ["srun"]),
        ("bash -lc 'a b'", "a b", (), []),
        ("bash -eo pipefail -c 'a b'", "a b", (), []),
        ("docker run image bash --login -c 'a b'", "a b", (), ["docker run"]),
        ("sbatch -N 2 --wrap 'a b'", "a b", (), ["sbatch"]),
        ("pdsh -R ssh -w h[1-4] 'cd d;' a b", "cd d; a b", (), ["pdsh"]),
        ("ssh -p 22 -t me@host cd d '&&' a", "cd d && a", (), ["ssh"]),
        ("eval torchrun x.py", "torchrun x.py", (), []),
    ],
)
def test_texts_of_shells(line: str, text: str, arguments: tuple[str, ...], names: list[str]) -> None:
    """A text that a shell runs comes back to be read."""
    found = launch_of(shlex.split(line))
    assert isinstance(found, ShellText)
    assert (found.text, found.arguments, [starter.name for starter in found.launchers]) == (text, arguments, names)
    assert found.on_other_hosts is (names in (["pdsh"], ["ssh"]))


@pytest.mark.parametrize(
    ("line", "path", "arguments"),
    [
        ("srun bash -e train.sh a b", "train.sh", ("a", "b")),
        ("srun --ntasks=8 ./train.sh a", "./train.sh", ("a",)),
        ("sbatch --nodes 4 -W train.slurm a", "train.slurm", ("a",)),
        ("srun bash", "-", ()),
        ("sbatch", "-", ()),
    ],
)
def test_scripts_of_shells(line: str, path: str, arguments: tuple[str, ...]) -> None:
    """A script that a shell runs comes back to be read."""
    found = launch_of(line.split())
    assert isinstance(found, ShellScript)
    assert (found.path, found.arguments) == (path, arguments)


def test_what_a_shell_starts_has_the_launchers_around_it() -> None:
    """``srun bash -c "torchrun ..."`` is started by srun and torchrun."""
    outer = launch_of(["srun", "-N", "2", "--export=ALL,A=1", "bash", "-c", "torchrun x.py"])
    assert isinstance(outer, ShellText)
    found = inside(outer, launch_of(["torchrun", "--nproc-per-node", "8", "x.py"]))
    assert isinstance(found, Launch)
    assert [(starter.name, starter.options) for starter in found.launchers] == [
        ("srun", ("-N", "2", "--export=ALL,A=1")),
        ("torchrun", ("--nproc-per-node", "8")),
    ]
    assert (found.num_nodes, found.num_processes_per_node, found.num_processes) == (2, 8, 16)
    assert found.environment == {"A": "1"}
    assert isinstance(inside(outer, launch_of(["python", "main.py"])), Launch)


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("torchrun --nnodes 4 --nproc_per_node=8 a.py", (4, 8, 32)),
        ("torchrun --nnodes 1:4 --nproc_per_node auto a.py", (None, None, None)),
        ("srun -N 4 --ntasks-per-node 8 python train.py", (4, 8, 32)),
        ("srun -n 32 python train.py", (None, None, 32)),
        ("mpirun -np 16 -npernode 8 python train.py", (None, 8, 16)),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py", (2, 8, 16)),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", (2, None, 16)),
    ],
)
def test_numbers_of_processes(line: str, numbers: tuple[int | None, ...]) -> None:
    """Launchers say how many hosts and processes there are."""
    found = launch_of(line.split())
    assert isinstance(found, Launch)
    assert (found.num_nodes, found.num_processes_per_node, found.num_processes) == numbers


@pytest.mark.parametrize(
    "line",
    [
        "env A=1 torchrun x.py",
        "mpirun -x A=1 python train.py",
        "mpiexec -genv A 1 python train.py",
        "srun --export=ALL,A=1 python train.py",
        "docker run -e A=1 image python train.py",
        "singularity exec --env A=1 image python train.py",
        "sudo A=1 torchrun x.py",
    ],
)
def test_environment(line: str) -> None:
    """Launchers and wrappers set variables of the program."""
    assert launch_of(line.split()).environment == {"A": "1"}


@pytest.mark.parametrize("line", ["srun --site-option some-program --lr 3", "torchrun --new value other --x"])
def test_ambiguous_option_is_refused(line: str) -> None:
    """An unknown option may hide where the program begins."""
    with pytest.raises(InputError, match=r"unknown option --\S+: is '\S+' its value, or the program\? Write --\S+=\S+"):
        launch_of(line.split())


@pytest.mark.parametrize("line", ["mpirun -np 1 python a.py : -np 2 python b.py", "srun --multi-prog programs.conf"])
def test_several_programs_of_a_launcher_are_refused(line: str) -> None:
    """A launcher that starts several programs has no single list of arguments."""
    with pytest.raises(InputError, match="give the command of one program"):
        launch_of(line.split())


def test_missing_values_and_unknown_options_are_noted() -> None:
    """What the launcher itself would refuse, or what is not in the table, is said."""
    assert launch_of(["torchrun", "--nnodes", "train.py"]).notes == ("torchrun: --nnodes has no value.",)
    assert launch_of(["srun", "--odd", "3", "python", "train.py"]).notes == ("srun: unknown option --odd.",)


@pytest.mark.parametrize("line", ["python /bin/llamafactory-cli train x.yaml", "python /bin/swift sft --model x"])
def test_installed_commands_that_train(line: str) -> None:
    """A command of a framework is a training program by its first argument."""
    assert isinstance(launch_of(line.split()), Launch)
    assert isinstance(launch_of([*line.split()[:2], "version"]), OtherCommand)


def test_document() -> None:
    """JSON documents of a launch have the same keys, whoever read it."""
    found = launch_of(["env", "A=1", "torchrun", "--nnodes", "2", "-m", "pkg.train", "--lr", "1"])
    assert isinstance(found, Launch)
    document = launch_document(found, environment={"A": "0", "B": "2"}, sbatch={"nodes": "2"}, notes=["said"])
    assert tuple(document) == LAUNCH_KEYS
    assert document == {
        "program": "-m pkg.train",
        "launchers": [{"name": "env", "options": []}, {"name": "torchrun", "options": ["--nnodes", "2", "-m"]}],
        "arguments": ["--lr", "1"],
        "environment": {"A": "1", "B": "2"},
        "sbatch": {"nodes": "2"},
        "notes": ["said"],
    }


def test_table_of_launchers() -> None:
    """No option is listed with two different numbers of values, and every row has its source."""
    for name, launcher in known_launchers().items():
        listed = [*launcher.flags.split(), *launcher.values.split(), *launcher.pairs.split()]
        assert len(set(listed)) == len(listed), (name, sorted(o for o in listed if listed.count(o) > 1))
        assert launcher.source
        hinted = (*launcher.nodes, *launcher.processes, *launcher.processes_per_node, *launcher.environment)
        assert launcher.all_take_values or set(hinted) <= set(listed), name
