"""Command-line arguments of Megatron-LM, read as a model and a launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, made_at, shown
from pipette_opt.base.files import is_file, is_folder
from pipette_opt.base.types import Precision, RankOrder, RecomputeGranularity, RecomputeMethod
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.config import SHARDING_STRATEGIES
from pipette_opt.parallel.recompute import CORE, modules_in_order
from pipette_opt.read.even_parts import EvenParts
from pipette_opt.read.exported import exported_launch, exported_ranks, launch_in
from pipette_opt.read.files import read_text
from pipette_opt.read.finetune import Finetune
from pipette_opt.read.foreign import Source, launch_fields
from pipette_opt.read.launch_file import is_launch
from pipette_opt.read.launches import Launch, launch_of, may_train
from pipette_opt.read.megatron_conflicts import check_conflicts, derived_options
from pipette_opt.read.megatron_layers import stage_bounds
from pipette_opt.read.megatron_model import model_of_options, names_vocabulary
from pipette_opt.read.megatron_options import options_in
from pipette_opt.read.megatron_training import gradients_in_fp32, training_fields
from pipette_opt.read.megatron_words import Words, read_words
from pipette_opt.read.pipeline_layout import layers_of_layout
from pipette_opt.read.settings_files import is_recipe
from pipette_opt.read.tokenizers import tokenizer_of
from pipette_opt.specs import ModelSpec, NotModelled, TrainingSpec
from pipette_opt.specs.training import Dispatcher

DEFAULT_STRATEGY = "optim_grads_params"
"""Default of ``--data-parallel-sharding-strategy`` in Megatron-FSDP, from Megatron-LM 0.18 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronArgs:
    """
    Launch that Megatron-LM arguments describe; absent options have Megatron's defaults.

    Parameters
    ----------
    model
        Model; ``None`` without ``--num-layers`` or without a vocabulary size.
    options
        Options known to Megatron, by name with underscores, after the changes that Megatron makes silently.
    micro_batch_size, global_batch_size, seq_length
        Batch sizes in sequences, and tokens per sequence; ``None`` if not given.
    precision
        Precision; ``None`` if not given, except that a launch with model and batch then trains in fp32.
    fp8
        Whether ``--fp8-format`` is given.
    recompute_granularity
        Granularity of recomputation; ``--recompute-activations`` counts as ``selective``.
    recompute_modules
        Modules of ``selective`` recomputation: the given modules, or the attention core.
    moe_token_dispatcher_type
        Token dispatcher of a model with experts; ``None`` if not given (Megatron's default is ``allgather``).
    groups_of_replicas
        Fields of :class:`ParallelConfig` for hybrid sharding.
    zero_stage
        ZeRO stage of ``--use-megatron-fsdp`` or ``--use-torch-fsdp2``, 0 to 3; ``None`` without these options.
    pipeline_layout
        ``--pipeline-model-parallel-layout``, which sets the layers of each stage and the number of chunks.
    stage_layers
        Layers of each stage of a measured run whose software does not split them as Megatron-Core; else ``None``.
    gradients_in_fp32
        Whether gradients are in fp32; ``None`` if the precision decides.
    training_fields
        Other given fields of :class:`~pipette_opt.specs.TrainingSpec`.
    not_modelled
        Options that predictions leave out.
    notes
        Assumptions made while the script was read.
    are_overrides
        Whether the options override fields of a recipe, which sets the others.
    account_for_embedding, account_for_loss
        Whether embedding and output head each count as a layer when layers are split over stages.
    written
        Options as written, before Megatron's silent changes.
    text
        Script or command line that was read.
    lines
        Text of a launch script or file of arguments, whose lines a user can edit; empty for a typed text, a launch in
        JSON and a script that ``export`` wrote.
    ranks
        Host and GPU of each rank, by the files of a launch that ``export`` wrote; empty if unknown.
    framework
        Framework of the launch.
    software
        Stack that prices another framework's launch; empty for one of Megatron-LM.
    model_name
        Preset that another framework's launch trains; empty if it names none that is known.
    module
        Module of :mod:`pipette_opt.frameworks` that writes plans for the framework; empty for Megatron-LM.
    space
        Fields of a search space with the values that the framework can run; empty for Megatron-LM.
    settings
        Settings of another framework's launch, by the names that its module writes.
    replica_batch_size
        Sequences of each replica in an iteration, for a launch that gives them in place of the global batch.
    data_parallel_size
        Data-parallel size; ``None`` for the GPUs that the other degrees leave.
    num_processes
        Processes that another framework's launch starts; ``None`` if it does not say.
    even_parts
        Rule that divides the layers into chunks, for a framework that has one; ``None`` for Megatron-Core's rules.
    recompute_every
        Distance between layers that are recomputed whole; ``None`` if ``recompute_granularity`` says all.
    finetune
        Method of fine-tuning; ``None`` for training from scratch.
    """

    where: str
    model: ModelSpec | None
    options: Mapping[str, Any] = field(default_factory=dict)
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    num_layers_per_virtual_pipeline_stage: int | None = None
    num_virtual_stages_per_pipeline_rank: int | None = None
    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    seq_length: int | None = None
    precision: Precision | None = None
    fp8: bool = False
    sequence_parallel: bool = False
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    no_overlap_p2p_communication: bool = False
    ddp_bucket_size: int | None = None
    recompute_granularity: RecomputeGranularity | None = None
    recompute_method: RecomputeMethod = "uniform"
    recompute_num_layers: int = 1
    recompute_modules: tuple[str, ...] = CORE
    expert_tensor_parallel_size: int | None = None
    moe_token_dispatcher_type: Dispatcher | None = None
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    zero_stage: int | None = None
    num_distributed_optimizer_instances: int = 1
    groups_of_replicas: Mapping[str, Any] = field(default_factory=dict)
    pipeline_layout: str | None = None
    stage_layers: tuple[int, ...] | None = None
    gradients_in_fp32: bool | None = None
    training_fields: Mapping[str, Any] = field(default_factory=dict)
    not_modelled: tuple[NotModelled, ...] = ()
    notes: tuple[str, ...] = ()
    are_overrides: bool = False
    written: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False)
    lines: str = field(default="", repr=False)
    ranks: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    framework: str = "Megatron-LM"
    software: str = ""
    model_name: str = ""
    module: str = ""
    space: Mapping[str, Any] = field(default_factory=dict, repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    replica_batch_size: int | None = None
    data_parallel_size: int | None = None
    num_processes: int | None = None
    even_parts: EvenParts | None = None
    recompute_every: int | None = None
    finetune: Finetune | None = None

    def batch_on(self, num_gpus: int) -> int | None:
        """Return the global batch size on ``num_gpus`` GPUs; ``None`` if the launch gives no batch."""
        if self.global_batch_size is not None or self.replica_batch_size is None:
            return self.global_batch_size
        degrees = self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        return self.replica_batch_size * max(num_gpus // degrees, 1)

    def training(self, base: TrainingSpec) -> TrainingSpec:
        """
        Return the training settings: formats and kernels of the launch, batch and precision of ``base``.

        By default, gradients are kept and reduced in fp32 with bf16, and in fp16 with fp16 (``validate_args`` in
        ``megatron/training/arguments.py``).
        """
        in_fp32 = base.precision != "fp16" if self.gradients_in_fp32 is None else self.gradients_in_fp32
        return made_at(self.where, replace, base, accumulate_allreduce_grads_in_fp32=in_fp32, **self.training_fields)

    def _exchange_ranks(self) -> int:
        """Return the context ranks that exchange heads: the first of two levels of context parallelism."""
        levels = self.options.get("hierarchical_context_parallel_sizes")
        if levels is None or self.context_parallel_size == 1 or self.training_fields.get("cp_comm_type") != "a2a+p2p":
            return 1
        return int(levels[0])

    def parallel_config(self, num_layers: int, num_gpus: int) -> ParallelConfig:
        """
        Return the configuration of the launch on ``num_gpus`` GPUs; the data-parallel size follows from the other
        degrees.

        Megatron has no default micro-batch size; a missing size counts as one sequence.
        """
        if self.even_parts is not None:
            layout = made_at(self.where, self.even_parts.layout, num_layers, self.pipeline_model_parallel_size)
            divided = replace(self, pipeline_layout=layout, even_parts=None)
            return divided.parallel_config(num_layers, num_gpus)
        pp, ranks = self.pipeline_model_parallel_size, self.context_parallel_size * self.tensor_model_parallel_size
        if num_gpus % (ranks * pp):
            problem = f"tensor x context x pipeline = {ranks * pp} must divide the {num_gpus} GPUs."
            raise InputError(self.where, problem)
        if self.num_processes not in (None, num_gpus):
            problem = f"starts {self.num_processes} processes, but the job has {num_gpus} GPUs"
            raise InputError(self.where, f"{problem}; --num-gpus {self.num_processes} makes them equal.")
        if self.data_parallel_size not in (None, num_gpus // (ranks * pp)):
            degrees = f"tensor x context x pipeline x data = {ranks * pp} x {self.data_parallel_size}"
            raise InputError(self.where, f"{degrees} must be the {num_gpus} GPUs of the job; --num-gpus sets them.")
        layers, chunks = self.layers_per_stage(num_layers), self._num_chunks(num_layers)
        groups = self.num_distributed_optimizer_instances
        replicas = num_gpus // (ranks * pp) * self.context_parallel_size
        if replicas % groups:
            option = f"--num-distributed-optimizer-instances {groups}"
            raise InputError(self.where, f"{option} does not divide the {replicas} data- and context-parallel ranks.")
        sharded = self.zero_stage in (2, 3) and replicas > 1  # gradients are sent in every micro-batch
        recomputed = (
            self.recompute_num_layers
            if self.recompute_every is None
            else max(-(-max(layers) // (chunks or 1)) // self.recompute_every, 1)
        )
        shares = self.use_distributed_optimizer if self.zero_stage is None else self.zero_stage > 0
        return made_at(
            self.where,
            ParallelConfig,
            tensor_model_parallel_size=self.tensor_model_parallel_size,
            pipeline_model_parallel_size=pp,
            data_parallel_size=num_gpus // (ranks * pp),
            context_parallel_size=self.context_parallel_size,
            context_a2a_size=self._exchange_ranks(),
            expert_model_parallel_size=self.expert_model_parallel_size,
            micro_batch_size=self.micro_batch_size or 1,
            layers_per_stage=layers,
            virtual_pipeline_model_parallel_size=chunks,
            sequence_parallel=self.sequence_parallel and self.tensor_model_parallel_size > 1,
            recompute_granularity=self.recompute_granularity,
            recompute_method=self.recompute_method,
            recompute_num_layers=recomputed,
            recompute_modules=self.recompute_modules,
            expert_tensor_parallel_size=self.expert_tensor_parallel_size,
            use_distributed_optimizer=shares,
            zero_stage=self.zero_stage if sharded else None,
            **(self.groups_of_replicas if shares else {}),
            overlap_grad_reduce=self.overlap_grad_reduce and not sharded,
            overlap_param_gather=self.overlap_param_gather and shares and not sharded,
            ddp_bucket_size=None if sharded else self.ddp_bucket_size,
            overlap_p2p_communication=chunks is None or not self.no_overlap_p2p_communication,
            pipeline_model_parallel_layout=self.pipeline_layout,
        )

    def _layout(self, num_layers: int) -> tuple[tuple[int, ...], ...]:
        """Return the layers of each chunk of each stage that the pipeline layout sets, shape ``(num_chunks, pp)``."""
        pp = self.pipeline_model_parallel_size
        depths = self.options.get("mtp_num_layers")
        return layers_of_layout(self.pipeline_layout or "", num_layers, depths, pp, self.where)

    def layers_per_stage(self, num_layers: int) -> tuple[int, ...]:
        """Return the transformer layers of each pipeline stage, split as Megatron-Core does unless they are given."""
        if self.stage_layers is not None:
            return self.stage_layers
        if self.pipeline_layout is not None:
            return tuple(map(sum, zip(*self._layout(num_layers), strict=True)))
        pp = self.pipeline_model_parallel_size
        first, last = self.decoder_first_pipeline_num_layers, self.decoder_last_pipeline_num_layers
        if self.account_for_embedding or self.account_for_loss:
            if first is not None or last is not None:
                problem = (
                    "--account-for-... cannot be combined with --decoder-first- or --decoder-last-pipeline-num-layers."
                )
                raise InputError(self.where, problem)
            layers = [self._counted_layers(num_layers)] * pp
            layers[0] -= int(self.account_for_embedding)
            layers[-1] -= int(self.account_for_loss)
            return tuple(layers)
        rest = num_layers - (first or 0) - (last or 0)
        middle = pp - (first is not None) - (last is not None)
        if middle < 0 or rest < 0 or (middle == 0 and rest):
            given = {"first": first, "last": last}
            ends = " and ".join(f"{layers} in the {end} stage" for end, layers in given.items() if layers is not None)
            raise InputError(self.where, f"{ends} do not fit {num_layers} layers on {pp} stages.")
        layers = [self._share(rest, middle)] * middle if middle else []
        if first is not None:
            layers.insert(0, first)
        if last is not None:
            layers.append(last)
        return tuple(layers)

    def _counted_layers(self, num_layers: int) -> int:
        """Return the layers per stage in an even split, with embedding and head as layers if they count."""
        counted = num_layers + int(self.account_for_embedding) + int(self.account_for_loss)
        return self._share(counted, self.pipeline_model_parallel_size)

    def _share(self, num_layers: int, num_stages: int) -> int:
        if num_layers % num_stages:
            raise InputError(
                self.where,
                f"{num_layers} layers must be a multiple of the {num_stages} stages they go to. Uneven stages need "
                "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers, "
                "--pipeline-model-parallel-layout, or --account-for-embedding-in-pipeline-split and "
                "--account-for-loss-in-pipeline-split.",
            )
        return num_layers // num_stages

    def _num_chunks(self, num_layers: int) -> int | None:
        """Return the number of chunks per stage; ``None`` without interleaving."""
        if self.pipeline_layout is not None:
            chunks = len(self._layout(num_layers))
        elif self.num_virtual_stages_per_pipeline_rank is not None:
            chunks = self.num_virtual_stages_per_pipeline_rank
            if self.account_for_embedding or self.account_for_loss:
                stage = self._counted_layers(num_layers)
                if stage % chunks:
                    problem = f"num_virtual_stages_per_pipeline_rank must divide the {stage} layers of a stage"
                    raise InputError(self.where, f"{problem} (embedding or head counted), got {chunks}.")
        elif self.num_layers_per_virtual_pipeline_stage is not None:
            stage = self._counted_layers(num_layers)
            if stage % self.num_layers_per_virtual_pipeline_stage:
                problem = f"num_layers_per_virtual_pipeline_stage must divide the {stage} layers of a stage"
                raise InputError(self.where, f"{problem}, got {self.num_layers_per_virtual_pipeline_stage}.")
            chunks = stage // self.num_layers_per_virtual_pipeline_stage
        else:
            return None
        return chunks if chunks > 1 else None


Environment = Mapping[str, str] | None
"""Environment variables at the start of a script; ``None`` for no variables."""


def written_arguments(source: str) -> tuple[str, str, str] | None:
    """Return the text of Megatron arguments, its place for errors, and a model name; ``None`` for other sources."""
    text = source.strip()
    if text.startswith("--"):
        return text, "Megatron arguments", "megatron"
    path = Path(text)
    if len(text.split()) > 1 or not is_file(path):
        return None
    content = exported_launch(path, read_text(path, keep_line_ends=True))
    if path.suffix.lower() in (".yaml", ".yml"):
        return (content, str(path), path.stem) if is_recipe(content, str(path)) else None
    is_other = path.suffix.lower() == ".json" or content.lstrip().startswith("{")
    return None if is_other and not is_launch(content) else (content, str(path), path.stem)


def read_megatron_args(
    arguments: str,
    where: str,
    environment: Environment = None,
    *,
    vocab_size: int | None = None,
    as_launch: bool = True,
) -> MegatronArgs:
    """
    Return the launch that Megatron arguments in a text or a file describe; ``where`` names a text in errors.

    Unless ``as_launch`` is false, as for a row of a table whose columns add to the arguments, an option has to size the
    job.
    """
    text, name, lines = arguments.strip(), "megatron", ""
    ranks: tuple[tuple[str, int], ...] = ()
    if text and not text.startswith("-") and is_folder(text):
        text = str(launch_in(Path(text)))
    one_word = not text.startswith("-") and len(text.split()) == 1
    if one_word or (not text.startswith("-") and is_file(text)):
        where, name, lines = text, Path(text).stem, read_text(text, keep_line_ends=True)
        text, ranks = exported_launch(Path(where), lines), exported_ranks(Path(where), lines)
    elif not text:
        raise InputError(where, "are empty; give options such as --tensor-model-parallel-size 8.")
    elif "--" not in text and not (may_train(text.split()) or isinstance(launch_of(text.split()), Launch)):
        raise InputError(where, f"must hold options such as --tensor-model-parallel-size 8, got {shown(text)}.")
    if not text.strip():
        raise InputError(where, "is empty; give a script, or options such as --tensor-model-parallel-size 8.")
    given = parse_megatron_args(text, where, name, environment, vocab_size=vocab_size, as_launch=as_launch)
    is_edited = lines == text and not is_launch(lines) and not is_recipe(lines, where)
    return replace(given, lines=lines if is_edited and not given.are_overrides else "", ranks=ranks)


def model_of_arguments(
    text: str,
    where: str = "Megatron arguments",
    name: str = "megatron",
    environment: Environment = None,
    *,
    vocab_size: int | None = None,
) -> tuple[ModelSpec, tuple[NotModelled, ...]]:
    """
    Return the model that Megatron arguments describe, and the options that predictions leave out.

    Unsupported options of training are ignored.
    """
    options = options_in(read_words(text, where, environment, of_model=True), where, of_model=True)
    given = derived_options(_with_vocabulary(options.values, vocab_size, where))
    check_conflicts(given, where, of_model=True)
    if "num_layers" not in given:
        raise InputError(where, "has no --num-layers; a model needs --num-layers, --hidden-size and so on.")
    return model_of_options(given, where, name), (*options.not_modelled, *_absent(given))


def _with_vocabulary(given: Mapping[str, Any], vocab_size: int | None, where: str) -> Mapping[str, Any]:
    """Return the options with ``vocab_size``, if given. ``InputError`` if the options have another vocabulary size."""
    size = given.get("vocab_size", given.get("padded_vocab_size", vocab_size))
    if vocab_size not in (None, size):
        raise InputError(
            where, f"have a vocabulary of {size}, which contradicts --vocab-size {vocab_size}; leave --vocab-size out."
        )
    return given if vocab_size is None else {**given, "vocab_size": vocab_size}


def parse_megatron_args(
    text: str,
    where: str = "Megatron arguments",
    name: str = "megatron",
    environment: Environment = None,
    *,
    vocab_size: int | None = None,
    as_launch: bool = False,
) -> MegatronArgs:
    """
    Return the launch that a command line, a launch script, or a list of arguments printed by Megatron describes.

    ``vocab_size`` is the vocabulary size of a launch that leaves it to a tokenizer. With ``as_launch``, one of the
    options has to size the job. Options that change predictions but
    are not modelled are listed in ``not_modelled``. Options that cannot be predicted raise ``InputError``. In a file
    that ``export`` wrote, the job counts, not its trial run.
    """
    words = read_words(text, where, environment)
    if words.source is not None:
        return _of_framework(words, words.source, where, text)
    options = options_in(words, where, as_launch=as_launch)
    values = _with_vocabulary(options.values, vocab_size, where)
    check_conflicts(derived_options(values), where)
    launch = launch_of_options(values, where, name)
    others = {"other_arguments": options.passed_on} if options.passed_on else {}
    return replace(
        launch,
        written=options.values,
        text=text,
        training_fields={**launch.training_fields, **others},
        not_modelled=(*options.not_modelled, *launch.not_modelled),
        notes=options.notes,
        finetune=words.finetune,
        are_overrides=options.are_overrides,
    )


def launch_of_options(values: Mapping[str, Any], where: str, name: str = "megatron") -> MegatronArgs:
    """
    Return the launch that options describe, by name with underscores, without a check of options that exclude others.

    Options that change predictions but are not modelled are listed in ``not_modelled`` only if they are absent.
    """
    given = derived_options(values)
    model = model_of_options(given, where, name) if "num_layers" in given and names_vocabulary(given) else None
    read_apart = ("recompute_granularity", "recompute_modules")
    simple = {
        name: given[name] for name in MegatronArgs.__dataclass_fields__ if name in given and name not in read_apart
    }
    return MegatronArgs(
        where=where,
        model=model,
        options=given,
        precision=_precision(given),
        fp8="fp8_format" in given,
        recompute_granularity=_granularity(given),
        recompute_modules=_modules(given, where),
        rank_order="tp-cp-ep-pp-dp" if given.get("use_tp_pp_dp_mapping") else "tp-cp-ep-dp-pp",
        account_for_embedding=bool(given.get("account_for_embedding_in_pipeline_split")),
        account_for_loss=bool(given.get("account_for_loss_in_pipeline_split")),
        zero_stage=_zero_stage(given),
        groups_of_replicas=_groups_of_replicas(given, where),
        pipeline_layout=given.get("pipeline_model_parallel_layout") or stage_bounds(given, where),
        gradients_in_fp32=gradients_in_fp32(given),
        training_fields=training_fields(given, where),
        not_modelled=tuple(_absent(given)),
        **simple,
    )


def _of_framework(words: Words, source: Source, where: str, text: str) -> MegatronArgs:
    """Return the launch of another framework, as the framework's module reads it."""
    found = dict(launch_fields(source))
    notes = (*words.notes, *found.pop("notes", ()))
    started = None if source.launch is None else source.launch.num_processes
    known: dict[str, Any] = {"where": where, "model": None, "framework": source.framework.name, "text": text}
    found["num_processes"] = found.get("num_processes") or started
    return MegatronArgs(**{**known, **found, "notes": notes})


def _precision(given: Mapping[str, Any]) -> Precision | None:
    """Return the given precision; fp32 if a launch with model and batch gives none, as in Megatron."""
    if given.get("bf16") or given.get("fp16"):
        return "bf16" if given.get("bf16") else "fp16"
    whole = ("num_layers", "global_batch_size", "micro_batch_size")
    return "fp32" if all(name in given for name in whole) else None


def _granularity(given: Mapping[str, Any]) -> RecomputeGranularity | None:
    """Return the granularity of recomputation that the options set; ``None`` for ``selective`` without modules."""
    by_others = "selective" if given.get("recompute_activations") or given.get("moe_layer_recompute") else None
    found: RecomputeGranularity | None = given.get("recompute_granularity", by_others)
    return None if found == "selective" and given.get("recompute_modules") == [] else found


def _modules(given: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the modules of selective recomputation; the older ``--moe-layer-recompute`` adds a module."""
    if _granularity(given) != "selective":
        return CORE
    named = list(given.get("recompute_modules", CORE)) + ["moe"] * bool(given.get("moe_layer_recompute"))
    try:
        return modules_in_order(named)
    except ValueError as error:
        raise InputError(where, f"--{str(error).replace('_', '-', 1)}") from None


def _zero_stage(given: Mapping[str, Any]) -> int | None:
    if given.get("use_torch_fsdp2"):
        return 2 if given.get("torch_fsdp2_no_reshard_after_forward") else 3
    if not given.get("use_megatron_fsdp"):
        return None
    return SHARDING_STRATEGIES.index(given.get("data_parallel_sharding_strategy", DEFAULT_STRATEGY))


def _groups_of_replicas(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """
    Return the fields of optimizer instances: groups of replicas, and in Megatron-FSDP states sharded among groups.

    Checks are those of Megatron's ``validate_args``.
    """
    fsdp = given.get("use_megatron_fsdp")
    outer = given.get("outer_dp_sharding_strategy", "no_shard")
    outer = "optim" if given.get("enable_full_sharding_in_hsdp") else outer
    groups = given.get("num_distributed_optimizer_instances", 1)
    if outer == "optim" and fsdp:
        if given.get("data_parallel_sharding_strategy", DEFAULT_STRATEGY) != "optim_grads_params":
            problem = "optim needs --data-parallel-sharding-strategy optim_grads_params"
            raise InputError(where, f"--outer-dp-sharding-strategy {problem}.")
        if groups < 2:
            problem = "optim needs --num-distributed-optimizer-instances of 2 or more"
            raise InputError(where, f"--outer-dp-sharding-strategy {problem}, got {groups}.")
    if groups == 1:
        return {}
    return {"num_distributed_optimizer_instances": groups, "outer_dp_sharding_strategy": outer if fsdp else "no_shard"}


def _absent(given: Mapping[str, Any]) -> list[NotModelled]:
    """Return notes on values that predictions assume because an option is absent."""
    found = []
    if given.get("num_experts") and not given.get("moe_grouped_gemm"):
        why = "Without it the experts' products run one after another; a grouped product is counted."
        found.append(
            NotModelled(
                option="--moe-grouped-gemm", value="not given", effect="time", direction="more", why=why, is_large=True
            )
        )
    tokenizer = None if given.get("padded_vocab_size") or given.get("vocab_size") else tokenizer_of(given)
    if tokenizer is not None and "num_layers" in given:
        why = f"{tokenizer.vocab_size:,} is counted, as {tokenizer.source} has, the tokenizer that the options name."
        found.append(NotModelled(option="--vocab-size", value="not given", effect="both", direction="either", why=why))
    option = "--data-parallel-sharding-strategy"
    if given.get("use_megatron_fsdp") and "data_parallel_sharding_strategy" not in given:
        why = f"{DEFAULT_STRATEGY} is assumed, Megatron-LM's default since 0.18; older versions use no_shard."
        found.append(NotModelled(option=option, value="not given", effect="both", direction="either", why=why))
    return found
