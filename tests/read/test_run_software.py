"""Defaults of training software stand in for what a row does not say."""

import pytest

from pipette_opt.read.run_software import (
    FSDP2,
    INTERNEVO,
    MEGATRON_LM,
    NANOTRON,
    NEMO,
    OWN,
    PYTORCH,
    TORCHTITAN,
    Software,
    software_of,
)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Megatron-LM", "nanotron", ""), MEGATRON_LM),
        (("", "our nanotron sweep", "compared with NeMo"), NANOTRON),
        (("", "", "results/n64_nemo/gpt3"), NEMO),
        (("", "NVIDIA-NeMo/Megatron-Bridge", ""), NEMO),
        (("NeMo AutoModel (FSDP2)", "NVIDIA-NeMo/Automodel", ""), FSDP2),
        (("NeMo-RL", "NVIDIA-NeMo/RL", ""), MEGATRON_LM),
        (("", "own", "Nemotron-4"), MEGATRON_LM),
        (("", "PyTorch blog", ""), PYTORCH),
        (("", "pytorch/torchtitan docs", ""), TORCHTITAN),
        (("Megatron-DeepSpeed", "own", ""), OWN),
        (("", "InternLM/InternEvo@3a665e88", ""), INTERNEVO),
    ],
)
def test_names_of_software(texts: tuple[str, str, str], expected: Software) -> None:
    """The column ``framework`` counts before ``source``, and that before the notes; models and organisations do not."""
    framework, source, notes = texts
    assert software_of({"framework": framework, "source": source, "notes": notes}) is expected
