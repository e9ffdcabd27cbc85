"""Options on a Megatron-LM command line or in a shell script, each with its effect on predictions."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipette_opt.base.errors import MAX_SHOWN, Errors, InputError, together
from pipette_opt.base.units import number_in
from pipette_opt.options.names import OTHER_NAMES, usual_name
from pipette_opt.read.launch_evidence import check_all_read, check_evidence
from pipette_opt.read.megatron_numbers import number
from pipette_opt.read.megatron_table import MegatronOption, field_of, megatron_options
from pipette_opt.read.megatron_words import UNSET, Words, read_words
from pipette_opt.specs import NotModelled

NEAR = 0.9
"""Smallest similarity (``difflib``, 0 to 1) at which an unknown option counts as a misspelt known option. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """
    Options of a command line.

    Parameters
    ----------
    values
        Values by name with underscores: numbers, words, lists of words, ``True`` for a flag.
    not_modelled
        Effects that predictions leave out, in the order of the command line.
    passed_on
        Options, with their values, that no prediction uses and that ``export`` writes unchanged.
    notes
        Assumptions made while a script was read.
    are_overrides
        Whether the options override fields of a recipe, which sets the others.
    """

    values: Mapping[str, Any]
    not_modelled: tuple[NotModelled, ...]
    passed_on: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    are_overrides: bool = False


def given_options(text: str, where: str, environment: Mapping[str, str] | None = None) -> GivenOptions:
    """Return all options of a command line, a launch script or a log; see :func:`options_in`."""
    return options_in(read_words(text, where, environment), where)


def options_in(words: Words, where: str, *, of_model: bool = False, as_launch: bool = False) -> GivenOptions:
    """
    Return all options among the words of a command line, a launch script or a log.

    Parameters
    ----------
    of_model
        Whether the options only describe a model, so that unsupported training options are accepted.
    as_launch
        Whether the options are a whole launch, so that one of them has to size the job.

    Raises
    ------
    InputError
        If there is no option, if a value is missing or wrong, if an option seems misspelt, or if an option is
        unsupported.
    """
    errors = Errors()
    values, unknown = _written(words, where, errors)
    wrong = [name for name in unknown if errors.fails(_check_alias, name, values, where)]
    if not of_model:
        errors.of(check_all_read, words.words, words.launch, words.place(where), but=wrong)
    simulated = {name: value for name, value in values.items() if not of_model or name not in REFUSED_OF_TRAINING}
    found = [*(errors.of(_simulated, simulated, where) or ()), *_counted_otherwise(values)]
    found += filter(None, (errors.of(_unknown, name, following, where) for name, following in unknown.items()))
    if as_launch and not errors:
        errors.of(check_evidence, words.words, words.launch, values, words.place(where))
    if errors:
        error = together(errors)
        more = " ".join(f"In the script: {note}." for note in words.notes if note.startswith(UNSET))
        raise InputError(error.where, f"{error.problem} {more}".strip())
    unseen = dict.fromkeys(filter(_is_list_of_options, words.words))
    found += [NotModelled(option=name, effect="both", direction="either", why=UNSEEN) for name in unseen]
    passed_on = tuple(_passed_on(values))
    is_full = words.are_printed or words.are_overrides
    return GivenOptions(
        values=values,
        not_modelled=tuple(found),
        passed_on=passed_on,
        notes=words.notes if is_full else (*words.notes, *_without_effect(values)),
        are_overrides=words.are_overrides,
    )


def _without_effect(values: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield a note on each option that predictions would count if an option that it needs were given, too.

    None on options of experts if the arguments describe no model: the model that is given beside them may have experts.
    """
    for field, value in values.items():
        option = megatron_options()[field]
        if "--num-experts" in option.needs and "num_layers" not in values:
            continue
        if option.status == "modelled" and value is not False and not option.matters(values):
            yield f"{option.name} has no effect without {' or '.join(option.needs)}"


REFUSED_OF_TRAINING = (
    "batch_size",
    "checkpoint_activations",
    "expert_tensor_parallel_num_weight_shards",
    "gtp_expert_remat_nccl_ub",
    "gtp_remat_nccl_ub",
    "gtp_remat_opt_in_modules",
    "gtp_remat_reduce_scatter_with_fp32_accumulation",
    "mhc_recompute_layer_num",
    "model_parallel_size",
    "moe_extended_tp",
    "mtp_standalone",
    "perform_rl_step",
    "skip_train",
    "tensor_parallel_num_weight_shards",
    "warmup",
)
"""Unsupported options that concern training, not the model."""

UNSEEN = "Options in a variable that is not set here are not seen; write them out."
"""Reason of the note on a variable that may hold options."""

WORDS_PASSED_ON: Mapping[str, tuple[str, ...]] = {
    "fp8_format": ("hybrid",),
    "optimizer": ("adam", "muon"),
    "attention_backend": ("flash", "unfused"),
    "flash_attention_version": (),
    "fp4_recipe": (),
    "moe_enable_deepep": (),
    "use_torch_fsdp2": (),
    "torch_fsdp2_no_reshard_after_forward": (),
    "moe_flex_dispatcher_backend": (),
    "moe_flex_dispatcher_num_sms": (),
    "moe_deepep_num_sms": (),
    "moe_hybridep_num_sms": (),
}
"""Options of which only some values are modelled, with these values; ``export`` writes other values unchanged."""


def _passed_on(values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for field, value in values.items():
        option = megatron_options()[field]
        unusual = value not in WORDS_PASSED_ON.get(field, (value,))
        unusual |= field == "ddp_bucket_size" and bool(values.get("use_megatron_fsdp") or values.get("use_torch_fsdp2"))
        unusual |= field == "cp_comm_type"
        uncounted = option.status in ("in part", "approximated", "priced") and option.unlike(value) != ()
        if value is False or not (unusual or uncounted) or not option.matters(values):
            continue
        words = () if value is True else tuple(map(str, value)) if isinstance(value, list) else (str(value),)
        yield (option.name, *words)


def _counted_otherwise(values: Mapping[str, Any]) -> Iterator[NotModelled]:
    """Yield notes on options with several different values, if predictions count only one value."""
    kinds = values.get("cp_comm_type", ())
    if len(set(kinds)) > 1 and values.get("context_parallel_size", 1) > 1:
        why = "Layers exchange in different ways; a ring of sends is assumed in all layers."
        name, value = "--cp-comm-type", " ".join(kinds)
        yield NotModelled(option=name, value=value, effect="both", direction="either", why=why)


def option_values(text: str, where: str) -> dict[str, Any]:
    """Return the values of Megatron's options by name with underscores, supported or not."""
    return all_options(text, where)[0]


def all_options(text: str, where: str) -> tuple[dict[str, Any], dict[str, Sequence[str]]]:
    """
    Return the values of options that Megatron has, by name with underscores, and the words after each other option.

    ``InputError`` names all values that are wrong.
    """
    errors = Errors()
    found = _written(read_words(text, where), where, errors)
    if errors:
        raise together(errors)
    return found


def _written(given: Words, where: str, errors: Errors) -> tuple[dict[str, Any], dict[str, Sequence[str]]]:
    """Return the values of options that Megatron has, and the words after each option that it lacks."""
    words = given.words
    values: dict[str, Any] = {}
    unknown: dict[str, Sequence[str]] = {}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not re.match(r"--\w", word):
            continue
        following = [value] if equals else _following(words, index + 1)
        option = megatron_options().get(field_of(name))
        counts, num_values = option is not None and option.status != "harmless", 0 if equals else len(following)
        errors.of(given.check_unknown, index, num_values, where, counts=counts)
        if option is not None:
            reversed_flag = field_of(name) == f"no_{option.field}"
            found = False if reversed_flag else errors.of(_value, option, following, where)
            if found is not None:
                values[option.field] = found
        else:
            unknown[name] = following
    return values, unknown


def _following(words: Sequence[str], start: int) -> list[str]:
    """Return the words from ``start`` up to the next option: the values of the option before."""
    found: list[str] = []
    for index in range(start, len(words)):
        if words[index].startswith("--") or _is_list_of_options(words[index]):
            break
        found.append(words[index])
    return found


def _value(option: MegatronOption, following: Sequence[str], where: str) -> Any:
    if option.kind == "flag":
        return True
    counts = (
        option.status in ("modelled", "priced", "refused")
        or option.modelled_values
        or option.kind in ("whole", "number")
    )
    if not following:
        if option.status != "harmless":
            raise InputError(where, f"{option.name} must be followed by a value.")
        return ""
    unset = next((word for word in following[: None if option.kind == "list" else 1] if "$" in word), None)
    if unset is not None and counts:
        raise InputError(where, f"{option.name} is the shell variable {unset}, which is not set here; write its value.")
    if option.kind == "list":
        following = [part for word in following for part in word.split(",") if part] if option.choices else following
        _check_words(option, following, where)
        return list(following)
    _check_words(option, following[:1], where)
    if option.kind in ("whole", "number"):
        return _number(option, following[0], where)
    return following[0]


def _check_words(option: MegatronOption, words: Sequence[str], where: str) -> None:
    """Raise ``InputError`` for a word that Megatron does not accept; shell variables, being unknown, pass."""
    for word in words:
        if option.choices and word not in option.choices and "$" not in word:
            raise InputError(where, f"{option.name} must be {' or '.join(option.choices)}, got {word!r}.")


def _number(option: MegatronOption, text: str, where: str) -> int | float:
    if option.kind == "number":
        return number(text, option.name, where)
    least = 0 if "0" in option.modelled_values else 1
    return int(number_in(text, where, f"{option.name} must be a whole number >= {least}", least, is_whole=True))


def _simulated(values: Mapping[str, Any], where: str) -> list[NotModelled]:
    """Return the effects that predictions leave out. ``InputError`` names unsupported options."""
    refused: list[tuple[MegatronOption, str]] = []
    found: list[NotModelled] = []
    for field in values:
        option = megatron_options()[field]
        words = option.unlike(values[field])
        if not words or not option.matters(values):
            continue
        if option.status == "refused":
            refused.append((option, " ".join(words)))
        elif option.status != "harmless":
            found += option.not_modelled(words)
    if refused:
        (option, value), *rest = refused
        others = f" Refused, too: {', '.join(option.name for option, _ in rest)}." if rest else ""
        is_name = not option.why.split()[0][1:].islower()
        why = option.why if is_name else option.why[0].lower() + option.why[1:]
        raise InputError(where, f"{f'{option.name} {value}'.strip()} is refused: {why}{others}")
    return found


def _check_alias(name: str, values: Mapping[str, Any], where: str) -> None:
    """Raise ``InputError`` for an alias such as ``--tp``, which only this tool reads, in place of Megatron's option."""
    option = usual_name(name.removeprefix("--"))
    fields = [field_of(f"--{other}") for other in (option, *OTHER_NAMES.get(option, ()))]
    known = [field for field in fields if field in megatron_options()]
    if known and not values.keys() & set(known):
        raise InputError(where, f"Megatron-LM has no option {name}; write --{known[0].replace('_', '-')}.")


def _unknown(name: str, following: Sequence[str], where: str) -> NotModelled:
    """Return the note on an option that Megatron lacks. ``InputError`` if the option seems misspelt."""
    near = difflib.get_close_matches(field_of(name)[:MAX_SHOWN], megatron_options(), n=1, cutoff=NEAR) or _cut_short(
        name
    )
    if near:
        raise InputError(where, f"unknown option {name}. Did you mean --{near[0].replace('_', '-')}?")
    return NotModelled(
        option=name,
        value=" ".join(following),
        effect="both",
        direction="either",
        why="Megatron-LM from 0.16 on has no such option; its effect is not known here.",
    )


def _is_list_of_options(word: str) -> bool:
    """Return whether a word is a shell variable that may hold options: ``$EXTRA_ARGS``, ``${GPT_ARGS[@]}``."""
    found = re.fullmatch(r"\$\{?(\w+)(\[[@*]\])?\}?|\$[@*]", word)
    if found is None:
        return False
    return found[1] is None or found[2] is not None or re.search("ARGS|OPTS|OPTIONS|FLAGS|PARAMS", found[1]) is not None


def _cut_short(name: str) -> list[str]:
    """Return modelled options that a shortened name begins, such as ``--num-layers-per``; empty for a single word."""
    begins = f"{field_of(name)}_"
    if begins.count("_") < 2:
        return []
    known = megatron_options().items()
    return [field for field, option in known if field.startswith(begins) and option.status == "modelled"]
