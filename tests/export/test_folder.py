"""The folder of an export: files of others stay."""

import sys
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.export.folder import write_folder

FILES = {"launch.sh": "srun\n", "nodes.txt": "n1\n"}


def texts(folder: Path) -> dict[str, str]:
    """Content of the files of a folder that are not hidden."""
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}


def test_own_files_are_replaced(tmp_path: Path) -> None:
    """A second export goes where the first did."""
    write_folder(tmp_path / "new", FILES)
    write_folder(tmp_path / "new", {**FILES, "nodes.txt": "n2\n"})
    assert texts(tmp_path / "new") == {"launch.sh": "srun\n", "nodes.txt": "n2\n"}


@pytest.mark.parametrize(("exported", "said"), [(False, "did not write it"), (True, "was changed since")])
def test_files_of_others_stay(tmp_path: Path, exported: bool, said: str) -> None:
    """Refused before anything is written, unless it is forced."""
    if exported:
        write_folder(tmp_path, FILES)
    (tmp_path / "nodes.txt").write_text("mine")
    before = texts(tmp_path)
    with pytest.raises(InputError, match=said):
        write_folder(tmp_path, {"launch.sh": "other", "nodes.txt": "n2"})
    assert texts(tmp_path) == before
    write_folder(tmp_path, FILES, force=True)
    assert texts(tmp_path) == FILES


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """Even where no name collides; what was exported there once may have other files beside it."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="has 1 file that export did not write: 'notes"):
        write_folder(tmp_path, FILES)
    assert texts(tmp_path) == {"notes.txt": "mine"}
    write_folder(tmp_path, FILES, force=True)
    write_folder(tmp_path, FILES)
    assert texts(tmp_path) == FILES | {"notes.txt": "mine"}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["nodes.txt", ".pipette-opt-export.json"])
def test_no_link_is_followed(tmp_path: Path, force: bool, name: str) -> None:
    """A link in the folder may lead to any file of the user."""
    (folder := tmp_path / "launch").mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / name).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="is a symbolic link"):
        write_folder(folder, FILES, force=force)
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (folder / "launch.sh").exists()


def test_a_damaged_record_protects(tmp_path: Path) -> None:
    """Files are then taken for those of others."""
    write_folder(tmp_path, FILES)
    (tmp_path / ".pipette-opt-export.json").write_text("{")
    with pytest.raises(InputError, match="did not write it"):
        write_folder(tmp_path, FILES)


def test_an_export_that_was_killed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two files of it, each is an older or a newer one, and none is somebody else's."""
    write_folder(tmp_path, {"a.sh": "old", "b.sh": "old"})

    def killed(contents: dict[Path, str]) -> None:
        (tmp_path / "a.sh").write_text(contents[tmp_path / "a.sh"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(vars(sys.modules[write_folder.__module__]), "write_together", killed)
        with pytest.raises(KeyboardInterrupt):
            write_folder(tmp_path, {"a.sh": "new", "b.sh": "new"})
    write_folder(tmp_path, {"a.sh": "newer", "b.sh": "newer"})
    assert (tmp_path / "b.sh").read_text() == "newer"
