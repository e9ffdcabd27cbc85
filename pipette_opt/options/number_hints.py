"""Suggestions for numbers that people write with a unit: ``8k`` tokens, ``4M`` tokens of a batch, ``1h``."""

import re

_SCALED = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(?P<scale>[kmgb])(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s?(?P<unit>s|sec|m|min|h|hours?)", re.IGNORECASE)
_PLAIN = re.compile(r"[0-9]{1,3}(?:[, '][0-9]{3}){1,5}|[0-9]{1,9}(?:\.[0-9]{1,9})?e\+?[0-9]{1,2}|[0-9]{1,15}\.0+")

_POWERS = {"k": 1, "m": 2, "g": 3, "b": 3}
_SECONDS = {"s": 1, "m": 60, "h": 3600}

MAX_MEANT = 10**15
"""Largest number that is suggested. Chosen: no size here is larger."""

MAX_SEQUENCES = 1_000_000
"""Largest batch, in sequences, that is suggested. Chosen."""


def number_hint(name: str, text: str, seq_length: str | None = None) -> str:
    """
    Return a sentence, after a blank, on the number that a text may mean; empty if it may mean none.

    Parameters
    ----------
    name
        Name of the option or key, written with dashes or underscores.
    seq_length
        Text of the sequence length beside it, if known: a batch in tokens is given in sequences of this length.
    """
    option, text = name.removeprefix("--").replace("_", "-"), text.strip()
    scaled = _SCALED.fullmatch(text)
    if option == "time-limit":
        duration = _DURATION.fullmatch(text)
        if duration is not None:
            return _meant(float(duration["number"]) * _SECONDS[duration["unit"][0].lower()])
    if _PLAIN.fullmatch(text):
        return _meant(float(re.sub("[, ']", "", text)))
    if scaled is None:
        return ""
    number, power = float(scaled["number"]), _POWERS[scaled["scale"].lower()]
    if option == "global-batch-size" and (power > 1 or number_of_tokens(seq_length) > 0):
        return _sequences(text, number, power, seq_length)
    return _meant(number * (1024 if option in ("seq-length", "max-position-embeddings") else 1000) ** power)


def _meant(value: float) -> str:
    return f" Did you mean {int(value)}?" if value == int(value) and 0 < value <= MAX_MEANT else ""


def _sequences(text: str, number: float, power: int, seq_length: str | None) -> str:
    """Return the hint for a batch that is given in tokens."""
    counts = " It counts sequences, not tokens"
    length = number_of_tokens(seq_length)
    if not length:
        return f"{counts}: give the tokens of a batch over --seq-length."
    binary = number * 1024**power
    tokens = binary if binary % length == 0 else number * 1000**power
    sequences = round(tokens / length)
    if tokens < length:  # fewer tokens than a sequence has: sequences were meant
        return _meant(number * 1000**power)
    if sequences > MAX_SEQUENCES:
        return f"{counts}."
    about = "" if tokens % length == 0 else "about "
    return f"{counts}: {text} tokens are {about}{sequences} sequences of {length} tokens. Did you mean {sequences}?"


def number_of_tokens(text: str | None) -> int:
    """Return a sequence length as a number; ``8k`` is 8192. 0 if it is none."""
    if text is None:
        return 0
    found = re.fullmatch(r"([0-9]{1,9})(k?)", text.strip(), re.IGNORECASE | re.ASCII)
    return 0 if found is None else int(found[1]) * (1024 if found[2] else 1)
