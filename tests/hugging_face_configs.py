"""``config.json`` of published models, shortened only where transformers writes what says nothing of the model."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("hugging_face")


def configs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a folder by name; those of shipped presets have the preset's."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


CONFIGS = configs(FOLDER)
LAYER_LISTS = configs(FOLDER / "layer_lists")
"""Models whose layers are of several kinds."""

LLAMA_3_8B = CONFIGS["llama-3-8b"]
LLAMA_3_SCALING = CONFIGS["llama-3.1-8b"]["rope_scaling"]
MISTRAL_7B = CONFIGS["mistral-7b"]
QWEN2_7B = CONFIGS["qwen2-7b"]
QWEN3_8B = CONFIGS["qwen3-8b"]
SMOLLM3_3B = CONFIGS["smollm3-3b"]
