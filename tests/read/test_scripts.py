"""Launch scripts: the arguments that bash gives the program, or a refusal that names the line."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmark_modules import loaded

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


def launched(setting: str, words: str) -> list[str]:
    """Arguments of a script of some lines and a launch with words."""
    return arguments(f"#!/bin/bash\n{setting}\ntorchrun pretrain_gpt.py {words}\n")


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


@pytest.mark.parametrize(
    ("setting", "words", "expected"),
    [
        ("P=(--bf16)", '"${P[@]}"', ["--bf16"]),
        ("A=(--x)\nA+=(--y 'a b')", '"${A[@]}"', ["--x", "--y", "a b"]),
        ('pr=" --bf16"', "$pr", ["--bf16"]),
        ('E=${E:-"--x"}', "$E", ["--x"]),
        ("E=${E:---a --b}", "$E", ["--a", "--b"]),
        ("TP=8", "$([ $TP -gt 1 ] && echo --x)", ["--x"]),
        ("if [ -z ${UNSET} ]; then A=--yes; fi", "$A", ["--yes"]),
        ("if [ $UNSET = x ]; then A=--yes; else A=--no; fi", "$A", ["--no"]),
        ("[ -n $UNSET ] && A=--yes", "$A", ["--yes"]),
        ("N=9999999999", "$((N*N))", ["7766279611452241921"]),
        ("A=1", '"a b" --c=\'d e\' f\\ g $"h"', ["a b", "--c=d e", "f g", "h"]),
        ("x='a  b'", '$x "$x" "${x}"c', ["a", "b", "a  b", "a  bc"]),
        ("x=/a/b.tar.gz", "${x##*/} ${x%%.*} ${x/a/A} ${x: -2}", ["b.tar.gz", "/a/b", "/A/b.tar.gz", "gz"]),
        ("x=Ab", "${x^^} ${x,,} ${x^} ${x,}", ["AB", "ab", "Ab", "ab"]),
        ("x=y", "${#x} ${z:=w} $z", ["1", "w", "w"]),
        ("A=(a b c)", "${#A[@]} ${A[-1]} \"${A[@]:1}\" \"${A[*]}\"", ["3", "c", "b", "c", "a b c"]),
        ("set -- --p 'q r'", '"$@" $#', ["--p", "q r", "2"]),
        ("X=1; ( X=2 ); { Y=3; }", "$X $Y", ["1", "3"]),
        ("A=--x; echo --y | read A", "$A", ["--x"]),
        ("A=$'a\\tb'", '"$A"', ["a\tb"]),
        ("A='[0]*3+[1]*5'", '"$A" $A', ["[0]*3+[1]*5"] * 2),
        ("if false; then A=1   B=2\nelse\nA=3 B=4\nfi", "$A $B", ["3", "4"]),
        ("if true; then A=1 B=2  # why\nelif true; then A=3 B=4\nelse A=5\nfi", "$A $B", ["1", "2"]),
        ("if true; then A=`echo 1` B=\"$(echo x\necho y)\"\nelse A=5\nfi", '$A "$B"', ["1", "x\ny"]),
    ],
)  # fmt: skip
def test_words_are_those_of_bash(setting: str, words: str, expected: list[str]) -> None:
    """One construct each."""
    assert launched(setting, words) == expected


def test_environment_and_positional_arguments() -> None:
    """None unless they are given; what is read without being set is listed with its line."""
    text = 'TP=${TP:-8}\nSIZE=$1\ntorchrun pretrain_gpt.py --tp $TP --size "$SIZE" $MORE --nodes ${NNODES}\n'
    assert arguments(text) == ["--tp", "8", "--size", "", "--nodes"]
    assert arguments(text, "70b", TP="4", MORE="--bf16", NNODES="2") == [
        "--tp", "4", "--size", "70b", "--bf16", "--nodes", "2",
    ]  # fmt: skip
    found = read_script(text, "job.sh")
    assert found.unset == {"1": 2, "MORE": 3, "NNODES": 3}
    assert found.defaults == {"TP": 1}


def test_the_environment_numbers_positional_arguments() -> None:
    """As the message of a script that stops without them says; a gap is refused."""
    text = "RANK=${1:?the rank is missing}\ntorchrun train.py --x $RANK --y $2\n"
    with pytest.raises(InputError, match="--env 1=VALUE"):
        read_script(text, "job.sh").require_set("job.sh")
    given = script_environment(["1=0", "2=b"])
    assert read_script(text, "job.sh", environment=given).arguments == ("--x", "0", "--y", "b")
    with pytest.raises(InputError, match="argument 2, but not all before it"):
        read_script(text, "job.sh", environment={"2": "b"})
    with pytest.raises(InputError, match="also given behind --"):
        read_script(text, "job.sh", environment=given, arguments=("0",))


def test_variables_of_slurm_are_those_of_the_header() -> None:
    """In all ways of writing them, unless the environment says otherwise."""
    text = (
        "#!/bin/bash\n#SBATCH --gpus-per-node=4\n#SBATCH -N 2 --ntasks-per-node 4\n"
        "srun torchrun x_train.py --world $((SLURM_NNODES * SLURM_GPUS_PER_NODE)) --tasks $SLURM_NTASKS\n"
    )
    assert arguments(text) == ["--world", "8", "--tasks", "8"]
    assert arguments(text, SLURM_NNODES="16") == ["--world", "64", "--tasks", "8"]
    assert read_script(text, "job.sh").header == {"gpus-per-node": "4", "nodes": "2", "ntasks-per-node": "4"}


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


def test_made_up_values_are_said() -> None:
    """Only of variables that the script uses and nobody sets."""
    text = "#!/bin/bash\n#SBATCH -N 2\nmkdir logs/$SLURM_JOB_ID\ntorchrun train.py --x 1\n"
    assert read_script(text, "job.sh").notes == ("Made up, as no job of Slurm runs: SLURM_JOB_ID=1.",)
    assert read_script(text, "job.sh", environment={"SLURM_JOB_ID": "7"}).notes == ()


def test_a_process_under_srun_is_the_first() -> None:
    """Its rank is known in a text that srun starts, without a header, too."""
    assert arguments("srun bash -c 'torchrun train.py --node_rank $SLURM_NODEID'\n") == ["--node_rank", "0"]


def found_in(text: str) -> ScriptLaunch:
    """What a script starts."""
    return read_script(text, "job.sh")


@pytest.mark.search
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A=$(hostname)\ntorchrun train.py --x $A", r"line 1: \$\(hostname\), in the value of --x, is known only when"),
        (
            "if [ -f x ]; then A=--x; fi\n\ntorchrun train.py $A",
            r"line 1: \$\{A\}.*\(it depends on \[ -f x \], line 1\)",
        ),
        ("read TP\ntorchrun train.py --tp $TP", r"line 1: \$\{TP\}, in the value of --tp, .*\(line 1 has read"),
        ("source conf.sh\ntorchrun train.py --tp $TP", r"line 2: \$\{TP\}.*conf.sh is not read"),
        ("f() { f; }\nf", "line 1: has too many commands or expansions inside each other"),
        ("A=1.5\ntorchrun train.py $((A))", r"line 2: has \$\(\(1\.5\)\), which is no arithmetic"),
        ("torchrun train.py $((1 / 0))", "divides by zero"),
        ("set -u\ntorchrun train.py --tp $TP", "line 2: stops there under set -u, as TP is not set.*--env TP=VALUE"),
        (
            "set -u\nA=$X\nif [ $Y = 1 ]; then B=$Z; fi\ntorchrun train.py --tp $TP $2 ${W:?say it} $X",
            r"line 2: stops there under set -u, as these are not set: X \(line 2\), Y \(line 3\), Z \(line 3\), "
            r"TP \(line 4\), 2 \(line 4\), W \(line 4: say it\). Give each with --env NAME=VALUE",
        ),
        ("set -u\ntorchrun train.py $1 $2", r"1 \(line 2\), 2 \(line 2\). Give each with --env NAME=VALUE"),
        ("set -u\ncd $X\necho $(( A + B", r"line 2: stops there under set -u, as X is not set"),
        ("torchrun train.py ${TP:?say it}", "line 1: stops there, as TP is not set: say it"),
        ("if true; then\ntorchrun train.py", "cannot be read as bash here"),
        ("\n" + "A=(" * 500, "line 2: cannot be read as bash here"),
        ("a|" * 20_000, "line 1: cannot be read as bash here"),
        ("echo {1..999999999}", "line 1: has '{1..999999999}', whose braces make several words"),
        ("torchrun train.py --a\r\n", "line 1: has line ends of Windows"),
        (
            "python tools/preprocess_data.py --bf16\necho done",
            "starts no training program; commands .*: python tools/prep",
        ),
        ("echo hello", "starts no training program; the script starts no program"),
        ("torchrun train_a.py --x 1\ntorchrun train_a.py --x 2", "train_a.py at line 1 and train_a.py at line 2"),
        (
            "if [ -d /x ]; then torchrun train.py --a; else torchrun train.py --b; fi",
            "line 1: starts training in two ways",
        ),
        ("torchrun --who-knows what pretrain", r"line 1: torchrun: unknown option --who-knows"),
        ("srun 'python train.py --x 1'", "line 1: 'python train.py --x 1' in quotes is read as the name"),
        ('torchrun "pretrain_gpt.py --x 1"', "line 1: 'pretrain_gpt.py --x 1' in quotes is read as the name"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_line(text: str, problem: str) -> None:
    """Never fewer arguments in silence."""
    with pytest.raises(InputError, match=problem):
        arguments(text)


@pytest.mark.parametrize(
    "text",
    [
        "if [ ! -d logs ]; then mkdir logs; fi\n{}",
        "HOST=$(hostname); PORT=$((RANDOM % 1000))\n{}",
        "if [ -f /etc/x ]; then export NCCL_DEBUG=INFO; else Y=1; fi\n{}",
        "source /opt/venv/bin/activate\nmodule load cuda\n{}",
        "cd /opt/megatron || exit 1\n{} 2>&1 | tee log.txt &\nwait",
        "nvidia-smi && X=1 || X=2\ncase $(hostname) in a*) Z=1;; b*) Z=2;; esac\n{}",
        "for f in /data/*.bin; do N=$f; done\n{}",
        "while read -r line; do L=$line; done < hosts\n{}",
        "for i in 0 1 2; do ssh host$i '{}'; done",
        "main() { {}; }\nmain",
        "{}\n{}",
        'srun bash -c "{}"',
        "bash <<'EOF'\n{}\nEOF",
        "if python -c 'import torch'; then {}; fi",
    ],
)
def test_unknown_values_taint_only_what_uses_them(text: str) -> None:
    """Files, hosts and other programs that no argument depends on."""
    launch = "torchrun --nproc_per_node 8 pretrain_gpt.py --bf16 --tensor-model-parallel-size 8"
    assert arguments(text.replace("{}", launch)) == ["--bf16", "--tensor-model-parallel-size", "8"]


def test_what_is_assumed_is_said() -> None:
    """A condition that may end the script is taken not to."""
    found = found_in("if [ ! -f data.bin ]; then\n  echo missing; exit 1\nfi\ntorchrun train.py --bf16")
    assert found.notes == ("line 1: it is assumed that [ ! -f data.bin ] does not end the script",)


def test_unknown_parts_of_arguments_are_listed() -> None:
    """With the script's own text in their place."""
    found = found_in('torchrun train.py --save "/ckpt/$(date +%s)" --bf16')
    assert found.arguments == ("--save", "/ckpt/$(date +%s)", "--bf16")
    assert [(argument.index, argument.text, argument.may_be_option) for argument in found.unknown] == [
        (1, "$(date +%s)", False)
    ]


def test_what_a_launch_is_made_of() -> None:
    """Program, launchers, exported variables and line."""
    found = found_in("export NCCL_DEBUG=INFO\nLOCAL=1\nsrun -N 2 torchrun --nnodes 2 /opt/pretrain_gpt.py --bf16")
    assert found.launch is not None
    assert (found.launch.program, found.line) == ("/opt/pretrain_gpt.py", 3)
    assert [starter.name for starter in found.launch.launchers] == ["srun", "torchrun"]
    assert found.environment == {"NCCL_DEBUG": "INFO"}


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


@pytest.mark.parametrize("end", ["\\\n", " \\\n\n", " \\\n   ", "2>&1 | tee a.log \\\n"])
def test_backslash_that_continues_into_nothing(end: str) -> None:
    """Many scripts end in a backslash and a line break, behind which bash finds nothing."""
    found = read_script(f"torchrun pretrain_gpt.py --num-layers 2 {end}", "a.sh")
    assert found.arguments == ("--num-layers", "2")


def test_errors_show_unknown_parts_as_they_are_written() -> None:
    """An error shows ${WORK} of an unread file, not the sign that stands for it; the program of python stays."""
    text = "source env.sh\nrm -rf $WORK/*\n"
    with pytest.raises(InputError, match=r"\$\{?WORK\}?/\*"):
        read_script(text, "a.sh")
    text = "source env.sh\npython $WORK/ratios.py --split train\ntorchrun pretrain_gpt.py --num-layers 2"
    assert read_script(text, "a.sh").arguments == ("--num-layers", "2")


def test_error_without_a_launch_names_unset_variables_and_the_last_commands() -> None:
    """``--jobid $SLURM_JOBID`` without a value takes the shell for it: the error says which variable is missing."""
    commands = "\n".join(f"prepare{number}" for number in range(9))
    with pytest.raises(InputError, match=r"srun --jobid bash .*not set, and taken for empty: SLURM_JOBID"):
        read_script(f"{commands}\nsrun --jobid $SLURM_JOBID bash -c 'torchrun pretrain_gpt.py --bf16'", "a.sh")


@pytest.mark.parametrize(
    "host", ["scontrol show hostnames $L | head -n 1", "hostname -I | awk '{print $1}'", "hostname | cut -d ' ' -f1"]
)
def test_first_host_is_a_word_of_a_text_for_a_shell(host: str) -> None:
    """The name of the first host, and the value of --jobid from an unread file, are one word each."""
    text = (
        f'source env.sh\nM=$({host})\nL="torchrun --rdzv_endpoint $M:6000"\n'
        'srun --jobid $JOB bash -c "$L pretrain_gpt.py --num-layers 2"'
    )
    assert read_script(text, "a.sh").arguments == ("--num-layers", "2")


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


def test_every_session_has_a_home() -> None:
    """The login sets it, so ``set -u`` does not stop a script there."""
    found = read_script("set -u\ntorchrun train.py --save $HOME/x --tp 2", "a.sh")
    assert (found.missing, found.arguments[-2:]) == ({}, ("--tp", "2"))


@pytest.mark.parametrize(("platform", "more"), [("linux", ""), ("darwin", r" On a Mac, run it in a Linux container")])
def test_capture_is_advised_where_it_can_watch(platform: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac the advice says what `capture` needs."""
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(InputError, match=rf"`pipette-opt capture` runs the script .* instead\.{more}") as caught:
        read_script("if torchrun train.py; then\n", "a.sh")
    assert ("Mac" in str(caught.value)) == bool(more)
