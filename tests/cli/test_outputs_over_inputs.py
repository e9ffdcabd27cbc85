"""No command writes over what it read, or over what a file that it read names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import make_plan

from pipette_opt.base.errors import OverwriteError
from pipette_opt.base.files import files_of_run, note_input, write_atomically, write_with_parts
from pipette_opt.report.plan_file import write_plan

Command = Callable[..., tuple[int, str, str]]

LINK_LOG = """
{"pipette_opt_links": 1, "hosts":["a","b"], "gpus_per_node":8, "device_name":"NVIDIA H100 80GB HBM3", "together":false}
{"flows": 1, "sender": "a", "receiver": "b", "bytes_per_s": {"67108864": 40e9}, "latency_s": 1e-5}
{"flows": 1, "sender": "b", "receiver": "a", "bytes_per_s": {"67108864": 40e9}, "latency_s": 1e-5}
""".lstrip()

SCRIPT = """python pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --vocab-size 50304 --micro-batch-size 1 --global-batch-size 16 --bf16
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan that names a cluster file, with a matrix beside that; a script; a log of links under a likely name."""
    (tmp_path / "c.yaml").write_text("nodes: []\n")
    (tmp_path / "m.csv").write_text("1\n")
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "c_links_1.csv").write_text(LINK_LOG)
    write_plan(make_plan(), tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["inputs"]["cluster"] = {"path": "c.yaml", "sha256": "0" * 64, "matrices": {"m.csv": "0" * 64}}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        ("report plan.json -o plan.json", "plan.json"),
        ("report plan.json -o c.yaml", "c.yaml"),
        ("import model train.sh -o train.sh", "train.sh"),
        ("import links c_links_1.csv -o c_links_1.csv", "c_links_1.csv"),
        ("import links c_links_1.csv -o c.yaml", "c_links_1.csv"),
        ("import links c_links_1.csv -o ./sub/../c.yaml", "c_links_1.csv"),
    ],
)
def test_inputs_stay(command: Command, folder: Path, typed: str, target: str) -> None:
    """One line, and no file of the folder is another one."""
    (folder / "sub").mkdir()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, _, err = command(*typed.split())
    assert code == 2
    assert target in err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_files_that_a_plan_names_are_protected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing opened them."""
    from pipette_opt.report.plan_file import read_plan

    with files_of_run():
        read_plan(folder / "plan.json")
        for name in ("c.yaml", "m.csv", "plan.json"):
            with pytest.raises(OverwriteError, match="input file of this command"):
                write_atomically(folder / name, "other")


def test_what_is_replaced_is_said(command: Command, folder: Path) -> None:
    """An older output, but nothing for a new one."""
    typed = ("import", "model", "train.sh", "-o", "model.yaml")
    assert "replaced" not in command(*typed)[2]
    assert "replaced model.yaml" in command(*typed)[2]


def test_matrices_of_others_stay(command: Command, folder: Path) -> None:
    """A file of the name that a matrix would have is replaced only if the older cluster file names it."""
    (folder / "log.txt").write_text(LINK_LOG)
    code, _, err = command("import", "links", "log.txt", "-o", "c.yaml")
    assert code == 2
    assert "c_links_1.csv: exists, but does not belong to c.yaml" in err
    assert (folder / "c.yaml").read_text() == "nodes: []\n"
    assert command("import", "links", "log.txt", "-o", "new.yaml")[0] == 0
    code, _, err = command("import", "links", "log.txt", "-o", "new.yaml")
    assert code == 0
    assert "replaced new_links_1.csv, new.yaml" in err


def test_only_a_run_of_a_command_protects(tmp_path: Path) -> None:
    """A notebook may read a file, and write it later."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    note_input(path)
    write_atomically(path, "new")
    with files_of_run():
        note_input(path)
        with pytest.raises(OverwriteError, match="input file of this command"):
            write_atomically(path, "newer")
    write_atomically(path, "newest")
    assert path.read_text() == "newest"


def test_a_link_to_an_input_is_an_input(tmp_path: Path) -> None:
    """Two names of a file are the same file."""
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    with files_of_run():
        note_input(tmp_path / "a")
        with pytest.raises(OverwriteError, match="input file of this command"):
            write_atomically(tmp_path / "link", "new")
        write_with_parts(tmp_path / "b", "text", {})
        note_input(tmp_path / "b")  # its own output, read back
        write_with_parts(tmp_path / "b", "more", {})
