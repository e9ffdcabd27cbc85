"""``profile`` and ``replan`` as a user runs them."""

import json
import os
from pathlib import Path

import pytest
from commands_here import typed

from pipette_opt.report.plan_file import read_plan

PINNED = ("--tensor-parallel", "8", "--pipeline-parallel", "2", "--micro-batch-size", "1", "--virtual-pipeline", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the ten-host example without its last host."""
    path = tmp_path_factory.mktemp("replan")
    done = typed(path, "solve", "--example", "spares-10x8", "--exclude-hosts", "gpu10", "--gap-limit", "0.5", *PINNED)
    assert done[0] == 0, done[2]
    return path


@pytest.mark.search
def test_replan(folder: Path) -> None:
    """The new plan has the joined and not the lost host, can be verified, and says what is loaded."""
    old = read_plan(folder / "plan.json")
    lost = old.hosts[old.placement.node[0]]
    options = ("--lost", lost, "--joined", "gpu10", "--time-limit", "4", "-o", "new.json", "--moves", "moves.csv")
    code, out, err = typed(folder, "replan", "plan.json", *options, "--json")
    assert code == 0, err
    content = json.loads(out)
    new = read_plan(folder / "new.json")
    assert lost not in new.hosts
    assert "gpu10" in new.hosts
    assert content["iteration_time_s"] == new.estimate.iteration_time_s
    assert content["num_hosts_to_load"] >= 1
    assert len((folder / "moves.csv").read_text().splitlines()) == 1 + len(content["moves"])
    code, _, err = typed(folder, "verify", "new.json")
    assert code == 0, err
    code, out, _ = typed(folder, "estimate", "new.json", "--json")
    assert json.loads(out)["estimate"]["iteration_time_s"] == pytest.approx(new.estimate.iteration_time_s)


@pytest.mark.search
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--lost", "gpu99"), 2, "host 'gpu99' is not among the hosts of the plan"),
        (("--joined", "gpu99"), 2, "host 'gpu99' is not in the cluster file"),
        (("--lost", "gpu[01-09]"), 2, "names every host"),
        (("--joined", "gpu10", "--num-gpus", "999"), 2, "999"),
        (("--cluster", "nowhere.yaml"), 2, "nowhere.yaml"),
        ((), 2, "replan.json: exists and is no plan. Give -o FILE; -o replan.json replaces it."),
    ],
)
def test_wrong_replan(folder: Path, options: tuple[str, ...], code: int, message: str) -> None:
    """Each says what is wrong; a default file of something else stays."""
    (folder / "replan.json").write_text("notes")
    found, _, err = typed(folder, "replan", "plan.json", *options, *(("-o", "new.json") if options else ()))
    assert (folder / "replan.json").read_text() == "notes"
    assert found == code, err
    assert message in err


def test_profile_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, no GPU."""
    import torch

    for variable in [name for name in os.environ if "RANK" in name or "SLURM" in name]:
        monkeypatch.delenv(variable)
    code, _, err = typed(tmp_path, "profile", "links")
    assert code == 2
    assert "must be started on every host by torchrun, srun or mpirun" in err
    if not torch.cuda.is_available():
        code, _, err = typed(tmp_path, "profile", "compute", "--model", "gpt-3-125m", "--seq-length", "64")
        assert code == 2
        assert "torch finds no" in err
    code, _, err = typed(
        tmp_path,
        *("profile", "compute", "--model", "gpt-3-125m", "--seq-length", "16", "--device", "cpu"),
        *("--tensor-parallel", "2,5", "--micro-batch-size", "1", "--repeats", "1", "--precision", "fp32"),
    )
    assert code == 0, err
    assert (tmp_path / "layers.csv").read_text().splitlines()[1].startswith("cpu,2,1,16,")
