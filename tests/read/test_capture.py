"""What a script would have started, found by running it with stand-ins for its launchers."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.capture import captured as capturing
from pipette_opt.read.capture import guard
from pipette_opt.read.capture.captured import Captured, capture
from pipette_opt.read.capture.stand_in import without_output_files

pytestmark = pytest.mark.search

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
SCRIPTS = SHARED / "cases" / "scripts"
ARGUMENTS = ("--num-layers", "4", "--bf16")
LINE = " ".join(("pretrain_gpt.py", *ARGUMENTS))

Run = Callable[..., Captured]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a script's text in a folder of its own, with a second for what goes on behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(capturing, "LINGER_S", 2.0)
    monkeypatch.setattr(capturing, "AFTER_START_S", 2.0)

    def captured(text: str, *arguments: str, time_limit_s: float = 60.0, **more: object) -> Captured:
        (tmp_path / "train.sh").write_text(text)
        return capture(["bash", "train.sh", *arguments], time_limit_s=time_limit_s, **more)  # type: ignore[arg-type]

    return captured


def program(folder: Path, name: str, text: str) -> Path:
    """An executable script of the shell."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


STARTS = {
    "plain": f"torchrun --nproc_per_node 8 {LINE}",
    "python": f"python -u {LINE}",
    "python that has a version": f"python3 {LINE}",
    "module of torch": f"python -m torch.distributed.run --nnodes 2 {LINE}",
    "exec": f"exec torchrun {LINE}",
    "command": f"command torchrun {LINE}",
    "env": f"env A=1 torchrun {LINE}",
    "which": f"$(which python) -m torch.distributed.launch {LINE}",
    "stops at errors": f"set -euo pipefail\ntorchrun {LINE}\ntrue",
    "background": f"torchrun {LINE} &\nwait",
    "background that nobody waits for": f"nohup torchrun {LINE} > log &",
    "pipe": f"torchrun {LINE} 2>&1 | tee log",
    "text in a variable": f'run="torchrun {LINE}"\neval $run',
    "function": f"start() {{ torchrun {LINE}; }}\nstart",
    "function of the launcher's name": f'torchrun() {{ command torchrun --nnodes 2 "$@"; }}\ntorchrun {LINE}',
    "alias": f"shopt -s expand_aliases\nalias go='torchrun --nnodes 2'\ngo {LINE}",
    "arrays": "A=(--num-layers 4)\nA+=(--bf16)\ntorchrun pretrain_gpt.py ${A[@]}",
    "srun": f"srun -N 2 --ntasks-per-node 8 python -u {LINE}",
    "srun of a shell": f"srun -N 2 bash -c 'torchrun --node_rank $SLURM_NODEID {LINE}'",
    "srun of a shell with words": "srun bash -c 'torchrun pretrain_gpt.py \"$@\"' name --num-layers 4 --bf16",
    "here document": f"srun bash <<EOF\ntorchrun {LINE}\nEOF",
    "mpirun": f"mpirun -np 16 -x A=1 --mca btl self python {LINE}",
    "mpirun of a shell": f"mpirun -np 2 bash -c 'python {LINE} --rank $OMPI_COMM_WORLD_RANK'".replace(
        " --rank $OMPI_COMM_WORLD_RANK", ""
    ),
    "deepspeed": f"deepspeed --num_gpus 8 {LINE}",
    "accelerate": f"accelerate launch --num_processes 8 {LINE}",
    "ray": f"ray start --head\nray job submit --working-dir . -- python {LINE}\nray stop",
    "submitted text": f"sbatch -N 2 --wrap 'srun python {LINE}'",
    "submitted from standard input": f"sbatch <<EOF\n#!/bin/bash\n#SBATCH -N 2\nsrun python {LINE}\nEOF",
    "hosts by ssh": f"for host in a b; do ssh $host 'cd /nowhere && torchrun {LINE}' & done; wait",
    "hosts by pdsh": f"pdsh -w a,b 'cd /nowhere; A=1 /opt/nowhere/bin/torchrun {LINE} > /dev/null 2>&1'",
    "container": f"docker run --gpus all image bash -c 'cd /w && pip install -e . && torchrun {LINE}'",
    "container of Slurm": f'srun --container-image=i sh -c "cd /w; python -u {LINE}"',
    "shell on a host": f"ssh host \"bash -lc 'nohup env A=1 timeout 1h torchrun {LINE} > /log/x 2>&1 &'\"",
    "text for a host": f"ssh host <<EOF\ncd /nowhere\ntorchrun {LINE} >> log\nEOF",
    "text for a container": f"docker exec c sh -c 'if [[ 2 > 1 ]]; then A=\"1 2\" /opt/bin/python -u {LINE}; fi'",
    "kubectl": f"kubectl apply -f job.yaml\nkubectl exec pod -- nvidia-smi\ntorchrun {LINE}",
    "numactl": f"numactl -m 0 torchrun {LINE}",
    "profiler": f"nsys profile -o out -t cuda torchrun {LINE}",
    "restarted until it works": f"until torchrun {LINE}; do sleep 5; done",
    "port found by Python": f"port=$(python -c 'print(7)')\ntorchrun --master_port $port {LINE}",
    "first host": f"host=$(scontrol show hostnames x | head -n 1)\ntorchrun --master_addr $host {LINE}",
    "preflight": f"srun hostname\nsrun rm -rf important\nmpirun all_reduce_perf -b 8\ntorchrun {LINE}",
}


@pytest.mark.parametrize("text", STARTS.values(), ids=STARTS.keys())
def test_arguments_of_the_program(run: Run, text: str) -> None:
    """However a script starts its program, the arguments are those that bash gives it."""
    found = run(text)
    assert (found.launch.program, found.launch.arguments) == ("pretrain_gpt.py", ARGUMENTS)


def test_launchers_are_in_order(run: Run) -> None:
    """The launchers of nested shells come with their own options."""
    found = run(f"srun -N 2 bash -c 'torchrun --nproc_per_node 8 {LINE}'")
    assert [(starter.name, starter.options) for starter in found.launch.launchers] == [
        ("srun", ("-N", "2")),
        ("torchrun", ("--nproc_per_node", "8")),
    ]
    assert found.launch.num_processes == 16


def test_scripts_behind_launchers(run: Run, tmp_path: Path) -> None:
    """A script that another one submits is run, with its positional arguments and its header's variables."""
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
        "srun bash task.sh $SLURM_NNODES $SLURM_GPUS_PER_NODE $1\n"
    )
    (tmp_path / "task.sh").write_text("torchrun --nnodes $1 --nproc_per_node $2 pretrain_gpt.py --num-layers $3\n")
    found = run("sbatch job.sh 7")
    assert found.launch.arguments == ("--num-layers", "7")
    assert (found.launch.num_nodes, found.launch.num_processes_per_node) == (4, 8)
    assert found.sbatch == {"nodes": "4", "gpus-per-node": "8"}
    assert [(Path(path).name, lines) for path, lines in found.scripts.items()] == [
        ("train.sh", 1),
        ("job.sh", 4),
        ("task.sh", 1),
    ]


def test_submitted_command(run: Run, tmp_path: Path) -> None:
    """The command itself may be one that submits; words behind the script are its positional arguments."""
    (tmp_path / "job.sh").write_text("#SBATCH -N 3\ntorchrun --nnodes $SLURM_NNODES pretrain_gpt.py --num-layers $1\n")
    found = capture(["sbatch", "--exclusive", "job.sh", "6"], time_limit_s=60)
    assert (found.launch.num_nodes, found.launch.arguments) == (3, ("--num-layers", "6"))


def test_header_of_the_script(run: Run) -> None:
    """Variables of a job with the script's header are set, and said."""
    found = run(f"#!/bin/bash\n#SBATCH --gpus-per-node=4\ntorchrun --nproc_per_node $SLURM_GPUS_PER_NODE {LINE}")
    assert found.launch.num_processes_per_node == 4
    assert any("SLURM_GPUS_PER_NODE" in note for note in found.document()["notes"])


def test_variables_that_only_slurm_knows(run: Run) -> None:
    """A job's number and hosts are made up for a script with a header, and said; those of the user win."""
    text = (
        "#!/bin/bash\n#SBATCH -N 2\nset -u\n"
        "host=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
        "torchrun --rdzv_id $SLURM_JOB_ID --master_addr $host train.py"
    )
    found = run(text)
    assert found.launch.launchers[0].values["master-addr"] == "localhost"
    assert "Made up, as no job of Slurm runs: SLURM_JOB_ID=1, SLURM_JOB_NODELIST=localhost." in found.notes
    assert run(text, environment={"SLURM_JOB_ID": "77"}).launch.launchers[0].values["rdzv-id"] == "77"


def test_hosts_are_listed_without_a_cluster(run: Run, tmp_path: Path) -> None:
    """``scontrol`` that is missing, or finds no configuration, does not keep a script from its list of hosts."""
    broken = tmp_path / "slurm" / "scontrol"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho fatal: no configuration >&2\nexit 1\n")
    broken.chmod(0o755)
    text = (
        "hosts=($(scontrol show hostnames 'gpu[01-03]'))\n"
        "torchrun --nnodes ${#hosts[@]} --master_addr ${hosts[2]} train.py"
    )
    values = run(text, environment={"PATH": f"{broken.parent}:{os.environ['PATH']}"}).launch.launchers[0].values
    assert (values["nnodes"], values["master-addr"]) == ("3", "gpu03")


def test_unclear_command_beside_the_launch_is_noted(run: Run) -> None:
    """A launcher's option that is not known matters only where a training program may stand behind it."""
    found = run(f"srun --odd nvidia-smi -L\ntorchrun {LINE}")
    assert found.launch.arguments == ARGUMENTS
    assert any(note.startswith("Not read: srun: unknown option --odd") for note in found.notes)


def test_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script sets is recorded, the user's own environment is not, and no secret is."""
    monkeypatch.setenv("MINE", "1")
    text = (
        "export NCCL_IB_TIMEOUT=19 WANDB_API_KEY=abc HF_TOKEN=def TOKENIZER_PATH=/t GIVEN\n"
        f"mpirun -x A=1 -x WANDB_API_KEY=abc python {LINE}"
    )
    found = run(text, environment={"GIVEN": "2"}).document()
    assert found["environment"] == {"NCCL_IB_TIMEOUT": "19", "TOKENIZER_PATH": "/t", "A": "1"}
    assert found["launchers"][0]["options"] == ["-x", "A=1", "-x", "WANDB_API_KEY=..."]
    assert "abc" not in json.dumps(found)
    assert "Left out as secret: HF_TOKEN, WANDB_API_KEY." in found["notes"]


def test_variables_and_arguments_of_the_user(run: Run) -> None:
    """``--env`` and words behind the script are its own."""
    found = run('torchrun pretrain_gpt.py --num-layers $L --x "$1"', "a b", environment={"L": "9"})
    assert found.launch.arguments == ("--num-layers", "9", "--x", "a b")


def test_words_are_kept_exactly(run: Run) -> None:
    """Blanks, line ends, empty words and quotes reach the file as bash gives them."""
    found = run("torchrun train.py --a '0.7 x  y' --b '' --c $'two\\nlines' --d \"it's\"")
    assert found.launch.arguments == ("--a", "0.7 x  y", "--b", "", "--c", "two\nlines", "--d", "it's")


def test_absolute_path_never_runs(run: Run, tmp_path: Path) -> None:
    """A launcher by its path, or before the stand-ins on the path, is stopped before its first step, and recorded."""
    program(tmp_path / "bin", "torchrun", f"touch {tmp_path}/trained")
    for text in (
        f"{tmp_path}/bin/torchrun {LINE}",
        f"PATH={tmp_path}/bin:$PATH\ntorchrun {LINE}",
        f"export PATH={tmp_path}/bin:$PATH; exec torchrun {LINE}",
        f"env PATH={tmp_path}/bin:$PATH torchrun {LINE}",
    ):
        if not guard.can_trace():
            with pytest.raises(InputError, match="may find a real launcher"):
                run(text)
            continue
        found = run(text)
        assert found.launch.arguments == ARGUMENTS
        assert any("goes past the stand-ins" in note for note in found.notes)
    assert not (tmp_path / "trained").exists()


def test_real_launchers_of_clusters_never_run(run: Run, tmp_path: Path) -> None:
    """A real srun, sbatch or ssh by its path starts nothing either, whatever it would run."""
    for name in ("srun", "sbatch", "ssh", "mpirun"):
        program(tmp_path / "bin", name, f"touch {tmp_path}/started")
        with pytest.raises(InputError, match=r"without starting|ended with status|may find a real launcher"):
            run(f"{tmp_path}/bin/{name} something here\ntrue")
    assert not (tmp_path / "started").exists()


def test_without_tracing_such_a_script_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes cannot be traced, a script that may go past the stand-ins is not run; any other is."""
    monkeypatch.setattr(guard, "_seize", lambda _: False)
    with pytest.raises(InputError, match=r"train\.sh, line 2: '/usr/bin/python .* may find a real launcher"):
        run(f"# /usr/bin/python\n/usr/bin/python {LINE}")
    with pytest.raises(InputError, match="line 1: 'source venv/bin/activate' may find a real launcher"):
        run("source venv/bin/activate")
    assert run(f"torchrun {LINE} & wait").launch.arguments == ARGUMENTS


def test_python_that_does_not_train_is_real(run: Run, tmp_path: Path) -> None:
    """Python itself computes what a script asks it for."""
    (tmp_path / "count.py").write_text("print(6)")
    found = run(
        "a=$(python -c 'print(4)'); b=$(python count.py); c=$(echo 'print(5)' | python -)\n"
        "torchrun train.py --lr $a --x $b --y $c"
    )
    assert found.launch.arguments == ("--lr", "4", "--x", "6", "--y", "5")


def test_other_hosts_and_containers_get_no_command(run: Run, tmp_path: Path) -> None:
    """A text for another place runs no command here, neither by name nor by path."""
    mark = program(tmp_path / "bin", "mark", f"touch {tmp_path}/touched")
    (tmp_path / "kept").write_text("kept")
    text = f"touch {tmp_path}/touched; {mark}; echo x > {tmp_path}/kept; kill $$; python -c 1; torchrun {LINE}"
    found = run(f"ssh host '{text}'")
    assert found.launch.arguments == ARGUMENTS
    assert not (tmp_path / "touched").exists()
    assert (tmp_path / "kept").read_text() == "kept"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > log 2>&1 | tee x", "a   | tee x"),
        ("a >log; b >>x 2>/dev/null &", "a ; b   &"),
        ("echo 'x > y' \"> z\" > f", "echo 'x > y' \"> z\" "),
        ("a &> 'b c' && d < e", "a  && d < e"),
        ("[[ a > b ]] && (( 2 > 1 )) && c >| d", "[[ a > b ]] && (( 2 > 1 )) && c "),
        (r"a \> b >(c)", r"a \> b >(c)"),
    ],
)
def test_output_of_other_places(text: str, expected: str) -> None:
    """Redirections of output are dropped, comparisons and quoted words are kept."""
    assert without_output_files(text) == expected


def test_script_that_is_no_program(run: Run, tmp_path: Path) -> None:
    """A script without its shell is given to bash; settings before it are variables."""
    (tmp_path / "go.sh").write_text("torchrun train.py --lr $LR\n")
    assert capture(["LR=2", "go.sh"], time_limit_s=60).launch.arguments == ("--lr", "2")


@pytest.mark.parametrize("command", [[], ["A=1"]])
def test_no_command(command: list[str]) -> None:
    """Settings alone are no command."""
    with pytest.raises(InputError, match="needs a command after --"):
        capture(command)


def test_same_launch_on_several_hosts_is_one(run: Run) -> None:
    """Only launchers' options differ between hosts."""
    found = run(f"for n in 0 1 2; do ssh h$n torchrun --node_rank $n {LINE} & done; wait")
    assert found.num_starts == 3


def test_two_programs_are_refused_unless_one_is_chosen(run: Run) -> None:
    """Both are shown with what differs."""
    text = "torchrun train.py --lr 1 --a\ntorchrun train.py --lr 2 --a"
    with pytest.raises(InputError, match=r"starts 2 training programs.* 1: train\.py --lr 1; 2: train\.py --lr 2\."):
        run(text)
    assert run(text, which=2).launch.arguments == ("--lr", "2", "--a")
    with pytest.raises(InputError, match="--which: must be from 1 to 2"):
        run(text, which=3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exit 1", "ended with status 1 before it started a training program"),
        (
            "import_it() { echo \"ModuleNotFoundError: No module named 'x'\" >&2; exit 1; }; import_it",
            "No module named",
        ),
        ("set -e; missing_program; torchrun train.py", "missing_program: command not found"),
        ("module load cuda\nset -u\necho $NOT_SET", "NOT_SET: unbound variable"),
        ("true", "ended without starting a training program"),
        ("srun nvidia-smi", r"without starting a training program\. Left out: srun nvidia-smi"),
        ("pip list() {", "syntax error"),
        ("kill -9 $$", "ended with status -9"),
        ("srun --odd program --num-layers 3", r"unknown option --odd: is 'program' its value"),
        ("srun --odd program --x y", r"without starting a training program"),
        ("srun bash missing.sh", r"Left out: srun bash missing\.sh"),
    ],
)
def test_scripts_that_start_nothing(run: Run, text: str, problem: str) -> None:
    """The script's own end and its last lines say why."""
    with pytest.raises(InputError, match=problem):
        run(text)


def test_missing_command() -> None:
    """A command that is not there ends as in a shell."""
    with pytest.raises(InputError, match="ended with status 127"):
        capture(["no-such-program-anywhere"])


@pytest.mark.parametrize("text", ["while true; do :; done", "sleep 1000 & wait", "read line < /dev/zero; sleep 1000"])
def test_time_limit(run: Run, text: str) -> None:
    """A script that never starts anything is stopped."""
    began_s = time.monotonic()
    with pytest.raises(InputError, match=r"started no training program in 0\.3 s, and was stopped; give it more with "):
        run(text, time_limit_s=0.3)
    assert time.monotonic() - began_s < 60


def test_script_that_goes_on_after_its_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch counts although the script is stopped later."""
    monkeypatch.setattr(capturing, "AFTER_START_S", 0.1)
    found = run(f"torchrun {LINE}; sleep 1000")
    assert found.status is None
    assert "The script still ran, and was stopped." in found.notes


@pytest.mark.parametrize("is_traced", [True, False])
def test_no_process_and_no_folder_remains(
    is_traced: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Daemons, too, end with the run; the folder of stand-ins is gone."""
    if not is_traced:
        monkeypatch.setattr(guard, "_seize", lambda _: False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(capturing, "LINGER_S", 0.2)
    run(f"(setsid sleep 987 &); nohup sleep 987 & \necho $$ > pid; torchrun {LINE}")
    assert not list((tmp_path / "tmp").iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(int((tmp_path / "pid").read_text()), 0)
    assert not [pid for pid in guard._children() if "987" in guard.words_of(pid)]


def test_launch_in_an_endless_loop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that starts its program again and again is stopped."""
    monkeypatch.setattr(capturing, "MAX_STARTS", 3)
    monkeypatch.setattr(capturing, "AFTER_START_S", 30.0)
    assert run(f"while true; do torchrun {LINE}; done").num_starts >= 3


def test_status_of_a_script_that_fails_after_its_start(run: Run) -> None:
    """The launch counts, and the status is said."""
    found = run(f"torchrun {LINE}; echo too bad >&2; exit 3")
    assert found.status == 3
    assert "The script ended with status 3: too bad." in found.notes


def test_programs_that_this_machine_lacks_are_said(run: Run) -> None:
    """A number that a missing program would give is missing in the arguments."""
    found = run("GPUS=$(count-gpus-of-nowhere -L | wc -l)\nseq 100 >&2\ntorchrun --nproc_per_node $GPUS train.py")
    assert any(note.endswith("is missing: count-gpus-of-nowhere.") for note in found.notes)


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason="needs the shared scripts")
@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_shared_scripts(run: Run, name: str) -> None:
    """Every word of the shared scripts' launches is found: the launcher's, the program and its arguments."""
    found = capture(["bash", str(SCRIPTS / name)], time_limit_s=30).launch
    words = [word for starter in found.launchers for word in starter.options]
    expected = (SCRIPTS / f"{name}.argv").read_text().splitlines()
    assert [*words, found.program, *found.arguments] == expected


def test_real_torchrun_is_not_started(run: Run, tmp_path: Path) -> None:
    """The launcher of torch, by its path or first on the path, starts nothing."""
    torchrun = shutil.which("torchrun")
    if torchrun is None or not guard.can_trace():
        pytest.skip("needs torchrun on the path, and Linux")
    (tmp_path / "pretrain_gpt.py").write_text(f"open({str(tmp_path / 'trained')!r}, 'w')")
    for text in (
        f"{torchrun} --standalone {LINE}",
        f"PATH={Path(torchrun).parent}:$PATH\ntorchrun --standalone {LINE}",
    ):
        found = run(text)
        assert found.launch.arguments == ARGUMENTS
        assert [starter.name for starter in found.launch.launchers] == ["torchrun"]
    assert not (tmp_path / "trained").exists()
