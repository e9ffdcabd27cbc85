"""Registry of the families of Hugging Face's ``config.json``: a reader of each, and values of absent keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

from pipette_opt.read.hugging_face_keys import Keys

Reader = Callable[[Keys], dict[str, Any]]
"""Function that returns the :class:`ModelSpec` fields for the keys of a ``config.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """
    Family of models.

    Parameters
    ----------
    names
        ``model_type`` of its models, the best known first.
    text_parts
        ``model_type`` of models with images, or of their text parts, that this family's reader reads.
    has_experts
        Whether some of its models have experts.
    defaults
        Values of absent keys, those of the family's configuration class in transformers.
    """

    names: tuple[str, ...]
    read: Reader
    text_parts: tuple[str, ...]
    has_experts: bool
    defaults: Mapping[str, Any]


_FAMILIES: list[Family] = []


def family(
    *names: str, text_parts: tuple[str, ...] = (), has_experts: bool = False, **defaults: Any
) -> Callable[[Reader], Reader]:
    """
    Register the reader below as that of a family of models; see :class:`Family`.

    Keys that all families default alike need no default (``hugging_face_common``): as many key-value heads as heads,
    ``rope_theta`` 10000, ``rms_norm_eps`` 1e-6, embeddings that are not tied.
    """

    def register(read: Reader) -> Reader:
        _FAMILIES.append(
            Family(names=names, read=read, text_parts=text_parts, has_experts=has_experts, defaults=defaults)
        )
        return read

    return register


@cache
def families() -> Mapping[str, Family]:
    """Return the family of each ``model_type``: dense families first, then those with experts, then text parts."""
    from pipette_opt.read import families as folder

    for module in iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    ordered = sorted(_FAMILIES, key=lambda known: known.has_experts)
    found = {name: known for known in ordered for name in known.names}
    return MappingProxyType(found | {name: known for known in ordered for name in known.text_parts})


def supported(*, with_experts: bool) -> str:
    """Return the ``model_type`` of all families, or of those with experts, with commas."""
    return ", ".join(
        name for name, known in families().items() if name in known.names and (known.has_experts or not with_experts)
    )
