"""Aliases of options for the command line and functions: names of Megatron-LM and torchrun, and short names."""

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pipette_opt.base.degrees import DEGREES

OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{degree.option.replace("_", "-"): degree.names for degree in DEGREES},
        "global-batch-size": ("gbs",),
        "seq-length": ("seq-len", "sequence-length"),
        "nodes": ("nnodes", "num-nodes"),
        "gpus-per-node": ("nproc-per-node",),
        "num-gpus": ("world-size",),
        "moe-token-dispatcher": ("moe-token-dispatcher-type",),
        "time-limit": ("time-limit-s",),
        "budget": ("trials",),
    }
)
"""Aliases of each option, the shortest first; an alias takes the values of its option."""

NOT_THE_SAME: Mapping[str, str] = MappingProxyType(
    {
        "num-layers-per-virtual-pipeline-stage": "it counts layers per model chunk; use --virtual-pipeline, the number "
        "of chunks per stage: num_layers / (pipeline stages x layers per chunk)",
    }
)
"""Megatron-LM options that resemble an option of this tool but mean something else, with the difference."""

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "args": "launch",
        "compare-current": "launch",
        "diff": "launch",
        "current-hosts": "host-order",
        "calibration": "software",
    }
)
"""Names that options had up to release 0.1.0, for hints."""

MAX_HINTS = 3
"""Largest number of names that an error suggests; chosen."""

_OF_OTHER = {other: name for name, others in OTHER_NAMES.items() for other in others}


OWN_NAMES: Mapping[str, str] = MappingProxyType({"measured_runs": "--measured", "framework": "--for"})
"""Options that are not named like their field: ``measured`` is a section of a job file, ``for`` a word of Python."""


WITHOUT_OPTION = (
    *("p2p", "allreduce", "loss_chunks", "expert_imbalance", "expert_loads", "base_format", "main_weights"),
    *("context_a2a", "num_distributed_optimizer_instances", "ddp_bucket_size", "overlap_p2p_communication"),
    *("checkpoint_seconds", "recovery_seconds", "regret_quantile"),
)
"""Fields of a job that only job files and programs set: few jobs have them, and no command has an option for them."""


def option_name(field: str) -> str:
    """Return the option of the command line for a field, ``--seq-length`` for ``seq_length``, or its key."""
    return field if field in WITHOUT_OPTION else OWN_NAMES.get(field, f"--{field.replace('_', '-')}")


def usual_name(name: str) -> str:
    """Return the option, written with dashes, of an option or alias written with dashes or underscores."""
    dashed = name.replace("_", "-")
    return _OF_OTHER.get(dashed, dashed)


def usual_field(name: str) -> str:
    """Return the field of an option or alias written with dashes or underscores."""
    return usual_name(name).replace("-", "_")


def short_name(name: str) -> str:
    """Return the shortest alias of an option if it is an abbreviation such as ``tp``; else ``""``."""
    first = OTHER_NAMES.get(name, ("",))[0]
    return first if len(first) <= len("etp") else ""


def names_like(name: str, known: Collection[str]) -> tuple[str, ...]:
    """
    Return the options of ``known`` that a wrong name may mean, the likeliest first.

    Options that contain every word of the name come first, then options and aliases of similar spelling. An alias is
    reported as its option.
    """
    if RENAMED.get(name) in known:
        return (RENAMED[name],)
    words = set(name.split("-"))
    others = {other: own for own, names in OTHER_NAMES.items() if own in known for other in (own, *names)}
    spelled = {**{option: option for option in known}, **others}
    with_words = sorted(
        (option for option in known if words <= set(option.split("-"))), key=lambda option: (option.count("-"), option)
    )
    alike = difflib.get_close_matches(name, spelled, n=MAX_HINTS, cutoff=0.7)
    return tuple(dict.fromkeys((*with_words, *(spelled[option] for option in alike))))[:MAX_HINTS]
