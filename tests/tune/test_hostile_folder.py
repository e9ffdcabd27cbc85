"""A folder of ``tune`` that somebody else wrote: its records, links and processes are judged before they count."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest
from factories import make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.specs import DEFAULT_STACK, Instance
from pipette_opt.tune import launch, process
from pipette_opt.tune.folder import IN_USE, JOB, OWN_PLAN, RECORD, TrialRecord, TuneFolder
from pipette_opt.tune.jobs import check_record, least_time_s
from pipette_opt.tune.process import Process

VALUES = ("/a b;c/plan.json", "x;touch owned", "$(touch owned)", "`touch owned`", "it's", 'a"b', "a\nb", "n[1-4]", "*")
"""Values of placeholders that a shell would not take as a word."""

RECORDED = TrialRecord(
    trial=1,
    status="timed",
    config=make_config(tp=2, dp=4),
    predicted_s=1.0,
    least_s=0.1,
    fits=0.9,
    hosts=("n0", "n1"),
    started=5.0,
    time_s=1.1,
)


def instance() -> Instance:
    """A tiny model on two hosts."""
    return make_job(make_cluster(2, gpus=4), launcher="slurm", stack=DEFAULT_STACK)


def values(value: str) -> dict[str, str]:
    """Every placeholder with the same value."""
    return dict.fromkeys(launch.PLACEHOLDERS, value)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_one_word_of_the_shell(value: str, tmp_path: Path) -> None:
    """Behind bare text and whole quotes, a program gets exactly the value."""
    for text in ("printf %s {hosts}", "A='b c' printf %s {plan}", 'printf %s "$HOME" > x; printf %s {dir}'):
        done = subprocess.run(
            ["sh", "-c", launch.command(text, values(value))], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert done.stdout == value
    assert not (tmp_path / "owned").exists()


def test_random_places_never_let_the_shell_read_a_value(tmp_path: Path) -> None:
    """Wherever a placeholder stands, its value starts nothing: it is a word, or the command is refused."""
    draw, refused = Random(0), 0
    parts = ("'", '"', "\\", "$(", ")", "`", "#", "<<E", "\n", " ", "a", "$'", "E\n", "echo ", "${x:-", "}")
    for _ in range(60):
        before, after = (
            "".join(draw.choices(parts, k=draw.randrange(4))).replace("{", "{{").replace("}", "}}") for _ in "ab"
        )
        try:
            text = launch.command(
                f"true {before}{{dir}}{after}", values(f"x;touch {tmp_path}/owned;$(touch {tmp_path}/owned)")
            )
        except InputError:
            refused += 1
            continue
        subprocess.run(["sh", "-c", text], capture_output=True, check=False, timeout=5)
        assert not (tmp_path / "owned").exists(), text
    assert 10 < refused < 60


def test_values_in_quotes_must_mean_themselves() -> None:
    """Hosts and plain paths may stand in quotes; anything else is refused, with what to write."""
    assert launch.command("srun -w '{hosts}' \"{dir}\"", values("/n[1-2],n4")) == "srun -w '/n[1-2],n4' \"/n[1-2],n4\""
    with pytest.raises(InputError, match=r"--run: {plan} is '/a b', .* write {plan} without quotes"):
        launch.command('sh "{plan}"', values("/a b"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hosts": ("x;touch owned",)}, "hosts must be different hosts of the job's cluster"),
        ({"hosts": ()}, "hosts must be"),
        ({"time_s": 1e-9}, "time_s must be at least"),
        ({"predicted_s": 1e-9}, "predicted_s must be at least"),
        ({"peak_bytes": 1e17}, "peak_bytes must be at most"),
        ({"config": make_config(tp=2, dp=400)}, "config must have at most as many ranks as the GPUs of 2 hosts"),
        ({"config": make_config(tp=1, dp=2, mbs=64)}, "config is not legal"),
    ],
)
def test_records_are_judged_by_the_job(changes: dict[str, object], problem: str) -> None:
    """A record that cannot be of the job is refused, whoever wrote it."""
    check_record(instance(), RECORDED, "trial.json")
    with pytest.raises(InputError, match=problem):
        check_record(instance(), replace(RECORDED, **changes), "trial.json")  # type: ignore[arg-type]
    assert 0 < least_time_s(instance(), 8) < 0.1


WRONG: tuple[object, ...] = ([], {}, None, "x", -1, 1e300, float("nan"), [[[1]]], {"a": 1}, True, 10**30)


def wrong_records() -> Iterator[str]:
    """Records with a field of another type, out of its range, unknown or missing; texts that are no record."""
    right = asdict(RECORDED)
    for name in right:
        for value in WRONG:
            yield json.dumps(right | {name: value}, default=str)
    yield json.dumps(right | {"other": 1})
    yield json.dumps(right | {"status": "started"})
    yield json.dumps(right | {"trial": 7})
    yield from ("[" * 100_000, "", "\x00", '{"trial": 1, "trial": 1}', "null", '"trial"')


def test_damaged_records_are_one_line(tmp_path: Path) -> None:
    """Each is an ``InputError`` that names the file, or a record that the type allows; never a traceback."""
    folder = TuneFolder(tmp_path)
    said: list[str] = []
    folder.trial(1).mkdir()
    for text in wrong_records():
        (folder.trial(1) / RECORD).write_text(text)
        try:
            folder.records()
            said.append("")
        except InputError as error:
            said.append(str(error))
    assert all("trial-001/trial.json: " in text and "\n" not in text for text in said if text)
    assert 0 < said.count("") < 20  # nothing for what may be missing, and texts for notes


def test_links_are_refused(tmp_path: Path) -> None:
    """Neither a folder nor a file that tune writes may be a link; the file behind it stays as it was."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for name in (JOB, IN_USE, OWN_PLAN):
        state = tmp_path / f"state-{name}"
        state.mkdir()
        (state / name).symlink_to(kept)
        with (
            pytest.raises(InputError, match="is a symbolic link, which tune does not follow"),
            TuneFolder(state).locked({}),
        ):
            pass
    folder = TuneFolder(tmp_path / "state")
    folder.trial(1).mkdir(parents=True)
    (folder.trial(1) / RECORD).symlink_to(kept)
    for use in (folder.records, lambda: folder.write(RECORDED)):
        with pytest.raises(InputError, match="is a symbolic link"):
            use()
    (tmp_path / "other").mkdir()
    folder.trial(2).symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match="is a symbolic link"):
        launch.start("true", folder.trial(2))
    assert kept.read_text() == "kept"


def test_files_of_a_start_are_new(tmp_path: Path) -> None:
    """Links and hard links in place of log, lock and exit code are removed, not written through."""
    kept, folder = tmp_path / "kept", tmp_path / "trial"
    kept.write_text("kept")
    folder.mkdir()
    (folder / launch.OUTPUT).hardlink_to(kept)
    for name in (launch.LOCK, launch.EXIT, f"{launch.EXIT}.part"):
        (folder / name).symlink_to(kept)
    launch.start("echo done", folder)
    while launch.exit_code(folder) is None:
        time.sleep(0.01)
    assert (kept.read_text(), (folder / launch.OUTPUT).read_text()) == ("kept", "done\n")


@pytest.mark.parametrize(
    "change", [{"host": "other"}, {"boot": "other"}, {"begun": "1"}, {"pid": 1}, {"pid": 0}, {"pid": -1}]
)
def test_only_the_own_process_is_ended(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another host, boot or start, or number 1 and below, is not ended, and its jobs are named."""
    monkeypatch.setattr(launch, "GRACE_S", 1.0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    launch.start("echo Submitted batch job 41; sleep 60", tmp_path)
    while not (tmp_path / launch.OUTPUT).read_text():
        time.sleep(0.01)
    right = json.loads((tmp_path / launch.LOCK).read_text())
    (tmp_path / launch.LOCK).write_text(json.dumps(right | change))
    said = launch.stop(tmp_path)
    assert said.startswith("not stopped, as ")
    assert said.endswith("; Slurm job 41 may still run")
    assert launch.is_running(tmp_path)
    (tmp_path / launch.LOCK).write_text(json.dumps(right))
    launch.stop(tmp_path)
    assert not launch.is_running(tmp_path)


def test_a_record_of_another_process_ends_none(tmp_path: Path) -> None:
    """A record that is right in all of its fields, about a process that was started elsewhere: nothing ends."""
    launch.start("sleep 30", tmp_path)
    right = (tmp_path / launch.LOCK).read_text()
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        (tmp_path / launch.LOCK).write_text(Process.of(bystander.pid).text())
        assert launch.stop(tmp_path) == f"not stopped, as process {bystander.pid} is gone, or another one"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        (tmp_path / launch.LOCK).write_text(right)
        launch.stop(tmp_path)


def test_a_process_is_known_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The leader of a group is itself in its folder; in another folder, and once it has ended, it is not."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True, cwd=tmp_path)
    own = Process.of(child.pid)
    assert not own.why_another(tmp_path)
    assert own.why_another(tmp_path.parent) == f"process {child.pid} is gone, or another one"
    child.kill()
    child.wait()
    assert own.why_another(tmp_path) == f"process {child.pid} is gone, or another one"
    for file in (process.BOOT_ID, Path("/nonexistent")):  # the system without the file is asked by its programs
        monkeypatch.setattr(process, "BOOT_ID", file)
        assert Process.of(os.getpid()).begun == Process.of(os.getpid()).begun != ""


def test_a_pipe_in_place_of_a_record_is_refused(tmp_path: Path) -> None:
    """Writing it would wait for a reader for ever."""
    folder = TuneFolder(tmp_path / "state")
    folder.trial(1).mkdir(parents=True)
    os.mkfifo(folder.trial(1) / RECORD)
    with pytest.raises(InputError, match=r"trial.json: is a device or a pipe"):
        folder.write(RECORDED)
