"""Images as the codes of a trained VQ network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from jaxtyping import Int64
from torch import Tensor

from partita.data.any_tokenizer import TOKENIZERS
from partita.data.image_tokenizers import (
    ImageTokenizer,
    Pixels,
    check_size,
    check_tokens,
    refuse_rest,
    stored_int,
    stored_size,
)
from partita.data.images.base import Images, byte_pixels
from partita.devices import in_outline
from partita.errors import InputError, described, fits, require
from partita.networks.vq import VQConfig, VQNetwork

BATCH = 256  # images at a time


@TOKENIZERS.register("vq")
class VQTokenizer(ImageTokenizer):
    """One token for `factor` x `factor` pixels, in raster order: the code of a VQ network."""

    def __init__(self, network: VQNetwork) -> None:
        self.network = network.eval().requires_grad_(False)

    @property
    def vocab_size(self) -> int:
        return self.network.quantiser.size

    @property
    def grid(self) -> tuple[int, int]:
        return self.network.grid

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def to(self, device: torch.device | str) -> VQTokenizer:
        """The same on another device. Tokens and pixels are where the images or tokens were."""
        self.network.to(device)
        return self

    @torch.no_grad()
    def encode(self, images: Images | Pixels) -> Int64[Tensor, "N L"]:
        network = self.network
        pixels = byte_pixels(images, (network.channels, *network.size))
        rows, columns = self.grid
        found = [torch.empty(0, rows * columns, dtype=torch.int64)]
        for part in torch.split(pixels, BATCH):
            codes = network.quantiser(network.vectors(scaled(part.to(self.device)))).codes
            found.append(codes.view(len(part), rows * columns).cpu())
        return torch.cat(found).to(pixels.device)

    @torch.no_grad()
    def decode(self, tokens: Int64[Tensor, "N L"]) -> Pixels:
        check_tokens(tokens, self)
        network = self.network
        found = [torch.empty(0, network.channels, *network.size, dtype=torch.uint8)]
        for part in torch.split(tokens, BATCH):
            values = network.quantiser.embed(part.to(self.device).flatten())
            found.append(unscaled(network.pixels(values)).cpu())
        return torch.cat(found).to(tokens.device)

    def describe(self) -> dict[str, Any]:
        network = self.network
        config = dataclasses.asdict(network.config)
        return {
            "kind": "vq",
            "channels": network.channels,
            "size": list(network.size),
            "network": config | {"levels": list(network.config.levels)},
        }

    def tensors(self) -> dict[str, Tensor]:
        state = self.network.state_dict()
        return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    @staticmethod
    def restore(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> VQTokenizer:
        given = dict(description)
        size = check_size(stored_size(given.pop("size", None)))
        channels, config = stored_int(given, "channels"), _config(given.pop("network", None))
        refuse_rest(given)
        with in_outline():
            network = VQNetwork(config, channels, size)
        kinds = {name: (x.shape, x.dtype) for name, x in network.state_dict().items()}
        found = {name: (x.shape, x.dtype) for name, x in tensors.items()}
        for name in sorted({*kinds, *found}):
            same = kinds.get(name) == found.get(name)
            require(same, "tokenizer", f"its tensor {name:.200} is missing, unknown or misshapen")
        network.load_state_dict({name: t.clone() for name, t in tensors.items()}, assign=True)
        return VQTokenizer(network)


def _config(content: object) -> VQConfig:
    """A configuration from JSON, with every key and type checked."""
    kinds = get_type_hints(VQConfig)
    if not isinstance(content, dict) or set(content) != set(kinds):
        raise InputError("tokenizer", f"its network must have the keys {', '.join(kinds)}")
    levels = content["levels"]
    whole = fits(levels, list[int]) and len(levels) <= 64
    require(whole, "tokenizer", "its levels must be whole numbers")
    for name, kind in kinds.items():
        problem = f"its {name} must be {described(kind)}, got {content[name]!r:.200}"
        require(name == "levels" or fits(content[name], kind), "tokenizer", problem)
    return VQConfig(**(content | {"levels": tuple(levels)}))


def scaled(pixels: Pixels) -> Tensor:
    """Bytes as numbers from -1 to 1."""
    return pixels.float() / 127.5 - 1


def unscaled(x: Tensor) -> Pixels:
    """Numbers from -1 to 1, and what lies outside, as bytes."""
    return ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
