"""Shipped frameworks can be read, and say where they come from."""

from pathlib import Path

import pytest
import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.memory.framework import Framework, framework_of
from pipette_opt.read.framework import read_framework


@pytest.mark.parametrize("path", sorted(shipped_path("data", "frameworks").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_frameworks(path: Path) -> None:
    """Name, source, kind of peak, error; constants that are constants."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert data["name"] == path.stem
    assert data["source"]
    assert data["error"]
    assert data["peak"] in ("allocated", "reserved", "device")
    framework = framework_of(data["memory"], path.name)
    if path.stem == "megatron-core":
        assert framework == Framework()


def test_nanotron_keeps_what_its_code_keeps() -> None:
    """
    Unfused gates store a quarter to half more; logits in fp32 twice; gradients a second time in buckets.

    Hosts run ahead by about as many buffers as 1024 queued launches hold, with a pipeline and without; the step needs
    what ``Mem Alloc`` after it shows (4 bytes a parameter more than before) and what it works with.
    """
    data = yaml.safe_load(shipped_path("data", "frameworks", "nanotron.yaml").read_text(encoding="utf-8"))
    framework = framework_of(data["memory"])
    assert 0.2 < framework.activations < 0.5
    assert 2 < framework.logit_bytes < 6
    assert 0.5 < framework.gradient_copy_bytes < 2.5
    assert 35 < framework.pile_up_buffers < 70
    assert 35 < framework.run_ahead_buffers < 70
    assert 4 < framework.step_state_bytes < 9
    assert framework.largest_job == 32
    assert len(framework.errors) > 300


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed"])
def test_what_was_not_measured_says_assumed(name: str) -> None:
    """Neither errors nor a largest job, wide bounds, and the word."""
    data = yaml.safe_load(shipped_path("data", "frameworks", f"{name}.yaml").read_text(encoding="utf-8"))
    framework = framework_of(data["memory"])
    assert "Assumed" in data["source"]
    assert not framework.errors
    assert framework.largest_job == 0
    assert framework.spread > 2 * Framework().spread


def test_profiles_are_read_by_name_or_file(tmp_path: Path) -> None:
    """The shipped ones by name, a stack's file by its path."""
    assert read_framework("megatron-core") == Framework()
    path = tmp_path / "stack.yaml"
    path.write_text("name: ours\nmemory: {activations: 0.25, spread: 0.04}\n", encoding="utf-8")
    assert read_framework(path) == Framework(activations=0.25, spread=0.04)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: ours\n", "no block 'memory'"),
        ("- 1\n", "no block 'memory'"),
        ("memory: {activations: much}\n", "memory.activations must be a number"),
        ("memory: {activations: true}\n", "memory.activations must be a number"),
        ("memory: {activation: 0.2}\n", "no constant activation"),
        ("memory: {counted: -1}\n", "counted must be >="),
        ("memory: {logit_bytes: .inf}\n", "logit_bytes must be"),
        ("memory: {", "not valid YAML"),
    ],
)
def test_wrong_profiles_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file and the constant."""
    path = tmp_path / "stack.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_framework(path)
    assert "stack.yaml" in str(caught.value)


def test_unknown_profiles_are_refused() -> None:
    """With what there is."""
    with pytest.raises(InputError, match="nanotron"):
        read_framework("nanotronn")
