"""Optimizers by the words of transformers' trainers, and of frameworks that run them (``OptimizerNames``)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pipette_opt.base.errors import InputError, shown
from pipette_opt.specs import NotModelled
from pipette_opt.specs.optimizers import Optimizer

PAGED = "paged_"
"""Beginning of words for optimizers whose states move to the host where memory runs out."""


class _Word(NamedTuple):
    """Optimizer that is counted for a word; ``why`` says how its states differ, empty if they do not."""

    optimizer: Optimizer
    why: str = ""
    direction: Literal["less", "more", "either"] = "either"


_OTHER = "Adam with two fp32 states is counted."
_NARROW = "A state of a byte per parameter; one in fp32 is counted."

OPTIMIZER_WORDS: Mapping[str, _Word] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw", "adam", "adamw_32bit"),
                *("optimi_adamw", "adamw_torch_xla", "adamw_torch_npu_fused"),
            ),
            _Word("adam"),
        ),
        **dict.fromkeys(
            ("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit", "ao_adamw_8bit", "ao_adamw_fp8"), _Word("adam-8bit")
        ),
        **dict.fromkeys(
            ("adamw_torch_4bit", "ao_adamw_4bit"), _Word("adam-8bit", "States of 4 bits; 8 are counted.", "less")
        ),
        "adafactor": _Word("adafactor"),
        "sgd": _Word("sgd"),
        "muon": _Word("muon"),
        "lomo": _Word("lomo"),
        "adalomo": _Word("lomo"),
        **dict.fromkeys(("lion_32bit", "lion", "lion_pytorch"), _Word("lion")),
        "lion_8bit": _Word("lion", _NARROW, "less"),
        "rmsprop": _Word("lion"),
        "rmsprop_bnb": _Word("lion"),
        "rmsprop_bnb_32bit": _Word("lion"),
        "rmsprop_bnb_8bit": _Word("lion", _NARROW, "less"),
        "adagrad": _Word("lion"),
        **dict.fromkeys(
            (
                *("ademamix", "ademamix_8bit", "adamw_anyprecision", "grokadamw", "stable_adamw", "adopt_adamw"),
                *("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd", "came_pytorch", "shampoo", "dion"),
                *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
                *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "apollo_adamw"),
                "apollo_adamw_layerwise",
            ),
            _Word("adam", _OTHER),
        ),
    }
)
"""Words for optimizers; the states of Lion, RMSprop and Adagrad are one moment each."""


WORDS_OF_TRAINERS: Mapping[str, str] = MappingProxyType(
    {
        "adam": "adamw_torch",
        "adam-8bit": "adamw_torch_8bit",
        "adafactor": "adafactor",
        "lion": "lion_32bit",
        "sgd": "sgd",
        "lomo": "lomo",
        "muon": "muon",
    }
)
"""Word of transformers' trainers for each optimizer; bitsandbytes' 8-bit Adam does not run below FSDP 2."""


class CountedOptimizer(NamedTuple):
    """Fields of the training that an optimizer's word sets, and how its states differ from those that are counted."""

    fields: Mapping[str, Any]
    not_modelled: tuple[NotModelled, ...] = ()


def counted_optimizer(word: str, option: str, where: str) -> CountedOptimizer:
    """
    Return the optimizer that is counted for a word.

    Parameters
    ----------
    option
        Option or key that has the word.
    where
        Place of the option, for errors.

    Raises
    ------
    InputError
        For an unknown word.
    """
    name = word.lower()
    known = OPTIMIZER_WORDS.get(name.removeprefix(PAGED))
    if known is None:
        usual = "adamw_torch, adamw_bnb_8bit, adafactor, lion_32bit, sgd, muon and lomo"
        raise InputError(where, f"{option} is {shown(word)}, an optimizer that is not known here; {usual} are.")
    why = known.why
    direction = known.direction
    if name.startswith(PAGED) and not why:
        why, direction = "States move to the host where memory runs out; they are counted on the GPU.", "less"
    found = () if not why else (NotModelled(option=option, value=word, effect="memory", direction=direction, why=why),)
    return CountedOptimizer({} if known.optimizer == "adam" else {"optimizer": known.optimizer}, found)
