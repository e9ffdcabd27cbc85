"""Names of shipped models as people write them."""

from pathlib import Path

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.model import read_model
from pipette_opt.read.model_names import hub_ids, list_models, preset_called, presets_like
from pipette_opt.read.named_models import named_model


@pytest.mark.parametrize("preset", list_models())
def test_ids_of_the_hub_stand_for_their_preset(preset: str) -> None:
    """With the organisation or without, in capitals too."""
    assert preset_called(preset) == preset
    for name in hub_ids()[preset]:
        for written in (name, name.upper(), name.partition("/")[2]):
            assert preset_called(written) == preset


@pytest.mark.parametrize(("name", "preset"), table(__file__, "names_as_people_write_them"))
def test_names_as_people_write_them(name: str, preset: str | None) -> None:
    """Separators, the organisation and words of tuning do not matter; versions do: Mistral 0.3 has no window."""
    if name == "gpt":
        with pytest.raises(InputError, match=r"may be gpt-3-1.3b or .*; write one of these names"):
            preset_called(name)
    else:
        assert preset_called(name) == preset


def test_ambiguous_names_give_the_choices() -> None:
    """Nothing is guessed."""
    with pytest.raises(InputError, match=r"model 'qwen2.5': may be qwen2.5-0.5b or .* or qwen2.5-7b; write one"):
        read_model("qwen2.5")
    assert named_model("qwen2.5", Path()) is None


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Qwen/Qwen3-1.5B", "qwen3-1.7b"),
        ("llama-3-9b", "llama-3-8b"),
        ("zai-org/GLM-5", "glm-4.5"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("llama-7b", "llama-2-7b"),
    ],
)
def test_suggestions_are_of_the_family(name: str, nearest: str) -> None:
    """The version first, then the nearest size."""
    assert presets_like(name)[0] == nearest
    with pytest.raises(InputError, match=f"is neither a preset nor a file. Did you mean {nearest}"):
        read_model(name)


def test_files_come_before_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name with a config is read."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen" / "Qwen3-8B"
    folder.mkdir(parents=True)
    assert read_model("Qwen/Qwen3-8B").name == "qwen3-8b"
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="model_type is missing"):
        read_model("Qwen/Qwen3-8B")


def test_rows_of_runs_take_names_of_the_hub() -> None:
    """As `runs.csv` may have them."""
    model = named_model("Qwen/Qwen3-8B-Base", Path())
    assert model is not None
    assert model.name == "qwen3-8b"
