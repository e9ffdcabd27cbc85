"""Words of a command line or a shell script, as far as options of a program need them."""

import re
from collections.abc import Iterator

from pipette_opt.read.shell_branches import END_OF_CASE, NEW_LINE, Guess, taken_branches
from pipette_opt.read.shell_variables import replaced, variables

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
_QUOTED = re.compile(r""" "((?:[^"\\]|\\.)*)" | '([^']*)' """, re.VERBOSE | re.DOTALL)

ENDS = ("|", "||", "&", "&&", ";", ")", "(", ">", "<", "then", "fi", "do", "done")
"""Words of the shell that end the values of an option."""

_LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec", "sbatch", "docker", "apptainer", "singularity", "deepspeed")
"""Programs that start others; the options between them and what they start are theirs."""

_STARTED = ("bash", "sh", "python", "python3")
"""What they start, beside scripts."""


def shell_words(text: str) -> tuple[list[str], list[Guess]]:
    """
    Words without quotes, comments and line continuations, variables replaced where the text itself sets them.

    A quoted text that holds options is a list of words, as scripts keep their options in variables. The options of a
    launcher (``torchrun --nnodes 2 pretrain.py``) are left out, and branches that the text itself does not take. Beside
    them: the branches that are taken for lack of a known condition.
    """
    words, guesses = taken_branches(list(_words(text, lines=True)))
    values = variables(words)
    return _without_launchers([replaced(word, values) for word in words]), guesses


def _words(text: str, lines: bool = False) -> Iterator[str]:
    """Words with their variables, assignments apart, and on demand the ends of lines."""
    for found in _PIECE.finditer(text):
        word = found["word"]
        if word is None:
            if lines and "\n" in found[0] and not found[0].startswith("\\"):
                yield NEW_LINE
            continue
        if lines and word.endswith(END_OF_CASE):
            yield from _words(word.rstrip(";"))
            yield END_OF_CASE
            continue
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned is not None and not word.startswith("--"):
            yield f"{assigned[1]}="
            word = assigned[2]
        yield from _unquoted(word)


def _unquoted(word: str) -> Iterator[str]:
    """One word without quotes; several if options stand in them."""
    plain = _QUOTED.sub(lambda found: found[1].replace('\\"', '"') if found[1] is not None else found[2], word)
    # A word that is the same without quotes, as ${NAME:-two words}, would come back here for ever.
    if plain != word and len(plain.split()) > 1 and re.search(r"(^|\s)--\w", plain):
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
