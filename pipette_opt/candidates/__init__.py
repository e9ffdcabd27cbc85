"""Enumeration of all configurations that Megatron-Core accepts on a cluster."""

from pipette_opt.candidates.combinations import overlap_choices, tensor_overlaps
from pipette_opt.candidates.coverage import covered, layers_are_free, left_out, searched_values
from pipette_opt.candidates.enumeration import (
    Enumeration,
    enumerate_candidates,
    enumerate_more,
    enumerate_with_reasons,
    legal_candidates,
)
from pipette_opt.candidates.known import with_known
from pipette_opt.candidates.legality import LEGALITY_RULES, broken_rules, check_legal
from pipette_opt.candidates.pins import contradiction
from pipette_opt.candidates.sharing import data_parallelism_alone, with_data_parallelism_alone, with_shared_parameters
from pipette_opt.candidates.space import RECOMPUTATIONS, SearchSpace, space_of
from pipette_opt.candidates.splits import layer_splits, pipeline_split_options
from pipette_opt.candidates.world_sizes import check_num_gpus, choose_num_gpus, world_sizes

__all__ = [
    "Enumeration",
    "LEGALITY_RULES",
    "RECOMPUTATIONS",
    "SearchSpace",
    "broken_rules",
    "check_legal",
    "check_num_gpus",
    "choose_num_gpus",
    "enumerate_candidates",
    "enumerate_more",
    "enumerate_with_reasons",
    "layer_splits",
    "overlap_choices",
    "contradiction",
    "covered",
    "data_parallelism_alone",
    "layers_are_free",
    "legal_candidates",
    "left_out",
    "pipeline_split_options",
    "searched_values",
    "space_of",
    "tensor_overlaps",
    "with_known",
    "with_data_parallelism_alone",
    "with_shared_parameters",
    "world_sizes",
]
