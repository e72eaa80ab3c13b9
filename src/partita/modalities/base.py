"""The base class of modalities: their options of the command line, and what each verb does.

A verb has options that all modalities share; it hands them over as one of the dataclasses below. A
modality adds options of its own: dataclasses too, whose fields are flags of the verb.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from partita.data.kinds import KINDS, DataKind
from partita.errors import InputError
from partita.models.trained import MODELS, TrainedModel
from partita.registry import Registry
from partita.samplers.base import Callback

M = TypeVar("M", bound=TrainedModel)
Work = Callable[[Progress], dict[str, Any]]
SHIPPED = "text"  # the modality of the model that an installation comes with


# What a verb hands over --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Samples to draw."""

    count: int = 1
    label: str | int | None = None
    """The class, by name or number; a modality may give other values a meaning."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """The sampler and its options, seed and precision, as `sample` of a model takes them."""
    callback: Callback | None = None
    """Called with each step; see `Modality.watchable`."""


@dataclass(frozen=True, kw_only=True)
class Infilling(Sampling):
    """Something to fill in, several times."""

    given: str
    """A text with blanks, or the name of a file."""
    named: bool = True
    """Whether a model was named."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What to measure about a model."""

    file: str | None
    """Data to measure the likelihood of; None for none."""
    limit: int | None
    replicates: int
    samples: int
    """How many to draw and measure; 0 for none."""
    how: Mapping[str, Any]
    """Sampling settings that replace the model's own."""
    seed: int
    device: str
    quiet: bool = False
    """Whether a machine reads what is printed."""


@dataclass(frozen=True)
class Drawn:
    """The results of `sample` or `infill`."""

    facts: Mapping[str, Any]
    """For machines."""
    texts: Sequence[str] = ()
    """For people: texts, each by itself."""
    lines: Sequence[str] = ()
    """For people: what was written, and where."""


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """Options of a verb that one modality adds; their docstrings are the help."""

    def check(self, asked: Any) -> None:  # noqa: ANN401 - one of the dataclasses above
        """Refuse what does not fit together, as soon as the command line is read."""


# A modality --------------------------------------------------------------------------------------


class Modality(ABC, Generic[M]):
    """A kind of data with its models and verbs."""

    data: ClassVar[DataKind]
    model: ClassVar[type[TrainedModel]]
    watchable: ClassVar[bool] = False
    """Whether samples can be watched while they are drawn: parts of one decode to text."""
    try_flags: ClassVar[str] = ""
    """Flags that suit a first `partita sample` of a new model."""
    sample_options: ClassVar[type[OwnOptions]] = OwnOptions
    infill_options: ClassVar[type[OwnOptions]] = OwnOptions
    eval_options: ClassVar[type[OwnOptions]] = OwnOptions

    @property
    def name(self) -> str:
        """The name of its kind of data."""
        return self.data.name

    @abstractmethod
    def sample(self, model: M, asked: Sampling, own: Any) -> Drawn:  # noqa: ANN401 - its own
        """`partita sample`; `own` are its `sample_options`."""

    def infill(self, model: M, asked: Infilling, own: Any) -> Drawn:  # noqa: ANN401, ARG002
        """`partita infill`; `own` are its `infill_options`."""
        problem = f"models of {self.name} are not filled in"
        raise InputError("model", problem, "draw samples with partita sample")

    def evaluation(self, model: M, asked: Evaluation, own: Any) -> Work:  # noqa: ANN401, ARG002
        """`partita eval`: check everything that it needs, and return the work; `own` are its
        `eval_options`."""
        raise InputError("model", f"models of {self.name} are not evaluated")

    def table(self, results: Mapping[str, Any]) -> Table:
        """Results of an evaluation for people: here those under "samples" and "likelihood"."""
        shown = Table("", "", show_header=False)
        for part in ("samples", "likelihood"):
            for name, value in results.get(part, {}).items():
                shown.add_row(f"{part}: {name}", f"{value:.4f}")
        return shown


class Modalities(Registry[Modality[Any]]):
    """Modalities by name. To register one is to register its data and its models too."""

    def register(self, name: str) -> Callable[[Modality[Any]], Modality[Any]]:
        """Make a modality known to verbs, recipes and saved models."""
        add = super().register(name)

        def added(entry: Modality[Any]) -> Modality[Any]:
            if name not in KINDS:
                KINDS.register(name)(entry.data)
            if name not in MODELS:
                MODELS.register(name)(entry.model)
            return add(entry)

        return added


MODALITIES = Modalities("modality")


def modality_of(model: TrainedModel) -> Modality[Any]:
    """The modality of a model."""
    return MODALITIES[model.data]


def heading(text: str) -> Text:
    """A text that stands out in a table."""
    return Text(text, style="bold")


def spread(numbers: Mapping[str, Any], name: str, style: str = ".4f") -> str:
    """A number and its standard error."""
    return f"{numbers[name]:{style}} ± {numbers[f'{name}_error']:{style}}"
