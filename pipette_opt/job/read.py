"""
Instance from the description of a job: files, presets and plain values.

Options of commands, keyword arguments of :func:`pipette_opt.solve` and entries of a job file are all fields of
:class:`~pipette_opt.options.description.JobOptions`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file
from pipette_opt.base.units import ceil_div
from pipette_opt.job.inputs import described_cluster
from pipette_opt.options.description import JobOptions, fields_of
from pipette_opt.options.values import check_declared

if TYPE_CHECKING:
    from pipette_opt.parallel import ParallelConfig
    from pipette_opt.read.example import Example
    from pipette_opt.read.megatron_args import MegatronArgs
    from pipette_opt.specs import ClusterSpec, Instance, ModelSpec, NotModelled, StackSpec, TrainingSpec
    from pipette_opt.specs.expert_loads import RankImbalance


LAUNCH = "--launch"
"""Option of the launch that runs today, which errors name for arguments that are no file."""

PYTORCH_FLASH = 2
"""Version of FlashAttention in PyTorch's ``scaled_dot_product_attention``, which sharding outside Megatron runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """
    Instance, number of GPUs that an example fixes, and record of all inputs for ``plan.json``.

    Parameters
    ----------
    launch
        Launch that runs today; ``None`` if none is given.
    finetune
        Method of fine-tuning; empty for training from scratch.
    model_from
        Sentence on the source of the model, if the launch and another place describe it; else empty.
    framework, can_run
        Framework that is to run the plan, by its module, and fields of a search space with the values that it can run;
        empty for any framework. That of ``launch`` unless another is named.
    tp_comm_overlap
        Field of the search space. ``None``: the search tries both; ``False``: an option of the job fixes it.
    environment
        Variables of launch scripts, from ``--env``.
    measured_configs
        Configurations of the user's measured runs of this job that have a time; the search tries them, too.
    """

    instance: "Instance"
    num_gpus: int | None
    inputs: dict[str, Any]
    launch: "MegatronArgs | None" = None
    finetune: str = ""
    model_from: str = ""
    framework: str = ""
    can_run: Mapping[str, Any] = field(default_factory=dict)
    tp_comm_overlap: bool | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    measured_configs: tuple["ParallelConfig", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """Parts of a job that a Python program passes as objects. Options that describe such a part must not be given."""

    cluster: "ClusterSpec | None" = None
    model: "ModelSpec | None" = None
    training: "TrainingSpec | None" = None


def read_job(options: JobOptions, made: Made | None = None) -> Job:
    """
    Read the job that the options describe. Values not given come from the example, else from the launch.

    Raises
    ------
    InputError
        If an input is missing, contradicts another, cannot be read, or has no effect.
    """
    from pipette_opt.job.models import check_one_model, with_launch
    from pipette_opt.read.example import read_example
    from pipette_opt.read.finetune import finetune_of
    from pipette_opt.read.foreign import framework_module
    from pipette_opt.read.gpus import gpu_record
    from pipette_opt.read.lengths import PADDED_TO, check_lengths, read_documents
    from pipette_opt.read.levels import domain_record
    from pipette_opt.read.megatron_args import read_megatron_args, written_arguments
    from pipette_opt.read.model import read_model
    from pipette_opt.read.profile import read_profile
    from pipette_opt.read.reserved import with_reserved
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.specs import Instance
    from pipette_opt.specs.model_gaps import not_modelled_of
    from pipette_opt.specs.precision import fp8_copies

    made = made or Made()
    launch, model_from, environment = None, "", script_environment(options.env)
    if options.model is not None and written_arguments(options.model) is not None:
        raise InputError("--model", f"is a launch, which sets more than the model; give it as {LAUNCH}.")
    if options.launch is not None:
        vocab_size = None if options.model is not None else options.vocab_size
        launch = read_megatron_args(options.launch, LAUNCH, environment, vocab_size=vocab_size)
        options, model, model_from = with_launch(options, made, launch)
        made = replace(made, model=model)
    check_declared(options)
    shown = None if options.example is None else read_example(options.example)
    machines = _machines(options, made.cluster, shown.cluster_path if shown else None)
    if launch is not None and options.global_batch_size is None and shown is None and made.training is None:
        options = _with_batch(options, launch, machines)
    documents = None if options.lengths is None else read_documents(options.lengths)
    if documents is not None and options.seq_length is None and not options.packed and made.training is None:
        options = replace(options, seq_length=ceil_div(documents.longest, PADDED_TO) * PADDED_TO)
    _check_needed(options, made, shown)
    cluster, record = machines()
    cluster, changes = _changed_cluster(options, cluster)
    model = made.model or (cast("Example", shown).model if options.model is None else read_model(options.model))
    _check_expert_options(options, model)
    finetune = finetune_of(options, None if launch is None else launch.finetune)
    training = made.training or _training(options, shown.training if shown else None, launch, model)
    if documents is not None:
        if options.profile is not None:
            raise InputError("--profile", "has times of whole sequences, which --lengths does not have; leave one out.")
        check_lengths(documents, cast("Path", options.lengths), training, model)
        training = replace(training, documents=documents)
    if launch is not None and model is not launch.model:
        check_one_model(model, training, launch)
    if finetune is not None:
        model = finetune.applied(model)
    stack, (framework, can_run) = _stack(options, launch), _framework(options, launch)
    if stack.family == "fsdp":
        training = _by_pytorch(training, options)
    if options.framework:
        training = replace(training, **framework_module(options.framework).TRAINING)
        framework_module(options.framework).check(model, training)
    if training.fp8:
        training = replace(training, fp8_copies=fp8_copies(gpu.peak_flops for gpu in cluster.gpu_kinds))
    check_precision(cluster, training)
    not_modelled = (
        *(launch.not_modelled if launch else ()),
        *_unmodelled_flags(options),
        *not_modelled_of(model, training),
    )
    instance = Instance(
        model=model,
        cluster=with_reserved(cluster, options.reserve_memory),
        training=training,
        p2p=options.p2p,  # type: ignore[arg-type]
        allreduce=options.allreduce,  # type: ignore[arg-type]
        launcher=(framework_module(framework).LAUNCHER if framework else "") or options.launcher,  # type: ignore[arg-type]
        profile=None if options.profile is None else read_profile(options.profile),
        stack=stack,
        not_modelled=tuple(dict.fromkeys(not_modelled)),
    )
    inputs: dict[str, Any] = {
        "cluster": record,
        "gpus": gpu_record(cluster),
        **domain_record(cluster),
        "example": options.example,
        "exclude_hosts": options.exclude_hosts,
        **({"reserve_memory": options.reserve_memory} if options.reserve_memory else {}),
        **changes,
        "profile": _file_record(options.profile),
        "stack": asdict(instance.stack),
        "model": asdict(model),
        "training": asdict(training),
        **({"framework": framework} if framework else {}),
    }
    return Job(
        instance=instance,
        num_gpus=shown.num_gpus if options.num_gpus is None and shown is not None else options.num_gpus,
        inputs=inputs,
        launch=launch,
        finetune="" if finetune is None else finetune.method,
        model_from=model_from,
        framework=framework,
        can_run=can_run,
        tp_comm_overlap=None if options.tp_comm_overlap is None else False,
        environment=environment,
    )


def _with_batch(
    options: JobOptions,
    launch: "MegatronArgs",
    machines: "Callable[[], tuple[ClusterSpec, dict[str, Any] | None]]",
) -> JobOptions:
    """Return the options with the global batch of a launch that gives the batch of a replica."""
    if launch.replica_batch_size is None:
        return options
    cluster, _ = machines()
    num_gpus = options.num_gpus or cluster.num_nodes * cluster.gpus_per_node
    return replace(options, global_batch_size=launch.batch_on(num_gpus))


def _by_pytorch(training: "TrainingSpec", options: JobOptions) -> "TrainingSpec":
    """Return training settings with PyTorch's attention, and torchao's recipe of fp8 unless another is asked for."""
    flash = min(training.flash_version, PYTORCH_FLASH)
    recipe = training.fp8_recipe if options.fp8_recipe or not training.fp8 else "tensorwise"
    return replace(training, flash_version=flash, fp8_recipe=recipe)  # type: ignore[arg-type]


def _framework(options: JobOptions, launch: "MegatronArgs | None") -> tuple[str, Mapping[str, Any]]:
    """Return the framework that is to run the plan and what it can run: the named one, else that of the launch."""
    from pipette_opt.read.foreign import framework_module

    if options.framework:
        return options.framework, framework_module(options.framework).SPACE
    return ("", {}) if launch is None else (launch.module, launch.space)


def _stack(options: JobOptions, launch: "MegatronArgs | None") -> "StackSpec":
    """Return the job's software stack; ``InputError`` if it is not that of the job's launch."""
    from pipette_opt.read.foreign import framework_module
    from pipette_opt.read.stack import read_stack
    from pipette_opt.specs.stack import ON_MEGATRON_CORE

    own = framework_module(options.framework).SOFTWARE if options.framework else ""
    software = options.software or own or (launch.software if launch is not None else "")
    stack = read_stack(software) if software else read_stack()
    if own and (stack.family in ON_MEGATRON_CORE) is not (read_stack(own).family in ON_MEGATRON_CORE):
        raise InputError("--for", f"is {options.framework}, which --software {stack.name} does not price; give {own}.")
    if launch is not None:
        check_software(stack, launch)
    return stack


def check_software(stack: "StackSpec", launch: "MegatronArgs") -> None:
    """Raise ``InputError`` if the stack is not that of a launch; typed options of Megatron-LM go with any stack."""
    from pipette_opt.read.stack import read_stack
    from pipette_opt.specs.stack import ON_MEGATRON_CORE

    problem = f"is a launch of {launch.framework}, but the software is {stack.name}"
    if launch.software:
        if stack.family != read_stack(launch.software).family:
            raise InputError(launch.where, f"{problem}; choose --software {launch.software}.")
    elif is_file(launch.where) and stack.family not in ON_MEGATRON_CORE:
        raise InputError(launch.where, f"{problem}; choose --software megatron-core or megatron-core-tuned.")


def _check_needed(options: JobOptions, made: Made, shown: "Example | None") -> None:
    """Raise ``InputError`` if a required part of the job is missing, out of range, or given twice."""
    from pipette_opt.specs.training import LARGEST

    if not 1.0 <= options.expert_imbalance < float("inf"):
        raise InputError("expert_imbalance", f"must be >= 1, got {options.expert_imbalance:g}.")
    if options.model is None and made.model is None and shown is None:
        raise InputError(
            "--model",
            "is required: a preset such as llama-3-8b or a Hugging Face config.json; or --launch, which has a model.",
        )
    sizes = (
        ("--global-batch-size", options.global_batch_size),
        ("--seq-length", options.seq_length),
        ("loss_chunks", options.loss_chunks),
    )
    for option, value in sizes:
        if value is None and shown is None and made.training is None:
            raise InputError(option, "is required; give a whole number.")
        if value is not None and not 1 <= value <= LARGEST:
            raise InputError(option, f"must be from 1 to {LARGEST:,}, got {value}.")
    if options.vocab_size is not None:
        raise InputError("--vocab-size", "has no effect: it is only for a --launch without a vocabulary size.")
    if made.training is not None:
        for name, described in fields_of(JobOptions).items():
            if described.option.section == "training" and getattr(options, name) != described.default:
                raise InputError("training", f"already sets {name}; give one of the two.")


def _changed_cluster(options: JobOptions, cluster: "ClusterSpec") -> "tuple[ClusterSpec, dict[str, Any]]":
    """Return the cluster with given speeds and prices, without excluded hosts, and their record for ``plan.json``."""
    from pipette_opt.read.cluster import exclude_hosts
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.read.prices import parse_prices, with_prices
    from pipette_opt.read.speeds import folded_by_value, parse_speeds, speed_record, with_speeds

    speeds = parse_speeds(options.speed or ())
    cluster = with_speeds(cluster, speeds)
    given = parse_prices(options.gpu_price or (), cluster)
    absent = given.of_kinds.keys() - {gpu.kind for gpu in cluster.gpu_kinds}
    if absent:
        raise InputError("--gpu-price", f"has a price for {min(absent)}, which the cluster does not have.")
    prices = given.of_hosts
    cluster = with_prices(cluster, prices)
    if options.exclude_hosts:
        cluster = exclude_hosts(cluster, expand_hosts(options.exclude_hosts, "--exclude-hosts"))
    priced = {"gpu_price": folded_by_value(prices)} if prices else {}
    return cluster, {"speed": speed_record(speeds), **priced}


def _check_expert_options(options: JobOptions, model: "ModelSpec") -> None:
    """Raise ``InputError`` for an option of experts that has no effect, because the model has no experts."""
    if model.num_experts is not None:
        return
    for option, has_effect in (
        ("expert_imbalance", options.expert_imbalance > 1.0),
        ("expert_loads", options.expert_loads is not None),
        ("--moe-token-dispatcher", options.moe_token_dispatcher not in (None, "alltoall")),
        ("--overlap-moe-expert-parallel-comm", options.overlap_moe_expert_parallel_comm),
    ):
        if has_effect:
            raise InputError(option, f"has no effect, because model {model.name} has no experts.")


def _unmodelled_flags(options: JobOptions) -> "Iterator[NotModelled]":
    """Yield the effects of ``--tp-comm-overlap`` and ``--cuda-graph`` that predictions leave out."""
    from pipette_opt.read.megatron_table import megatron_options

    known = megatron_options()
    if options.tp_comm_overlap:
        yield from known["tp_comm_overlap"].not_modelled(("",))
    if options.cuda_graph:
        yield from known["cuda_graph_impl"].not_modelled(("local",))


def _rank_imbalances(options: JobOptions, model: "ModelSpec") -> "tuple[RankImbalance, ...]":
    """Return the load imbalance of ranks, by loads of experts, for each expert-parallel size that divides them."""
    if options.expert_loads is None:
        return ()
    if options.expert_imbalance != 1.0:
        raise InputError("expert_imbalance", "contradicts expert_loads, which sets it; give one of the two.")
    from pipette_opt.read.expert_loads import read_expert_loads
    from pipette_opt.specs.expert_loads import RankImbalance, listed_imbalance

    loads, num_experts = read_expert_loads(options.expert_loads, model), cast(int, model.num_experts)
    sizes = [size for size in range(2, num_experts + 1) if num_experts % size == 0]
    return tuple(RankImbalance(ranks=size, imbalance=listed_imbalance(loads, size)) for size in sizes)


def _training(
    options: JobOptions, base: "TrainingSpec | None", launch: "MegatronArgs | None", model: "ModelSpec"
) -> "TrainingSpec":
    """Return the training settings of the options; missing values come from the example or the launch."""
    from pipette_opt.candidates.unsearched_options import graph_modules
    from pipette_opt.specs import TrainingSpec
    from pipette_opt.specs.training import dispatcher_fields, optimizer_fields

    precision = options.precision or (base.precision if base else "bf16")
    scripted = launch.moe_token_dispatcher_type if launch is not None and model.num_experts else None
    if options.fp8 and precision == "fp32":
        raise InputError("--fp8", "needs --precision bf16 or fp16, got fp32.")
    scripted_recipe = None if launch is None else launch.training_fields.get("fp8_recipe")
    recipe = options.fp8_recipe or scripted_recipe or "delayed"
    if options.fp8_recipe is not None:
        if not options.fp8:
            raise InputError("--fp8-recipe", "needs --fp8.")
        if scripted_recipe not in (None, recipe):
            raise InputError(
                "--fp8-recipe",
                f"is {recipe}, but the launch has {scripted_recipe}; leave the option out.",
            )
    training = TrainingSpec(
        global_batch_size=options.global_batch_size or cast("Any", base).global_batch_size,
        seq_length=options.seq_length or cast("Any", base).seq_length,
        precision=precision,  # type: ignore[arg-type]
        accumulate_allreduce_grads_in_fp32=precision != "fp16",
        fp8=options.fp8,
        fp8_recipe=recipe,  # type: ignore[arg-type]
        attention_kernel=options.attention_kernel,  # type: ignore[arg-type]
        loss_chunks=options.loss_chunks,
        **optimizer_fields(options.optimizer, options.main_weights),
        **dispatcher_fields(options.moe_token_dispatcher or scripted or "alltoall"),
        overlap_moe_expert_parallel_comm=options.overlap_moe_expert_parallel_comm,
        cuda_graph=options.cuda_graph,
        tp_comm_overlap=bool(options.tp_comm_overlap),
        cuda_graph_modules=graph_modules(model) if options.cuda_graph else (),
        expert_imbalance=options.expert_imbalance,
        rank_imbalances=_rank_imbalances(options, model),
        unequal_microbatches=options.micro_batches == "unequal",
        packed=options.packed,
    )
    if launch is not None and (training.fp8 or not launch.fp8):  # else it is another job, which comparisons refuse
        training = launch.training(training)
    if options.tp_comm_overlap is False:
        training = _without_tensor_overlap(training)
    pinned = optimizer_fields(options.optimizer, options.main_weights)
    if options.moe_token_dispatcher is not None:
        pinned |= dispatcher_fields(options.moe_token_dispatcher)
    return replace(training, **pinned) if pinned else training


def _without_tensor_overlap(training: "TrainingSpec") -> "TrainingSpec":
    """Return the training settings without the tensor-overlap options of the Megatron arguments."""
    others = [words for words in training.other_arguments or () if not words[0].startswith("--tp-comm-overlap")]
    return replace(training, tp_comm_overlap=False, other_arguments=tuple(others) or None)


def _machines(
    options: JobOptions, made: "ClusterSpec | None", example: Path | None
) -> "Callable[[], tuple[ClusterSpec, dict[str, Any] | None]]":
    """
    Return a function that reads the cluster and returns it with its record for ``plan.json``.

    The cluster comes from a file, an example or ``--nodes``. ``InputError`` for missing or contradictory options is
    raised before any file is read.
    """
    of_hosts = {"--gpu": options.gpu, "--nics": options.nics, "--gpus-per-node": options.gpus_per_node}
    given = [option for option, value in of_hosts.items() if value is not None]
    if options.nodes is not None:
        if options.cluster is not None or made is not None:
            raise InputError("--nodes", "contradicts --cluster, whose file lists the hosts; leave one of the two out.")
        if options.gpu is None:
            raise InputError(
                "--gpu", "is required with --nodes, e.g. --gpu h100; `pipette-opt gpus` lists all GPU types."
            )
        return functools.partial(
            _equal_hosts,
            nodes=options.nodes,
            gpu=options.gpu,
            nics=options.nics,
            gpus_per_node=options.gpus_per_node,
        )
    path = made or options.cluster or example
    if path is None and given:
        raise InputError(
            "--nodes", f"is required with {given[0]}: give the number of hosts, or host names such as gpu[01-16]."
        )
    if path is None:
        problem = (
            "is required (`pipette-opt import links` or `init` writes one); or --nodes 16 --gpu h100 --nics 8x400 if "
            "no link was measured; or --example NAME."
        )
        raise InputError("--cluster", problem)
    if given:
        where = path if isinstance(path, Path) else path.name
        raise InputError(given[0], f"has no effect on {where}, which sets it; edit the file, or give --nodes instead.")
    return functools.partial(described_cluster, path)


def _equal_hosts(**options: Any) -> "tuple[ClusterSpec, dict[str, Any]]":
    from pipette_opt.read.nominal import nominal_cluster, nominal_record

    spec = nominal_cluster(**options)
    return spec, nominal_record(spec, **options)


def _file_record(path: Path | None) -> dict[str, str] | None:
    """Return path and SHA-256 hash of a file, as ``plan.json`` records them; ``None`` without a file."""
    from pipette_opt.read.files import sha256_of

    return None if path is None else {"path": str(path), "sha256": sha256_of(path)}


def check_precision(cluster: "ClusterSpec", training: "TrainingSpec") -> None:
    """Raise ``InputError`` if a GPU type of the cluster cannot compute in the precision of the training."""
    for gpu in cluster.gpu_kinds:
        if training.precision not in gpu.peak_flops:
            known = ", ".join(name for name in ("bf16", "fp16", "fp32") if name in gpu.peak_flops)
            raise InputError("--precision", f"must be one that {gpu.name} has ({known}), got {training.precision}.")
        if training.recipe is not None and training.recipe.peak not in gpu.peak_flops:
            has, peak = ", ".join(sorted(gpu.peak_flops)), training.recipe.peak
            option, words = ("--fp4-format", "") if training.fp4 else ("--fp8", f"with {peak} " * (peak != "fp8"))
            problem = f"{words}is not for {gpu.name}, which has {has}; --exclude-hosts leaves such hosts out."
            raise InputError(option, problem)
