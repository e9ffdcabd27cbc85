"""Options and config fields of Megatron, read from its source without running it."""

import ast
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ARGUMENTS = "megatron/training/arguments.py"

CONFIGS = (
    "ModelParallelConfig",
    "TransformerConfig",
    "MLATransformerConfig",
    "DistributedDataParallelConfig",
    "OptimizerConfig",
)
"""Dataclasses whose fields decide time and memory of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Parsed modules by path, and the dataclasses in them by name."""

    modules: Mapping[str, ast.Module]
    classes: Mapping[str, ast.ClassDef]


def source_of_wheel(wheel: Path) -> Source:
    """Of a built package."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if wanted(name)]
        return parsed({name: archive.read(name).decode() for name in names})


def source_of_folder(folder: Path) -> Source:
    """Of an installed package; ``folder`` holds ``megatron``."""
    paths = {path.relative_to(folder).as_posix(): path for path in (folder / "megatron").rglob("*.py")}
    return parsed({name: path.read_text() for name, path in paths.items() if wanted(name)})


def wanted(name: str) -> bool:
    """Modules that may define a config or an argument."""
    folders = ("megatron/training/", "megatron/core/fault")
    return name.endswith(".py") and ("config" in name.lower() or name.startswith(folders))


def parsed(texts: Mapping[str, str]) -> Source:
    """Modules and their classes."""
    modules = {name: ast.parse(text) for name, text in texts.items()}
    nodes = (node for module in modules.values() for node in module.body)
    return Source(modules=modules, classes={node.name: node for node in nodes if isinstance(node, ast.ClassDef)})


def fields_of(source: Source, name: str) -> dict[str, ast.AnnAssign]:
    """Fields of a dataclass that it defines itself, by name."""
    return {
        node.target.id: node
        for node in source.classes[name].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def config_fields(source: Source) -> set[str]:
    """``Class.field`` of every config that the source has."""
    return {f"{name}.{field}" for name in CONFIGS for field in fields_of(source, name)}


def options_of(source: Source) -> dict[str, str]:
    """Every option of ``arguments.py`` with its kind: ``flag``, ``value`` or ``list``."""
    found: dict[str, str] = {}
    for node in ast.walk(source.modules[ARGUMENTS]):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [
                one.value for one in node.args if isinstance(one, ast.Constant) and str(one.value).startswith("--")
            ]
            if "BooleanOptionalAction" in ast.unparse(node):
                names += [f"--no-{name[2:]}" for name in names]
            found |= dict.fromkeys(names, kind_of_call(node))
        if isinstance(node.func, ast.Name) and node.func.id.endswith("Factory") and node.args:
            class_ = node.args[0]
            if isinstance(class_, ast.Name) and class_.id in source.classes:
                found |= made_of_fields(source, class_.id, excluded(source, node))
    return found


def kind_of_call(call: ast.Call) -> str:
    """Of one ``add_argument``."""
    given = {one.arg: one.value for one in call.keywords}
    action = given.get("action")
    if (action is not None and ast.unparse(action).strip("'") in ("store_true", "store_false", "store_const")) or (
        action is not None and "BooleanOptionalAction" in ast.unparse(action)
    ):
        return "flag"
    return "list" if "nargs" in given and ast.unparse(given["nargs"]) != "'?'" else "value"


def excluded(source: Source, call: ast.Call) -> set[str]:
    """Fields that a factory leaves out; its list may be a variable."""
    given = {one.arg: one.value for one in call.keywords}
    value = given.get("exclude")
    if isinstance(value, ast.Name):
        value = next(
            node.value
            for node in ast.walk(source.modules[ARGUMENTS])
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id and node.lineno < call.lineno
        )
    return set(ast.literal_eval(value)) if value is not None else set()


def made_of_fields(source: Source, name: str, without: set[str]) -> dict[str, str]:
    """Options that Megatron makes of a dataclass: ``--no-x`` and ``--disable-x`` of what is on by default."""
    found = {}
    for field, node in inherited(source, name):
        if field in without:
            continue
        annotation, default = ast.unparse(node.annotation), default_of(node)
        kind = "list" if annotation.lower().removeprefix("optional[").startswith("list[") else "value"
        names = [f"--{field.replace('_', '-')}"]
        if annotation in ("bool", "Optional[bool]", "bool | None"):
            kind = "flag"
            if default == "True":
                names = [f"--{word}-{field.replace('_', '-')}" for word in ("no", "disable")]
        found |= dict.fromkeys(meta_names(node) or names, kind)
    return found


def inherited(source: Source, name: str) -> Iterator[tuple[str, ast.AnnAssign]]:
    """Fields of a dataclass and of those that it builds on."""
    for base in source.classes[name].bases:
        if isinstance(base, ast.Name) and base.id in source.classes:
            yield from inherited(source, base.id)
    yield from fields_of(source, name).items()


def default_of(node: ast.AnnAssign) -> str:
    """As it is written; of ``field(default=...)`` its argument."""
    value = node.value
    if isinstance(value, ast.Call):
        value = {one.arg: one.value for one in value.keywords}.get("default")
    return "" if value is None else ast.unparse(value)


def meta_names(node: ast.AnnAssign) -> list[str]:
    """Names that a field's metadata gives its option."""
    for part in ast.walk(node):
        if isinstance(part, ast.Dict):
            for key, value in zip(part.keys, part.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "arg_names":
                    return [str(name) for name in ast.literal_eval(value)]
    return []
