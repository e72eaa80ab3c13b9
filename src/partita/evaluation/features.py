"""Feature networks, by whose features sets of images are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from partita.data.image_tokenizers import Pixels
from partita.data.images.base import Images


class FeatureNetwork(ABC):
    """A network that turns images into feature vectors."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Its name in results; two networks with the same name give the same features."""

        @property
        def dimension(self) -> int:
            """Number of features of an image."""

    @abstractmethod
    def features(self, images: Images | Pixels) -> Float[Tensor, "N D"]:
        """Feature vectors of images, whose pixels are bytes."""
