"""Layouts as texts: what they hold, and what the stages here cannot have."""

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.pipeline_layout import layers_of_layout


@pytest.mark.parametrize(
    ("layout", "num_stages", "expected"),
    [
        ("Etttt|ttttL", 2, ((4, 4),)),
        ("Et*3|t*5L", 2, ((3, 5),)),
        ("E|(t|)*8,L", 5, ((0, 1, 1, 1, 1), (1, 1, 1, 1, 0))),
        ("Ett,|(tt|)*2,ttL", 2, ((2, 2), (2, 2))),
    ],
)
def test_layouts(layout: str, num_stages: int, expected: tuple[tuple[int, ...], ...]) -> None:
    """Repeats, parentheses, commas; parts go round the stages."""
    assert layers_of_layout(layout, 8, 0, num_stages, "here") == expected


def test_layouts_with_further_heads() -> None:
    """All in the last part, as many as the model has."""
    assert layers_of_layout("Et|(tt|)*3tm*2L", 8, 2, 5, "here") == ((1, 2, 2, 2, 1),)
    assert layers_of_layout("Et*8|mL", 8, None, 2, "here") == ((8, 0),)
    with pytest.raises(InputError, match=r"holds 1 prediction depths .m., but --mtp-num-layers is 2"):
        layers_of_layout("Et*4|t*4mL", 8, 2, 2, "here")


def test_layouts_decide() -> None:
    """Stages and chunks are the layout's; more may not be said of chunks."""
    layout = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t*5|t*3|t*5L"
    with pytest.raises(InputError, match="layout sets the number of chunks"):
        parse_megatron_args(f"{layout} --num-virtual-stages-per-pipeline-rank 4")
    args = parse_megatron_args(layout)
    config = args.parallel_config(16, 4)
    assert (config.layers_per_stage, config.virtual_pipeline_model_parallel_size) == ((6, 10), 2)


def test_chunks_of_different_sizes() -> None:
    """A stage of 3 and 1 layers is a configuration with a layout, in its shortest form."""
    args = parse_megatron_args("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettt|tt|t|ttL")
    config = args.parallel_config(8, 4)
    assert (config.layers_per_stage, config.layers_per_chunk) == ((4, 4), ((3, 2), (1, 2)))
    assert config.pipeline_model_parallel_layout == "Et*3|t*2|t|t*2L"
