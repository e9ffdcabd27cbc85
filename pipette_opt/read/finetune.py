"""Fine-tuning of a job: its method and adapters, from options, a job file or a launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from pipette_opt.base.errors import InputError, shown
from pipette_opt.layers.adapters import BASE_BYTES, TARGET_WORDS, Adapters, BaseFormat, linears_of
from pipette_opt.options.description import JobOptions
from pipette_opt.specs import ModelSpec

METHODS: Mapping[str, str] = MappingProxyType({"full": "", "lora": "16-bit", "qlora": "nf4-double"})
"""Methods of fine-tuning, each with the usual format of what it freezes; empty for a method that freezes nothing."""

USUAL_RANK = 8
"""Rank of adapters without another; PEFT's default (``LoraConfig``)."""

USUAL_TARGETS = "all-linear"
"""Matrices with adapters without others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finetune:
    """
    Method of fine-tuning, as a user or a launch gives it.

    Parameters
    ----------
    method
        Name in ``METHODS``.
    rank, dropout
        Rank of the adapters, and their dropout; ``None`` for the usual.
    targets
        Words for the matrices with adapters (:data:`~pipette_opt.layers.adapters.TARGET_WORDS`), separated by commas.
    base
        Format of the frozen matrices; ``None`` for the method's usual.
    flat_gradients
        Whether sharded frozen weights have gradients (:class:`~pipette_opt.layers.adapters.Adapters`).
    keeps_inputs
        Whether products with quantised matrices keep their inputs, as bitsandbytes' do.
    where
        Place for errors; empty for the options of a command.
    """

    method: str
    rank: int | None = None
    targets: str | None = None
    base: str | None = None
    dropout: float | None = None
    flat_gradients: bool = False
    keeps_inputs: bool = False
    where: str = ""

    def applied(self, model: ModelSpec) -> ModelSpec:
        """
        Return the model as it is trained.

        Raises
        ------
        InputError
            For adapters of a method without them, an unknown word, and matrices that the model lacks.
        """
        if self.method not in METHODS:
            raise InputError(self._place("--finetune"), f"must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.method == "full":
            for name, value in (
                ("--lora-rank", self.rank),
                ("--lora-targets", self.targets),
                ("base_format", self.base),
            ):
                if value is not None:
                    problem = f"is {value}, but full fine-tuning has no adapters and freezes nothing; leave it out"
                    raise InputError(self._place(name), f"{problem}, or give --finetune lora.")
            return model
        base = self.base or METHODS[self.method]
        if base not in BASE_BYTES:
            raise InputError(self._place("base_format"), f"must be one of {', '.join(BASE_BYTES)}, got {shown(base)}.")
        rank = USUAL_RANK if self.rank is None else self.rank
        targets = self._targets(model)
        dropout = self.dropout or 0.0
        try:
            adapters = Adapters(
                rank=rank,
                targets=targets,
                base=cast(BaseFormat, base),
                dropout=dropout,
                flat_gradients=self.flat_gradients,
                keeps_inputs=self.keeps_inputs,
            )
        except ValueError as error:
            raise InputError(self._place("--lora-rank"), f"{error}") from None
        return replace(model, adapters=adapters)

    def _targets(self, model: ModelSpec) -> tuple[str, ...]:
        """Return the matrices with adapters, in the order of the layers' own."""
        known, found = linears_of(model), set[str]()
        for word in (self.targets or USUAL_TARGETS).replace(" ", "").split(","):
            names = TARGET_WORDS.get(word)
            if names is None:
                problem = f"has the word {shown(word)}; known are {', '.join(TARGET_WORDS)}."
                raise InputError(self._place("--lora-targets"), problem)
            present = [name for name in names if name in known]
            if not present:
                problem = f"has {word}, which {model.name} lacks; it has {', '.join(known)}."
                raise InputError(self._place("--lora-targets"), problem)
            found.update(present)
        return tuple(name for name in known if name in found)

    def _place(self, option: str) -> str:
        return f"{self.where}, {option.removeprefix('--')}" if self.where else option


def bitsandbytes_adapters(
    bits: int | None,
    *,
    nested: bool = True,
    rank: int | None,
    targets: Sequence[str],
    dropout: float | None,
    where: str,
) -> Finetune:
    """
    Return adapters on weights that bitsandbytes quantises.

    Parameters
    ----------
    bits
        Bits of a frozen weight, 4 or 8; ``None`` for 16.
    nested
        Whether constants of 4-bit weights are quantised, too (double quantisation).
    """
    if bits is None:
        return Finetune(method="lora", rank=rank, targets=",".join(targets), dropout=dropout, where=where)
    base = "int8" if bits == 8 else "nf4-double" if nested else "nf4"
    return Finetune(method="qlora", rank=rank, targets=",".join(targets), dropout=dropout, base=base, where=where)


def finetune_of(options: JobOptions, launch: Finetune | None) -> Finetune | None:
    """
    Return the fine-tuning of a job: options win over the launch; ``None`` for training from scratch.

    ``InputError`` for an option of adapters without a method.
    """
    given: dict[str, Any] = {
        "method": options.finetune,
        "rank": options.lora_rank,
        "targets": options.lora_targets,
        "base": options.base_format,
    }
    if options.finetune is None and launch is None:
        for name, option in (("rank", "--lora-rank"), ("targets", "--lora-targets"), ("base", "base_format")):
            if given[name] is not None:
                raise InputError(option, "has no effect without --finetune lora or qlora; give the method, too.")
        return None
    if launch is None or (options.finetune is not None and options.finetune != launch.method):
        return Finetune(**given)
    return replace(launch, **{name: value for name, value in given.items() if value is not None})
