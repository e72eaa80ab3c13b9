"""An image classifier, trained on a data set to check whether generated images have their class.

It is small and trained on the data set itself, so its accuracy and its features mean nothing for
other data. Every result contains its name, which identifies the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from partita.data.image_tokenizers import Pixels, stored_size
from partita.data.images.base import Images, byte_pixels
from partita.data.vq_tokenizer import scaled
from partita.devices import choose_device
from partita.errors import InputError, fits, require, require_int
from partita.files import format
from partita.networks.classifier import ClassifierNetwork
from partita.randomness import Noise, Purpose
from partita.training.image_trainer import (
    ClippedAdamW,
    StepOptions,
    image_steps,
    require_images,
    seeded,
)
from partita.version import __version__

BATCH = 512  # images at a time
_REQUIRED = (format.CONFIG, format.WEIGHTS)
_KINDS = {"channels": int, "classes": list, "size": list, "width": int, "dimension": int}


@dataclass(frozen=True)
class ClassifierOptions(StepOptions):
    """Options of training a classifier."""

    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    width: int = 16
    """Channels at full resolution."""
    dimension: int = 64
    """Number of features: the size of the layer before the logits."""
    shift: int = 1
    """In training, images are shifted by up to this many pixels."""
    smoothing: float = 0.1
    """Label smoothing: the probability that is spread over all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.shift, "shift", 0, 64)
        problem = f"must lie in [0, 1), got {self.smoothing}"
        require(0 <= self.smoothing < 1, "smoothing", problem)


@dataclass(frozen=True)
class ClassifierProgress:
    """Progress for a callback: the newest step, measured on its own batch."""

    step: int
    loss: float
    accuracy: float


class ImageClassifier:
    """A trained classifier, which is also a feature network of `frechet`."""

    def __init__(self, network: ClassifierNetwork, classes: tuple[str, ...], data: str) -> None:
        """`data` is the name of what it was trained on."""
        self.network = network.eval().requires_grad_(False)
        self.classes, self.data = classes, data
        count = f"{len(classes)} names for {network.classes} classes"
        require(len(classes) == network.classes, "classes", count)

    @property
    def name(self) -> str:
        return f"classifier trained on {self.data}"

    @property
    def dimension(self) -> int:
        return self.network.dimension

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def features(self, images: Images | Pixels) -> Float[Tensor, "N D"]:
        """The layer before the logits."""
        return self._run(self.network.features, images)

    def logits(self, images: Images | Pixels) -> Float[Tensor, "N K"]:
        """Unnormalized log-probabilities of the classes."""
        return self._run(self.network, images)

    def predict(self, images: Images | Pixels) -> Int64[Tensor, "N"]:
        """The most probable class of each image."""
        return self.logits(images).argmax(1)

    def accuracy(self, images: Images | Pixels, labels: Int64[Tensor, "N"] | None = None) -> float:
        """Fraction of images that are classified as their labels; `Images` have labels."""
        if labels is None:
            if not isinstance(images, Images):
                raise InputError("labels", "are missing", "pixels have none of their own")
            labels = images.labels
        guessed = self.predict(images)
        counts = f"{len(guessed)} images have {len(labels)} labels"
        require(len(guessed) == len(labels) > 0, "labels", counts)
        return float((guessed == labels.to(guessed.device)).double().mean())

    @torch.no_grad()
    def _run(self, layer: Callable[[Tensor], Tensor], images: Images | Pixels) -> Tensor:
        network = self.network
        pixels = byte_pixels(images, (network.channels, *network.size))
        require_images(len(pixels))
        parts = torch.split(pixels, BATCH)
        return torch.cat([layer(scaled(part.to(self.device))).cpu() for part in parts])

    # Files ---------------------------------------------------------------------------------------

    def save(self, folder: str | Path, provenance: dict[str, Any] | None = None) -> None:
        """Write a folder that `load` reads; it is written atomically."""
        network = self.network
        shape = {name: getattr(network, name) for name in ("channels", "width", "dimension")}
        shape |= {"size": list(network.size), "classes": list(self.classes)}
        config = {"library": "partita", "version": __version__, "data": self.data}
        weights = {name: t.detach().cpu() for name, t in network.state_dict().items()}
        config |= {"classifier": shape, "provenance": provenance or {}}  # type: ignore[dict-item]
        contents: format.Contents = {format.CONFIG: config, format.WEIGHTS: weights}
        format.write(Path(folder), contents, kind=format.IMAGE_CLASSIFIER)

    @staticmethod
    def load(folder: str | Path) -> ImageClassifier:
        """Load a classifier to the CPU. Every file is checked first; nothing in it is executed."""
        folder = Path(folder)
        format.verify(folder, format.IMAGE_CLASSIFIER, _REQUIRED)
        place = folder / format.CONFIG
        config = format.read_json(place)
        shape, data = config.get("classifier"), config.get("data")
        if not isinstance(shape, dict) or not isinstance(data, str):
            raise InputError("model", f"{place} describes no classifier")
        try:
            network, classes = _described(shape)
        except InputError as error:
            raise InputError("model", f"{place}: {error}") from error
        path = folder / format.WEIGHTS
        weights = {name: t.clone() for name, t in format.read_tensors(path).items()}
        expected = {name: (t.shape, t.dtype) for name, t in network.state_dict().items()}
        format.check_tensors(path, weights, expected)
        format.check_finite(path, weights)
        network.load_state_dict(weights, assign=True)
        return ImageClassifier(network, classes, data)


def _described(shape: Mapping[str, Any]) -> tuple[ClassifierNetwork, tuple[str, ...]]:
    """The untrained network and the class names that a file describes."""
    for name, kind in _KINDS.items():
        require(fits(shape.get(name), kind), name, f"is no {kind.__name__}")
    classes, size = tuple(map(str, shape["classes"])), stored_size(shape["size"])
    sizes = {name: shape[name] for name in ("width", "dimension")}
    with torch.device("meta"):
        return ClassifierNetwork(shape["channels"], size, len(classes), **sizes), classes


# Training ----------------------------------------------------------------------------------------


def train_classifier(
    images: Images,
    data: str,
    options: ClassifierOptions | None = None,
    callback: Callable[[ClassifierProgress], None] | None = None,
) -> ImageClassifier:
    """Train a classifier on images; `data` is the name of their set.

    On a CPU the same seed gives the same one.
    """
    options = options or ClassifierOptions()
    require_images(len(images))
    classes = images.classes or tuple(map(str, range(int(images.labels.max()) + 1)))
    device, pixels = choose_device(options.device), images.bytes()
    _, channels, rows, columns = pixels.shape
    sizes = {"width": options.width, "dimension": options.dimension}
    with seeded(options.seed):
        network = ClassifierNetwork(channels, (rows, columns), len(classes), **sizes).to(device)
    optimizer = ClippedAdamW([network], options)
    for step, index in image_steps(len(images), options):
        moved = shifted(pixels[index], options.shift, options.seed, step)
        target = images.labels[index].to(device)
        logits = network(scaled(moved.to(device)))
        loss = F.cross_entropy(logits, target, label_smoothing=options.smoothing)
        optimizer.step(loss, step)
        if callback is not None and options.reports_at(step):
            accuracy = float((logits.argmax(1) == target).double().mean())
            callback(ClassifierProgress(step + 1, float(loss.detach()), accuracy))
    return ImageClassifier(network, classes, data)


def shifted(pixels: Pixels, most: int, seed: int, step: int) -> Pixels:
    """Each image moved by -most..most pixels down and to the right; its edge fills the gap."""
    count, _, height, width = pixels.shape
    noise = Noise.for_batch(seed, count, first=step * count)
    draws = noise.uniform(Purpose.SHIFT, 0, torch.arange(2)[None])
    moves = (draws * (2 * most + 1)).long() - most
    rows = (torch.arange(height) - moves[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width) - moves[:, 1:]).clamp(0, width - 1)
    images = torch.arange(count)[:, None, None]
    return pixels.movedim(1, -1)[images, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
