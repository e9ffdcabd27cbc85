"""Megatron-LM's command-line arguments: the model, and how the user trains it today."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipette_opt.errors import InputError
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_model import model_of_options
from pipette_opt.read.megatron_options import given_options
from pipette_opt.specs import ModelSpec
from pipette_opt.types import Precision, RankOrder, RecomputeGranularity, RecomputeMethod

Dispatcher = Literal["alltoall", "allgather"]

_EXPERT_FIELDS = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronArgs:
    """
    What Megatron-LM's arguments say; absent ones have Megatron's defaults.

    Parameters
    ----------
    model
        ``None`` without ``--num-layers``.
    micro_batch_size, global_batch_size, seq_length, precision
        ``None`` if not given.
    fp8
        Whether ``--fp8-format`` is given.
    recompute_granularity
        ``--recompute-activations`` is ``selective``.
    moe_token_dispatcher_type
        Of a model with experts.
    expert_fields
        What is said of experts, by field of :class:`~pipette_opt.specs.ModelSpec`, with or without a model.
    account_for_embedding, account_for_loss
        Embedding and output head count as a layer when layers are dealt to stages.
    """

    where: str
    model: ModelSpec | None
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
    expert_tensor_parallel_size: int | None = None
    moe_token_dispatcher_type: Dispatcher = "allgather"
    expert_fields: Mapping[str, int] = field(default_factory=dict)
    rank_order: RankOrder = "tp-cp-ep-dp-pp"

    def parallel_config(self, num_layers: int, num_gpus: int) -> ParallelConfig:
        """
        Degrees on ``num_gpus`` GPUs; what they leave is data parallel.

        Megatron's default micro-batch size does not exist: one sequence is assumed if none was given.
        """
        pp, ranks = self.pipeline_model_parallel_size, self.context_parallel_size * self.tensor_model_parallel_size
        if num_gpus % (ranks * pp):
            problem = f"tensor x context x pipeline = {ranks * pp} must divide the {num_gpus} GPUs."
            raise InputError(self.where, problem)
        layers = self.layers_per_stage(num_layers)
        try:
            return ParallelConfig(
                tensor_model_parallel_size=self.tensor_model_parallel_size,
                pipeline_model_parallel_size=pp,
                data_parallel_size=num_gpus // (ranks * pp),
                context_parallel_size=self.context_parallel_size,
                expert_model_parallel_size=self.expert_model_parallel_size,
                micro_batch_size=self.micro_batch_size or 1,
                layers_per_stage=layers,
                virtual_pipeline_model_parallel_size=self._num_chunks(num_layers),
                sequence_parallel=self.sequence_parallel and self.tensor_model_parallel_size > 1,
                recompute_granularity=self.recompute_granularity,
                recompute_method=self.recompute_method,
                recompute_num_layers=self.recompute_num_layers,
                expert_tensor_parallel_size=self.expert_tensor_parallel_size,
                use_distributed_optimizer=self.use_distributed_optimizer,
                overlap_grad_reduce=self.overlap_grad_reduce,
                overlap_param_gather=self.overlap_param_gather,
                ddp_bucket_size=self.ddp_bucket_size,
                overlap_p2p_communication=not self.no_overlap_p2p_communication,
            )
        except ValueError as error:
            raise InputError(self.where, str(error)) from None

    def layers_per_stage(self, num_layers: int) -> tuple[int, ...]:
        """Transformer layers of each pipeline stage, dealt as Megatron-Core deals them."""
        pp = self.pipeline_model_parallel_size
        first, last = self.decoder_first_pipeline_num_layers, self.decoder_last_pipeline_num_layers
        if self.account_for_embedding or self.account_for_loss:
            if first is not None or last is not None:
                problem = "--account-for-... cannot go with --decoder-first- or --decoder-last-pipeline-num-layers."
                raise InputError(self.where, problem)
            layers = [self._counted_layers(num_layers)] * pp
            layers[0] -= int(self.account_for_embedding)
            layers[-1] -= int(self.account_for_loss)
            return tuple(layers)
        rest = num_layers - (first or 0) - (last or 0)
        middle = pp - (first is not None) - (last is not None)
        if middle < 0 or rest < 0 or (middle == 0 and rest):
            problem = (
                f"first and last stage with {first} and {last} layers do not fit {num_layers} layers on {pp} stages."
            )
            raise InputError(self.where, problem)
        layers = [self._share(rest, middle)] * middle if middle else []
        if first is not None:
            layers.insert(0, first)
        if last is not None:
            layers.append(last)
        return tuple(layers)

    def _counted_layers(self, num_layers: int) -> int:
        """Layers of a stage with what counts as one."""
        counted = num_layers + int(self.account_for_embedding) + int(self.account_for_loss)
        return self._share(counted, self.pipeline_model_parallel_size)

    def _share(self, num_layers: int, num_stages: int) -> int:
        if num_layers % num_stages:
            raise InputError(
                self.where, f"{num_layers} layers must be a multiple of the {num_stages} stages they go to."
            )
        return num_layers // num_stages

    def _num_chunks(self, num_layers: int) -> int | None:
        """Model chunks per stage, ``None`` without interleaving."""
        if self.num_virtual_stages_per_pipeline_rank is not None:
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


def parse_megatron_args(text: str, where: str = "Megatron arguments", name: str = "megatron") -> MegatronArgs:
    """
    Parse arguments as they stand in a command line or a shell script.

    Quotes, parentheses, comments and line continuations of the shell are dropped; options that concern neither the
    model nor the parallel degrees are ignored, unless they look like one of ours misspelt.
    """
    given = given_options(text, where)
    model = model_of_options(given, where, name) if "num_layers" in given else None
    activations = given.get("recompute_activations")
    read_apart = ("recompute_granularity", "recompute_method", "recompute_num_layers", "moe_token_dispatcher_type")
    simple = {
        name: given[name] for name in MegatronArgs.__dataclass_fields__ if name in given and name not in read_apart
    }
    return MegatronArgs(
        where=where,
        model=model,
        precision="bf16" if given.get("bf16") else "fp16" if given.get("fp16") else None,
        fp8=_word(given, "fp8_format", ("e4m3", "hybrid"), None, where) is not None,
        recompute_granularity=_word(
            given, "recompute_granularity", ("selective", "full"), "selective" if activations else None, where
        ),
        recompute_method=_word(given, "recompute_method", ("uniform", "block"), "uniform", where),
        recompute_num_layers=given.get("recompute_num_layers", 1),
        moe_token_dispatcher_type=_word(
            given, "moe_token_dispatcher_type", ("alltoall", "allgather"), "allgather", where
        ),
        expert_fields={name: given[name] for name in _EXPERT_FIELDS if name in given},
        rank_order="tp-cp-ep-pp-dp" if given.get("use_tp_pp_dp_mapping") else "tp-cp-ep-dp-pp",
        account_for_embedding=bool(given.get("account_for_embedding_in_pipeline_split")),
        account_for_loss=bool(given.get("account_for_loss_in_pipeline_split")),
        **simple,
    )


def _word(given: Mapping[str, Any], field: str, choices: tuple[str, ...], default: str | None, where: str) -> Any:
    """One of some words, or Megatron's default."""
    word = given.get(field, default)
    if field in given and word not in choices:
        raise InputError(where, f"--{field.replace('_', '-')} must be {' or '.join(choices)}, got {word!r}.")
    return word
