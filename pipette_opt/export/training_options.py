"""Arguments of Megatron-LM for training settings: precision, kernels, offload, and extra arguments."""

from collections.abc import Collection, Sequence

from pipette_opt.base.errors import InputError
from pipette_opt.export.extra_arguments import goes_with
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model_words import Option, options_of
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.activations import host_keeps


def precision_options(training: TrainingSpec, config: ParallelConfig) -> list[Option]:
    """Return the options of precision, optimizer states and attention kernel."""
    aware = training.use_precision_aware_optimizer or bool(training.narrow_states)
    moved = config.offload is not None and host_keeps(training, config).optimizer_offload_fraction > 0
    if aware and not config.use_distributed_optimizer and not moved:
        raise InputError(
            "training", "optimizer states in reduced precision need the distributed optimizer in Megatron-LM."
        )
    wide = training.accumulate_allreduce_grads_in_fp32
    options = options_of(
        **{training.precision: training.precision != "fp32"},
        accumulate_allreduce_grads_in_fp32=wide and training.precision != "fp32",
        grad_reduce_in_bf16=not wide and training.precision == "bf16",
    )
    options += _recipe_options(training, config)
    if aware or moved:  # ``validate_args``: an optimizer step on the host is a part of that optimizer
        options += options_of(
            use_precision_aware_optimizer=True,
            main_grads_dtype="bf16" if training.gradient_bytes < 4 and training.precision == "bf16" else None,
            main_params_dtype=training.main_params_dtype,
            exp_avg_dtype=training.exp_avg_dtype,
            exp_avg_sq_dtype=training.exp_avg_sq_dtype,
        )
    extra = dict(words for words in training.other_arguments or () if len(words) == 2)
    if training.optimizer == "muon":
        mode = extra.get("--muon-tp-mode", "blockwise")
        options += options_of(optimizer=extra.get("--optimizer", "muon"), muon_tp_mode=mode)
    return options + options_of(
        no_masked_softmax_fusion=not training.fused_softmax,
        attention_backend=extra.get("--attention-backend", training.attention_kernel),
    )


def _recipe_options(training: TrainingSpec, config: ParallelConfig) -> list[Option]:
    """
    Return the options of matrix products in fp8 or fp4; empty without such products.

    Weights stored in fp8 or fp4 need the distributed optimizer, even with a single replica. MXFP8 reuses the gradient
    buffer for gathers, except in Megatron-FSDP, which has no such buffer.
    """
    if training.recipe is None:
        return []
    kind = "fp4" if training.fp4 else "fp8"
    formats = {words[0]: words[1] for words in training.other_arguments or () if words[1:]}
    usual = "e2m1" if training.fp4 else "hybrid"
    gathers, mxfp8 = training.fp8_param_gather, training.fp8 and training.fp8_recipe == "mxfp8"
    return [
        ("--transformer-impl", "transformer_engine"),
        (f"--{kind}-format", formats.get(f"--{kind}-format", usual)),
        *options_of(
            fp8_recipe=training.fp8_recipe if training.fp8 and training.fp8_recipe != "delayed" else None,
            **{f"{kind}_param_gather": gathers},
            use_distributed_optimizer=gathers and not config.use_distributed_optimizer,
            reuse_grad_buf_for_mxfp8_param_ag=gathers and mxfp8 and config.sharding_stage < 2,
        ),
    ]


def offload_options(training: TrainingSpec, config: ParallelConfig) -> list[Option]:
    """Return the options of offload to the host's memory, as the search chose or the training settings say."""
    offload = host_keeps(training, config)
    if offload.parameters:
        raise InputError("offload", "is parameters, which Megatron-LM has not; solve with --offload optimizer.")
    moved = offload.optimizer_offload_fraction > 0
    return options_of(
        cpu_offloading_num_layers=offload.cpu_offloading_num_layers or None,
        fine_grained_activation_offloading=bool(offload.offload_modules),
        offload_modules=offload.offload_modules or None,
        optimizer_cpu_offload=moved,
        optimizer_offload_fraction=f"{offload.optimizer_offload_fraction:g}" if moved else None,
        use_distributed_optimizer=moved and config.offload is not None and not config.use_distributed_optimizer,
        overlap_cpu_optimizer_d2h_h2d=moved and training.overlap_cpu_optimizer_d2h_h2d,
    )


def _token_options(training: TrainingSpec, extra: Collection[str]) -> list[Option]:
    """Return the options of the token dispatcher's backend and number of SMs, by names that every release accepts."""
    backend, used = training.moe_flex_dispatcher_backend, training.moe_flex_dispatcher_num_sms
    is_counted = any(name.startswith("--moe-") and name.endswith("-num-sms") for name in extra)
    return options_of(
        moe_flex_dispatcher_backend=None if "--moe-enable-deepep" in extra else backend,
        **{f"moe_{backend}_num_sms": None if is_counted else used},
    )


def _graph_options(training: TrainingSpec) -> list[Option]:
    """Return the options of CUDA graphs."""
    modules = training.cuda_graph_modules
    impl = "transformer_engine" if "moe_router" in modules else "local"
    return options_of(cuda_graph_impl=impl, cuda_graph_modules=modules or None)


def further_options(training: TrainingSpec, config: ParallelConfig, options: Sequence[Option]) -> list[Option]:
    """Return extra arguments of the user's launch that fit the plan and are not among ``options``."""
    written, others = {words[0] for words in options}, training.other_arguments or ()
    names = {words[0] for words in others}
    exchange = training.cp_comm_type if training.cp_comm_type != "p2p" else None
    added = [
        *options_of(tp_comm_overlap=training.tp_comm_overlap, cp_comm_type=exchange),
        *(_token_options(training, names) if training.moe_token_dispatcher_type == "flex" else []),
        *(_graph_options(training) if training.cuda_graph and "cuda-graph" not in " ".join(names) else []),
    ]
    extra = (*others, *(words for words in added if words[0] not in names))
    return [words for words in extra if words[0] not in written and goes_with(words[0], config)]
