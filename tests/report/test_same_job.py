"""A default file keeps the plan of another job."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.report.same_job import check_same_job

INPUTS: dict[str, Any] = {
    "model": {"name": "llama-3-8b", "num_layers": 32},
    "training": {"global_batch_size": 128, "seq_length": 8192, "precision": "bf16", "fp8": False, "optimizer": "adam"},
    "cluster": {"path": "cluster.yaml", "sha256": "a"},
}
NOMINAL = {"document": {"name": "2x8-h100-80gb", "nics": 8}, "options": {"nodes": "2"}}


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Path]:
    """A file with the recorded inputs, some of them changed."""

    def write(**changes: Any) -> Path:
        inputs = {name: {**part, **changes.get(name, {})} for name, part in INPUTS.items()}
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"inputs": inputs}))
        return path

    return write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"name": "gpt"}}, "model gpt, now llama-3-8b"),
        ({"model": {"num_layers": 8}}, "model llama-3-8b with other sizes"),
        ({"training": {"global_batch_size": 64}}, "batch 64, now 128"),
        ({"training": {"seq_length": 64, "fp8": True}}, "sequence length 64, now 8192, fp8 True, now False"),
        ({"cluster": {"path": "old.yaml", "sha256": "b"}}, "machines old.yaml, now cluster.yaml"),
        ({"cluster": NOMINAL}, "machines 2x8-h100-80gb, now cluster.yaml"),
    ],
)
def test_another_job_is_named_by_what_differs(plan: Callable[..., Path], changes: dict[str, Any], said: str) -> None:
    """With the option that replaces the file."""
    path = plan(**changes)
    with pytest.raises(InputError) as refused:
        check_same_job(path, INPUTS)
    assert refused.value.problem == f"is the plan of another job: {said}. Give -o FILE; -o {path} replaces it."


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cluster": {"sha256": "measured again"}},
        {"cluster": {"path": "moved.yaml"}},
        {"model": {"of_an_older_version": 1}},
        {"training": {"optimizer": "from today's launch"}},
    ],
)
def test_a_plan_of_the_job_may_be_replaced(plan: Callable[..., Path], changes: dict[str, Any]) -> None:
    """Also if its cluster was measured again or moved, or today's launch sets other kernels; or without a file."""
    check_same_job(plan(**changes), INPUTS)
    check_same_job(Path("missing.json"), INPUTS)


def test_other_links_are_other_machines(plan: Callable[..., Path]) -> None:
    """Hosts described by options are equal only with equal links."""
    path = plan(cluster=NOMINAL)
    check_same_job(path, {**INPUTS, "cluster": {**INPUTS["cluster"], **NOMINAL}})
    other = {"document": {"name": "2x8-h100-80gb", "nics": 4}}
    with pytest.raises(InputError, match="machines 2x8-h100-80gb with another network"):
        check_same_job(path, {**INPUTS, "cluster": other})


@pytest.mark.parametrize("text", ["", "notes", "[]", '{"inputs": 3}', "\udcff"])
def test_a_file_that_is_no_plan_stays(tmp_path: Path, text: str) -> None:
    """Whatever it is, its user did not give it to be replaced."""
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"exists and is no plan\. Give -o FILE"):
        check_same_job(path, INPUTS)
