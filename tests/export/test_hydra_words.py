"""Texts in Hydra's overrides and their YAML are read back as they are, or refused."""

import pytest
import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.frameworks.nemo import _Dumper, hydra_words

READ_BACK = (
    "null",
    "True",
    "NaN",
    "8",
    "1e5",
    "_x",
    "Et*3|(tt|)*2L",
    "a b",
    " a",
    "a,b",
    "[x]",
    "a=b",
    "{a:b}",
    "~a",
    "\u00e9",
    "",
)
REFUSED = ("a'b", "a\\", "${oc.env:HOME}", "a\nb", "a\x1b[2J")


@pytest.mark.parametrize("text", READ_BACK)
def test_texts_are_read_back(text: str) -> None:
    """Hydra's own parser gives the text that was written, not another type."""
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="needs hydra-core")
    words = hydra_words({"name": text, "names": [text, 1]})
    name, names = parser.OverridesParser.create().parse_overrides(words)
    assert name.value() == text
    assert names.value() == [text, 1]


@pytest.mark.parametrize("text", READ_BACK)
def test_yaml_is_read_back(text: str) -> None:
    """OmegaConf reads the text of the YAML file, not a number."""
    omegaconf = pytest.importorskip("omegaconf", reason="needs omegaconf")
    assert omegaconf.OmegaConf.create(yaml.dump({"name": text}, Dumper=_Dumper)).name == text


@pytest.mark.parametrize("text", REFUSED)
def test_other_texts_are_refused(text: str) -> None:
    """Quotes, interpolations and control characters are refused before a file is written."""
    with pytest.raises(InputError, match="Hydra"):
        hydra_words({"model": {"name": text}})
