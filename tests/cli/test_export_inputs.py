"""``export`` refuses a plan whose files have changed since it was made."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_plan

from pipette_opt.cli import main
from pipette_opt.read.cluster import matrix_files, read_cluster
from pipette_opt.read.files import sha256_of
from pipette_opt.report.plan_file import write_plan

CLUSTER = """
nodes: [{hosts: "n[0-4]", gpu: a100-80gb, gpus_per_node: 4}]
intra_node: {bandwidth_gb_per_s: 200}
inter_node: {matrices: [{file: links.csv, concurrent_flows: 1}]}
"""
LINKS = "x,n0,n1,n2,n3,n4\n" + "".join(
    f"n{i}," + ",".join("" if i == j else "20" for j in range(5)) + "\n" for i in range(5)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan, its cluster file, its links and its profile."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("cluster.yaml", CLUSTER), ("links.csv", LINKS), ("profile.csv", "one\n")):
        Path(name).write_text(text)
    read_cluster("cluster.yaml")
    assert matrix_files("cluster.yaml") == ["links.csv"]
    plan = make_plan()
    inputs = {
        **plan.inputs,
        "cluster": {
            "path": "cluster.yaml",
            "sha256": sha256_of("cluster.yaml"),
            "matrices": {"links.csv": sha256_of("links.csv")},
        },
        "profile": {"path": "profile.csv", "sha256": sha256_of("profile.csv")},
    }
    write_plan(replace(plan, inputs=inputs), "plan.json")
    return tmp_path


def export(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["pipette-opt", "export", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to say."""
    assert export(monkeypatch, "plan.json", "-f", "slurm", "-o", "launch") == 0
    assert "not there" not in capsys.readouterr().err
    assert (folder / "launch" / "job.sbatch").exists()


@pytest.mark.parametrize("name", ["cluster.yaml", "links.csv", "profile.csv"])
def test_changed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused, and the message names the file and both hashes; nothing is written."""
    was = sha256_of(name)
    with (folder / name).open("a") as file:
        file.write("\n")
    assert export(monkeypatch, "plan.json", "-f", "slurm", "-o", "launch") == 2
    said = capsys.readouterr().err
    assert f"{name}: is not the file that plan.json was made from" in said
    assert was[:12] in said
    assert sha256_of(name)[:12] in said
    assert "solve again" in said
    assert not (folder / "launch").exists()


@pytest.mark.parametrize("name", ["cluster.yaml", "links.csv", "profile.csv"])
def test_missing(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan may travel alone; that nothing could be compared is said."""
    (folder / name).unlink()
    assert export(monkeypatch, "plan.json") == 0
    assert f"{name} does not exist" in capsys.readouterr().err


def test_moved(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``--cluster`` says where the files are now; they are compared there."""
    (folder / "elsewhere").mkdir()
    for name in ("cluster.yaml", "links.csv"):
        (folder / name).rename(folder / "elsewhere" / name)
    assert export(monkeypatch, "plan.json", "--cluster", "elsewhere/cluster.yaml") == 0
    assert "not there" not in capsys.readouterr().err
    (folder / "elsewhere" / "links.csv").write_text(LINKS.replace("20", "21", 1))
    assert export(monkeypatch, "plan.json", "--cluster", "elsewhere/cluster.yaml") == 2
    assert "links.csv" in capsys.readouterr().err


def test_not_expressible(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the field; no container without an image."""
    assert export(monkeypatch, "plan.json", "-f", "torchtitan") == 2
    assert "the shape of no torchtitan llama3 flavor" in capsys.readouterr().err
    assert export(monkeypatch, "plan.json", "-f", "kubernetes") == 2
    assert "--image" in capsys.readouterr().err
    assert export(monkeypatch, "plan.json", "-f", "kubernetes", "--image", "my/image:1") == 0


def test_options_of_the_launch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They reach the files; where they have no effect they are an error, and nothing is written."""
    resource = ("--rdma-resource", "rdma/hca=8", "--host-network")
    assert export(monkeypatch, "plan.json", "-f", "kubernetes", "--image", "my/image:1", *resource) == 0
    said = capsys.readouterr().out
    assert "rdma/hca: '8'" in said
    assert "hostNetwork: true" in said
    assert export(monkeypatch, "plan.json", "-f", "slurm", "-o", "launch", *resource) == 2
    assert "--rdma-resource: has no effect with --format slurm; it applies to kubernetes, pytorchjob" in (
        capsys.readouterr().err
    )
    assert not (folder / "launch").exists()
    assert export(monkeypatch, "plan.json", "-f", "slurm", "--segment", "2", "--partition", "gpu") == 0
    assert "#SBATCH --segment=2" in capsys.readouterr().out
