"""Weights files that would take memory, run code, or are no network: each is one line, at once."""

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.memory.weights import read_weights


def array(values: object, **options: object) -> bytes:
    """Bytes of a ``.npy`` file."""
    file = io.BytesIO()
    np.save(file, np.array(values), **options)  # type: ignore[arg-type]
    return file.getvalue()


def archive(members: dict[str, bytes]) -> bytes:
    """Bytes of a compressed ``.npz`` file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


HUGE = array(np.zeros((1, 8))).replace(b"(1, 8), }", b"(10**9,)}").replace(b"(10**9,)}", b"(1000000000, 8)}")

FILES = {
    "a bomb": archive({"mean.npy": b"\0" * (65 << 20)}),
    "many arrays": archive({f"a{n}.npy": array(1.0) for n in range(100)}),
    "a header beyond the data": archive({"mean.npy": HUGE}),
    "a pickle": archive({"mean.npy": array([{}], allow_pickle=True)}),
    "no array": archive({"mean.npy": b"hello"}),
    "an array alone": array(1.0),
    "a bare pickle": b"\x80\x04\x95",
    "nothing": b"",
    "half a file": shipped_path("models", "memory.npz").read_bytes()[:3000],
}


@pytest.mark.parametrize("name", FILES)
def test_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """Before any array is made."""
    (tmp_path / "w.npz").write_bytes(FILES[name])
    tracemalloc.start()
    with pytest.raises(InputError, match="is no readable weights file") as found:
        read_weights(tmp_path / "w.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    assert "\n" not in str(found.value)
