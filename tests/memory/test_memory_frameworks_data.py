"""Shipped frameworks can be read, and say where they come from."""

from pathlib import Path

import pytest
import yaml

from pipette_opt.memory.framework import Framework, framework_of
from pipette_opt.shipped import shipped_path


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
    """Unfused gates store a quarter to half more; logits in fp32 twice; gradients a second time in buckets."""
    data = yaml.safe_load(shipped_path("data", "frameworks", "nanotron.yaml").read_text(encoding="utf-8"))
    framework = framework_of(data["memory"])
    assert 0.2 < framework.activations < 0.5
    assert 2 < framework.logit_bytes < 6
    assert 0.5 < framework.gradient_copy_bytes < 2.5
    assert 1 < framework.pile_up_buffers < 3
