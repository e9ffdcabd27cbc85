"""
Reference page and JSON schema of job files, generated from the declarations of options.

``python -m benchmarks.options_page`` writes ``docs/job.md`` and ``data/schemas/job.schema.json`` of a checkout.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pipette_opt.options.description import (
    Field,
    JobOptions,
    Measured,
    SearchOptions,
    SpaceOptions,
    fields_of,
)
from pipette_opt.options.names import OTHER_NAMES

SECTIONS: Mapping[str, str] = {
    "": "Top level",
    "cluster": "`cluster`",
    "training": "`training`",
    "software": "`software`",
    "parallel": "`parallel`",
    "search": "`search`",
    "measured": "`measured`",
}
"""Sections of a job file in the order of the page, with their headings."""

SECTION_NOTES: Mapping[str, str] = {
    "cluster": "The section may be just the name of a cluster file; beside other keys, `file` names the cluster file.",
    "software": "The section may be just the name of a stack; beside other keys, `software` or `name` names it.",
    "parallel": "Dimensions that the search may choose; each size is a number or a list. `estimate` takes one launch: "
    "each dimension has one value, and any option of Megatron-LM may be added, such as `sequence_parallel: true`.",
    "search": "What `solve` optimises, and its limits; other commands say which of these have no effect on them.",
    "measured": "Runs that predictions start from ([page](measured.md)): a list of words of `--measured`, such as "
    "`measured: [train.sh=98.2s, run.log]`, or `runs: [...]` beside figures of the launch in `launch`. `estimate` sets "
    "these figures beside its prediction; other commands start from them.",
}
"""Notes below the headings of sections."""

HEAD = """# Job files

A job is written once, in a YAML file that `solve`, `estimate`, `explain`, `recommend`, `tune` and
`benchmark solve` take as their argument, and `explain` as `--job`. The same keys are options of these commands
(`--seq-length`; rare ones such as `p2p` have none), arguments of functions
(`pipette_opt.solve(**pipette_opt.read_job("job.yaml"))`), and columns of [`runs.csv`](../data/README.md).
`recommend` and `tune` take the section `parallel` from the file only.

```yaml
model: llama-3.1-70b
cluster: {nodes: 8, gpu: h100, nics: 8x400}
training: {global_batch_size: 512, seq_length: 8192, precision: bf16}
software: megatron-core
parallel: {tensor_model_parallel_size: 8, pipeline_model_parallel_size: 4, micro_batch_size: 1}
measured: {iter_time_s: 98.2}
```

An option on the command line counts before the file, and the command says so. A key that is not known, stands in
another section or has no effect on a command is refused with its place. Files are looked for as written, then beside
the job file.

Made by `python -m benchmarks.options_page`; the schema for editors is `data/schemas/job.schema.json`.
"""


def declared() -> Iterator[tuple[str, Field]]:
    """Yield section and declaration of every field that a job file may hold."""
    for described in (JobOptions, SpaceOptions, SearchOptions):
        for field in fields_of(described).values():
            yield field.option.section, field
    for field in fields_of(Measured).values():
        yield "measured", field


def page() -> str:
    """Return the reference page ``docs/job.md`` as text."""
    parts = [HEAD]
    for section, heading in SECTIONS.items():
        parts.append(f"## {heading}\n")
        if section in SECTION_NOTES:
            parts.append(f"{SECTION_NOTES[section]}\n")
        parts.append("| key | also | value | |\n|---|---|---|---|")
        parts.append("\n".join(_row(field) for own, field in declared() if own == section) + "\n")
    return "\n".join(parts)


def _row(field: Field) -> str:
    others = OTHER_NAMES.get(field.name.replace("_", "-"), ())
    also = ", ".join(f"`{other.replace('-', '_')}`" for other in others)
    text = field.option.help.replace("|", "\\|")
    return f"| `{field.name}` | {also} | {_kind_words(field)} | {text} |"


def _kind_words(field: Field) -> str:
    if field.option.words:
        return ", ".join(f"`{word}`" for word in field.option.words)
    kind = field.plain_kind
    if get_origin(kind) is tuple:
        return "sizes" if int in get_args(kind) else "words"
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "file"}
    return words.get(kind, "list of texts")


def schema() -> dict[str, Any]:
    """Return the JSON schema of a job file (draft 2020-12)."""
    properties: dict[str, Any] = {}
    for section in SECTIONS:
        entries = {
            name: _schema_of(field)
            for own, field in declared()
            if own == section
            for name in (field.name, *(other.replace("-", "_") for other in OTHER_NAMES.get(_dashed(field.name), ())))
        }
        if not section:
            properties |= entries
            continue
        is_open = section == "parallel"  # options of Megatron-LM may stand there
        properties[section] = {"type": "object", "properties": entries, "additionalProperties": is_open}
    for section, other in (("cluster", "file"), ("software", "name")):
        properties[section]["properties"][other] = {"type": "string"}
        properties[section] = {"anyOf": [{"type": "string"}, properties[section]]}
    runs = properties["measured"]["properties"]["measured_runs"]
    properties["measured"]["properties"]["runs"] = runs
    properties["measured"] = {"anyOf": [runs, properties["measured"]]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job of pipette-opt",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
    }


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _schema_of(field: Field) -> dict[str, Any]:
    kind, option = field.plain_kind, field.option
    plain: dict[Any, dict[str, Any]] = {
        int: {"type": "integer"},
        float: {"type": "number"},
        bool: {"type": "boolean"},
        str: {"type": ["string", "number"]},
        Path: {"type": "string"},
    }
    if option.words:
        found: dict[str, Any] = {"enum": list(option.words)}
    elif get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        each = {"type": "integer", "minimum": 1} if inner is int else {"type": ["string", "null"]}
        found = {"anyOf": [each, {"type": "string"}, {"type": "array", "items": each}]}
    elif get_origin(kind) is list:
        found = {"type": ["string", "number", "array", "object"]}
    else:
        found = dict(plain[kind])
    if option.minimum is not None:
        found["minimum"] = option.minimum
    if isinstance(field.kind, UnionType) and NoneType in get_args(field.kind):
        found = {"anyOf": [found, {"type": "null"}]}
    return {"description": option.help, **found}


def main() -> None:
    """Write the reference page and the JSON schema of the checkout."""
    root = Path(__file__).parents[1]
    (root / "docs" / "job.md").write_text(page(), encoding="utf-8")
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    (root / "data" / "schemas" / "job.schema.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
