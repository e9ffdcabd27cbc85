"""Names of attention kernels in tables of runs."""

import pytest

from pipette_opt.read.attention_words import KNOWN, AttentionWords, attention_words

FLASH = AttentionWords(kernel="flash")
FIRST, SECOND = (AttentionWords(kernel="flash", flash_version=version) for version in (1, 2))
FUSED, PLAIN = AttentionWords(kernel="unfused"), AttentionWords(kernel="unfused", fused_softmax=False)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("flash", "Flash", "FA3", "flash_attention (any)", "TE", "Transformer Engine"), FLASH),
        (("FlexAttention", "cuDNN", "fused attention", "xformers"), FLASH),
        (("flash_attention (TE DotProductAttention)", "TE DotProductAttention", "flash attention via TE"), FLASH),
        (("TE (cuDNN", "flash_attention (TE (cuDNN) kernel)", "cuDNN fused attention [TE]"), FLASH),
        (("flash_attention_2", "FlashAttention-2", "flash-attn 2.5.6", "fa2"), SECOND),
        (("flash_attention2 + RMS kernel", "torch SDPA", "sdpa"), SECOND),
        (("flash_attentionv1.0.8", "flash1", "fa1", "flash_attention (triton)"), FIRST),
        (("unfused", "fused", "core", "unfused (masked softmax fusion)", "fused softmax kernel"), FUSED),
        (("torch", "math", "torch math", "eager"), PLAIN),
    ],
)
def test_names_as_people_write_them(names: tuple[str, ...], expected: AttentionWords) -> None:
    """Case, hyphens, brackets but for Triton's, and what follows a plus do not count."""
    assert {name: attention_words(name) for name in names} == dict.fromkeys(names, expected)


@pytest.mark.parametrize("name", ["flsh", "attention", "ring", "2", "", "+ RMS kernel", "sdpa math backend"])
def test_others_are_not_known(name: str) -> None:
    """Nothing that is not listed passes for unfused."""
    assert attention_words(name) is None


def test_the_message_offers_names_that_are_known() -> None:
    """Every word of the error message is one."""
    assert all(attention_words(name.strip()) for name in KNOWN.split(","))
