"""
What we refuse of Megatron's options, and what megatron-core's own classes refuse, on random launches.

The classes are built as ``core_transformer_config_from_args``, ``get_megatron_optimizer_config`` and ``get_model``
build them, after what ``validate_args`` changes in silence; what it checks itself is in
``pipette_opt/read/megatron_conflicts.py`` with its source, and is taken from there.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from clients_here import require_megatron_release
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.megatron_conflicts import megatron_rules
from pipette_opt.specs import TrainingSpec

require_megatron_release()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, optimizer_config
    from megatron.core.transformer import transformer_config
    from megatron.core.transformer.enums import CudaGraphScope

pytestmark = [pytest.mark.client("megatron.core"), pytest.mark.filterwarnings("ignore")]

SHAPE = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --max-position-embeddings 64 "
    "--vocab-size 128 --swiglu --disable-bias-linear --position-embedding-type rope --micro-batch-size 1 "
    "--global-batch-size 64 --hidden-dropout 0 --attention-dropout 0"
)

NUM_GPUS = 64

CHOICES: tuple[tuple[str, ...], ...] = table(__file__, "CHOICES")
"""One of each is drawn; an empty word is drawn as often as it stands there."""

OF_CLASSES = ("expert overlap", "recompute modules", "offloading", "cuda graphs")
"""Our rules of configurations that are those of ``TransformerConfig``."""

REASONS: Mapping[str, str] = {
    "recompute_modules has moe_act": "TransformerConfig turns --moe-layer-recompute on after this check of its own.",
    "does not go with recomputation": "TransformerConfig turns --moe-layer-recompute on after this check of its own.",
    "goes with precision bf16 or fp16, got fp32": "products in 8 bits beside fp32 have no price.",
    "layers must be a multiple": "validate_args: layers per stage, embedding and head counted.",
    "do not fit 8 layers": "validate_args: layers per stage.",
    "must divide the layers of every stage": "get_num_layers_to_build: layers of a chunk.",
    "must divide the 10 layers of a stage": "get_num_layers_to_build: layers of a chunk, embedding and head counted.",
    "virtual_pipeline_model_parallel_size needs": "validate_args: chunks need a pipeline.",
    "offload_modules cannot be combined with": "fine-grained offloading beside offloading of layers has no price.",
    "optimizer=muon cannot be combined with": "validate_args: fp16 and Muon (get_megatron_muon_optimizer).",
    **{
        rule.problem.partition("{")[0]: rule.source
        for rule in megatron_rules()
        if not rule.source.endswith("__post_init__")
    },
}
"""What we refuse and the classes do not, by a part of the message: whose rule it is, or why it has no price."""


def ours(text: str) -> str | None:
    """Why we refuse a launch; ``None`` for one that we take."""
    try:
        given = parse_megatron_args(text)
        assert given.model is not None
        config = given.parallel_config(given.model.num_layers, NUM_GPUS)
        plain = TrainingSpec(
            global_batch_size=64,
            seq_length=64,
            precision=given.precision or "fp32",
            moe_token_dispatcher_type=given.moe_token_dispatcher_type or "allgather",
        )
        broken = broken_rules(given.model, given.training(plain), config, OF_CLASSES)
    except InputError as error:
        return str(error)
    return next(iter(broken.values()), None)


def options_of(text: str) -> dict[str, Any]:
    """Options as Megatron's parser has them, after what ``validate_args`` changes in silence."""
    words: dict[str, Any] = {}
    for part in re.split(r"\s*--", text)[1:]:
        name, _, value = part.strip().partition(" ")
        words[name.replace("-", "_")] = value or True
    if words.get("recompute_activations"):
        words["recompute_granularity"] = "selective"
    if "tensor_model_parallel_size" not in words:
        words.pop("sequence_parallel", None)
    if words.get("use_megatron_fsdp"):
        words["use_distributed_optimizer"] = True
    return words


def theirs(text: str) -> str | None:
    """Why megatron-core's classes refuse a launch; ``None`` for one that they take."""
    words = options_of(text)
    whole = {name: int(words.get(name, 1)) for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size")}
    is_latent = "multi_latent_attention" in words
    made = transformer_config.MLATransformerConfig if is_latent else transformer_config.TransformerConfig
    modules = words.get("cuda_graph_modules")
    graph = words.get("cuda_graph_impl", "none")
    scope = (
        [CudaGraphScope.full_iteration] if graph == "full_iteration" else [CudaGraphScope[modules]] if modules else []
    )
    chunks = words.get("num_virtual_stages_per_pipeline_rank")
    number = {
        name: int(words[name]) if name in words else None
        for name in (
            "num_experts",
            "moe_shared_expert_intermediate_size",
            "recompute_num_layers",
            "decoder_first_pipeline_num_layers",
            "decoder_last_pipeline_num_layers",
        )
    }
    flags = (
        "sequence_parallel",
        "moe_grouped_gemm",
        "moe_shared_expert_overlap",
        "moe_enable_deepep",
        "bf16",
        "fp16",
        "moe_pad_expert_input_to_capacity",
        "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute",
        "moe_layer_recompute",
        "fine_grained_activation_offloading",
        "defer_embedding_wgrad_compute",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
    )
    offloaded = int(words.get("cpu_offloading_num_layers", 0))
    try:
        made(
            num_layers=8,
            hidden_size=64,
            num_attention_heads=8,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            pipeline_dtype=torch.bfloat16,
            **whole,
            **{name: bool(words.get(name)) for name in flags},
            virtual_pipeline_model_parallel_size=int(chunks) if chunks else None,
            expert_model_parallel_size=int(words.get("expert_model_parallel_size", 1)),
            num_moe_experts=number["num_experts"],
            moe_shared_expert_intermediate_size=number["moe_shared_expert_intermediate_size"],
            num_layers_in_first_pipeline_stage=number["decoder_first_pipeline_num_layers"],
            num_layers_in_last_pipeline_stage=number["decoder_last_pipeline_num_layers"],
            moe_token_dispatcher_type=words.get("moe_token_dispatcher_type", "allgather"),
            moe_flex_dispatcher_backend=words.get("moe_flex_dispatcher_backend", "deepep"),
            moe_expert_capacity_factor=(
                float(words["moe_expert_capacity_factor"]) if "moe_expert_capacity_factor" in words else None
            ),
            moe_aux_loss_coeff=0.0,
            recompute_granularity=words.get("recompute_granularity"),
            recompute_method=words.get("recompute_method"),
            recompute_num_layers=number["recompute_num_layers"],
            recompute_modules=words["recompute_modules"].split() if "recompute_modules" in words else None,
            fp8=words.get("fp8_format"),
            fp8_recipe=words.get("fp8_recipe", "delayed"),
            fp4=words.get("fp4_format"),
            cpu_offloading=offloaded > 0,
            cpu_offloading_num_layers=offloaded,
            offload_modules=words["offload_modules"].split() if "offload_modules" in words else None,
            gradient_accumulation_fusion="no_gradient_accumulation_fusion" not in words,
            cuda_graph_impl="local" if graph == "full_iteration" else graph,
            cuda_graph_scope=scope,
        )
        OptimizerConfig(
            optimizer=words.get("optimizer", "adam"),
            use_distributed_optimizer=bool(words.get("use_distributed_optimizer")),
            use_precision_aware_optimizer=bool(words.get("use_precision_aware_optimizer")),
        )
        DistributedDataParallelConfig(
            use_distributed_optimizer=bool(words.get("use_distributed_optimizer")),
            overlap_grad_reduce=bool(words.get("overlap_grad_reduce")),
            overlap_param_gather=bool(words.get("overlap_param_gather")),
            use_megatron_fsdp=bool(words.get("use_megatron_fsdp")),
        )
    except (AssertionError, ValueError) as error:
        return str(error) or type(error).__name__
    except RuntimeError as error:
        # Transformer Engine is not here; its optimizer is asked for last.
        return None if "FusedAdam" in str(error) else str(error)
    return None


@contextmanager
def new_transformer_engine() -> Iterator[None]:
    """Transformer Engine counts as new enough, although it is not here."""
    with (
        mock.patch.object(transformer_config, "is_te_min_version", return_value=True),
        mock.patch.object(optimizer_config, "is_te_min_version", return_value=True),
    ):
        yield


def is_explained(refusal: str) -> bool:
    """Whether a refusal of ours is another's than the classes', or for want of a price, and we say so."""
    return any(part in refusal for part in REASONS)


@pytest.mark.parametrize("seed", range(4))
def test_we_refuse_only_what_megatron_refuses(seed: int) -> None:
    """Launches of up to six options beside a plain one: a refusal of ours is theirs, or in ``REASONS``."""
    rng = np.random.default_rng(seed)
    found: Counter[tuple[bool, bool]] = Counter()
    with new_transformer_engine():
        for _ in range(400):
            drawn = rng.choice(len(CHOICES), size=rng.integers(1, 9), replace=False)
            text = " ".join([SHAPE, *(str(rng.choice(CHOICES[index])) for index in sorted(drawn))])
            refused, said = ours(text), theirs(text)
            if refused is not None and said is None:
                assert is_explained(refused), f"{text.removeprefix(SHAPE)}: {refused}"
            found[refused is not None, said is not None] += 1
    # Both sides of the edge are there, and what both refuse, too.
    assert min(found[False, False], found[True, True]) > 40, found
