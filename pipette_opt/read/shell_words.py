"""Words of a command line or a shell script, as far as options of a program need them."""

import re
from collections.abc import Iterator

_PIECE = re.compile(
    r"""
    \s+ | \\\r?\n | (?<!\S)\#[^\n]*          # between words: spaces, a continued line, a comment
    | (?P<word>(?:
        "(?:[^"\\]|\\.)*" | '[^']*'            # in quotes
        | \$\{[^}\n]*\} | \$\(\([^\n]*?\)\) | \$\([^()\n]*\)   # a variable, arithmetic, a command
        | \\. | [^\s"'] | ["']                # anything else; a quote that nothing closes
    )+? (?=\s|\\\r?\n|$))
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}$]*))?\})")
_QUOTED = re.compile(r""" "((?:[^"\\]|\\.)*)" | '([^']*)' """, re.VERBOSE | re.DOTALL)

ENDS = ("|", "||", "&", "&&", ";", ")", "(", ">", "<", "then", "fi", "do", "done")
"""Words of the shell that end the values of an option."""

_LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec", "sbatch", "docker", "apptainer", "singularity", "deepspeed")
"""Programs that start others; the options between them and what they start are theirs."""

_STARTED = ("bash", "sh", "python", "python3")
"""What they start, beside scripts."""


def shell_words(text: str) -> list[str]:
    """
    Words without quotes, comments and line continuations, variables replaced where the text itself sets them.

    A quoted text that holds options is a list of words, as scripts keep their options in variables. The options of a
    launcher (``torchrun --nnodes 2 pretrain.py``) are left out.
    """
    words = list(_words(text))
    variables = _variables(words)
    return _without_launchers([_replaced(word, variables) for word in words])


def _words(text: str) -> Iterator[str]:
    """Words with their variables, assignments apart."""
    for found in _PIECE.finditer(text):
        word = found["word"]
        if word is None:
            continue
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned is not None and not word.startswith("--"):
            yield f"{assigned[1]}="
            word = assigned[2]
        yield from _unquoted(word)


def _unquoted(word: str) -> Iterator[str]:
    """One word without quotes; several if options stand in them."""
    plain = _QUOTED.sub(lambda found: found[1].replace('\\"', '"') if found[1] is not None else found[2], word)
    if len(plain.split()) > 1 and re.search(r"(^|\s)--\w", plain):
        yield from _words(plain)
        return
    plain = re.sub(r"\\(.)", r"\1", plain)
    if _QUOTED.fullmatch(word) or plain in ENDS:
        yield plain
        return
    plain = plain.rstrip(";").strip("\"'")
    before, after = "", ""
    if plain.count("(") > plain.count(")") and plain.startswith("("):
        before, plain = "(", plain[1:]
    if plain.count(")") > plain.count("(") and plain.endswith(")"):
        plain, after = plain[:-1], ")"
    yield from filter(None, (before, plain, after))


def _variables(words: list[str]) -> dict[str, str | None]:
    """Values of the variables that the words set; ``None`` where they are set to several."""
    values: dict[str, str | None] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if not re.fullmatch(r"[A-Za-z_]\w*=", word):
            continue
        value = _replaced(following, values)
        name = word[:-1]
        simple = not value.startswith(("(", "--", "$")) and not value.endswith("=")
        if name in values and values[name] != value:
            values[name] = None
        else:
            values[name] = value if simple else None
    return values


def _replaced(word: str, values: dict[str, str | None]) -> str:
    """A word with the variables that are known; a default in the word itself is known, too."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        value = values.get(name, found[3] if name not in values else None)
        return found[0] if value is None else value

    return _VARIABLE.sub(value_of, word)


def _without_launchers(words: list[str]) -> list[str]:
    """Words without those between a launcher and what it starts."""
    names = [word.rsplit("/", 1)[-1] for word in words]
    scripts = [index for index, name in enumerate(names) if name.endswith(".py") or name in _STARTED]
    kept: list[str] = []
    index = 0
    while index < len(words):
        if names[index] in _LAUNCHERS:
            index = next((script for script in scripts if script > index), index)
        kept.append(words[index])
        index += 1
    return kept
