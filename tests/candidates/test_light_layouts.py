"""Layouts whose last chunk is lighter: where equal chunks leave no room for multi-token prediction."""

from dataclasses import replace

from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.candidates.splits import light_layout
from pipette_opt.candidates.world_sizes import choose_num_gpus

SPACE = SearchSpace(tensor_parallel=(1,), pipeline_parallel=(2,), virtual_pipeline=(2,), micro_batch_size=(1,))


def layouts_of(layers: int, depths: int) -> set[str | None]:
    """Layouts of all that is legal on eight GPUs."""
    model = replace(LLAMA_8B, num_layers=layers, mtp_num_layers=depths)
    return {one.pipeline_model_parallel_layout for one in enumerate_candidates(make_job(make_cluster(1), model), SPACE)}


def test_layouts_by_hand() -> None:
    """DeepSeek-V3's 61 layers on 16 chunks as NVIDIA has them; nothing where layers are equal."""
    assert light_layout(61, 4, 4) == "Et*4|(t*4|)*14tL"
    assert light_layout(5, 2, 2) == "Et*2|t|t|tL"
    assert light_layout(9, 4, 2) == "Et*2|(t|)*6tL"
    assert light_layout(8, 2, 2) is None


def test_models_with_further_heads_have_them() -> None:
    """Nine layers have no equal chunks, twelve have them; layouts come with multi-token prediction only."""
    assert layouts_of(9, 1) == {"Et*3|t*3|t*3|L"}
    assert layouts_of(12, 1) == layouts_of(12, 0) == {None}
    assert layouts_of(10, 1) > layouts_of(10, 0)


def test_jobs_that_overlap_experts_use_all_hosts() -> None:
    """With tokens beside compute a pipeline needs chunks, whose layouts are unequal where the layers are odd."""
    model = replace(LLAMA_8B, num_layers=9, num_experts=8, moe_ffn_hidden_size=1024)
    given = make_job(make_cluster(2), model)
    given = replace(given, training=replace(given.training, overlap_moe_expert_parallel_comm=True))
    space = replace(SPACE, virtual_pipeline=None)
    assert choose_num_gpus(given, space) == 16
    found = enumerate_candidates(given, replace(space, num_gpus=16))
    assert {one.num_chunks > 1 for one in found} == {True}
