"""Names of the shipped models: names of presets, ids of the Hugging Face Hub, and short forms."""

import math
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pipette_opt.base.errors import InputError, visible
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.files import read_yaml

MAX_HINTS = 3
"""Largest number of names that an error suggests. Chosen."""

_TUNING_WORDS = frozenset(
    {
        *("instruct", "base", "chat", "thinking", "think", "it", "pt", "hf", "preview", "latest", "meta", "nvidia"),
        *("fp8", "fp4", "nvfp4", "mxfp4", "bf16", "int4", "int8", "4bit", "8bit", "awq", "gptq", "gguf"),
    }
)
"""Words of a model's name that describe tuning or storage, not architecture."""

_RELEASE = re.compile(r"[0-9]{4}")
"""Pattern of words that date a release, such as ``2507``."""

_PART = re.compile(r"[0-9]+x[0-9]+b|a?[0-9]+(?:\.[0-9]+)?[bm]|[a-z]+|[0-9]+(?:\.[0-9]+)?")
"""Pattern of the parts of a name: sizes, words, versions."""


def list_models() -> tuple[str, ...]:
    """Return the names of the shipped presets."""
    return tuple(sorted(path.stem for path in shipped_path("data", "architectures").glob("*.yaml")))


@cache
def hub_ids() -> Mapping[str, tuple[str, ...]]:
    """Return, for each preset, the ids on the Hugging Face Hub of models with its architecture."""
    folder = shipped_path("data", "architectures")
    found = {name: tuple(read_yaml(folder / f"{name}.yaml").get("hub_ids", ())) for name in list_models()}
    return MappingProxyType(found)


def preset_called(name: str) -> str | None:
    """
    Return the preset that a name stands for; ``None`` if no preset does.

    Case, separators, an organisation before a slash, and words such as Instruct, Base or FP8 do not matter. A name may
    also be the beginning of the name of a single preset.

    Raises
    ------
    InputError
        If the names of several presets begin with the name; the message lists them.
    """
    known, bare = _presets_by_key(), _without_organisation(visible(name, "model"))
    for key in (_parts(bare), _parts(_plain(bare))):
        if key in known:
            return known[key]
    joined = {"".join(key): preset for key, preset in known.items()}
    if preset := joined.get(re.sub(r"[^a-z0-9.]", "", bare)):
        return preset  # DeepSeekV3 for deepseek-v3
    parts = _parts(_plain(bare))
    named = tuple(preset for preset in list_models() if parts and _parts(preset)[: len(parts)] == parts)
    if len(named) > 1:
        raise InputError(f"model {name!r}", f"may be {' or '.join(named)}; write one of these names.")
    return named[0] if named else None


def presets_like(name: str) -> tuple[str, ...]:
    """Return presets of the family of a name, first those of equal version, then of nearest size; empty if unknown."""
    family, *rest = _parts(_plain(_without_organisation(name))) or ("",)
    version = next((part for part in rest if not _size_b(part)), "")
    size = next((size for part in rest if (size := _size_b(part))), 0.0)
    found = {}
    for preset in list_models():
        parts = _parts(preset)
        if parts[0] != family:
            continue
        sizes = [math.log(known / size) for part in parts if size and (known := _size_b(part))]
        found[preset] = (version not in parts, abs(sizes[0]) if sizes else math.inf, preset)
    return tuple(sorted(found, key=lambda preset: found[preset])[:MAX_HINTS])


@cache
def _presets_by_key() -> Mapping[tuple[str, ...], str]:
    """Return presets by the parts of their names and ids, with and without words on tuning."""
    found: dict[tuple[str, ...], str] = {}
    for preset in list_models():
        for name in (preset, *map(_without_organisation, hub_ids()[preset])):
            for key in {_parts(name), _parts(_plain(name))}:
                other = found.setdefault(key, preset)
                if other != preset:
                    raise ValueError(f"{name} is an alias of both {other} and {preset}; remove one of them.")
    return MappingProxyType(found)


def _without_organisation(name: str) -> str:
    """Return a name in lower case without its organisation: ``qwen3-8b`` for ``Qwen/Qwen3-8B``."""
    return name.strip().lower().rpartition("/")[2]


def _plain(name: str) -> str:
    """Return a name without words on tuning, storage and release dates."""
    words = re.split(r"[^a-z0-9.]+", name)
    return "-".join(word for word in words if word not in _TUNING_WORDS and not _RELEASE.fullmatch(word))


def _parts(name: str) -> tuple[str, ...]:
    return tuple(_PART.findall(name))


def _size_b(part: str) -> float:
    """Return the billions of parameters in a part of a name, such as 56 for ``8x7b``; 0 if it has none."""
    found = re.fullmatch(r"(?:([0-9]+)x)?([0-9]+(?:\.[0-9]+)?)([bm])", part)
    return 0.0 if found is None else int(found[1] or 1) * float(found[2]) * (1.0 if found[3] == "b" else 1e-3)
