"""Parser of configurations as people type them: ``tp8 pp4``, ``tp=8,pp=4``, ``--tp 8 --pp 4``, or a table's label."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipette_opt.base.degrees import DEGREES
from pipette_opt.base.errors import InputError, did_you_mean, shown
from pipette_opt.base.offload import OFFLOAD_WORDS, offload_of
from pipette_opt.candidates import SearchSpace
from pipette_opt.parallel.config import SHARDING_STRATEGIES
from pipette_opt.parallel.layout import layout_layers
from pipette_opt.parallel.recompute import OPERATIONS, RECOMPUTE_MODULES, known_word

WHERE = "the configuration"
"""Source named by error messages."""

SWITCH = {"on": True, "off": False, "yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
"""Accepted words for a switch."""

Pin = tuple[str, str]
"""Name of :data:`PINS` and its value, as typed."""


def _sizes(text: str) -> tuple[int, ...]:
    if int(text) < 1:
        raise ValueError(text)
    return (int(text),)


def _split(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each stage, given as in labels: ``12x6,8``."""
    layers: list[int] = []
    for part in text.replace(";", ",").split(","):
        number, _, times = part.partition("x")
        layers += [*_sizes(number)] * (_sizes(times)[0] if times else 1)
    return (tuple(layers),)


PINS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    **{degree.short: (degree.option, _sizes) for degree in DEGREES},
    "gpus": ("num_gpus", lambda text: _sizes(text)[0]),
    "recompute": ("recompute", lambda text: (None if text == "none" else known_word(text),)),
    "offload": ("offload", lambda text: (offload_of(text).word,)),
    "sp": ("sequence_parallel", lambda text: (SWITCH[text],)),
    "dopt": ("use_distributed_optimizer", lambda text: (SWITCH[text],)),
    "zero": ("data_parallel_sharding_strategy", lambda text: (SHARDING_STRATEGIES[int(text)],)),
    "groups": ("num_distributed_optimizer_instances", _sizes),
    "tp-overlap": ("tp_comm_overlap", lambda text: SWITCH[text]),
    "overlap": ("overlap_grad_reduce", lambda text: SWITCH[text]),
    "gather": ("overlap_param_gather", lambda text: SWITCH[text]),
    "overlap-p2p": ("overlap_p2p_communication", lambda text: SWITCH[text]),
    "layers": ("layers_per_stage", _split),
    "layout": ("more_layouts", lambda text: (text,)),
}
"""Names that can be pinned, each with its field of the search space and the reader of its value."""

OTHER_NAMES: Mapping[str, str] = {
    **{
        word: degree.short
        for degree in DEGREES
        for word in (degree.option.replace("_", "-"), *degree.plain, *degree.names)
    },
    "num-gpus": "gpus",
    "recomputation": "recompute",
    "recompute-granularity": "recompute",
    "sequence-parallel": "sp",
    "use-distributed-optimizer": "dopt",
    "distributed-optimizer": "dopt",
    "tp-comm-overlap": "tp-overlap",
    "tensor-overlap": "tp-overlap",
    "overlap-grad-reduce": "overlap",
    "overlap-param-gather": "gather",
    "layers-per-stage": "layers",
    "pipeline-model-parallel-layout": "layout",
}
"""Synonyms of the names in :data:`PINS`: plain words, and options of Megatron-LM."""

OF_LABELS: Mapping[str, tuple[Pin, ...]] = {
    "sp": (("sp", "on"),),
    "dopt": (("dopt", "on"),),
    "tp-overlap": (("tp-overlap", "on"),),
    "overlap": (("overlap", "on"), ("gather", "off")),
    "overlap+gather": (("overlap", "on"), ("gather", "on")),
    "no-overlap-p2p": (("overlap-p2p", "off"),),
    "full": (("recompute", "full"),),
    "selective": (("recompute", "selective"),),
    "block": (("recompute", "block"),),
}
"""Pins that a label's word without a number stands for."""

HELP_OF: Mapping[str, str] = {
    "offload": f"must be {OFFLOAD_WORDS}",
    "recompute": "must be none, selective, block, full, or modules as in moe_act+layernorm",
    "layers": "must be layers of each stage, e.g. 12x6,8",
    "zero": "must be 0 to 3",
    **dict.fromkeys(("sp", "dopt", "tp-overlap", "overlap", "gather", "overlap-p2p"), "must be on or off"),
}
"""Description of the valid values, for names whose value is not a whole number."""

_LAYERS = r"[0-9]+(?:x[0-9]+)?(?:[,;][0-9]+(?:x[0-9]+)?)*"

_WORD = re.compile(
    rf"""
    layout (?: \s*[=:]\s* | \s+ ) (?P<layout> [EtmL|*(),0-9]+ )
    | layers (?:[-_]per[-_]stage)? \s* (?: [=:]\s* )? (?P<layers> {_LAYERS} )
    | offload \s*[=:]\s* (?P<offload> [^\s,;]+ )
    | block (?P<block> [0-9]+ )?  (?![\w+])
    | uniform (?P<uniform> [0-9]+ ) \b
    | groups \s* (?: [=:]\s* )? (?P<groups> [0-9]+ ) (?: \+optim )?
    | (?P<named> [a-z]+ (?: [-_][a-z]+ )* ) \s*[=:]\s* (?P<value> [^\s,;/]+ )
    | (?P<flag> no-overlap-p2p | overlap\+gather )
    | recomput[a-z_-]* (?: \s*[=:]\s* | \s+ ) (?P<recompute> [a-z_+]+ )
    | (?: no | without ) [-_\s]+ (?P<no> recomput\w* )
    | (?P<name> [a-z]+ (?: [-_][a-z]+ )* ) \s* (?: [=:]\s* )? (?P<number> [0-9]+ )
    | (?P<plain> [a-z_+-]+ )
    """,
    re.VERBOSE,
)
"""Pattern of a name with its value; letters other than a layout's are lower case."""

_BETWEEN = re.compile(r"[\s,;/|_-]*")
"""Separators between names: blanks, commas, slashes, and dashes before options and between degrees."""


def pinned(space: SearchSpace, text: str) -> SearchSpace:
    """
    Return the space restricted to the configuration that a text describes.

    Raises ``InputError`` for an unknown name or value, and suggests the nearest name.
    """
    changes: dict[str, Any] = {}
    for name, value in pins(text):
        field_name, read = PINS[name]
        try:
            found = read(value)
        except (KeyError, IndexError, ValueError):
            raise InputError(WHERE, f"{name}={value}: {HELP_OF.get(name, 'must be a whole number >= 1')}.") from None
        if changes.get(field_name, found) != found:
            raise InputError(WHERE, f"{name} is given twice with different values in {shown(text)}.")
        changes[field_name] = found
    return replace(space, **_with_chunks(changes))


def _with_chunks(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes with the number of chunks and the layers per stage that a chunk layout implies."""
    layouts = changes.get("more_layouts")
    if not layouts:
        return changes
    pipeline = changes.get("pipeline_parallel")
    if pipeline is None:
        raise InputError(WHERE, "a layout needs the number of stages, too; add e.g. pp4.")
    try:
        layers = layout_layers(layouts[0], pipeline[0])
    except ValueError as error:
        raise InputError(WHERE, f"layout {shown(layouts[0])} {error}") from None
    stages = tuple(map(sum, zip(*layers, strict=True)))
    return {"layers_per_stage": (stages,), "virtual_pipeline": (len(layers),)} | changes


def separate(words: Sequence[str]) -> list[str]:
    """
    Split the arguments of a command line into configurations.

    If any argument has several names, each argument is a configuration. Otherwise arguments are joined up to a repeated
    name: ``tp8 pp4`` is one configuration, ``tp8 tp4`` are two.
    """
    named = [[name for name, _ in pins(word)] for word in words]
    if any(len(set(names)) > 1 for names in named):
        return list(words)
    groups: list[list[str]] = [[]]
    seen: set[str] = set()
    for word, names in zip(words, named, strict=True):
        if seen.intersection(names):
            groups.append([])
            seen = set()
        groups[-1].append(word)
        seen.update(names)
    return [" ".join(group) for group in groups if group]


def pins(text: str) -> list[Pin]:
    """Return the pinned names and values of a text, with names of :data:`PINS`; raise ``InputError`` if it has none."""
    found = list(_read(_lower(text), text))
    if not found:
        raise InputError(WHERE, f"must name a degree, e.g. tp=8,pp=2; got {shown(text)}.")
    if ("recompute", "block") in found:  # a label has both words: whole layers, the first ones of each chunk
        found = [pin for pin in found if pin != ("recompute", "full")]
    return found


def _lower(text: str) -> str:
    """Return the text in lower case, except for a chunk layout."""
    at = re.search(r"layout\s*[=:\s]\s*", text, re.IGNORECASE)
    return text.lower() if at is None else text[: at.end()].lower() + text[at.end() :]


def _read(text: str, whole: str) -> Iterator[Pin]:
    place = 0
    while (place := _BETWEEN.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        found = _WORD.match(text, place)
        if found is None:
            raise _unknown(text[place:].split()[0], whole)
        yield from _pins_of(found, whole)
        place = found.end()


def _pins_of(found: re.Match[str], whole: str) -> Iterator[Pin]:
    for group in ("layout", "layers", "offload", "groups", "recompute"):
        if found[group] is not None:
            yield group, found[group]
            return
    typed = found["named"] or found["name"]
    if typed is not None:
        name = typed.replace("_", "-")
        if (name := OTHER_NAMES.get(name, name)) not in PINS:
            raise _unknown(typed, whole)
        yield name, found["value"] or found["number"]
    elif found["no"] is not None:
        yield "recompute", "none"
    elif found["uniform"] is not None:  # layers recomputed at a time: the word before already means that all are
        return
    else:
        yield from _pins_of_word(found["flag"] or found["plain"] or "block", whole)


def _pins_of_word(word: str, whole: str) -> tuple[Pin, ...]:
    """Return the pins that a word without a value stands for."""
    name = word.strip("-+").replace("_", "-")
    name = OTHER_NAMES.get(name, name)
    if name in OF_LABELS:
        return OF_LABELS[name]
    if word in OPERATIONS or all(part in RECOMPUTE_MODULES for part in word.split("+")):
        return (("recompute", word),)
    if name in PINS:
        raise InputError(WHERE, f"{word} needs a value: {HELP_OF.get(name, 'a whole number, e.g. ' + name + '8')}.")
    raise _unknown(word, whole)


def _unknown(word: str, whole: str) -> InputError:
    """Return an error about an unknown word that suggests the nearest known name."""
    known = [*PINS, *OTHER_NAMES, *OF_LABELS]
    near = did_you_mean(word.strip("0123456789=:,").replace("_", "-"), known)
    hint = near or f" Known: {', '.join(PINS)}, e.g. tp=8,pp=2."
    return InputError(WHERE, f"{shown(word)} in {shown(whole)} is not known.{hint}")
