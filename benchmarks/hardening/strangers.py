"""
Folders, records, logs and scripts of strangers, drawn at random: they must not run, write or stop anything.

``python benchmarks/hardening/strangers.py --minutes 30`` draws inputs for this time, one kind after the other:

- records: ``trial.json`` with fields of other types, out of range, unknown or missing, and texts that are no record;
- commands: values with blanks and signs of the shell in placeholders of ``--run``, at random places of a command;
- folders: links, hard links, folders and pipes in place of the files of a trial, and ``.running`` that names others;
- logs: pieces of Megatron's logs in random order, some of megabytes, some with a single line;
- scripts: texts for other hosts and containers made from ways to start programs, write files and send signals, beside
  programs of random names, with secrets;
- patterns: patterns of bash with many stars on long texts.

A finding is a program that ran, a file outside that changed, a process that was ended, a secret in ``captured.json``, a
traceback, an absurd figure that is accepted, or an input that takes longer than ``SECONDS``. Each is printed with its
kind and seed, which make it again (``--kind scripts --seed 17``). The exit code is 1 after any finding.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import PipetteError
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.capture import captured as capturing
from pipette_opt.read.cluster import parse_cluster
from pipette_opt.read.megatron_logs import read_as_log, reports_of
from pipette_opt.read.model import read_model
from pipette_opt.read.scripts import read_script
from pipette_opt.specs import Instance, TrainingSpec
from pipette_opt.tune import launch
from pipette_opt.tune.folder import IN_USE, JOB, OWN_PLAN, RECORD, TrialRecord, TuneFolder
from pipette_opt.tune.jobs import check_record, least_time_s

SECONDS = 20.0
"""Longest time of a processor for one input; a log of 150,000 lines takes 2.5 to 5 s, a blow-up minutes. Chosen."""

CANARY, KEPT = "canary", "kept"
"""Names of a file that no input may make, and of a file that none may change."""

Draw = random.Random
Kind = Callable[[Draw, Path], Iterator[str]]
"""Function that tries one random input in a folder, and yields each finding."""


def job() -> Instance:
    """Return a small job on two hosts."""
    cluster = {
        "name": "two-hosts",
        "nodes": [{"hosts": "n[1-2]", "gpu": "a100-80gb", "gpus_per_node": 8}],
        "intra_node": {"bandwidth_gb_per_s": 200},
        "inter_node": {"bandwidth_gb_per_s": 20},
    }
    return Instance(
        model=read_model("llama-3.2-1b"),
        cluster=parse_cluster(cluster, "two-hosts", Path.cwd()),
        training=TrainingSpec(global_batch_size=64, seq_length=2048),
        launcher="slurm",
    )


def right_record() -> dict[str, Any]:
    """Return the content of a right record of the job."""
    config = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=1,
        data_parallel_size=8,
        micro_batch_size=1,
        layers_per_stage=(16,),
        sequence_parallel=True,
        use_distributed_optimizer=True,
    )
    record = TrialRecord(
        trial=1,
        status="timed",
        config=config,
        predicted_s=1.0,
        least_s=0.1,
        fits=0.9,
        hosts=("n1", "n2"),
        time_s=1.2,
    )
    return asdict(record)


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e-9, 1e300, 10**20, float("nan"), "", "x;touch canary", "\u200b", [], {}, [[[]]], "1" * 5000),
    *({"a": 1}, ["n1", "n1"], ["n9"], ["$(touch canary)"], "timed", 2, 0.5),
)
"""Values that take the place of others."""


def records(draw: Draw, folder: Path) -> Iterator[str]:
    """Read a record with some fields replaced; what is accepted must be possible."""
    content = right_record()
    for _ in range(draw.randrange(1, 4)):
        place = content if draw.random() < 0.7 else content.get("config")
        if not isinstance(place, dict):
            break
        name = draw.choice([*place, "other", "hosts", "time_s"])
        place[name] = draw.choice(VALUES)
        if draw.random() < 0.2:
            place.pop(draw.choice(list(place)))
    text = json.dumps(content)
    if draw.random() < 0.15:
        text = draw.choice(["[" * 10**5, text[: draw.randrange(len(text))], text * 2, "\x00" * 9, "9" * 5000, "null"])
    tuned, instance = TuneFolder(folder / "tuning"), job()
    tuned.trial(1).mkdir(parents=True)
    (tuned.trial(1) / RECORD).write_text(text)
    for record in tuned.records():
        check_record(instance, record, "trial.json")
        if not set(record.hosts) <= set(instance.cluster.hosts):
            yield f"accepts the hosts {record.hosts}"
        if record.time_s is not None and record.time_s < 0.9 * least_time_s(instance, record.config.world_size):
            yield f"accepts {record.time_s} s"


SHELL_PARTS = (
    "'",
    '"',
    "\\",
    "$(",
    ")",
    "`",
    "#",
    "<<E",
    "\n",
    " ",
    "a",
    "$'",
    "E\n",
    "echo ",
    "${x:-",
    "}",
    ";",
    "&&",
)
"""Pieces of shell text around a placeholder."""


def commands(draw: Draw, folder: Path) -> Iterator[str]:
    """Fill placeholders with values that attack, and run the command; only ``true`` and ``echo`` may run."""
    touch = f"touch {folder / CANARY}"
    value = "".join(draw.choices([" ", ";", f"$({touch})", f"`{touch}`", "'", '"', "\n", touch, "&", "x"], k=5))
    before, after = ("".join(draw.choices(SHELL_PARTS, k=draw.randrange(5))) for _ in range(2))
    before, after = (part.replace("{", "{{").replace("}", "}}") for part in (before, after))
    values = dict.fromkeys(launch.PLACEHOLDERS, value)
    text = launch.command(f"true {before}{{{draw.choice(launch.PLACEHOLDERS)}}}{after}", values)
    subprocess.run(
        ["sh", "-c", text], capture_output=True, check=False, timeout=10, cwd=folder, stdin=subprocess.DEVNULL
    )
    if (folder / CANARY).exists():
        yield f"ran a value: {text!r}"


def folders(draw: Draw, folder: Path) -> Iterator[str]:
    """Put links and odd files in place of the files of a search, then use the folder; nothing outside may change."""
    tuned, kept = TuneFolder(folder / "tuning"), folder / KEPT
    kept.write_text("kept")
    trial = tuned.trial(1)
    trial.mkdir(parents=True)
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        places = [trial / name for name in (launch.LOCK, launch.EXIT, launch.OUTPUT, RECORD)]
        for place in draw.sample(
            [*places, *(tuned.path / name for name in (JOB, IN_USE, OWN_PLAN))], draw.randrange(1, 5)
        ):
            _odd(draw, place, kept)
        for use in (
            lambda: tuned.records(),
            lambda: tuned.write(TrialRecord(**{**right_record(), "config": None})),  # type: ignore[arg-type]
            lambda: launch.start("echo done", trial),
            lambda: _with_process(draw, trial, bystander.pid),
            lambda: tuned.locked({"model": "a"}).__enter__(),
        ):
            try:
                use()
            except (PipetteError, OSError, TypeError, AttributeError):
                continue
        if kept.read_text() != "kept" or (folder / "outside").exists():
            yield "changed a file outside of the folder"
        if bystander.poll() is not None:
            yield "ended a process that it had not started"
    finally:
        bystander.kill()
        bystander.wait()


def _odd(draw: Draw, place: Path, kept: Path) -> None:
    """Make a link, a hard link, a folder, a pipe or a file of random text at a place."""
    kind = draw.randrange(5)
    if kind == 0:
        place.symlink_to(draw.choice([kept, kept.parent / "outside", place]))
    elif kind == 1:
        place.hardlink_to(kept)
    elif kind == 2:
        place.mkdir()
    elif kind == 3:
        os.mkfifo(place)
    else:
        place.write_text(draw.choice(["1", "-1", "0", "{}", "[" * 9999, "\x00"]))


def _with_process(draw: Draw, trial: Path, other: int) -> None:
    """Start a command, let its lock name another process, and stop it."""
    launch.start("sleep 30", trial)
    right = json.loads((trial / launch.LOCK).read_text())
    wrong = {**right, draw.choice(["pid", "host", "boot", "begun"]): draw.choice([other, 1, 0, -1, "x", None])}
    (trial / launch.LOCK).write_text(json.dumps(wrong) if draw.random() < 0.8 else str(other))
    launch.stop(trial)
    (trial / launch.LOCK).write_text(json.dumps(right))
    launch.GRACE_S = 0.5
    launch.stop(trial)


LINES = (
    "iteration {n}/99999 | elapsed time per iteration (ms): {n}.5 |",
    " iteration {n}/ 50 | elapsed time per iteration (ms): 258.0 | global batch size: 64 |",
    "  world_size ............... {n}",
    "------------ arguments ------------",
    "[Rank {n}] (after 2 iterations) memory (MB) | max reserved: {n}.0 | [Rank 1] memory (MB)",
    "hint: CUDA out of memory? lower --micro-batch-size",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "0: [default0]: INFO: x",
    "\x1b[31m{n}\r{n}\r",
    "",
    "[" * 99,
    "NVIDIA H100 80GB HBM3",
)
"""Lines of logs; ``{n}`` is a number."""


def logs(draw: Draw, folder: Path) -> Iterator[str]:
    """Read a log of random lines, some of them repeated a hundred thousand times."""
    parts = []
    for _ in range(draw.randrange(1, 9)):
        line = draw.choice(LINES).replace("{n}", str(draw.randrange(10**6)))
        end = draw.choice(["\n", "\n", "\n", "\r\n", "\r", ""])
        parts.append((line + end) * draw.choice([1, 1, 7, 1000, 30_000, 300_000]))
    data = "".join(parts).encode()[: 200 * 2**20]
    reports = reports_of(read_as_log(data, "run.log"))
    if any(not 0 <= seconds < 1e9 for seconds in reports.steady_s):
        yield "reads a time that is none"


FOREIGN = ("ssh h", "docker run i bash -c", "podman exec c sh -c", "pdsh -w a", "srun --container-image=i bash -c")

STARTS = (
    *("{t} {c}", "exec {t} {c}", "command {t} {c}", "builtin command {t} {c}", "A[0]=1 {t} {c}", "$(echo {t}) {c}"),
    *(
        "env {t} {c}",
        "env -i {t} {c}",
        "nohup {t} {c}",
        "BASH_CMDS[x]={t}; x {c}",
        "hash -p {t} y; y {c}",
        "f() {{ {t} {c}; }}; f",
    ),
    *("exec 5<>{c}", "echo x >& {c}", "x='> {c}'; eval echo $x", ": > {c}", "printf x | tee {c}", "cat <({t} {c})"),
    *("bash -c '{t} {c}'", "sh <<< '{t} {c}'", "eval '{t} {c}'", "python -c \"open('{c}', 'w')\"", "history -w {c}"),
    *(
        "kill -9 {p}",
        "builtin kill -9 {p}",
        "command kill {p}",
        "/bin/kill {p}",
        "xargs {t} <<< {c}",
        "({t} {c}) & wait",
    ),
)
"""Ways to start a program, to write a file or to end a process."""

BEFORE = (
    "",
    "",
    "trap - DEBUG; ",
    "shopt -u extdebug; ",
    "PATH=/usr/bin:/bin; ",
    "unset PIPETTE_OPT_CAPTURE_DRY; ",
    "set +r; ",
)
BEFORE += (
    "enable kill trap; ",
    "cd /; ",
    "set -e; ",
    "export BASH_ENV=/dev/null; ",
    "unalias -a; ",
    "unset -f exec command kill; ",
)
"""Beginnings of such texts."""

SECRET = "hunter2hunter2"
"""Value that the document must not have."""

LAUNCH = "torchrun pretrain_gpt.py --num-layers 4"


def scripts(draw: Draw, folder: Path) -> Iterator[str]:
    """Capture a script with texts for other places, unknown programs and secrets."""
    capturing.AFTER_START_S = capturing.LINGER_S = 0.3
    touch, canary = shutil.which("touch") or "touch", folder / CANARY
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    lines = []
    for _ in range(draw.randrange(1, 5)):
        text = "; ".join(
            draw.choice(BEFORE) + draw.choice(STARTS).format(t=touch, c=canary, p=bystander.pid)
            for _ in range(draw.randrange(1, 4))
        )
        for _ in range(draw.randrange(1, 3)):
            text = f"{draw.choice(FOREIGN)} {_quoted(text)}"
        lines.append(text)
    name = "".join(draw.choices("abcdefghij", k=6)) + draw.choice(["", "sub", "run", "batch"])
    program = folder / name
    program.write_text(f"{draw.choice(['#!/usr/bin/env python3', '#!/usr/bin/perl'])}\nopen('{canary}', 'w')\n")
    program.chmod(0o755)
    lines.append(
        draw.choice([f"{program} submit job", f"exec -a ls {program}", f"env {program} x", f"nohup {program}"])
    )
    secret = draw.choice(["SSHPASS", "MYSQL_PWD", "MY_TOKEN", "A_KEY"])
    lines.insert(0, f"export {secret}={SECRET} URL=http://u:{SECRET}@h:80")
    more = draw.choice([f'--x "${secret}"', f"--password {SECRET}", "--y $URL", f"--api-key={SECRET}"])
    (folder / "train.sh").write_text("\n".join([lines[0], *draw.sample(lines[1:], len(lines) - 1), f"{LAUNCH} {more}"]))
    (folder / "train.sh").write_text(
        (folder / "train.sh")
        .read_text()
        .replace("exec -a", "(exec -a", 1)
        .replace(f"ls {program}", f"ls {program})", 1)
    )
    before = Path.cwd()
    os.chdir(folder)
    try:
        found = capturing.capture(["bash", "train.sh"], time_limit_s=20).document()
        if SECRET in json.dumps(found):
            yield "writes a secret"
        if found["arguments"][:2] != ["--num-layers", "4"]:
            yield f"finds the arguments {found['arguments']}"
    finally:
        os.chdir(before)
        if bystander.poll() is not None:
            yield "ended a process"
        bystander.kill()
        bystander.wait()
        if canary.exists():
            yield "started a program or wrote a file"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def patterns(draw: Draw, folder: Path) -> Iterator[str]:
    """Evaluate a script whose patterns compare a long text."""
    pattern = "".join(draw.choices(["a", "*", "?", "[ab]", "*a", "b", "[!x]", "[[:alpha:]]"], k=draw.randrange(1, 30)))
    text = "".join(draw.choices("ab", k=draw.randrange(1, 9))) * draw.choice([1, 100, 10_000])
    use = draw.choice(["y=${x//P/z}", "y=${x##P}", "y=${x%%P}", "y=${x/#P/}", "[[ $x == P ]]", "case $x in P) ;; esac"])
    script = "\n".join([f"x={text}", *[use.replace("P", pattern)] * draw.choice([1, 3]), f"{LAUNCH} --y ${{y:-1}}"])
    read_script(script[:99_000], "train.sh")
    yield from ()


KINDS: Mapping[str, Kind] = {
    "records": records,
    "commands": commands,
    "folders": folders,
    "logs": logs,
    "scripts": scripts,
    "patterns": patterns,
}
"""Kinds of inputs by name."""


def findings(kind: str, seed: int) -> list[str]:
    """Return the findings of one input; a clear refusal is none."""
    began, found = time.process_time(), []
    with tempfile.TemporaryDirectory(prefix="strangers-", ignore_cleanup_errors=True) as name:
        try:
            found += KINDS[kind](Draw(f"{kind} {seed}"), Path(name))
        except PipetteError as error:
            found += [f"refuses in several lines: {error}"] if "\n" in str(error) else []
        except Exception:
            found.append(" | ".join(traceback.format_exc().strip().splitlines()[-3:]))
    seconds = time.process_time() - began
    return [*found, *([f"took {seconds:.1f} s"] if seconds > SECONDS else [])]


def main() -> int:
    """Draw inputs until the time is over; print the findings and how many inputs of each kind were tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first input of each kind")
    parser.add_argument("--kind", choices=list(KINDS), help="only this kind, and with --minutes 0 only this seed")
    given = parser.parse_args()
    tried, wrong, seed = Counter[str](), 0, given.seed
    end_s = time.monotonic() + 60 * given.minutes
    while seed == given.seed or time.monotonic() < end_s:
        for kind in [given.kind] if given.kind else KINDS:
            tried[kind] += 1
            for problem in findings(kind, seed):
                wrong += 1
                print(f"{kind}, seed {seed}: {problem}", flush=True)
        seed += 1
    print(f"\n{', '.join(f'{number} {kind}' for kind, number in tried.items())}; {wrong} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
