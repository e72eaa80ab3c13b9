"""Quality of generated images: accuracy of their classes, and distance to the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.data.images import Images
from partita.evaluation.classifier import ImageClassifier, train_classifier
from partita.evaluation.frechet import frechet_distance
from partita.models import checkpoints
from partita.models.image_model import ImageModel

BATCH = 100  # images drawn at a time


@dataclass(frozen=True)
class ImageQuality:
    """The quality of generated images, by a classifier trained on the data set itself."""

    count: int
    accuracy: float | None
    """Fraction of images that are classified as their label; None without labels."""
    classifier: str
    classifier_accuracy: float
    """The same for held-out images of the data."""
    frechet: float
    """Fréchet distance to the held-out images, by the classifier's features."""
    frechet_data: float
    """The same for as many training images: the distance that remains by chance."""
    images_per_second: float


def find_classifier(
    folder: str | None, train: Images, data: str, progress: Callable[[str], None]
) -> ImageClassifier:
    """The classifier in a folder; if there is none, train one and save it there."""
    if folder is not None and checkpoints.is_model(Path(folder)):
        return ImageClassifier.load(folder)
    progress("training a classifier")
    made = train_classifier(train, data)
    if folder is not None:
        made.save(folder)
    return made


def image_quality(
    model: ImageModel,
    classifier: ImageClassifier,
    train: Images,
    test: Images,
    count: int,
    progress: Callable[[int], None],
    **options: Any,
) -> ImageQuality:
    """Draw images, equally many of each class, and measure their quality."""
    classes = model.recipe.network.classes
    labels = torch.arange(count) % classes if classes else None
    drawn: list[Tensor] = []
    began = time.monotonic()
    for first in range(0, count, BATCH):
        few = min(BATCH, count - first)
        label = None if labels is None else labels[first : first + few]
        drawn.append(model.sample(few, label=label, first=first, **options))
        progress(first + few)
    seconds, pixels = time.monotonic() - began, torch.cat(drawn)
    fixed = torch.Generator().manual_seed(0)
    some = train.select(torch.randperm(len(train), generator=fixed)[:count])
    return ImageQuality(
        count=count,
        accuracy=None if labels is None else classifier.accuracy(pixels, labels),
        classifier=classifier.name,
        classifier_accuracy=classifier.accuracy(test),
        frechet=frechet_distance(classifier, pixels, test).distance,
        frechet_data=frechet_distance(classifier, some, test).distance,
        images_per_second=count / seconds,
    )


def independent_bits(
    train: Int64[Tensor, "N L"], test: Int64[Tensor, "M L"], vocabulary: int
) -> float:
    """Bits per token of test images under the token frequencies of each position in training.

    Counts are smoothed by adding 1.
    """
    counts = torch.ones(train.shape[1], vocabulary, dtype=torch.float64)
    counts.scatter_add_(1, train.T, torch.ones_like(train.T, dtype=torch.float64))
    bits = -torch.log2(counts / counts.sum(1, keepdim=True))
    return float(bits.gather(1, test.T).mean())
