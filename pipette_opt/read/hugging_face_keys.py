"""Keys of Hugging Face's ``config.json`` that change nothing, and keys that must have a certain value."""

import difflib
import logging
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from pipette_opt.base.errors import MAX_SHOWN, InputError, shown
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.fields import Fields

logger = logging.getLogger(__name__)

_STRUCTURE = re.compile(
    r"(^|_)(index|indexer|experts?|layers?|heads?|hidden|intermediate|dims?|size|width|rank|ranks|attention|attn|mlp|ffn|"
    r"norms?|layernorm|rope|rotary|window|gates?|gated|linear|conv|state|ssm|mamba|vocab|embeddings?|mtp|share|shared|"
    r"topk|router|routing|bias|factor|multiplier|scale|scaling|softcap\w*)(_|$)"
)
"""Words in names of keys that may change the structure of a model."""

_TRAINING_WORDS = re.compile(
    r"drop|loss|coef|init|dtype|precision|fuse|kernel|token|parallel|checkpoint|recompute|cache|plan|version"
)
"""Words in names of keys about training or running a model; estimates never use such keys of a ``config.json``."""

_TASK = re.compile(r"For(?P<task>[A-Z]\w*)|(?P<model>(?:Reward|DoubleHeads)Model)$")
_LANGUAGE_MODEL = ("CausalLM", "ConditionalGeneration", "PreTraining", "Generation")
"""Beginnings of task names whose head is the output layer of a language model."""


class Required(NamedTuple):
    """Values of a key that have no effect, and the error text for any other value."""

    values: tuple[object, ...]
    why: str


@cache
def harmless_keys() -> frozenset[str]:
    """Return the keys that change neither the model nor time nor memory, whatever their value."""
    return frozenset(key for keys in _table()["harmless"].values() for key in keys)


@cache
def required_keys() -> Mapping[str, Required]:
    """Return the keys that a family does not read, each with the values that it may have."""
    return {key: Required(tuple(row["values"]), row["why"]) for key, row in _table()["required"].items()}


@cache
def _table() -> dict[str, dict[str, Any]]:
    """Return the content of ``data/hugging_face_keys.toml``."""
    return tomllib.loads(shipped_path("data", "hugging_face_keys.toml").read_text(encoding="utf-8"))


class Keys(Fields):
    """
    Fields of a ``config.json`` that remember which keys a reader asked for.

    A reader asks for every key that it knows; :meth:`refuse_others` then finds the keys that no reader knows.
    """

    def __init__(self, where: str, data: Mapping[str, Any]) -> None:
        super().__init__(where, data, data.keys())
        self.asked: set[str] = {"model_type"}
        self.left_out: list[str] = []
        self.has_local_positions = False

    def has(self, name: str) -> bool:
        """Return whether the key exists and is not null."""
        self.asked.add(name)
        return super().has(name)

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of a key, also null; the default if the key is absent."""
        self.asked.add(name)
        return self.data.get(name, default)

    def ignore(self, *names: str) -> None:
        """Mark keys as known, with values that change nothing."""
        self.asked.update(names)

    def wrong(self, name: str, why: str) -> InputError:
        """Return an ``InputError`` for the value of a key that is not supported, with the reason."""
        return InputError(self.where, f"{name}: {shown(self.value(name))} is not supported; {why}.")

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Set keys that are absent or null to the defaults of the family's configuration class."""
        given = {name: value for name, value in self.data.items() if value is not None}
        self.data = {**self.data, **defaults, **given}

    def leave_out(self, name: str) -> None:
        """Mark a key as known but not used; a warning names the key if it is set."""
        if self.value(name):
            self.left_out.append(name)

    def refuse_others(self) -> None:
        """
        Raise ``InputError`` for a key that no reader asked for and that may change the model; warn of other unknown
        keys.

        Keys that begin with ``_`` are transformers' own notes. Null and switched-off unknown keys change nothing. A
        single warning names all unknown keys.
        """
        self._check_head()
        for name, value in self.data.items():
            if name in self.asked or name in harmless_keys() or name.startswith("_") or value is None:
                continue
            if name in required_keys():
                self._check_required(name, value)
            else:
                self._check_unknown(name, value)
        if self.left_out:
            named = ", ".join(f"{name} ({shown(self.data[name])})" for name in self.left_out)
            logger.warning("%s: not used: %s", self.where, named)

    def _check_head(self) -> None:
        """Raise ``InputError`` if ``architectures`` names another head than a language model's; warn if none."""
        names = self.value("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise self.wrong("architectures", 'must be a list of names of classes, e.g. ["LlamaForCausalLM"]')
        for name in names or []:
            found = _TASK.search(name)
            task = "" if found is None else found["task"] or found["model"]
            if task and not task.startswith(_LANGUAGE_MODEL):
                why = "its head is not a language model's output layer, which Megatron-LM trains and which is counted"
                raise self.wrong("architectures", why)
            if found is None and not name.endswith("LMHeadModel"):
                logger.warning(
                    "%s: architectures: %s names no head; a language model's output layer is counted.", self.where, name
                )

    def _check_required(self, name: str, value: object) -> None:
        """Raise ``InputError`` unless the value of a key in :func:`required_keys` has no effect."""
        allowed, why = required_keys()[name]
        if name == "layer_types" and isinstance(value, list) and {*map(str, value)} <= {"full_attention", "attention"}:
            return
        if not any(
            value == allowed_value and isinstance(value, bool) is isinstance(allowed_value, bool)
            for allowed_value in allowed
        ):
            raise self.wrong(name, why)

    def _check_unknown(self, name: str, value: object) -> None:
        """Raise ``InputError`` for an unknown key that is misspelt or may change the model; note others to warn."""
        near = difflib.get_close_matches(
            name[:MAX_SHOWN], [*self.asked, *harmless_keys(), *required_keys()], n=1, cutoff=0.85
        )
        if near and near[0] not in harmless_keys():
            raise InputError(self.where, f"unknown key {name!r} ({shown(value)}). Did you mean {near[0]}?")
        is_off = value is False or value in ([], {}, "")
        if _STRUCTURE.search(name) and not _TRAINING_WORDS.search(name) and not is_off:
            hint = "Remove it from the file if it does not change the architecture."
            raise InputError(self.where, f"unknown key {name!r} ({shown(value)}). {hint}")
        self.left_out.append(name)
