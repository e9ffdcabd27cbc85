"""Which clients are installed: packages and programs that only some tests need."""

import os
import shutil
from collections.abc import Collection
from importlib import metadata, util

import pytest

MEGATRON_RELEASE = "0.16.1"
"""The megatron-core that our rules are compared with."""


def missing(*modules: str, programs: Collection[str] = ()) -> list[str]:
    """
    Modules and programs that are not here.

    A dotted module is looked up below its package, which is imported for that.
    """
    absent = [name for name in modules if not _is_installed(name)]
    return absent + [name for name in programs if shutil.which(name, path=server_path()) is None]


def require_at_collection(*modules: str) -> None:
    """Skip all tests of the module that is being imported unless these modules are installed."""
    absent = missing(*modules)
    if absent:
        pytest.skip(f"needs {', '.join(absent)}, which .ci/run installs", allow_module_level=True)


def require_megatron_release() -> None:
    """Skip all tests of the module that is being imported unless megatron-core has the release compared with."""
    require_at_collection("megatron.core")
    found = metadata.version("megatron-core")
    if found != MEGATRON_RELEASE:
        pytest.skip(f"needs megatron-core=={MEGATRON_RELEASE}, found {found}", allow_module_level=True)


def server_path() -> str:
    """Where programs are looked for: servers are in folders that a user's path may lack."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _is_installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
