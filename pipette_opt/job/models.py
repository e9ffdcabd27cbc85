"""Comparison of Megatron arguments with a model that is named elsewhere; every difference is reported."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_numbers import option_of

if TYPE_CHECKING:
    from pipette_opt.job.read import Made
    from pipette_opt.options.description import JobOptions
    from pipette_opt.plans.plan import Plan
    from pipette_opt.read.megatron_args import MegatronArgs
    from pipette_opt.specs import ModelSpec, TrainingSpec

NEUTRAL = (
    "name",
    "vocab_size",
    "make_vocab_size_divisible_by",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "rotary_seq_len_interpolation_factor",
    "rope_scaling_factor",
    "yarn",
    "norm_epsilon",
    "layernorm_zero_centered_gamma",
    "init_method_std",
    "other_arguments",
)
"""Fields of a model that change neither time nor memory. Vocabularies are compared after padding."""

DROPOUTS = ("hidden_dropout", "attention_dropout")
"""Fields of a model that a launch without the options sets to Megatron's default; masks take memory."""

SILENT = (
    "vocab_size",
    "make_vocab_size_divisible_by",
    "max_position_embeddings",
    *DROPOUTS,
    "glu_linear_offset",
    "activation_func_clamp_value",
)
"""Options whose absence in a full set of arguments is no difference from the model."""

OF_TRAINING = ("fp8_format", "fp4_format")
"""Options of the training that say whether the layers at the ends stay in 16 bits; no difference of the model."""

OF_FIELDS = {
    "gated_linear_unit": "--swiglu",
    "num_query_groups": "--group-query-attention",
    "untie_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "add_bias_linear": "--disable-bias-linear",
    "normalization": "--normalization",
    "position_embedding_type": "--position-embedding-type",
    "qk_layernorm": "--qk-layernorm",
    "multi_latent_attention": "--multi-latent-attention",
    "num_experts": "--num-experts",
    "mtp_num_layers": "--mtp-num-layers",
    "window_size": "--window-size",
    "hybrid_layer_pattern": "--hybrid-layer-pattern",
}
"""Option that a full set of arguments must contain, for each field of the model; its absence is a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An option, with its value in the arguments (``theirs``) and in the model (``ours``); empty if absent."""

    option: str
    theirs: str
    ours: str

    @property
    def words(self) -> str:
        """Clause of an error message that describes the difference."""
        if not self.theirs:
            return f"{self.option} is missing, but the job's model needs it"
        if not self.ours:
            return f"{self.option}{f' {self.theirs}' if self.theirs != 'True' else ''}, but the job's model has none"
        return f"{self.option} {self.theirs} differs from the job's {self.ours}"


def with_launch(
    options: "JobOptions", made: "Made", launch: "MegatronArgs"
) -> "tuple[JobOptions, ModelSpec | None, str]":
    """
    Return the options of a job with what its launch sets, the model made in memory, and a sentence on its source.

    The model comes from ``--model``, or else from the launch if it describes a whole model, or else from the example.
    The sentence is empty if a single place gives the model. Batch, sequence length and precision of the launch fill in
    options that are not given, unless an example or the program gives them.
    """
    from pipette_opt.read.megatron_args import model_of_arguments

    whole = "num_layers" in launch.options and "hidden_size" in launch.options
    named = options.model if made.model is None else made.model.name
    model, source, is_own = made.model, "", False
    if named is not None:
        source = f"The model is {named}, from --model; the launch describes the same model." if whole else ""
    elif whole and (options.example is None or _says_another(options.example, launch)):
        model = launch.model or model_of_arguments(launch.text, launch.where)[0]
        source = f"The model is that of the launch, not that of --example {options.example}." if options.example else ""
        options, is_own = replace(options, vocab_size=None), True
    elif launch.model_name and options.example is None:
        source = f"The model is {launch.model_name}, which the launch names."
        options = replace(options, model=launch.model_name)
    elif whole:
        source = f"The model is that of --example {options.example}; the launch describes the same model."
    has_training = made.training is not None or (options.example is not None and not is_own)
    return options if has_training else _filled_in(options, launch), model, source


def _filled_in(options: "JobOptions", launch: "MegatronArgs") -> "JobOptions":
    """Return the options; missing batch size, sequence length, precision and fp8 come from the launch."""
    given = {
        name: getattr(launch, name)
        for name in ("global_batch_size", "seq_length", "precision")
        if getattr(options, name) is None
    }
    return replace(options, fp8=options.fp8 or launch.fp8, **given)


def _says_another(example: str, given: "MegatronArgs") -> bool:
    """Return whether the arguments describe another model than the example's."""
    from pipette_opt.read.example import read_example

    shown = read_example(example)
    return bool(model_differences(shown.model, shown.training, given))


def check_one_model(model: "ModelSpec", training: "TrainingSpec", given: "MegatronArgs") -> None:
    """Raise ``InputError`` if options of the arguments contradict the model; the text has both values."""
    found = [difference.words for difference in model_differences(model, training, given)]
    if found:
        raise InputError(given.where, f"{'; '.join(found)}; give the same model in both places.")


def with_dropout_of(model: "ModelSpec", given: "MegatronArgs") -> "ModelSpec":
    """Return the model of a launch: the job's, with the dropout of arguments that describe a whole model."""
    return model if given.model is None else replace(model, **{name: getattr(given.model, name) for name in DROPOUTS})


def dropout_words(ours: "ModelSpec", planned: "ModelSpec") -> list[str]:
    """Return a sentence on the dropout of a launch if the plan's job has another; empty if it has the same."""
    unlike = [name for name in DROPOUTS if getattr(ours, name) != getattr(planned, name)]
    if not unlike:
        return []
    options = (f"{option_of(name)} {getattr(ours, name):g} (the plan {getattr(planned, name):g})" for name in unlike)
    return [f"it trains with {' and '.join(options)}; dropout masks take memory"]


def is_same_model(model: "ModelSpec", other: "ModelSpec") -> bool:
    """Return whether two models have equal times and memory, dropout aside."""
    return _same(model, replace(other, **{name: getattr(model, name) for name in DROPOUTS}), 1)


def check_job_of_plan(plan: "Plan", given: "MegatronArgs") -> None:
    """
    Raise ``InputError`` if the arguments have another model, batch size or sequence length than the plan.

    A plan without a recorded job is not checked.
    """
    from pipette_opt.base.typed import typed
    from pipette_opt.specs import ModelSpec, TrainingSpec

    if not {"model", "training"} <= set(plan.inputs):
        return
    training = typed(TrainingSpec, plan.inputs["training"], "plan, inputs.training", closed=True)
    check_tokens(training, given, "plan")
    check_one_model(typed(ModelSpec, plan.inputs["model"], "plan, inputs.model", closed=True), training, given)


def check_tokens(training: "TrainingSpec", given: "MegatronArgs", owner: str) -> None:
    """Raise ``InputError`` if the arguments have another batch size or sequence length; ``owner`` has the training."""
    for field, compared in (("global_batch_size", "batch size"), ("seq_length", "sequence length")):
        theirs, ours = getattr(given, field), getattr(training, field)
        if theirs not in (None, ours):
            difference = f"{option_of(field)} {theirs} differs from the {owner}'s {ours}"
            raise InputError(given.where, f"{difference}; give both the same {compared}.")


def model_differences(model: "ModelSpec", training: "TrainingSpec", given: "MegatronArgs") -> list[Difference]:
    """
    Return the options in the arguments that contradict the model.

    Each option is put into the model on its own; it counts if it changes time or memory. If the arguments describe a
    whole model, absent options count as well.
    """
    try:
        ours = _options_of(model, training)
    except InputError:
        return list(_other_sizes(model, given))
    written = _changed(ours, {}) or model
    tp = given.tensor_model_parallel_size
    found = [
        Difference(option=option_of(name), theirs=_text(value), ours=_text(ours.get(name, "")))
        for name, value in given.options.items()
        if name not in OF_TRAINING and not _same(written, _changed(ours, {name: value}), tp)
    ]
    return found or (list(_absent(written, ours, given)) if "hidden_size" in given.options else [])


def _other_sizes(model: "ModelSpec", given: "MegatronArgs") -> Iterator[Difference]:
    """Yield integer sizes that differ, for a model that Megatron options cannot express."""
    for name, value in given.options.items():
        ours = getattr(model, name, value)
        if (name not in NEUTRAL or name == "vocab_size") and type(value) is int and value != ours:
            yield Difference(option=option_of(name), theirs=str(value), ours="" if ours is None else str(ours))


def _absent(model: "ModelSpec", ours: Mapping[str, Any], given: "MegatronArgs") -> Iterator[Difference]:
    """Yield options that a full set of arguments lacks although the model needs them."""
    theirs = _changed({name: ours[name] for name in SILENT if name in ours}, given.options)
    if theirs is None or _same(model, theirs, given.tensor_model_parallel_size):
        return
    for field, option in OF_FIELDS.items():
        if getattr(theirs, field) != getattr(model, field):
            yield Difference(option=option, theirs="", ours=str(getattr(model, field)))


def _options_of(model: "ModelSpec", training: "TrainingSpec") -> dict[str, Any]:
    """
    Return the Megatron options that describe the model.

    Raise ``InputError`` for a model that Megatron options cannot express.
    """
    from pipette_opt.read.megatron_options import option_values
    from pipette_opt.read.model_words import model_options

    words = [word for option in model_options(model, training) for word in option]
    return option_values(shlex.join(words), "the job's model")


def _changed(ours: Mapping[str, Any], options: Mapping[str, Any]) -> "ModelSpec | None":
    """Return the model with changed options; ``None`` if the options contradict each other."""
    from pipette_opt.read.megatron_conflicts import derived_options
    from pipette_opt.read.megatron_model import model_of_options

    try:
        return model_of_options(derived_options({**ours, **options}), "the model", "")
    except InputError:
        return None


def _same(model: "ModelSpec", other: "ModelSpec | None", tp: int) -> bool:
    """Return whether two models have equal times and memory, with vocabularies padded for ``tp``."""
    if other is None or model.padded_vocab_size(tp) != other.padded_vocab_size(tp):
        return False
    if model.expert_ffn_size != other.expert_ffn_size:
        return False
    neutral = (
        *NEUTRAL,
        "moe_ffn_hidden_size",
        *(() if model.position_embedding_type == "learned_absolute" else ("max_position_embeddings",)),
    )
    return all(
        getattr(model, field.name) == getattr(other, field.name) for field in fields(model) if field.name not in neutral
    )


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
