"""The Inception network of FID, from the package torch-fidelity.

(torchmetrics takes its Inception from the same package.) Nothing is downloaded: the caller provides
the file of weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from partita.data.image_tokenizers import Pixels
from partita.data.images.base import Images
from partita.devices import choose_device
from partita.errors import InputError, require
from partita.files.reading import package

WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"
BATCH = 64  # images at a time; they are enlarged to 299 x 299
_LAYER = "2048"


class Inception:
    """2048 features of the Inception of 2015, for images of any size, gray or color."""

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
