"""What a script must not start or write during capture, and the secrets that must not be written."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.capture import captured as capturing
from pipette_opt.read.capture import guard
from pipette_opt.read.capture.captured import Captured, capture
from pipette_opt.read.capture.ordinary import unknown_program
from pipette_opt.read.capture.secrets import Secrets

pytestmark = [pytest.mark.search, pytest.mark.skipif(not guard.can_trace(), reason="processes cannot be traced here")]

LAUNCH = "torchrun pretrain_gpt.py --num-layers 4"

FOREIGN = ("docker run --rm img bash -c", "ssh node2", "podman exec c sh -c", "srun --container-image=i bash -c")
"""Beginnings of commands whose text is for another host or a container."""

TRICKS = (
    "{touch} {mark}",
    "exec {touch} {mark}",
    "command {touch} {mark}",
    "builtin command {touch} {mark}",
    "A[0]=1 {touch} {mark}",
    "$(echo {touch}) {mark}",
    "trap - DEBUG; {touch} {mark}",
    "shopt -u extdebug; {touch} {mark}",
    "exec 5<>{mark}",
    "builtin exec 5<>{mark}",
    "echo x >& {mark}",
    "eval 'echo x >' {mark}",
    "V='> {mark}'; eval echo x $V",
    "BASH_CMDS[t]={touch}; t {mark}",
    "hash -p {touch} t; t {mark}",
    "unset PIPETTE_OPT_CAPTURE_DRY; python -c \"open('{mark}', 'w')\"",
    "env -i {touch} {mark}",
    "enable trap; set +r; {touch} {mark}",
    "PATH=/usr/bin:/bin; touch {mark}",
    "export PATH=/usr/bin:$PATH; touch {mark}",
    "f() {{ {touch} {mark}; }}; f",
    "( {touch} {mark} ) & wait",
    "cat <({touch} {mark})",
    "history -s x; history -w {mark}",
    "bash -c '{touch} {mark}'",
    "/bin/bash -c '{touch} {mark}'",
    "echo '{touch} {mark}' | sh",
    ". {mark}.sh",
    "LD_PRELOAD={mark}.so python tool.py",
)
"""Texts that would make the file ``mark`` if a program or a redirection of this machine counted."""


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and a second for what goes on behind the script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capturing, "LINGER_S", 1.0)
    monkeypatch.setattr(capturing, "AFTER_START_S", 1.0)


def run(text: str, **more: object) -> Captured:
    """Capture of a script's text."""
    Path("train.sh").write_text(f"{text}\n")
    return capture(["bash", "train.sh"], time_limit_s=60, **more)  # type: ignore[arg-type]


def test_texts_for_other_places_start_and_write_nothing(tmp_path: Path) -> None:
    """No trick runs a program or makes a file here, by any way into another host or container."""
    touch, mark, draw = shutil.which("touch"), tmp_path / "mark", Random(0)
    Path("mark.sh").write_text(f"{touch} {mark}\n")
    lines = [f"{draw.choice(FOREIGN)} {quoted(trick.format(touch=touch, mark=mark))}" for trick in TRICKS]
    found = run("\n".join([*lines, LAUNCH]))
    assert not mark.exists()
    assert found.launch.arguments == ("--num-layers", "4")


def quoted(text: str) -> str:
    """A text in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def test_a_process_elsewhere_cannot_be_signalled(tmp_path: Path) -> None:
    """``kill`` in a text for another host ends no process here, however it is called."""
    with Path("pid").open("w") as file:
        child = guard.subprocess.Popen(["sleep", "60"])
        file.write(str(child.pid))
    try:
        ways = ("kill", "builtin kill", "command kill", "enable kill; kill", shutil.which("kill") or "kill")
        run("\n".join([*(f"ssh h '{way} -9 {child.pid}'" for way in ways), LAUNCH]))
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_launches_in_such_texts_are_still_found() -> None:
    """Paths, own ``PATH``, traps and output files around a launch do not hide it."""
    for text in (
        f"export PATH=/opt/conda/bin:$PATH; cd /w && {LAUNCH} > log 2>&1",
        f"command /opt/bin/{LAUNCH}",
        f"trap 'echo bye' EXIT; exec /opt/bin/{LAUNCH}",
        f". /opt/env.sh; source activate x; {LAUNCH} | tee log",
        f"set -e; command -v torchrun; {LAUNCH} >> log",
    ):
        assert run(f"ssh h {quoted(text)}").launch.arguments == ("--num-layers", "4")


SUBMITTERS = (
    *("runai submit x", "arena submit pytorch", "vcctl job run", "pjsub job.sh", "msub job.sh", "aprun -n 8 ./a"),
    *("at now", "tune run full_finetune", "nemo llm pretrain", "no-list-names-this go"),
)


@pytest.mark.parametrize("shebang", ["#!/bin/false", "#!/usr/bin/env python3", "#!/usr/bin/env perl"])
def test_programs_that_nothing_says_of_are_stopped_and_named(shebang: str, tmp_path: Path) -> None:
    """Whatever its name, a program that may start a job does not start; with ``allowed`` it does."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for command in SUBMITTERS:
        file = folder / command.split()[0]
        file.write_text(f"{shebang}\nopen('{tmp_path}/started', 'w')\n")
        file.chmod(0o755)
    lines = [f"{folder}/{command}" if draw else command for draw, command in enumerate(SUBMITTERS)]
    found = run("\n".join([f"PATH=$PATH:{folder}", *lines, LAUNCH]))
    assert not Path("started").exists()
    if shebang != "#!/bin/false":
        note = next(note for note in found.notes if note.startswith("Stopped, as they may start a job: "))
        assert "runai" in note
        assert "--allow" in note
    if shebang.endswith("python3"):
        run(f"{folder}/runai submit\n{LAUNCH}", allowed=["runai"])
        assert Path("started").exists()


def test_the_name_that_a_program_is_given_does_not_count(tmp_path: Path) -> None:
    """A program that calls itself ``ls``, and Python that calls itself otherwise, are judged by their files."""
    (tmp_path / "pretrain.py").write_text(f"open('{tmp_path}/trained', 'w')\n")
    copy = tmp_path / "mysubmit"
    shutil.copy(shutil.which("touch") or "", copy)
    python = shutil.which("python3")
    found = run(f"(exec -a ls {copy} {tmp_path}/trained)\n(exec -a ls {python} pretrain.py --num-layers 4)")
    assert found.launch.program == "pretrain.py"
    assert not (tmp_path / "trained").exists()


def test_containers_only_answer(tmp_path: Path) -> None:
    """A container program runs to list, never to start."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (folder / "docker").chmod(0o755)
    text = "docker ps\ndocker compose up\ndocker container run i c\ndocker --context x run i c"
    run(f"{text}\n{LAUNCH}", environment={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert Path("asked").read_text() == "ps\n"


@pytest.mark.parametrize(
    ("words", "ordinary"),
    [
        (["ls"], True),
        (["bash", "x.sh"], True),
        (["python3", "count.py"], True),
        (["python3", "-c", "1"], True),
        (["python3", "/venv/bin/pip", "list"], True),
        (["python3", "/venv/bin/tune", "run"], False),
        (["python3", "-m", "json.tool", "x"], True),
        (["python3", "-m", "nemo", "llm", "pretrain"], False),
        (["perl", "-e", "1"], True),
        (["perl", "/opt/qsub"], False),
        (["runai", "submit"], False),
        (["ld-linux-x86-64.so.2", "/bin/touch"], False),
    ],
)
def test_ordinary_programs(words: list[str], ordinary: bool) -> None:
    """Tools and texts of interpreters are; scripts count by their names."""
    assert (not unknown_program(f"/usr/bin/{words[0]}", words, ())) is ordinary
    allowed = unknown_program(f"/usr/bin/{words[0]}", words, ("tune", "qsub", "runai", "nemo"))
    assert (not allowed) is (ordinary or words[0][:2] != "ld")


def test_no_secret_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of secret variables, URLs with passwords and announced words are dots everywhere in the document."""
    monkeypatch.setenv("MYSQL_PWD", "hunter2-of-user")
    text = (
        "export SSHPASS=hunter2-exported NCCL_DEBUG=INFO PROXY=http://me:hunter2-url@proxy:80\n"
        "sshpass -p hunter2-word ssh h true\n"
        "kubectl --token hunter2-option get pods\ncurl -u me:hunter2-curl http://127.0.0.1:9/ -m 1\n"
        f'{LAUNCH} --db $MYSQL_PWD --x "$SSHPASS" --wandb-api-key hunter2-key --hub hf_hunter2hunter2hunter2'
    )
    Path("train.sh").write_text(text)
    command = ["bash", "train.sh", "--password", "hunter2-given"]
    document = capture(command, time_limit_s=60).document()
    assert "hunter2" not in json.dumps(document)
    assert document["environment"]["NCCL_DEBUG"] == "INFO"
    assert document["arguments"][:4] == ["--num-layers", "4", "--db", "..."]


@pytest.mark.parametrize(
    "text",
    [
        "--key-value-heads 8",
        "--tokenizer-path=/t",
        "--max-tokens=4096",
        "--moe-token-dispatcher-type alltoall",
        "http://host:80/x@y",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Names that only sound alike, and addresses without a password, are kept."""
    assert Secrets().words(text.split()) == text.split()


def test_without_tracing_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes cannot be traced the notes say what is then not judged."""
    monkeypatch.setattr(guard, "_seize", lambda _: False)
    assert any("Processes cannot be traced here" in note for note in run(LAUNCH).notes)


def test_a_stopped_script_names_what_it_would_have_started(tmp_path: Path) -> None:
    """Without a launch, the error names the program and how to allow it."""
    (tmp_path / "runai").symlink_to("/bin/true")
    shutil.copy("/bin/true", tmp_path / "submitit")
    with pytest.raises(InputError, match=r"Stopped, as they may start a job: submitit go[.] To run one, --allow"):
        run(f"{tmp_path}/submitit go")


def test_a_stop_of_the_traced_process_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that reports a stop in the moment before it is killed is killed all the same; it was waited for."""
    started: list[int] = []

    def stopped(self: subprocess.Popen[bytes]) -> int:
        """Return what subprocess makes of a stop."""
        started.append(self.pid)
        self.returncode = -signal.SIGTRAP
        return self.returncode

    def seized(pid: int) -> bool:
        started.append(pid)
        return True

    monkeypatch.setattr(subprocess.Popen, "poll", stopped)
    monkeypatch.setattr(guard, "_seize", seized)

    def expired(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(10)
    try:
        assert guard.can_trace()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
