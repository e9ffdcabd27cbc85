"""Published JSON Schemas of what users write: clusters and stacks."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read import cluster, gpu_matrices, gpus, inter_node, levels
from pipette_opt.read.cluster import cluster_document, parse_cluster, read_cluster
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.stack import CONSTANTS, OTHERS

jsonschema = pytest.importorskip("jsonschema", reason="the jsonschema package is not installed")

CLUSTERS = sorted(shipped_path("data", "clusters").glob("*.yaml"))
STACKS = sorted(shipped_path("data", "stacks").glob("*.yaml"))

EVERYTHING: dict[str, Any] = {
    "name": "x",
    "nodes": [
        {"hosts": "gpu[01-02]", "gpu": "h100", "gpus_per_node": 8, "speed": 0.9, "price_per_gpu_hour": 2.5},
        {
            "hosts": ["a", 7],
            "gpu": {
                "name": "new",
                "memory_mib": 80000,
                "memory_bandwidth_gb_per_s": 3000,
                "peak_tflops": {"bf16": 900},
                "host_link_gb_per_s": 50,
                "source": "data sheet",
                "like": "h100-80gb",
                "generation": "hopper",
            },
            "gpus_per_node": 8,
        },
    ],
    "intra_node": {"bandwidth_gb_per_s": 400, "latency_us": 5},
    "inter_node": {"latency_us": 10, "nics": "8x400", "node_bandwidth_gb_per_s": 300},
    "levels": [{"name": "leaf", "hosts": 4, "oversubscription": 2, "latency_us": 20, "scale_up": False}],
}
"""A cluster with nearly every field."""


def validator(name: str) -> Any:
    """Of a published schema, which is checked itself."""
    schema = json.loads(shipped_path("data", "schemas", f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_of_clusters_has_the_readers_fields() -> None:
    """Part by part; a field of one that the other lacks is found."""
    schema = validator("cluster").schema
    parts, own = schema["properties"], schema["$defs"]
    assert set(parts) == set(cluster._TOP)
    assert set(own["node"]["properties"]) == set(cluster._NODE)
    assert set(own["gpu"]["properties"]) == {"name", *gpus.GPU_FIELDS}
    assert set(own["gpu"]["properties"]["peak_tflops"]["properties"]) == set(gpus.PRECISIONS)
    assert own["gpu"]["properties"]["generation"]["enum"] == list(gpus.gpu_generations())
    assert set(own["level"]["properties"]) == set(levels._LEVEL)
    assert parts["levels"]["maxItems"] == levels.MAX_LEVELS
    assert set(parts["intra_node"]["properties"]) == set(cluster._INTRA)
    assert set(parts["intra_node"]["properties"]["matrices"]["items"]["properties"]) == set(gpu_matrices._INSIDE)
    assert set(parts["inter_node"]["properties"]) == set(inter_node.INTER)
    assert set(parts["inter_node"]["properties"]["matrices"]["items"]["properties"]) == set(inter_node._MATRIX)


def test_the_schema_of_stacks_has_the_readers_fields() -> None:
    """Every constant, with its meaning."""
    schema = validator("stack").schema
    parts = schema["properties"]
    assert set(parts) == {*CONSTANTS, *OTHERS}
    assert all(part["description"] for part in parts.values())
    assert parts["origins"]["propertyNames"]["enum"] == [*CONSTANTS, "memory"]


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_shipped_clusters_conform(path: Path) -> None:
    """As they are, and as they are written again with every value."""
    validator("cluster").validate(yaml.safe_load(path.read_text()))
    validator("cluster").validate(json.loads(json.dumps(cluster_document(read_cluster(path)))))


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.stem)
def test_shipped_stacks_conform(path: Path) -> None:
    """Each is valid."""
    validator("stack").validate(yaml.safe_load(path.read_text()))


def damaged(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy with another value; ``...`` takes the field out."""
    document = copy.deepcopy(document)
    *way, last = (int(word) if word.isdigit() else word for word in place.split("."))
    part: Any = document
    for step in way:
        part = part[step]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return document


@pytest.mark.search
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("nodes", ...),
        ("nodes", []),
        ("node", []),
        ("nodes.0.hosts", ...),
        ("nodes.0.hosts", []),
        ("nodes.0.gpus_per_node", 0),
        ("nodes.0.gpus_per_node", 2000),
        ("nodes.0.speed", 1.5),
        ("nodes.0.price_per_gpu_hour", -1),
        ("nodes.1.gpu.memory_mib", 0.5),
        ("nodes.1.gpu.peak_tflops", {}),
        ("nodes.1.gpu.peak_tflops", {"fp12": 3}),
        ("intra_node.bandwidth_gb_per_s", "fast"),
        ("intra_node.latency_us", -1),
        ("inter_node.nics_per_node", 4),
        ("inter_node.node_bandwidth_gb_per_s", 1e9),
        ("inter_node.bandwidth", 10),
        ("levels.0.oversubscription", 0.5),
        ("levels.0.bandwidth_gb_per_s", 10),
        ("levels.0.oversubscription", ...),
    ],
)
def test_the_schema_and_the_reader_refuse_the_same_clusters(place: str, value: Any) -> None:
    """Each damage is refused by both; the whole file is taken by both."""
    check = validator("cluster")
    check.validate(EVERYTHING)
    assert parse_cluster(EVERYTHING, "x.yaml", Path()).num_nodes == 4
    wrong = damaged(EVERYTHING, place, value)
    assert not check.is_valid(wrong)
    with pytest.raises(InputError, match=r"x\.yaml"):
        parse_cluster(wrong, "x.yaml", Path())


@pytest.mark.parametrize(
    ("field", "value"),
    [("streaming", 1.5), ("kernel_s", -1), ("kernel_s", "fast"), ("kernels", 1), ("origins", {"kernel_s": "guessed"})],
)
def test_the_schema_and_the_reader_refuse_the_same_stacks(field: str, value: Any, tmp_path: Path) -> None:
    """Each is refused by both, with the name of the field."""
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump({field: value}))
    assert not validator("stack").is_valid({field: value})
    with pytest.raises(InputError, match=field):
        read_stack(path)
