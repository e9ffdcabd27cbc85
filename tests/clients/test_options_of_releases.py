"""The table of options against the packages: a new option of Megatron fails here, not at a user's."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from megatron_sources import (
    ARGUMENTS,
    CONFIGS,
    Source,
    config_fields,
    options_of,
    parsed,
    source_of_folder,
    source_of_wheel,
)

from pipette_opt.read.megatron_table import field_of, megatron_options, table_rows

pytestmark = pytest.mark.client("megatron.core")

RELEASES = ("0.16.1", "0.17.0", "0.18.0", "0.19.0")

PIP = (
    *("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "0", "--timeout", "10"),
    *("--python-version", "3.13", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_24_x86_64"),
)
"""A wheel for a Python that all releases know, whichever runs the test."""


def known_fields() -> set[str]:
    """``Class.field`` of all rows."""
    return {field.strip() for row in table_rows() for field in row["config_field"].split(",")}


def check(source: Source) -> None:
    """Every field and every option has a row, and takes values or none as the row says."""
    assert config_fields(source) - known_fields() == set()
    options = options_of(source) if ARGUMENTS in source.modules else {}
    known = megatron_options()
    assert [name for name in options if field_of(name) not in known] == []
    flags = {name for name, kind in options.items() if kind == "flag"}
    assert [name for name in options if (known[field_of(name)].kind == "flag") != (name in flags)] == []


def test_the_installed_package() -> None:
    """Whatever release is here."""
    spec = find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    check(source_of_folder(Path(spec.origin).parents[2]))


@pytest.mark.parametrize("release", RELEASES)
def test_releases(release: str, tmp_path: Path) -> None:
    """The wheels of the package registry; from 0.17 on they hold the training arguments, too."""
    command = [sys.executable, *PIP, "--dest", str(tmp_path), f"megatron-core=={release}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"megatron-core {release} cannot be downloaded: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("*.whl")
    source = source_of_wheel(wheel)
    assert (ARGUMENTS in source.modules) == (release != "0.16.1")
    check(source)


def test_what_the_table_lacks_fails() -> None:
    """A new option, a new field, and a flag that takes a value now."""
    fields = "".join(f"class {name}:\n    some_new_field: int = 0\n" for name in CONFIGS)
    new = parsed({ARGUMENTS: "parser.add_argument('--some-new-option', type=int)", "config.py": fields})
    assert config_fields(new) - known_fields() == {f"{name}.some_new_field" for name in CONFIGS}
    for text in ("parser.add_argument('--some-new-option', type=int)", "parser.add_argument('--bf16', type=int)"):
        with pytest.raises(AssertionError):
            check(parsed({ARGUMENTS: text, "config.py": "".join(f"class {name}:\n    pass\n" for name in CONFIGS)}))
