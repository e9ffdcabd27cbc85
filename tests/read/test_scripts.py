"""Launch scripts: the arguments that bash gives the program, or a refusal that names the line."""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import loaded
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.sbatch_header import job_variables
from pipette_opt.read.scripts import ScriptLaunch, read_script, script_environment

CASES = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "cases"
NUM_GENERATED = 160


def arguments(text: str, *positional: str, **environment: str) -> list[str]:
    """Arguments of the program that a script starts; all of them must be known."""
    found = read_script(text, "job.sh", environment=environment, arguments=positional)
    found.require_known("job.sh")
    return list(found.arguments)


@pytest.mark.search
def test_generated_scripts_as_bash_reads_them(tmp_path: Path) -> None:
    """Equal or refused, never different; at most one in five refused."""
    module = loaded("launch_scripts", "hardening")
    scripts = [module.script(seed) for seed in range(NUM_GENERATED)]

    def run(seed: int) -> list[list[str]]:
        return list(module.bash_arguments(*scripts[seed], tmp_path / str(seed % 4)))

    kinds: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        for first in range(0, NUM_GENERATED, 4):
            started = list(pool.map(run, range(first, first + 4)))
            kinds += [module.compared(*scripts[first + place], found).kind for place, found in enumerate(started)]
    assert [seed for seed, kind in enumerate(kinds) if kind == "different"] == []
    assert kinds.count("refused") <= NUM_GENERATED / 5


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no folder {CASES}")
def test_scripts_that_people_pasted() -> None:
    """Each has the arguments of bash beside it, with the launcher's options before the program's name."""
    paths = sorted((CASES / "scripts").glob("*.sh"))
    assert len(paths) > 20
    for path in paths:
        words = path.with_name(f"{path.name}.argv").read_text().splitlines()
        program = next(index for index, word in enumerate(words) if word.endswith(".py"))
        found = arguments(path.read_text())
        assert [word for word in found if word] == [word for word in words[program + 1 :] if word], path.name


@pytest.mark.parametrize(("setting", "words", "expected"), table(__file__, "WORDS"))
def test_words_are_those_of_bash(setting: str, words: str, expected: list[str]) -> None:
    """One construct each: some lines, and words of the launch below them."""
    assert arguments(f"#!/bin/bash\n{setting}\ntorchrun pretrain_gpt.py {words}\n") == expected


LAUNCH = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --tensor-model-parallel-size 8"


@pytest.mark.parametrize("text", table(__file__, "UNKNOWN_BESIDE_IT"))
def test_unknown_values_taint_only_what_uses_them(text: str) -> None:
    """Files, hosts and other programs that no argument depends on; ``{}`` is the launch."""
    assert arguments(text.replace("{}", LAUNCH)) == ["--bf16", "--tensor-model-parallel-size", "8"]


SIDES: dict[str, Callable[[ScriptLaunch], Any]] = {
    "unknown": lambda found: [[part.index, part.text, part.may_be_option] for part in found.unknown],
    "launchers": lambda found: [launcher.name for launcher in attrgetter("launch.launchers")(found)],
}
"""Names of a row that are no fields of what a script starts."""


@pytest.mark.parametrize("row", table(__file__, "SCRIPTS"), ids=lambda row: row["shows"])
def test_what_scripts_start(row: dict[str, Any]) -> None:
    """Each script, with an environment and positional arguments, starts what stands beside it."""
    found = read_script(
        row["text"],
        "job.sh",
        environment=script_environment(row.get("environment")),
        arguments=row.get("arguments", ()),
    )
    for name, expected in row["means"].items():
        assert json.loads(json.dumps(SIDES.get(name, attrgetter(name))(found))) == expected, name
    if "unknown" not in row["means"]:
        found.require_known("job.sh")


@pytest.mark.search
@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["error"])
def test_what_cannot_be_told_is_refused_with_its_line(row: dict[str, Any]) -> None:
    """Never fewer arguments in silence."""
    with pytest.raises(InputError, match=row["error"]):
        arguments(row["text"], *row.get("arguments", ()), **script_environment(row.get("environment")))


IN_JOBS = job_variables({"nodes": "2", "ntasks-per-node": "8"})


@pytest.mark.parametrize("name", IN_JOBS)
@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node 8\nset -u\ntorchrun train.py --x ${name}\n",
        "sbatch <<'END'\n#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node 8\nset -u\ntorchrun train.py --x ${name}\nEND\n",
    ],
)
def test_every_variable_of_capture_has_its_value_here(name: str, text: str) -> None:
    """Also with ``set -u``, and in a script that a script submits; the environment wins."""
    assert arguments(text.replace("{name}", name)) == ["--x", IN_JOBS[name]]
    assert arguments(text.replace("{name}", name), **{name: "own"}) == ["--x", "own"]


@pytest.mark.search
@pytest.mark.parametrize(
    "text",
    [
        "x=" + "$((" * 3000,
        "x=" + "${" * 3000,
        "if a; then\n" * 3000 + "fi\n" * 3000,
        "x=" + "$(" * 3000 + ")" * 3000,
        "echo " + "(" * 3000,
        "x=$((" + "(" * 3000 + "1" + ")" * 3000 + "))",
        "x=$((" + "-" * 30000 + "1))",
        "[[ " + "( " * 3000 + "a" + " )" * 3000 + " ]]",
        "x=" + "`" * 5001,
        "A=(" * 3000,
        "echo " + "{" * 5000,
        "echo " + "{a,b}" * 40,
        "x=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n[[ $x =~ (a+)+b ]]\n" + 'x="${x//a/$x$x$x}"\n' * 10,
        "x=$(printf '%0999d' 1)\n" + "x=$x$x\n" * 30,
        "a=b b=c; " + "".join(f"x{i}=x{i + 1}; " for i in range(2000)) + "echo $((x0))",
        "cat <<A\n" * 2000,
        "case x in a) " * 2000,
        "true && " * 5000 + "true",
        "true | " * 5000 + "true",
    ],
)  # fmt: skip
def test_scripts_that_attack(text: str) -> None:
    """An error of one line, within the limits."""
    with pytest.raises(InputError) as error:
        arguments(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("signs", ["a*a*a*a*a*a*a*a*b", "?*?*?*?*?*?*?*?*b", "*[ab]*[ab]*[ab]*[ab]c", "a*" * 60 + "b"])
@pytest.mark.parametrize(
    "use",
    ["y=${x//PATTERN/z}", "y=${x##PATTERN}", "y=${x%%PATTERN}", "[[ $x == PATTERN ]]", "case $x in PATTERN) ;; esac"],
)
def test_patterns_have_a_limit_of_work(use: str, signs: str) -> None:
    """A pattern of many stars on a long text is answered or refused within a second or two."""
    began, said = time.perf_counter(), ""
    try:
        found = arguments(f"x={'a' * 40_000}\n{use.replace('PATTERN', signs)}\ntorchrun train.py --x 1\n")
    except InputError as error:
        found, said = [], str(error)
    assert found == ["--x", "1"] or "takes too much work" in said or "replaces a pattern with *" in said
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize(("platform", "more"), [("linux", ""), ("darwin", r" On a Mac, run it in a Linux container")])
def test_capture_is_advised_where_it_can_watch(platform: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac the advice says what `capture` needs."""
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(InputError, match=rf"`pipette-opt capture` runs the script .* instead\.{more}") as caught:
        read_script("if torchrun train.py; then\n", "a.sh")
    assert ("Mac" in str(caught.value)) == bool(more)
