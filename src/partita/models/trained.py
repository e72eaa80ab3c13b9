"""What trained models of any kind of data have in common: classes, files, the hub."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import torch
from huggingface_hub import ModelHubMixin
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from partita.config.recipe import Recipe
from partita.data.any_tokenizer import AnyTokenizer
from partita.data.image_tokenizers import Pixels
from partita.data.images import Images
from partita.devices import choose_device
from partita.errors import InputError, require
from partita.execution.choice import sample
from partita.files import format
from partita.models.card import Terms, model_card
from partita.models.default import default_model
from partita.models.find import read_found
from partita.models.saved import model_files
from partita.models.score import Score
from partita.provenance import portable
from partita.registry import Registry

if TYPE_CHECKING:
    from partita.models.text_model import TextModel

M = TypeVar("M", bound="TrainedModel")

_SHOWN = 12  # classes that a message names


class TrainedModel(ModelHubMixin, ABC, library_name="partita", tags=["masked-diffusion"]):
    """A method, its tokenizer and the recipe that made it.

    `save_pretrained`, `from_pretrained` and `push_to_hub` work as they do for every model on the
    Hugging Face hub; `partita.load` and `save` are the short names.
    """

    data: ClassVar[str]
    """The model's kind of data, such as "text"."""
    instead: ClassVar[str] = "partita.load takes models of any data"
    """What an error suggests where a model of other data is needed."""

    def __init__(
        self,
        method: nn.Module,
        tokenizer: AnyTokenizer,
        recipe: Recipe,
        provenance: dict[str, Any] | None = None,
        terms: Terms | None = None,
    ) -> None:
        self.method, self.tokenizer, self.recipe = method.eval(), tokenizer, recipe
        self.provenance, self.terms = provenance or {}, terms or {}

    @abstractmethod
    def sample(self, count: int = 1, **options: Any) -> list[str] | Pixels:
        """Texts that the model writes, or pictures that it draws."""

    def preview(self, count: int) -> list[str] | Pixels:
        """Samples that a run saves while it trains: texts, or pictures."""
        return self.sample(count)

    @overload
    def infill(self, text: str, /, count: int = 1, **options: Any) -> list[str]: ...

    @overload
    def infill(
        self, images: Images | Pixels, /, known: Bool[Tensor, "rows columns"], **options: Any
    ) -> Pixels: ...

    @abstractmethod
    def infill(self, given: Any, /, *how: Any, **options: Any) -> list[str] | Pixels:
        """A text with its blanks filled in, or pictures with their unknown parts drawn."""

    @overload
    def score(
        self, text: str, *, label: str | int | None = None, replicates: int = 8, seed: int = 0
    ) -> Score: ...

    @overload
    def score(
        self, text: list[str], *, label: str | int | None = None, replicates: int = 8, seed: int = 0
    ) -> list[Score]: ...

    def score(
        self,
        text: str | list[str],
        *,
        label: str | int | None = None,
        replicates: int = 8,
        seed: int = 0,
    ) -> Score | list[Score]:
        """How many bits a model of text needs for a text, at most: its bound, with standard error.

        Of several texts it is a list of scores, each as if its text were the only one. A text
        longer than the model is scored in consecutive windows. A model of flexible length refuses
        such a text: each window would be a text with an end. Models of other data refuse all texts.
        """
        several = isinstance(text, list)
        scores = self._scores(text if several else [text], label, replicates, seed)
        return scores if several else scores[0]

    def _scores(self, *_: Any) -> list[Score]:
        raise InputError("model", f"is a model of {self.data}, which scores no text", self.instead)

    def __repr__(self) -> str:
        sizes = f"{self.parameter_count:,} parameters, {self.tokenizer.vocab_size:,} tokens"
        name = self.recipe.method.name
        return f"{type(self).__name__}({name}, {sizes}, length {self.length})"

    @property
    def classes(self) -> list[str]:
        """The names of the classes that the model has learned, or their numbers without names."""
        count, named = self.recipe.network.classes, self.provenance.get("classes")
        fits = isinstance(named, list) and len(named) == count
        return list(map(str, named if fits else range(count)))  # type: ignore[arg-type]

    def label_number(self, label: str | int | None) -> int | None:
        """The network's number of a class, which is given by name or number."""
        if label is None:
            return None
        known = self.classes
        require(bool(known), "label", "the model knows no classes", "leave it out")
        shown = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        if isinstance(label, int):
            problem = f"there is no class number {label}"
            require(0 <= label < len(known), "label", problem, f"known: {shown}")
            return label
        require(label in known, "label", f"unknown class {label!r}", f"known: {shown}")
        return known.index(label)

    @property
    def length(self) -> int:
        """The longest sequence, in tokens."""
        return int(self.method.length)  # type: ignore[arg-type]

    @property
    def parameter_count(self) -> int:
        """The number of learned parameters."""
        return sum(parameter.numel() for parameter in self.method.parameters())

    @property
    def device(self) -> torch.device:
        return next(self.method.parameters()).device

    def drawing(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options over those of the recipe's `sampling` section, if they name no other sampler."""
        usual = self.recipe.sampling.arguments()
        if options.get("sampler") not in (None, usual["sampler"]):
            usual = {}
        return usual | options

    def drawn(
        self, count: int | None = None, *, precision: str | None = None, **options: Any
    ) -> Int64[Tensor, "B L"]:
        """Draw tokens by `partita.sample`, which takes the options.

        Without `precision`, matrix products are float32; but on a GPU a masked model that was
        trained in bfloat16 samples in bfloat16 too.
        """
        masked = self.method.family == "masked"
        trained = self.recipe.training.precision
        usual = trained if masked and self.device.type == "cuda" else "float32"
        chosen = usual if precision is None else precision
        known = chosen in ("bfloat16", "float32")
        require(known, "precision", f"unknown name {chosen!r}", "known: bfloat16, float32")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=chosen == "bfloat16"):
            return sample(self.method, count, **options)  # type: ignore[arg-type]

    # Files ---------------------------------------------------------------------------------------

    def contents(self) -> dict[str, Any]:
        """The files of a saved model, which name no folders of the machine that trained it."""
        state, provenance = self.method.state_dict(), portable(self.provenance)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        return model_files(self.recipe.portable(), self.tokenizer, provenance, weights)

    def card(self) -> str:
        """The model card."""
        sizes, family = (self.tokenizer.vocab_size, self.parameter_count), str(self.method.family)
        return model_card(self.recipe, *sizes, self.provenance, family=family, terms=self.terms)

    def save(self, folder: str | Path) -> None:
        """Write a folder that `partita.load` and the hub understand, atomically."""
        format.write(Path(folder), self.contents(), self.card())

    def _save_pretrained(self, save_directory: Path) -> None:
        format.write_into(save_directory, self.contents(), self.card())

    @classmethod
    def from_pretrained(
        cls: type[M],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        device: str = "auto",
        **unknown: Any,
    ) -> M:
        """As `partita.load`, with the hub's usual options; a model of other data is refused.

        The mixin's own method would read `config.json` before anything is checked.
        """
        for name in unknown:
            raise InputError(name, "unknown option", "partita knows device beside the hub's own")
        from partita.models.assembling import assembled  # which knows all classes of models

        place, read = (
            pretrained_model_name_or_path,
            partial(assembled, device=choose_device(device)),
        )
        hub = {"force_download": force_download, "token": token, "cache_dir": cache_dir}
        model = read_found(read, place, revision, local_files_only=local_files_only, **hub)
        return of_kind(cls, model, place)


MODELS: Registry[type[TrainedModel]] = Registry("data")
"""Classes of models by their kind of data."""


def of_kind(kind: type[M], model: TrainedModel, name: str | Path) -> M:
    """The model as one of that kind; one of other data is refused."""
    if not isinstance(model, kind):
        raise InputError("model", f"{name} is a model of {model.data}", model.instead)
    return model


@overload
def load(
    path_or_hub_id: None = None, *, device: str = "auto", revision: str | None = None
) -> TextModel: ...


@overload
def load(
    path_or_hub_id: str | Path, *, device: str = "auto", revision: str | None = None
) -> TrainedModel: ...


def load(
    path_or_hub_id: str | Path | None = None, *, device: str = "auto", revision: str | None = None
) -> TrainedModel:
    """A model from a run folder (its best checkpoint), a checkpoint, an exported folder or the hub.

    Without a name it is the one that this installation comes with, which writes text. Every file
    is checked first; nothing in them is ever run.
    """
    name = default_model() if path_or_hub_id is None else path_or_hub_id
    return TrainedModel.from_pretrained(name, device=device, revision=revision)
