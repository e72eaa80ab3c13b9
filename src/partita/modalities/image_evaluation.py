"""`partita eval` of a model of images: bits per dimension, and quality of its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from rich.table import Table

from partita.data.image_tokenizers import PixelTokenizer
from partita.data.images import ImageOptions, Images, read_images
from partita.errors import naming, require
from partita.evaluation.image_quality import find_classifier, image_quality, independent_bits
from partita.files.atomic import check_folder
from partita.modalities.base import Evaluation, Work, heading, spread
from partita.modalities.images import ImageEvaluation
from partita.models.image_model import ImageModel

_NAMES = {"path": "file", "split": "file", "label": "file"}
_NAMES |= {"folder": "--classifier", "model": "--classifier", "images": "--classifier"}


def prepared(model: ImageModel, asked: Evaluation, own: ImageEvaluation) -> Work:
    """Check everything that the evaluation needs, and return the work."""
    return _Study(model, asked, own).run


class _Study:
    """The evaluation of a model; what it needs is checked when it is made."""

    def __init__(self, model: ImageModel, asked: Evaluation, own: ImageEvaluation) -> None:
        self.model, self.asked, self.classifier = model, asked, own.classifier
        self.name = asked.file or model.recipe.data.path
        one = asked.samples == 1
        require(not one, "--samples", "one image has no spread", "give 0, or 2 and more")
        if own.classifier is not None and asked.samples:
            check_folder(Path(own.classifier), "--classifier")
        with naming(_NAMES):
            self.train, self.test = self._read("train"), self._read("test")
            model.labels_of(self.test)  # of classes that the model knows
        if asked.limit is not None:
            self.test = self.test.select(torch.arange(min(asked.limit, len(self.test))))

    def _read(self, split: str) -> Images:
        data = self.model.recipe.data
        return read_images(self.name, ImageOptions(split=split, size=data.size, color=data.color))

    def run(self, bar: Progress) -> dict[str, Any]:
        """All results, part by part."""
        # Before the likelihood, which may take long: a sampler may refuse its options.
        samples = {"samples": self._samples(bar)} if self.asked.samples else {}
        likelihood = {} if self.asked.file is None else {"likelihood": self._likelihood(bar)}
        return likelihood | samples

    def _samples(self, bar: Progress) -> dict[str, Any]:
        task, data = bar.add_task("samples", total=self.asked.samples), Path(self.name).name

        def tell(text: str) -> None:
            bar.update(task, description=text)

        with naming(_NAMES):
            judge = find_classifier(self.classifier, self.train, data, tell)
        tell("samples")
        found = image_quality(
            self.model,
            judge,
            self.train,
            self.test,
            self.asked.samples,
            lambda done: bar.update(task, completed=done),
            seed=self.asked.seed,
            **self.asked.how,
        )
        return asdict(found)

    def _likelihood(self, bar: Progress) -> dict[str, Any]:
        model, asked, task = self.model, self.asked, bar.add_task("likelihood", total=1.0)
        bound = model.bits_per_dimension(
            self.test,
            replicates=asked.replicates,
            seed=asked.seed,
            progress=lambda share: bar.update(task, completed=share),
        )
        seen, tokens = (model.tokenizer.encode(images) for images in (self.train, self.test))
        return {
            "file": self.name,
            "images": len(self.test),
            "tokens": bound.tokens,
            "given_the_class": model.recipe.network.classes > 0,
            "dimensions": "pixels" if isinstance(model.tokenizer, PixelTokenizer) else "codes",
            "bits_per_dimension": bound.bits,
            "bits_per_dimension_error": bound.bits_error,
            "independent": independent_bits(seen, tokens, model.tokenizer.vocab_size),
        }


def table(results: Mapping[str, Any]) -> Table:
    """The numbers for people."""
    shown = Table("", "", show_header=False)
    likelihood, samples = results.get("likelihood"), results.get("samples")
    if likelihood:
        shown.add_row(heading("likelihood"), f"{likelihood['file']}, {likelihood['images']} images")
        what = likelihood["dimensions"]
        per = "dimension" if what == "pixels" else "code"
        shown.add_row(f"bits per {per}, at most", spread(likelihood, "bits_per_dimension"))
        shown.add_row(f"bits of independent {what}", f"{likelihood['independent']:.4f}")
    if samples:
        shown.add_row(heading("samples"), f"{samples['count']} images")
        shown.add_row("by the", samples["classifier"])
        if samples["accuracy"] is not None:
            shown.add_row("taken for their class", f"{samples['accuracy']:.1%}")
        shown.add_row("held-out images are", f"{samples['classifier_accuracy']:.1%}")
        shown.add_row("Fréchet distance (its features)", f"{samples['frechet']:.4g}")
        shown.add_row("of as many training images", f"{samples['frechet_data']:.4g}")
        shown.add_row("images/s", f"{samples['images_per_second']:.1f}")
    return shown
