"""Networks whose features images are compared by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from partita.data.image_tokenizers import Pixels
from partita.data.images.base import Images


class FeatureNetwork(ABC):
    """What turns images into vectors."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """What a result calls it; two networks with the same name give the same features."""

        @property
        def dimension(self) -> int:
            """Numbers in a vector."""

    @abstractmethod
    def features(self, images: Images | Pixels) -> Float[Tensor, "N D"]:
        """Vectors of images, which are bytes."""
