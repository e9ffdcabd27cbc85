"""Secrets in what capture writes: values of variables and options named like secrets, and texts of their form."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HIDDEN = "..."
"""Text in place of a secret."""

MIN_LENGTH = 6
"""Least length of a variable's value that is looked for in other texts; shorter ones stand in many words. Chosen."""

NAME = re.compile(
    r"SECRET|PASSWORD|PASSWD|(TOKEN|PASSPHRASE|(?<!BY)PASS|PWD|CREDENTIALS?|COOKIE|APIKEY|(^|_)(AUTH|KEY|DSN))(_?[0-9]+)?$",
    re.IGNORECASE,
)
"""Pattern of names of variables and options with secret values, ``-`` written as ``_``."""

FOLDERS = ("PWD", "OLDPWD")
"""Names that match and hold folders."""

_FORMS = (
    re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"(?i)(?<=\bauthorization: )\w+ +\S+|(?<=\bbearer )\S+"),
    re.compile(
        r"\b(hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
        r"|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    ),
)
"""Patterns of secrets by their form: user and password of a URL, headers, tokens of well-known services."""

_SETTING = re.compile(r"(?<![\w-])([\w-]+)=([^\s'\";|&]+)")
"""Pattern of a setting in a text: ``NAME=VALUE``, ``--name=value``."""

_OPTION = re.compile(r"--?([A-Za-z][\w-]*)")

PASSWORD_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "sshpass": ("-p",),
    "curl": ("-u", "--user"),
    "mysql": ("-p",),
    "docker": ("-p",),
}
"""Options of programs whose value is a password although their name does not say so."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable or an option has a secret value, by its name."""
    return name not in FOLDERS and NAME.search(name.replace("-", "_")) is not None


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that must not be written, the longest first."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, environments: Iterable[Mapping[str, str]]) -> "Secrets":
        """Return the values of all variables that are named like secrets."""
        pairs = [pair for environment in environments for pair in environment.items()]
        found = {value for name, value in pairs if is_secret_name(name) and len(value) >= MIN_LENGTH}
        return cls(tuple(sorted(found, key=len, reverse=True)))

    def without(self, text: str) -> str:
        """Return a text with dots in place of secrets."""
        for value in self.values:
            text = text.replace(value, HIDDEN)
        for form in _FORMS:
            text = form.sub(HIDDEN, text)
        return _SETTING.sub(lambda found: _setting(found[0], found[1]), text)

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command with dots in place of secrets, also of those that an option announces."""
        shown, program = [], ""
        options: tuple[str, ...] = ()
        for index, word in enumerate(words):
            program = word.rsplit("/", 1)[-1]
            options = PASSWORD_OPTIONS.get(program, options)
            before = words[index - 1] if index else ""
            option = _OPTION.fullmatch(before)
            is_value = before in options or (option is not None and is_secret_name(option[1]))
            attached = next(
                (known for known in options if len(known) == 2 and word.startswith(known) and word != known), ""
            )
            if is_value and not word.startswith("--"):
                shown.append(HIDDEN)
            else:
                shown.append(f"{attached}{HIDDEN}" if attached else self.without(word))
        return shown

    def document(self, content: Any) -> Any:
        """Return a JSON document with dots in place of secrets in every text; names of fields stay."""
        if isinstance(content, str):
            return self.without(content)
        if isinstance(content, list):
            return (
                self.words(content)
                if all(isinstance(part, str) for part in content)
                else list(map(self.document, content))
            )
        if isinstance(content, dict):
            return {name: self.document(part) for name, part in content.items()}
        return content


NO_SECRETS = Secrets()
"""No values; forms and names still count."""


def _setting(text: str, name: str) -> str:
    return f"{text[: text.index('=')]}={HIDDEN}" if is_secret_name(name.lstrip("-")) else text
