"""Readers of models: presets, Hugging Face ``config.json``, Megatron arguments."""

import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, did_you_mean, meant
from pipette_opt.base.files import is_file, is_folder
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.typed import typed
from pipette_opt.read.exported import exported_launch
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import parse_json, read_text, read_yaml
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.kinds_of_files import (
    ARCHITECTURE_FILE,
    CAPTURED_LAUNCH,
    HUGGING_FACE_CONFIG,
    LAUNCH_SCRIPT,
    PRINTED_ARGUMENTS,
    TYPED_ARGUMENTS,
    reads,
)
from pipette_opt.read.launch_file import is_launch
from pipette_opt.read.megatron_args import Environment, model_of_arguments, written_arguments
from pipette_opt.read.model_names import list_models as list_models
from pipette_opt.read.model_names import preset_called, presets_like
from pipette_opt.read.settings_files import settings_file
from pipette_opt.specs import ModelSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""Pattern of an id on the Hugging Face Hub: an organisation and a name."""

_SUFFIXES = (".json", ".yaml", ".yml", ".txt", ".sh")
"""Suffixes of names that are paths, whether or not the file exists."""


def read_model(name_or_path: str | Path, vocab_size: int | None = None, environment: Environment = None) -> ModelSpec:
    """
    Return the model that a name, a text or a file describes.

    A name is a preset (``llama-3-8b``, any case), its id on the Hugging Face Hub, or similar
    (:func:`~pipette_opt.read.model_names.preset_called`). A text is Megatron arguments that begin with ``--``. Files
    are architecture files in YAML, Hugging Face ``config.json`` (or its folder), and scripts or texts with Megatron
    arguments. ``vocab_size`` is for arguments that leave it to a tokenizer. ``environment`` holds the variables of a
    script.
    """
    text = str(name_or_path).strip()
    written = written_arguments(text) if vocab_size is not None and text.lower() not in list_models() else None
    if written is not None:
        return model_of_arguments(*written, environment, vocab_size=vocab_size)[0]
    if vocab_size is not None:
        raise InputError(
            "--vocab-size",
            f"has no effect on model {text}, which contains a vocabulary size; it is for Megatron arguments only.",
        )
    if text.lower() in list_models():
        return read_architecture(shipped_path("data", "architectures", f"{text.lower()}.yaml"))
    if text.startswith("--"):
        return model_of_arguments(text)[0]
    path = Path(text)
    if is_file(path / "config.json"):
        path = path / "config.json"
    if is_file(path):
        return _read_model_file(path, environment)
    is_path = path.suffix in _SUFFIXES or text.startswith(("/", ".", "~")) or text.count("/") > 1
    preset = None if is_path else preset_called(text)
    if preset is not None:
        return read_architecture(shipped_path("data", "architectures", f"{preset}.yaml"))
    if is_folder(path):
        raise InputError(f"model {text!r}", "is a folder without a config.json.")
    if "://" in text:
        raise InputError(
            f"model {text!r}", "is an address, and nothing is downloaded: download the file and give its path."
        )
    if is_path:
        raise InputError(f"model {text!r}", "the file does not exist.")
    hint = meant(presets_like(text)) or did_you_mean(text, list_models())
    if _HUB_ID.fullmatch(text):
        fetch = f"`hf download {text} config.json --local-dir .`"
        hint += f" Nothing is downloaded: of a model on the Hugging Face Hub give its config.json ({fetch})."
    problem = f"is neither a preset nor a file.{hint} `pipette-opt models` lists the {len(list_models())} presets."
    raise InputError(f"model {text!r}", problem)


def model_document(model: ModelSpec) -> dict[str, Any]:
    """Return the content of an architecture file of a model; :func:`read_architecture` reads the same model from it."""
    found = {name: value for name, value in asdict(model).items() if name != "name" and value is not None}
    if model.num_experts is None:
        found = {name: value for name, value in found.items() if "moe" not in name and name != "num_dense_layers"}
    return found


def read_architecture(path: str | Path) -> ModelSpec:
    """Return the model in an architecture file: YAML with fields of :class:`~pipette_opt.specs.ModelSpec`."""
    path = Path(path)
    found = Fields(str(path), read_yaml(path), (*(field.name for field in fields(ModelSpec)), "hub_ids", "source"))
    values = {name: value for name, value in found.data.items() if value is not None}
    for name in ("hub_ids", "source"):
        values.pop(name, None)
    for name in ("moe_router_topk", "moe_ffn_hidden_size"):
        if name in values and "num_experts" not in values:
            raise InputError(str(path), f"{name} has no effect without num_experts.")
    return typed(ModelSpec, {**values, "name": found.text("name", path.stem)}, str(path))


@reads(ARCHITECTURE_FILE, HUGGING_FACE_CONFIG, LAUNCH_SCRIPT, PRINTED_ARGUMENTS, TYPED_ARGUMENTS, CAPTURED_LAUNCH)
def _read_model_file(path: Path, environment: Environment) -> ModelSpec:
    """Return the model in a file; suffix and content decide the format."""
    text = read_text(path, keep_line_ends=True)
    if path.suffix.lower() in (".yaml", ".yml"):
        file = settings_file(text, str(path))
        if file is not None and file.is_foreign:
            raise file.refusal(of_model=True)
        if file is None or not file.is_recipe:
            return read_architecture(path)
    text = exported_launch(path, text)
    if not is_launch(text) and (path.suffix.lower() == ".json" or text.lstrip().startswith("{")):
        name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
        return model_from_hugging_face(parse_json(text, str(path)), str(path), name)
    return model_of_arguments(text, str(path), path.stem, environment)[0]
