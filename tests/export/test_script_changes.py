"""The lines of a launch script that a plan changes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_plan, small_config

from pipette_opt.export.folder import write_folder
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.export.script_changes import Change, changes_rows, changes_text, decided_options, script_changes
from pipette_opt.export.targets import export
from pipette_opt.read.launches import Launch, launch_document
from pipette_opt.read.megatron_args import parse_megatron_args, read_megatron_args
from pipette_opt.read.megatron_options import option_values

SCRIPT = """\
#!/bin/bash
# --tensor-model-parallel-size 1 was slower
torchrun pretrain_gpt.py \\
  --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 \\
  --micro-batch-size 2 \\
  --recompute-activations \\
  --sequence-parallel --train-iters 10
"""


def test_a_plan_that_megatron_cannot_express_has_no_options() -> None:
    """Beside a plan that has: sequence parallelism is a choice of the search, the batch is not."""
    options = decided_options(make_plan())
    assert ("--sequence-parallel",) in options
    assert "--global-batch-size" not in {option[0] for option in options}
    assert decided_options(replace(make_plan(), p2p="async")) == []


def test_changes_comes_and_goes() -> None:
    """Tensor parallelism changes, recomputation goes; data, iterations and equal options are left alone."""
    found = script_changes(make_plan(), option_values(SCRIPT, "train.sh"), SCRIPT)

    assert [(one.action, one.option, one.before, one.after) for one in found] == [
        ("change", "--tensor-model-parallel-size", "4", "2"),
        ("drop", "--recompute-activations", "", None),
        ("add", "--use-distributed-optimizer", None, ""),
    ]


def test_names_the_line_that_is_no_comment() -> None:
    """Line 4 has the option; line 2 is a comment that names it."""
    found = script_changes(make_plan(), option_values(SCRIPT, "train.sh"), SCRIPT)

    assert [one.line for one in found] == [4, 7, None]


def test_an_option_on_two_lines_has_no_line() -> None:
    """Which of both counts is not said."""
    text = SCRIPT + "echo --tensor-model-parallel-size\n"

    assert script_changes(make_plan(), option_values(SCRIPT, "train.sh"), text)[0].line is None


@pytest.mark.parametrize(
    "options",
    [{}, {"recompute_granularity": "full", "recompute_num_layers": 1}, {"overlap_grad_reduce": True}],
)
def test_the_exported_arguments_need_no_change(options: dict[str, object]) -> None:
    """A script with the plan's own arguments starts the plan."""
    plan = replace(make_plan(), config=small_config(**options))
    text = " ".join(megatron_arguments(plan))

    assert script_changes(plan, option_values(text, "plan")) == []


def test_equal_configurations_said_in_other_words_need_no_change() -> None:
    """Chunks by layers a chunk are those of stages by chunks, of the same configuration."""
    plan = replace(make_plan(), config=small_config(virtual_pipeline_model_parallel_size=2))
    layers = plan.config.layers_per_stage[0] // 2
    written = megatron_arguments(plan)
    at = written.index("--num-virtual-stages-per-pipeline-rank")
    written[at : at + 2] = ["--num-layers-per-virtual-pipeline-stage", str(layers)]
    text = " ".join(written)
    given = parse_megatron_args(text)
    today = given.parallel_config(sum(plan.config.layers_per_stage), plan.config.world_size)

    assert script_changes(plan, option_values(text, "plan"), today=today) == []
    assert script_changes(plan, option_values(text, "plan")) != []


def test_the_reason_has_the_seconds_before_and_after() -> None:
    """Of the part of the iteration that the decision moves."""
    plan = make_plan()
    breakdown = {**plan.estimate.breakdown, "tensor_parallel": 123.4}
    slower = replace(plan.estimate, breakdown=breakdown)

    found = script_changes(plan, option_values(SCRIPT, "train.sh"), SCRIPT, estimate=slower)

    assert "tensor parallel 123 -> " in found[0].reason


def test_text_for_people() -> None:
    """How many of each, then a line each."""
    changes = [
        Change(option="--micro-batch-size", before="1", after="2", reason="sequences at a time", line=7),
        Change(option="--sequence-parallel", before=None, after="", reason="memory"),
    ]

    assert changes_text(changes, "train.sh") == [
        "train.sh: 1 to change, 1 to add",
        "  ~ --micro-batch-size 1 -> 2  line 7: sequences at a time",
        "  + --sequence-parallel        memory",
    ]
    assert changes_rows(changes, 1) == [
        ("~ --micro-batch-size 1 -> 2", "line 7: sequences at a time"),
        ("1 more: pipette-opt export, with --launch", ""),
    ]
    assert len(changes_rows(changes, 2)) == 2
    (line,) = changes_text([], "train.sh")
    assert line == "train.sh: nothing to change; the script starts this plan's configuration already."


def test_lines_are_those_of_a_file_that_its_user_edits(tmp_path: Path) -> None:
    """A script has lines; what was typed, captured or exported has none, but its changes are found."""
    plan, pipe = make_plan(), ["--tensor-model-parallel-size", "8"]
    launch = launch_document(Launch(program="pretrain_gpt.py", arguments=tuple(pipe)))
    other = replace(plan, config=small_config(tensor_model_parallel_size=4, data_parallel_size=2))
    (tmp_path / "captured.json").write_text(json.dumps(launch, indent=2))
    (tmp_path / "train.sh").write_text(SCRIPT)
    write_folder(tmp_path / "launch", export(other, "torchrun"))

    lines = {}
    for source in ("captured.json", "train.sh", "launch/launch.sh"):
        given = read_megatron_args(str(tmp_path / source), "today")
        found = script_changes(plan, given.written, given.lines)
        lines[source] = next(one.line for one in found if one.option == pipe[0])
    typed = read_megatron_args(" ".join(pipe), "today")

    assert lines == {"captured.json": None, "train.sh": 4, "launch/launch.sh": None}
    assert typed.lines == ""
