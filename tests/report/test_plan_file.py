"""The plan file: what is written is read back, and damage is named."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import make_plan, plan_of, scrambled_plan, small_config, small_instance

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.plans.plan import Band, Plan, RiskChoice, Usual
from pipette_opt.report.plan_file import keep_plan, plan_from_dict, plan_to_dict, read_plan, write_plan


def assert_equal(one: Any, two: Any) -> None:
    """Equal field by field; arrays element by element."""
    if is_dataclass(one):
        assert type(one) is type(two)
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(two, field.name))
    elif isinstance(one, tuple) and one and is_dataclass(one[0]):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            assert_equal(left, right)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, two)
    elif isinstance(one, Mapping):
        assert as_written(one) == as_written(two)
    else:
        assert one == two


def as_written(value: Any) -> Any:
    """Inputs as a file has them: tuples are lists there."""
    return json.loads(json.dumps(value))


PLANS: dict[str, Callable[[], Plan]] = {
    "small": make_plan,
    "scrambled": scrambled_plan,
    "interleaved": lambda: plan_of(
        small_instance(), small_config(virtual_pipeline_model_parallel_size=2, recompute_granularity="selective")
    ),
    "stages inside a host": lambda: plan_of(small_instance(), small_config(), stages_per_host=2),
}


def test_a_plan_that_cannot_be_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long search on a full disk: the error says where its plan is, or only what failed if nothing can be written."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device") as caught:
        keep_plan(make_plan(), "/dev/full")
    kept = next(tmp_path.glob("*/plan.json"))
    assert f"kept in {kept}." in caught.value.problem
    assert_equal(read_plan(kept), make_plan())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no"))
    with pytest.raises(InputError) as caught:
        keep_plan(make_plan(), "/dev/full")
    assert "kept" not in caught.value.problem


@pytest.mark.parametrize("name", PLANS)
def test_written_plan_is_read_back(name: str, tmp_path: Path) -> None:
    """Every field survives, bytes to the byte and floats to the last bit."""
    plan = PLANS[name]()
    write_plan(plan, tmp_path / "plan.json")
    assert_equal(read_plan(tmp_path / "plan.json"), plan)


def test_named_fields() -> None:
    """The names that other programs rely on, at the top and one level down."""
    content = plan_to_dict(make_plan())
    assert content["schema_version"] == 2
    assert {"created", "inputs", "seed", "versions", "launcher", "rank_order", "p2p", "nccl_algorithm"} <= set(content)
    assert content["global_batch_size"] == 64
    assert content["parallel"]["layers_per_stage"] == [4, 4]
    assert content["parallel"]["virtual_pipeline_model_parallel_size"] is None
    assert set(content["certificate"]) == {
        "status",
        "objective_s",
        "lower_bound_s",
        "gap",
        "placement_dependent_s",
        "placement_gap",
        "scope",
        "wall_time_s",
        "num_candidates",
        "num_pruned",
        "searched",
        "not_searched",
        "proof",
        "joint_model",
        "fastest_s",
        "regret",
        "robust",
        "shown_gap",
    }
    assert content["memory"][1]["upper_gib"] == 32.0
    assert content["memory"][1]["extrapolates"] is False
    assert [one["host"] for one in content["unused_hosts"]] == ["n2"]


def test_placement_rows() -> None:
    """By hand: tp 2, dp 4, pp 2; a host holds two replicas of one stage; hosts 3, 0, 4, 1 in grid order."""
    rows = plan_to_dict(make_plan())["placement"]
    assert [rows[rank] for rank in (0, 7, 8)] == [
        {"host": "n3", "local_rank": 0},
        {"host": "n0", "local_rank": 3},
        {"host": "n4", "local_rank": 0},
    ]


def test_file_is_for_people_too(tmp_path: Path) -> None:
    """One rank per line, and no line has hundreds of characters."""
    write_plan(make_plan(), tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert sum('"local_rank"' in line for line in lines) == 16
    assert max(map(len, lines)) < 140


def test_a_band_has_its_middle_as_the_expected_time() -> None:
    """Kept to the last bit, as are the rates that follow from it."""
    band = Band(low_s=2.0, middle_s=5.0, high_s=8.0, share=0.9, source="runs", runs=30)
    plan = make_plan()
    content = plan_to_dict(replace(plan, estimate=replace(plan.estimate, band=band)))
    assert plan_from_dict(content).estimate == replace(plan.estimate, band=band)
    assert content["estimate"]["expected_s"] == 5.0


def test_other_plans_are_in_one_list_by_role() -> None:
    """Each role is read back; data parallelism alone may have a problem in place of a plan."""
    plan = make_plan()
    other, safe = plan.alternatives
    full = replace(
        plan,
        fastest=other,
        listed=replace(other, reason="0.5 % slower"),
        overlapped=replace(other, slots=((1, 0, 2, 3),) * 4),
        usual=Usual(plan=safe),
        risks=(RiskChoice(max_oom_risk=0.01, plan=other), RiskChoice(max_oom_risk=0.001, plan=safe)),
    )
    content = plan_to_dict(full)
    singles = ["fastest", "listed", "overlapped", "usual"]
    roles = [*["next best"] * 2, *singles, *["less risk"] * 2]
    assert [one["role"] for one in content["alternatives"]] == roles
    assert [one["max_oom_risk"] for one in content["alternatives"]] == [*[None] * 6, 0.01, 0.001]
    assert_equal(plan_from_dict(content), full)
    cannot = replace(plan, usual=Usual(plan=None, problem="does not fit"))
    assert plan_from_dict(plan_to_dict(cannot)).usual == cannot.usual


def test_a_plan_of_another_version_is_refused_in_a_line() -> None:
    """Whatever else it has."""
    with pytest.raises(InputError, match=r"^my.json: schema_version is 1, .* reads version 2; solve again.$"):
        plan_from_dict({"schema_version": 1}, "my.json")


def put(content: dict[str, Any], path: str, value: object) -> None:
    """Set ``content`` at a path like ``memory.0.upper_gib``; ``...`` removes."""
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    target: Any = content
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("schema_version", 1, "schema_version"),
        ("schema_version", ..., "schema_version"),
        ("certificate.gap", ..., "certificate.gap"),
        ("certificate.gap", "small", "certificate.gap"),
        ("estimate.iteration_time_s", True, "estimate.iteration_time_s"),
        ("estimate.breakdown.bubble", None, "estimate.breakdown.bubble"),
        ("memory.1.upper_gib", [], r"memory\[1\].upper_gib"),
        ("memory", {}, "memory"),
        ("launcher", "ssh", "launcher"),
        ("rank_order", "dp-pp", "rank_order"),
        ("parallel.pipeline_model_parallel_size", 0, "parallel.pipeline_model_parallel_size"),
        ("parallel.layers_per_stage", [4, 2, 2], "parallel: layers_per_stage must have 2 entries, got 3"),
        ("parallel.tp_comm_overlap", ..., "parallel.tp_comm_overlap"),
        ("global_batch_size", 65, "global_batch_size"),
        ("estimate.band", ..., "estimate.band"),
        ("alternatives.0.role", "best", r"alternatives\[0\].role"),
        ("alternatives.0.max_oom_risk", 0.1, r"alternatives\[0\].max_oom_risk"),
        ("parallel.recompute_granularity", "some", "parallel.recompute_granularity"),
        ("parallel.sequence_parallel", 1, "parallel.sequence_parallel"),
        ("placement.3.host", "nowhere", r"placement\[3\].host"),
        ("placement.3.local_rank", -1, r"placement\[3\].local_rank"),
        ("placement.3", ..., "placement"),
        ("hosts.1", "n0", "hosts"),
        ("unused_hosts.0.reason", ..., r"unused_hosts\[0\].reason"),
        ("alternatives.0.parallel.micro_batch_size", "two", r"alternatives\[0\].parallel.micro_batch_size"),
        ("notes", "text", "notes"),
    ],
)
def test_damage_is_named(path: str, value: object, named: str) -> None:
    """A missing, mistyped or contradicting field gives an error with the file and the field."""
    content = copy.deepcopy(plan_to_dict(make_plan()))
    put(content, path, value)
    with pytest.raises(InputError, match=f"^my.json: {named}"):
        plan_from_dict(content, "my.json")


@pytest.mark.parametrize(
    ("text", "said"), [("", "is empty"), ("{", "is not valid JSON"), ("[1]", "mapping"), ("\udcff", "UTF-8")]
)
def test_unreadable_file(text: str, said: str, tmp_path: Path) -> None:
    """What is not a plan file at all."""
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=said):
        read_plan(path)


def test_no_file(tmp_path: Path) -> None:
    """Reading and writing where nothing can be."""
    with pytest.raises(InputError, match="does not exist"):
        read_plan(tmp_path / "missing.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_plan(make_plan(), tmp_path / "missing" / "plan.json")


def test_schema_names_every_field() -> None:
    """The published schema and the file have the same fields, level by level."""
    schema = json.loads(shipped_path("data", "schemas", "plan.schema.json").read_text())
    compare(schema, plan_to_dict(make_plan()), schema["$defs"], "plan")


def compare(schema: dict[str, Any], value: Any, definitions: dict[str, Any], where: str) -> None:
    """Properties, required fields and the file's fields are one set, in every mapping that the schema closes."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    if isinstance(value, dict) and schema.get("additionalProperties") is False:
        assert set(schema["properties"]) == set(value) == set(schema["required"]), where
        for name, one in value.items():
            compare(schema["properties"][name], one, definitions, f"{where}.{name}")
    elif isinstance(value, list):
        for one in value:
            compare(schema["items"], one, definitions, f"{where}[]")


@pytest.mark.parametrize("name", PLANS)
def test_plan_conforms_to_schema(name: str) -> None:
    """A validator accepts the file, and refuses it when damaged."""
    jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")
    schema = json.loads(shipped_path("data", "schemas", "plan.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    content = json.loads(json.dumps(plan_to_dict(PLANS[name]())))
    validator.validate(content)
    for path, value in (("placement.0.tp", -1), ("certificate.gap", "x"), ("certificate.status", "DONE"), ("p2p", ...)):
        damaged = copy.deepcopy(content)
        put(damaged, path, value)
        assert not validator.is_valid(damaged), path


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Readers of JSON differ in which of two they take, so a person may see another value than was checked."""
    path = tmp_path / "plan.json"
    write_plan(make_plan(), path)
    path.write_text(path.read_text().replace('"seed":', '"seed": 1,\n  "seed":', 1))
    with pytest.raises(InputError, match="'seed' is given twice"):
        read_plan(path)


@pytest.mark.parametrize("host", ["$(touch owned)", "a b", "a\nb", "-rf", ".x", "", "ü"])
def test_a_host_that_no_launcher_could_name_is_refused(host: str) -> None:
    """A stranger's plan cannot bring words into scripts and manifests."""
    content = json.loads(json.dumps(plan_to_dict(make_plan())).replace('"n3"', json.dumps(host)))
    with pytest.raises(InputError, match=r"hosts\[3\]"):
        plan_from_dict(content)
