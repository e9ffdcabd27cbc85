"""Tensor overlap in exports: said where a target has words for it, and remarked where it has none."""

from dataclasses import asdict, replace

import pytest
from factories import plan_of, small_config, small_instance

from pipette_opt.export.recorded import tensor_overlap_remark
from pipette_opt.export.script_changes import script_changes
from pipette_opt.export.targets import export
from pipette_opt.parallel import with_tensor_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance

JOB = small_instance()


def recorded(job: Instance, *, overlaps: bool) -> Plan:
    """A small plan with its model and training."""
    plan = plan_of(job, small_config(tp_comm_overlap=overlaps))
    return replace(plan, inputs={**plan.inputs, "model": asdict(job.model), "training": asdict(job.training)})


@pytest.mark.parametrize(("target", "words"), [("megatron", "--tp-comm-overlap"), ("nemo", "tp_comm_overlap: true")])
def test_targets_with_words_for_it(target: str, words: str) -> None:
    """The option is in the files of a plan that has it, and in no other plan's."""
    for overlaps in (True, False):
        files = export(recorded(JOB, overlaps=overlaps), target)
        assert any(words in text for text in files.values()) == overlaps


def test_a_target_without_words_still_exports() -> None:
    """The plan runs without it, and its launch says what is lost."""
    for overlaps in (True, False):
        launch = export(recorded(JOB, overlaps=overlaps), "deepspeed")["launch.sh"]
        assert ("needs --tp-comm-overlap, which DeepSpeed has no option for" in launch) == overlaps
        assert ("--no-tp-comm-overlap" in launch) == overlaps
    config = small_config()
    assert tensor_overlap_remark("torchtitan", config) == ""
    assert "torchtitan" in tensor_overlap_remark("torchtitan", with_tensor_overlap(config, True))


@pytest.mark.parametrize(
    ("has", "overlaps", "edits"),
    [(False, True, [(None, "")]), (True, True, []), (True, False, [("", None)]), (False, False, [])],
)
def test_a_script_gets_or_loses_it(has: bool, overlaps: bool, edits: list[tuple[str | None, str | None]]) -> None:
    """Added where the plan has it and the script has not, dropped where it is the other way round."""
    values = {"tp_comm_overlap": True} if has else {}
    found = script_changes(recorded(JOB, overlaps=overlaps), values, today=small_config())
    assert [(one.before, one.after) for one in found if one.option == "--tp-comm-overlap"] == edits
