"""Branches of a script: taken where their condition holds, left out where it does not, said where nobody knows."""

import pytest

from pipette_opt.read.megatron_options import given_options
from pipette_opt.read.shell_words import shell_words


def options(text: str) -> list[str]:
    """The options of a script."""
    return [word for word in shell_words(text)[0] if word.startswith("--")]


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ('[[ "$DTYPE" == "fp8" ]]', False),
        ('[[ "$DTYPE" == "bf16" ]]', True),
        ('[[ "$DTYPE" != bf16 ]] || [[ $TP -gt 4 ]]', True),
        ("[ $TP -gt 4 ] && [ $DTYPE = fp8 ]", False),
        ('[ -z "$EMPTY" ]', True),
        ('[ -n "$EMPTY" ]', False),
        ('! [ "$DTYPE" = "fp8" ]', True),
        ("[[ ${MODE:-train} == tr* ]]", True),
        ("(( TP > 4 ))", True),
        ("(( $TP == 4 ))", False),
        ("false", False),
        ("$USE_IT", True),
    ],
)
def test_conditions(condition: str, taken: bool) -> None:
    """Words, numbers, empty texts, patterns, defaults, and, or, not."""
    branch = f"if {condition}; then\n  ARGS+=(--fp8-format hybrid)\nfi"
    script = f'DTYPE=bf16\nTP=8\nEMPTY=""\nUSE_IT=true\n{branch}\n--bf16\n'
    assert options(script) == ["--fp8-format"] * taken + ["--bf16"]
    assert shell_words(script)[1] == []


def test_one_branch_of_several_is_taken() -> None:
    """``elif`` and ``else``, with another ``if`` inside."""
    script = """
SIZE={size}
if [ $SIZE = 8b ]; then
    ARGS="--num-layers 32"
elif [ $SIZE = 70b ]; then
    ARGS="--num-layers 80"
    if [ $SIZE = 8b ]; then
        ARGS+=" --swiglu"
    fi
else
    ARGS="--num-layers 126"
fi
pretrain_gpt.py $ARGS
"""
    found = {size: given_options(script.replace("{size}", size), "here").values for size in ("8b", "70b", "405b")}
    assert found == {"8b": {"num_layers": 32}, "70b": {"num_layers": 80}, "405b": {"num_layers": 126}}


def test_cases() -> None:
    """``case`` takes the branch whose pattern matches."""
    script = """
case $SIZE in
    8b | 8B) LAYERS=32 ;;
    "70b")
        LAYERS=80
        MORE="--swiglu"
        ;;
    *) LAYERS=126;;
esac
pretrain_gpt.py --num-layers $LAYERS $MORE
"""
    assert given_options(f"SIZE=8B{script}", "here").values == {"num_layers": 32}
    assert given_options(f"SIZE=70b{script}", "here").values == {"num_layers": 80, "swiglu": True}
    assert given_options(f"SIZE=9{script}", "here").values == {"num_layers": 126}


def test_conditions_before_a_command() -> None:
    """``[ ... ] && command``, ``[ ... ] || command``."""
    script = 'FP8=0\n[[ $FP8 == 1 ]] && ARGS="--fp8-format hybrid"\n[ $FP8 = 1 ] || ARGS="--bf16"\npretrain.py $ARGS\n'
    assert options(script) == ["--bf16"]


def test_a_branch_that_nobody_knows_is_said() -> None:
    """Its options count, and are listed with the condition; not where they change nothing."""
    script = 'if [[ "$FP8" == 1 ]]; then\n  ARGS="{options}"\nfi\npretrain_gpt.py --num-layers 4 $ARGS\n'
    given = given_options(script.replace("{options}", "--fp8-format hybrid"), "here")
    assert given.values == {"fp8_format": "hybrid", "num_layers": 4}
    assert [(one.option, one.direction) for one in given.not_modelled] == [("if [[ $FP8 == 1 ]]", "either")]
    assert given_options(script.replace("{options}", "--log-interval 1"), "here").not_modelled == ()


def test_arithmetic() -> None:
    """Sums and products of what the script sets are numbers."""
    given = given_options("K=1024\nSEQ=$((128 * K))\ntrain.py --seq-length ${SEQ}", "here")
    assert given.values["seq_length"] == 131072
    assert given_options("A=7\ntrain.py --seq-length $(( ($A + 1) / 2 % 3 ))", "here").values["seq_length"] == 1
