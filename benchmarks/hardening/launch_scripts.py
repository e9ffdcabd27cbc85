# ruff: noqa: E501 - lines of scripts stay whole
"""
Random launch scripts as people write them, and the commands that bash starts from them.

A script has a header, variables, groups of options and a launch. Each part is written in one of many ways: arrays or
texts, defaults, ``if``, ``case``, substitutions, arithmetic, here-documents; loops and functions of which the launch
seldom uses a result. Every script runs to its end in bash. All but a few keep to the constructs that the reader evaluates; loops and functions stand beside them.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.read.capture.captured import capture
from pipette_opt.read.scripts import read_script

Generated = tuple[str, tuple[str, ...], dict[str, str]]
"""Script, its positional arguments, and its environment."""

STUB = """#!/bin/sh
printf '%s\\0' "$@" >> "$RECORD"
printf '\\1\\0' >> "$RECORD"
"""
"""Stand-in for a launcher that records its arguments, each followed by a zero byte."""

LAUNCHERS = ("torchrun", "srun", "mpirun", "deepspeed", "python", "python3", "nvidia-smi", "scontrol")
"""Programs that the stand-in replaces."""


def bash_arguments(text: str, arguments: tuple[str, ...], environment: dict[str, str], folder: Path) -> list[list[str]]:
    """Return the arguments of each launcher that bash starts from the script, in order."""
    stubs = folder / "stubs"
    if not stubs.is_dir():
        stubs.mkdir(parents=True)
        for name in LAUNCHERS:
            (stubs / name).write_text(STUB)
            (stubs / name).chmod(0o755)
    script, record = folder / "script.sh", folder / "record"
    script.write_text(text)
    record.write_bytes(b"")
    given = {"PATH": f"{stubs}:/usr/bin:/bin", "RECORD": str(record), **environment}
    bash = shutil.which("bash") or "/bin/bash"
    subprocess.run(
        [bash, str(script), *arguments],
        env=given,
        cwd=folder,
        capture_output=True,
        timeout=10,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    starts: list[list[str]] = [[]]
    for word in record.read_bytes().split(b"\0")[:-1]:
        if word == b"\1":
            starts.append([])
        else:
            starts[-1].append(os.fsdecode(word))
    return starts[:-1]


def program_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments after the first Python script; ``None`` without a Python script."""
    place = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    return None if place is None else words[place + 1 :]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """
    Result of a script in bash and in the reader.

    Parameters
    ----------
    kind
        ``equal``, ``refused``, ``different``, or ``nothing``: bash starts no program, and the reader finds none.
    read, run
        Arguments that the reader finds, or its reason to refuse; and arguments of each program that bash starts.
    """

    kind: str
    text: str
    read: list[str] | str
    run: list[list[str]]


def compared(
    text: str, arguments: tuple[str, ...], environment: dict[str, str], started: list[list[str]]
) -> Comparison:
    """Compare the commands that bash starts from a script with the arguments that the reader finds."""

    def read() -> list[str]:
        found = read_script(text, "script", arguments=arguments, environment=environment)
        found.require_known("script")
        return list(found.arguments)

    return _compared(text, started, read)


def captured(
    text: str, arguments: tuple[str, ...], environment: dict[str, str], started: list[list[str]], folder: Path
) -> Comparison:
    """Compare the commands that bash starts from a script with the record of ``capture``, in a new folder."""
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(text)

    def read() -> list[str]:
        with contextlib.chdir(folder):
            return list(capture(["bash", "script.sh", *arguments], environment=environment).launch.arguments)

    return _compared(text, started, read)


def _compared(text: str, started: list[list[str]], reader: Callable[[], list[str]]) -> Comparison:
    run = [words for words in map(program_arguments, started) if words is not None]
    try:
        read = reader()
    except InputError as error:
        return Comparison(kind="refused" if run else "nothing", text=text, read=str(error), run=run)
    is_equal = bool(run) and all(words == read for words in run)
    return Comparison(kind="equal" if is_equal else "different", text=text, read=read, run=run)


@dataclass(kw_only=True)
class Writer:
    """
    Writer of a random script.

    Parameters
    ----------
    names
        References to variables with options, as they stand in the command.
    """

    chance: random.Random
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    count: int = 0

    def pick(self, *choices: str) -> str:
        """Return one of the texts at random."""
        return self.chance.choice(choices)

    def name(self, stem: str) -> str:
        """Return a new variable name that begins with ``stem``."""
        self.count += 1
        return f"{stem}_{self.count}"

    def add(self, *lines: str) -> None:
        """Append lines to the script."""
        self.lines += lines


NUMBERS = {"TP": "8", "PP": "4", "CP": "1", "MBS": "1", "GBS": "512", "SEQ_LEN": "8192", "NUM_LAYERS": "80", "EP": "2"}
FLAGS = (
    "--bf16", "--swiglu", "--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce",
    "--overlap-param-gather", "--untie-embeddings-and-output-weights", "--disable-bias-linear", "--use-flash-attn",
    "--recompute-activations", "--no-masked-softmax-fusion",
)  # fmt: skip
VALUED = (
    ("--tensor-model-parallel-size", "TP"), ("--pipeline-model-parallel-size", "PP"), ("--context-parallel-size", "CP"),
    ("--micro-batch-size", "MBS"), ("--global-batch-size", "GBS"), ("--seq-length", "SEQ_LEN"), ("--num-layers", "NUM_LAYERS"),
    ("--max-position-embeddings", "SEQ_LEN"), ("--expert-model-parallel-size", "EP"),
)  # fmt: skip
PLAIN = (
    "--normalization RMSNorm", "--norm-epsilon 1e-05", "--lr 1.5e-4", "--lr-decay-style cosine", "--split 99,1,0",
    "--attention-dropout 0.0", "--position-embedding-type rope", "--rotary-base 500000", "--clip-grad 1.0", "--log-interval 1",
    "--tokenizer-type NullTokenizer", "--save /ckpt/run-1", "--data-path 0.5 /d/a 0.5 /d/b", "--weight-decay 0.1",
)  # fmt: skip


def script(seed: int) -> Generated:
    """Return a script, its positional arguments and its environment."""
    writer = Writer(chance=random.Random(seed))
    chance = writer.chance
    writer.add(writer.pick("#!/bin/bash", "#!/usr/bin/env bash", "#! /bin/bash"))
    environment = _header(writer)
    if chance.random() < 0.3:
        writer.add(writer.pick("set -e", "set -ex", "set -euo pipefail", "set -x", "set -o errexit", "set -u"))
    strict = any("-eu" in line or line == "set -u" for line in writer.lines)
    arguments = _arguments(writer, strict)
    for name, value in NUMBERS.items():
        _number(writer, name, value)
    for _ in range(chance.randrange(1, 6)):
        chance.choice(_DETAILS)(writer, strict)
    options = [f"{option} ${name}" if chance.random() < 0.5 else f"{option} ${{{name}}}" for option, name in VALUED]
    options += [*chance.sample(FLAGS, 5), *chance.sample(PLAIN, 5)]
    chance.shuffle(options)
    groups = chance.randrange(2, 5)
    for group in range(groups):
        _group(writer, options[group::groups])
    for _ in range(chance.randrange(2, 7)):
        chance.choice(_CONDITIONAL)(writer, strict)
    _launch(writer, strict)
    return "\n".join(writer.lines) + "\n", arguments, environment


def _header(writer: Writer) -> dict[str, str]:
    if writer.chance.random() < 0.6:
        return {}
    nodes, gpus = writer.pick("2", "8", "16"), writer.pick("4", "8")
    writer.add(
        writer.pick("#SBATCH --job-name=train", "#SBATCH -J train"),
        writer.pick(f"#SBATCH --nodes={nodes}", f"#SBATCH -N {nodes}", f"#SBATCH --nodes {nodes}"),
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={gpus}",
        "",
    )
    names = {
        "SLURM_JOB_NAME": "train",
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_GPUS_PER_NODE": gpus,
    }
    return {**names, "SLURM_NTASKS_PER_NODE": "1", "SLURM_NTASKS": nodes, "SLURM_NPROCS": nodes}


def _arguments(writer: Writer, strict: bool) -> tuple[str, ...]:
    chance = writer.chance
    given = ("dsw", "70B", "a b")[: chance.randrange(4)]
    if chance.random() < 0.4:
        writer.add("ENV=${1:-local}", "SIZE=${2:-8B}")
    elif not strict:
        writer.add("ENV=$1", writer.pick("SIZE=$2", 'SIZE="$2"'))
    return given


def _number(writer: Writer, name: str, value: str) -> None:
    whole = int(value)
    forms = [
        f"{name}={value}", f'{name}="{value}"', f"export {name}={value}", f"{name}=${{{name}:-{value}}}", f": ${{{name}:={value}}}",
        f"{name}=$(({whole - 1} + 1))", f"{name}=$(( {whole * 2} / 2 ))", f"{name}=`echo {value}`", f"(({name} = {value}))",
        f"{name}={value}   # the usual one", f"readonly {name}={value}", f"{name}=x{value}; {name}=${{{name}#x}}", f"{name}={value}.bak; {name}=${{{name}%.*}}",
        f"eval {name}={value}", f"{name}={value}_{value}; {name}=${{{name}%%_*}}", f"typeset {name}={value}",
    ]  # fmt: skip
    writer.add(writer.chance.choice(forms))


def _group(writer: Writer, options: list[str]) -> None:
    """Write options into a variable, as an array or a text."""
    chance, name = writer.chance, writer.name(writer.pick("MODEL_ARGS", "gpt_options", "TRAIN", "OPTS"))
    quoted = f'"${{{name}[@]}}"'
    kind = chance.randrange(8)
    if kind == 0:
        writer.add(f"{name}=(", *[f"    {option}" + writer.pick("", "", "  # why") for option in options], ")")
        writer.names.append(writer.pick(quoted, f"${{{name}[@]}}", f"${{{name}[*]}}"))
    elif kind == 1:
        writer.add(f'{name}="', *[f"    {option} \\" for option in options[:-1]], f'    {options[-1]}"')
        writer.names.append(writer.pick(f"${name}", f"${{{name}}}"))
    elif kind == 2:
        writer.add(f'{name}=" \\', *[f"    {option}" for option in options], '"')
        writer.names.append(f"${{{name}}}")
    elif kind == 3:
        writer.add(f"{name}=()", *[f"{name}+=({option})" for option in options])
        writer.names.append(quoted)
    elif kind == 4:
        writer.add(
            f'{name}=""', *[writer.pick(f'{name}="${name} {option}"', f'{name}+=" {option}"') for option in options]
        )
        writer.names.append(f"${name}")
    elif kind == 5:
        writer.add(
            f'{name}=$( {writer.pick("", ": ${UNUSED:=1}; ")}echo {writer.pick("", "-n ")}"{" ".join(options)}" )'
        )
        writer.names.append(f"${name}")
    elif kind == 6:
        inner = writer.name("list")
        writer.add(f"{inner}=({' '.join(options)})", f'{name}=("${{{inner}[@]}}" --log-throughput)')
        writer.names.append(quoted)
    else:
        writer.add(f"export {name}='{' '.join(option for option in options if '$' not in option)}'")
        rest = [option for option in options if "$" in option]
        writer.names += [f"${name}", *rest]


Part = Callable[[Writer, bool], None]


def _if_number(writer: Writer, strict: bool) -> None:
    name, variable = writer.name("extra"), writer.pick("TP", "PP", "CP", "GBS")
    test, limit = writer.pick("-gt", "-eq", "-ne", "-ge", "-lt", "-le"), writer.pick("1", "4", "8")
    condition = writer.pick(
        f"[ ${variable} {test} {limit} ]", f'[ "${variable}" {test} {limit} ]', f"[[ ${variable} {test} {limit} ]]",
        f"test ${variable} {test} {limit}", f"(( {variable} > {limit} ))", f"[ ! ${variable} {test} {limit} ]",
        f"[ ${variable} {test} {limit} ] && [ $PP -gt 1 ]", f"[ ${variable} {test} {limit} -a $PP -gt 1 ]",
        f"[[ ${variable} {test} {limit} || $PP == 4 ]]", f"! [ ${variable} {test} {limit} ]",
    )  # fmt: skip
    other = writer.pick(
        "", 'else\n    {n}=""\n', "else\n    {n}=' --fp16'\n", "elif [ $PP -gt 2 ]; then {n}=--fp16; else {n}=\n"
    )
    writer.add(f'{name}=""', f'if {condition}; then\n    {name}=" --seq-parallel-{limit}"\n{other.format(n=name)}fi')
    writer.names.append(f"${name}")


def _if_text(writer: Writer, strict: bool) -> None:
    name, value = writer.name("pr"), writer.pick("bf16", "fp16", "fp8", "")
    variable = writer.name("PR")
    condition = writer.pick(
        f'[ "${variable}" = bf16 ]', f"[[ ${variable} == bf* ]]", f'[[ "${variable}" = "bf16" ]]', f"[ -n \"${variable}\" ]",
        f"[ -z ${variable} ]", f"[[ -z ${variable} ]]", f'[[ "${variable}" != bf16 ]]',
        f"[ x${variable} = xbf16 ]", f"[ ${{#{variable}}} -gt 3 ]", f'[[ ${variable} == *"16" ]]', f'[ "${{{variable}:-none}}" = none ]',
        f"[ ${variable} = bf16 ]", f'[[ -n "${variable}" && ${variable} < c ]]',
    )  # fmt: skip
    writer.add(
        f"{variable}={value}", f"if {condition}\nthen {name}='--bf16 --attention-softmax-in-fp32'; else {name}=; fi"
    )
    writer.names.append(f"${{{name}}}")


def _several(writer: Writer, strict: bool) -> None:
    """Write several assignments on one line, in each branch."""
    counter, limit = writer.name("one"), writer.name("other")
    condition = writer.pick("[ $TP -gt 4 ]", "[[ $PP == 5 ]]", '[ -n "$EP" ]', "false", "(( TP > 9 ))")
    gap, end = writer.pick(" ", "   ", "\t", " \\\n    "), writer.pick("", " ", "  # why", ";", " ;", "\n")

    def pair(number: int) -> str:
        return f"{counter}={number}{gap}{limit}=--o{number}{end}"

    writer.add(
        f"{counter}=0 {limit}=",
        writer.pick(
            f"if {condition}; then\n  {pair(1)}\nelse\n  {pair(2)}\nfi",
            f"if {condition}; then {pair(1)}\nelse {pair(2)}\nfi",
            f"if {condition}\nthen\n  {pair(1)}\nelif [ $TP = 8 ]; then\n  {pair(2)}\nelse\n  {pair(3)}\nfi",
            f"if {condition}; then\n  if true; then\n    {pair(1)}\n  else\n    :\n  fi\nelse\n  {pair(2)}\nfi",
            f"case $TP in\n  8) {pair(5)}\n  ;;\nesac",
            f"{{ {pair(7)}\n}}",
        ),
    )
    writer.names.append(f"--{counter} ${counter} ${limit}")


def _and_or(writer: Writer, strict: bool) -> None:
    name = writer.name("opt")
    flag = writer.chance.choice(FLAGS)
    test = writer.pick("[ $TP -gt 1 ]", "[[ $PP -lt 2 ]]", '[ "$CP" = 1 ]', "true", "false", "(( EP ))", "! false")
    writer.add(
        writer.pick(
            f"{name}=$( {test} && echo {flag} || echo '' )",
            f'{name}=$( {test} && echo "{flag}" || true)',
            f"{name}=; {test} && {name}={flag} || true",
            f"{name}='{flag}'; {test} || {name}=''",
            f"{name}=`{test} && echo {flag} || :`",
            f"{test} && {name}={flag} || {name}=--fp16",
        )
    )
    writer.names.append(writer.pick(f"${name}", f"${{{name}}}", f"${{{name}:+${name}}}"))


def _case(writer: Writer, strict: bool) -> None:
    name, size = writer.name("size"), writer.pick("8B", "70B", "405b", "tiny")
    chosen = writer.name("SIZE")
    last = writer.pick("*) {n}='--hidden-size 1';;", '*)\n    {n}="--hidden-size 1"\n    ;;', "tiny|small) {n}=; ;;")
    writer.add(
        f"{chosen}={size}", f"{name}=", writer.pick(f"case ${chosen} in", f'case "${{{chosen}}}" in'),
        writer.pick("  8B|8b)", "  ( 8B | 8b )", '  "8B")'), f"    {name}='--hidden-size 4096 --ffn-hidden-size 14336'", "    ;;",
        f"  7*B) {name}='--hidden-size 8192'{writer.pick(';;', ' ;;', '; ;;')}", f"  [0-9]*[bB] ) {name}+=' --deep' ;;",
        f"  {last.format(n=name)}", "esac",
    )  # fmt: skip
    writer.names.append(f"${name}")


def _loop(writer: Writer, strict: bool) -> None:
    name = writer.name("mods")
    words = writer.pick("a b c", "{1..3}", "$(seq 1 3)", '"x y" z', "$TP $PP", "x{1,2}")
    writer.add(
        writer.pick(
            f'{name}=\nfor m in {words}; do\n  {name}="${{{name}}} --m-$m"\ndone',
            f"{name}=''; for m in {words}\ndo\n  [ $m = b ] && continue\n  {name}+=\" --m-$m\"\ndone",
            f'{name}=; for ((i = 0; i < 3; i++)); do {name}="${name} --i $i"; done',
            f'{name}=; i=3; until [ $i -eq 0 ]; do {name}="${name} --u$i"; i=$((i - 1)); done',
            f'{name}=; i=0; while true; do i=$((i+1)); if [ $i -gt 3 ]; then break; fi; {name}="${name} --w $i"; done',
            f'{name}=(); for m in {words}; do {name}+=(--m $m); done; {name}="${{{name}[*]}}"',
            f"{name}=; while read -r a b; do {name}+=\" --$a $b\"; done <<< $'one 1\\ntwo 2'",
        )
    )
    if writer.chance.random() < 0.05:
        writer.names.append(f"${name}")


def _function(writer: Writer, strict: bool) -> None:
    name, function = writer.name("fn"), writer.name("make")
    writer.add(
        writer.pick(
            f'{function}() {{\n  local a=$1 b=${{2:-2}}\n  shift\n  echo "--fa $a --fb $b --rest $*"\n}}\n{name}=$({function} 1 2 3)',
            f"function {function} {{\n  if [ $1 -gt 4 ]; then\n    {name}='--big'\n    return\n  fi\n  {name}=--small\n}}\n{function} $TP",
            f"{function}() {{ {name}=\"$@\"; return 0; }}\n{function} --x 1 '--y z'",
            f'{function} () {{\n    for o in "$@"; do echo -n "--$o "; done\n}}\n{name}=`{function} p q`',
            f'{function}() ( {name}=inner; echo --sub )\n{name}=outer\n{name}="$({function}) --${name}"',
        )
    )
    if writer.chance.random() < 0.05:
        writer.names.append(f"${name}")


def _expansions(writer: Writer, strict: bool) -> None:
    name = writer.name("path")
    value = writer.pick("/data/models/llama-70b.tar.gz", "a_b_c", "run-1", "x y  z")
    expansion = writer.pick(
        "${V##*/}", "${V%.*}", "${V%%.*}", "${V#*/}", "${V/a/A}", "${V//[_-]/+}", "${V:2}", "${V:1:3}", "${V: -2}", "${V^^}", "${V,,}",
        "${#V}", "${V^}", "${V/%b/B}", "${V/#a/Z}", "${V:+set}", "${V:-unset}", "${V//\\//_}", "${V%%[0-9]*}", "${V#\"/data\"}",
        "${V:$((TP-8)):2}",
    )  # fmt: skip
    quoted = writer.pick('"', "")
    writer.add(f"V='{value}'", f"{name}={quoted}{expansion}{quoted}")
    writer.names.append(
        writer.pick(f'--name "${name}"', f"--name ${name}", f"--name={name}-${{{name}}}", f'"--v=${{{name}}}"')
    )


def _quotes(writer: Writer, strict: bool) -> None:
    name = writer.name("q")
    writer.add(
        name
        + writer.pick(
            '="--note \\"a b\\" c"',
            "='--json {\"a\": [1, 2]}'",
            '="it\'s"',
            "=$'--tab\\tx'",
            "=a\\ b",
            '="$TP"\'$TP\'"${TP}"',
            '="a\\$b"',
            '="`echo x`"',
            "=''",
            '="line one\nline two"',
            '=--x="y z"',
            '="\\\\"',
            '="a\\\nb"',
            "=\"$'x'\"",
            '=$"loc"',
        )
    )
    writer.names.append(writer.pick(f'"${name}"', f"${name}", f'--q "x${{{name}}}y"', f"pre${{{name}}}post"))


def _lists(writer: Writer, strict: bool) -> None:
    name = writer.name("arr")
    writer.add(
        f"{name}=(one 'two words' three)",
        writer.pick(f"{name}+=(four)", f'{name}=("${{{name}[@]}}" four)', ":"),
    )
    writer.names.append(
        writer.pick(
            f'"${{{name}[@]}}"',
            f"${{{name}[@]}}",
            f'"${{{name}[*]}}"',
            f"--n ${{#{name}[@]}}",
            f'"${{{name}[@]:1:2}}"',
            f"${{{name}[0]:-none}}",
            f'"${{{name}[@]/#/--}}"',
            f"${{{name}[-1]}}",
            f'"pre${{{name}[@]}}post"',
            f"${name}",
            f'"${{{name}[@]%o*}}"',
            f"${{{name}[TP-8]:-none}}",
            f'${{{name}[@]+"${{{name}[@]}}"}}',
        )
    )


def _arithmetic(writer: Writer, strict: bool) -> None:
    name = writer.name("n")
    expression = writer.pick(
        "GBS / (TP * PP)", "$GBS % 7", "2 ** 10", "TP << 2", "(TP > 4) ? 1 : 0", "${TP}*${PP}+1", "SEQ_LEN*MBS, 5", "-7 / 2", "-7 % 3",
        "0x10 + 010", "!TP", "~TP", "TP & 12 | 1", "TP == 8 && PP == 4", "1 + 2 * 3 - 4", "9223372036854775807 + 1",
        "16#ff", "(GBS+TP-1)/TP", "NOT_SET + 1" if not strict else "1", "$((TP+1))*2", "20000000000 / GBS / SEQ_LEN",
    )  # fmt: skip
    writer.add(f"{name}=$(( {expression} ))")
    writer.names.append(f"--{name} ${name}")


def _set_words(writer: Writer, strict: bool) -> None:
    name = writer.name("ifs")
    writer.add(
        writer.pick(
            f"set -- --p 1 '--q r'; {name}=(\"$@\" $#)",
            f"{name}=($(echo 'x y' z))",
        )
    )
    writer.names.append(f'"${{{name}[@]}}"')


def _noise(writer: Writer, strict: bool) -> None:
    writer.add(
        writer.pick(
            "export CUDA_DEVICE_MAX_CONNECTIONS=1",
            "ulimit -c 0",
            "mkdir -p ./logs",
            'echo "starting $TP"',
            "# --bf16 is not it",
            "export PYTHONPATH=/opt/megatron:${PYTHONPATH:-}",
            "export NCCL_DEBUG=INFO NCCL_IB_TIMEOUT=22",
            "date",
            "echo 'it\\'s' > /dev/null; :'",
            "if [ ! -d ./logs ]; then mkdir -p ./logs; fi",
            "trap 'echo done' EXIT",
            'cat > ./config.json <<EOF\n{"tp": $TP}\nEOF',
            'DIR="$( cd "$( dirname "$0" )" && pwd )"',
            "HOST=$(hostname)",
            "nvidia-smi > /dev/null 2>&1 || true",
            "unset FOO",
            "JOB_ID=${SLURM_JOB_ID:-0}",
            ": 'comment\n--fp16 '",
            "echo $(date +%s) | tee ./start.log",
            "STAMP=$(date +%Y%m%d)",
            "sleep 0",
        ).replace("echo 'it\\'s' > /dev/null; :'", 'echo "it\'s" > /dev/null')
    )


def _subshell(writer: Writer, strict: bool) -> None:
    name = writer.name("sub")
    writer.add(
        writer.pick(
            f"{name}=--a; ( {name}=--b ); echo ${name} > /dev/null",
            f"{name}=--a; {{ {name}=--b; }}",
            f"{name}=$( ( echo --c ) )",
            f"{name}=$(echo --e $(echo f $(echo g)))",
            f"{name}=$(X=3; echo --x $X)",
            f"{name}=$(case $TP in 8) echo --eight;; *) echo --other;; esac)",
            f"{name}=$(if [ $TP = 8 ]; then echo --t; fi)",
            f"{name}=$(echo one; echo two)",
            f"{name}=$(eval echo '--ev $TP')",
        )
    )
    writer.names.append(f"${name}")


_CONDITIONAL: tuple[Part, ...] = (
    _if_number, _if_text, _several, _and_or, _case, _loop, _function, _expansions, _quotes, _lists, _arithmetic, _set_words, _subshell,
)  # fmt: skip
_DETAILS: tuple[Part, ...] = (_noise, _noise, _noise, _arithmetic, _subshell, _quotes)


def _launch(writer: Writer, strict: bool) -> None:
    chance = writer.chance
    if chance.random() < 0.5:
        chance.shuffle(writer.names)
    launcher = writer.pick(
        "torchrun --nproc_per_node 8 --nnodes ${SLURM_NNODES:-1}", "torchrun --nproc_per_node=8", "python -u", "python3",
        "torchrun ${DIST[@]}", "srun -N 2 python", "python -m torch.distributed.launch --nproc_per_node 8", "CUDA_VISIBLE_DEVICES=0 torchrun",
        "exec torchrun", "time torchrun",
    )  # fmt: skip
    if "DIST" in launcher:
        writer.add(
            "DIST=(\n  --nproc_per_node 8\n  --nnodes ${NNODES:-2}\n  --master_addr ${MASTER_ADDR:-localhost}\n)"
        )
    program = writer.pick(
        "pretrain_gpt.py",
        "/opt/Megatron-LM/pretrain_gpt.py",
        "./pretrain_llama.py",
        "${MEGATRON:-/opt/m}/pretrain_gpt.py",
    )
    lines = [f"{launcher} {program}", *writer.names]
    kind = chance.randrange(10)
    text = " \\\n    ".join(lines)
    plain = " ".join(lines)
    simple = not any(sign in plain for sign in ('"', "'", "`", "\\", "$(", "[@]", "[*]"))
    if kind < 5:
        writer.add(
            text
            + writer.pick("", "", " 2>&1 | tee ./train.log", " > ./out.log 2>&1", " &\nwait", " || exit 1", "\nexit 0")
        )
    elif kind == 5 and simple:
        writer.add(
            f'run_cmd="{plain}"',
            "echo $run_cmd",
            writer.pick("eval $run_cmd", "eval ${run_cmd}", 'eval "$run_cmd"'),
            "set +x",
        )
    elif kind == 7:
        writer.add(
            f"CMD=({plain.replace('CUDA_VISIBLE_DEVICES=0 ', '').replace('exec ', '').replace('time ', '')})",
            '"${CMD[@]}"',
        )
    elif kind == 8:
        writer.add("if true; then", f"  {text}", "fi")
    else:
        writer.add(text + "  # start")


def main() -> int:
    """Compare scripts of many seeds; return 1 if a script differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--scripts", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first script")
    parser.add_argument("--capture", action="store_true", help="compare capture with bash, not the reader")
    options = parser.parse_args()
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.scripts):
            generated = script(seed)
            started = bash_arguments(*generated, Path(folder))
            found = (
                captured(*generated, started, Path(folder) / str(seed))
                if options.capture
                else compared(*generated, started)
            )
            kinds[found.kind] += 1
            if found.kind == "different":
                print(f"--- seed {seed}\n{found.text}\nread {found.read}\nbash {found.run}")
            elif found.kind == "refused":
                print(f"refused, seed {seed}: {found.read}")
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    return int(kinds["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
