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
from partita.modalities.base import Evaluation, Work, heading
from partita.modalities.images import ImageEvaluation
from partita.models.image_model import ImageModel

_NAMES = {"path": "file", "split": "file", "label": "file"}
_NAMES |= {"folder": "--classifier", "model": "--classifier", "images": "--classifier"}


def prepared(model: ImageModel, asked: Evaluation, own: ImageEvaluation) -> Work:
    """Check everything that the evaluation needs, and return the work."""
    name = asked.file or model.recipe.data.path
    few = asked.samples in (0, 1)
    require(asked.samples != 1, "--samples", "one image has no spread", "give 0, or 2 and more")
    if own.classifier is not None and not few:
        check_folder(Path(own.classifier), "--classifier")
    with naming(_NAMES):
        train, test = _read(model, name, "train"), _read(model, name, "test")
        model.labels_of(test)  # of classes that the model knows
    if asked.limit is not None:
        test = test.select(torch.arange(min(asked.limit, len(test))))

    def work(bar: Progress) -> dict[str, Any]:
        results: dict[str, Any] = {}
        # Before the likelihood, which may take long: a sampler may refuse its options.
        samples = _samples(model, train, test, name, asked, own, bar) if asked.samples else None
        if asked.file is not None:
            results["likelihood"] = _likelihood(model, train, test, name, asked, bar)
        return results if samples is None else results | {"samples": samples}

    return work


def _samples(
    model: ImageModel,
    train: Images,
    test: Images,
    name: str,
    asked: Evaluation,
    own: ImageEvaluation,
    bar: Progress,
) -> dict[str, Any]:
    task = bar.add_task("samples", total=asked.samples)
    with naming(_NAMES):
        judge = find_classifier(
            own.classifier,
            train,
            Path(name).name,
            lambda text: bar.update(task, description=text),
        )
    bar.update(task, description="samples")
    found = image_quality(
        model,
        judge,
        train,
        test,
        asked.samples,
        lambda done: bar.update(task, completed=done),
        seed=asked.seed,
        **asked.how,
    )
    return asdict(found)


def _read(model: ImageModel, name: str, split: str) -> Images:
    data = model.recipe.data
    return read_images(name, ImageOptions(split=split, size=data.size, color=data.color))


def _likelihood(
    model: ImageModel, train: Images, test: Images, name: str, asked: Evaluation, bar: Progress
) -> dict[str, Any]:
    task = bar.add_task("likelihood", total=1.0)
    bound = model.bits_per_dimension(
        test,
        replicates=asked.replicates,
        seed=asked.seed,
        progress=lambda share: bar.update(task, completed=share),
    )
    seen, tokens = (model.tokenizer.encode(images) for images in (train, test))
    return {
        "file": name,
        "images": len(test),
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
        bits, error = likelihood["bits_per_dimension"], likelihood["bits_per_dimension_error"]
        shown.add_row(heading("likelihood"), f"{likelihood['file']}, {likelihood['images']} images")
        what = likelihood["dimensions"]
        per = "dimension" if what == "pixels" else "code"
        shown.add_row(f"bits per {per}, at most", f"{bits:.4f} ± {error:.4f}")
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
