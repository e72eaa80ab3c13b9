"""Fréchet distances between sets of images, through the features of a network.

Two sets of features are compared as if each were Gaussian. The distance between N(m, A), N(n, B) is

    |m - n|^2 + tr A + tr B - 2 tr (A^1/2 B A^1/2)^1/2

(squared, as is usual). Three things to know before using a number:

- It depends on the network: only distances by the same network can be compared, so every result
  names it. "FID" means one network only, the Inception of 2015 (`Inception`).
- It is biased: on finite sets it is too large, even for two halves of the same data, by an amount
  that falls about as 1 / count and that differs between models. Compare at equal counts, and report
  beside it the distance between two sets of real images of the same sizes.
- With fewer images than features the covariances do not have full rank, and the bias is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from partita.data.image_tokenizers import Pixels
from partita.data.images.base import Images
from partita.devices import choose_device
from partita.errors import InputError, require
from partita.files.reading import package


@runtime_checkable
class FeatureNetwork(Protocol):
    """A network that turns images into feature vectors: an `ImageClassifier`, or `Inception`."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Its name in results; two networks with the same name give the same features."""

        @property
        def dimension(self) -> int:
            """Number of features of an image."""

    def features(self, images: Images | Pixels) -> Float[Tensor, "N D"]:
        """Feature vectors of images, whose pixels are bytes."""


@dataclass(frozen=True)
class Moments:
    """The mean and the covariance of a set of vectors."""

    mean: Float64[Tensor, "D"]
    covariance: Float64[Tensor, "D D"]
    count: int

    @staticmethod
    def of(features: Float[Tensor, "N D"]) -> Moments:
        """The moments of some vectors; the covariance is the unbiased one."""
        require(len(features) >= 2, "features", f"there are {len(features)}", "two are the least")
        vectors = features.double()
        require(bool(vectors.isfinite().all()), "features", "some are not finite")
        mean = vectors.mean(0)
        centred = vectors - mean
        return Moments(mean, centred.T @ centred / (len(vectors) - 1), len(vectors))


@dataclass(frozen=True)
class FrechetDistance:
    """A distance, with what it depends on."""

    distance: float
    features: str
    """Name of the feature network."""
    dimension: int
    """Number of features of an image."""
    counts: tuple[int, int]
    """Number of images in each set."""


def frechet(first: Moments, second: Moments) -> float:
    """The squared Fréchet distance of two Gaussians.

    With the symmetric roots P = A^1/2 and Q = B^1/2 the last trace is the sum of the singular
    values of P Q. This avoids the root of P Q (P Q)^T, which would lose half of the digits if the
    covariances are nearly singular.
    """
    sizes = len(first.mean), len(second.mean)
    require(sizes[0] == sizes[1], "features", f"have {sizes[0]} and {sizes[1]} numbers")
    roots = symmetric_root(first.covariance) @ symmetric_root(second.covariance)
    cross = torch.linalg.svdvals(roots).sum()
    spread = first.covariance.trace() + second.covariance.trace() - 2 * cross
    distance = (first.mean - second.mean).square().sum() + spread
    return max(float(distance), 0.0)  # equal sets may come out below 0 by rounding


def symmetric_root(matrix: Float64[Tensor, "D D"]) -> Float64[Tensor, "D D"]:
    """The symmetric square root of a covariance, whose rounding may have made it indefinite."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    root: Tensor = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return root


def frechet_distance(
    network: FeatureNetwork, first: Images | Pixels, second: Images | Pixels
) -> FrechetDistance:
    """The Fréchet distance between two sets of images, by the features of a network."""
    moments = [Moments.of(network.features(images)) for images in (first, second)]
    counts = moments[0].count, moments[1].count
    return FrechetDistance(frechet(*moments), network.name, network.dimension, counts)


# The Inception network of FID --------------------------------------------------------------------

WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"
BATCH = 64  # images at a time; they are enlarged to 299 x 299
_LAYER = "2048"


class Inception:
    """2048 features of the Inception of 2015, for images of any size, gray or color.

    It is that of the package torch-fidelity (torchmetrics takes it from there too). Nothing is
    downloaded: the caller provides the file of weights.
    """

    name = "inception (torch-fidelity)"
    dimension = 2048

    def __init__(self, path: str | Path | None = None, device: str = "auto") -> None:
        module = package("torch_fidelity.feature_extractor_inceptionv3", "this distance", "fid")
        self.device = choose_device(device)
        place = Path(torch.hub.get_dir(), "checkpoints", WEIGHTS) if path is None else Path(path)
        remedy = f"fetch {WEIGHTS} from the releases of torch-fidelity and name it"
        require(place.is_file(), "path", f"{place} is not there", remedy)
        try:
            network = module.FeatureExtractorInceptionV3("inception", [_LAYER], str(place))
        except Exception as error:  # another kind of file may raise nearly anything
            why = " ".join(str(error).split())
            raise InputError("path", f"{place} holds no Inception: {why:.200}") from error
        self.network = network.eval().to(self.device)

    @torch.no_grad()
    def features(self, images: Images | Pixels) -> Float[Tensor, "N D"]:
        pixels = images.bytes() if isinstance(images, Images) else images
        channels = pixels.shape[1]
        require(channels in (1, 3), "images", f"have {channels} channels", "Inception takes 1 or 3")
        require(len(pixels) > 0, "images", "there are none")
        found = []
        for part in torch.split(pixels, BATCH):
            (features,) = self.network(part.expand(-1, 3, -1, -1).to(self.device))
            found.append(features.float().cpu())
        return torch.cat(found)
