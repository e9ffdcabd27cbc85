"""Lower bounds of requirements become constraints, and every requirement has one."""

import tomllib

import pytest
from oldest_versions import PYPROJECT, oldest_versions


def test_each_bound_becomes_a_constraint() -> None:
    """Upper bounds and extras do not count."""
    requirements = ["numpy>=1.26", "ortools>=9.12.4544,<10", "mkdocstrings[python]>=0.26"]
    assert oldest_versions(requirements) == ["numpy==1.26", "ortools==9.12.4544", "mkdocstrings==0.26"]


def test_a_requirement_without_a_bound_is_named() -> None:
    """Whatever it has instead of a lower bound."""
    for wrong in ("numpy", "numpy<2", "numpy~=1.26"):
        with pytest.raises(ValueError, match=wrong):
            oldest_versions([wrong])


def test_every_requirement_of_the_package_has_a_lower_bound() -> None:
    """Those that planning needs."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert len(oldest_versions(project["dependencies"])) == len(project["dependencies"])
