"""MD4's network for pixels with its own weights.

The case has as many groups as channels in every norm, which our networks have where they are asked
to. Such a norm takes away all that is added to a channel, and with it the condition: its layers are
loaded, but the logits do not tell them apart from others. (`tests/networks/test_pixel_networks.py`
shows that times matter by default.) Ours ends the condition with a SiLU, as all of our networks do.

Their sinusoids are sines first, ours cosines first: the rows of the first layer change places.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partita.methods import MD4
from partita.methods.masked_method import TIME_SCALE
from partita.networks import PixelUNet, TransformerConfig
from partita.networks.layers import sinusoid
from tests.golden.cases import Case, load, named

UNET = "UNet5DWrapper_0/UNet_0/"
CONDITION = "CondEmbedding_0/"
ATTENTION = f"{UNET}SelfAttention_0/"
INNER = f"{ATTENTION}MultiHeadDotProductAttention_0/"

unets = pytest.mark.parametrize("name", named("md4/net_unet*"))


def matrix(kernel: Tensor) -> Tensor:
    """Theirs is [in, out], and the heads' axes are apart."""
    return kernel.T


def convolution(kernel: Tensor) -> Tensor:
    """Theirs is [rows, columns, in, out]."""
    return kernel.permute(3, 2, 0, 1)


class Weights:
    """Their parameters under our names."""

    def __init__(self, case: Case) -> None:
        self.theirs = case.state_dict("params/")
        self.ours: dict[str, Tensor] = {}

    def layer(self, name, theirs, turn):
        self.ours[f"{name}.weight"] = turn(self.theirs.pop(f"{theirs}/kernel"))
        if f"{theirs}/bias" in self.theirs:
            self.ours[f"{name}.bias"] = self.theirs.pop(f"{theirs}/bias")

    def norm(self, name, theirs):
        self.ours[f"{name}.weight"] = self.theirs.pop(f"{theirs}/scale")
        self.ours[f"{name}.bias"] = self.theirs.pop(f"{theirs}/bias")

    def block(self, name, number):
        theirs = f"{UNET}ResBlock_{number}"
        self.norm(f"{name}.norm_in", f"{theirs}/GroupNorm_0")
        self.layer(f"{name}.convolution_in", f"{theirs}/Conv_0", convolution)
        self.layer(f"{name}.modulation", f"{theirs}/Dense_0", matrix)
        self.norm(f"{name}.norm_out", f"{theirs}/GroupNorm_1")
        self.layer(f"{name}.convolution_out", f"{theirs}/Conv_1", convolution)
        if f"{theirs}/Dense_1/kernel" in self.theirs:
            self.layer(f"{name}.around", f"{theirs}/Dense_1", lambda x: x.T[:, :, None, None])

    def attention(self, name):
        self.norm(f"{name}.norm", f"{ATTENTION}GroupNorm_0")
        parts = ("query", "key", "value")
        kernels = [self.theirs.pop(f"{INNER}{part}/kernel").flatten(1).T for part in parts]
        biases = [self.theirs.pop(f"{INNER}{part}/bias").flatten() for part in parts]
        self.ours[f"{name}.qkv.weight"], self.ours[f"{name}.qkv.bias"] = (
            torch.cat(kernels),
            torch.cat(biases),
        )
        self.layer(f"{name}.out", f"{INNER}out", lambda x: x.flatten(0, 1).T)

    def condition(self):
        def swapped(kernel):
            return torch.cat(kernel.chunk(2)[::-1]).T

        self.layer("conditioning.time_in", f"{CONDITION}dense0", swapped)
        self.layer("conditioning.time_out", f"{CONDITION}Dense_0", matrix)


def build(case: Case) -> PixelUNet:
    """Our network with the case's weights; every one of theirs has a place."""
    width, levels, depth = (case.config[x] for x in ("feature_dim", "vocab_size", "n_layers"))
    _, height, columns, channels = case["z"].shape
    _, heads, _ = case[f"params/{INNER}query/kernel"].shape
    config = TransformerConfig(
        kind="unet",
        vocab_size=levels + 1,
        output_size=levels,
        time=True,
        length=height * columns * channels,
        grid=columns * channels,
        options={"channels": channels},
        width=width,
        condition_width=width,
        depth=depth,
        heads=heads,
    )
    weights = Weights(case)
    weights.ours["embed.weight"] = weights.theirs.pop("Embed_0/embedding")
    weights.condition()
    weights.layer("enter", f"{UNET}Conv_0", convolution)
    for index in range(depth):
        weights.block(f"down.{index}", index)
    weights.block("middle.0", depth)
    weights.attention("middle.1")
    weights.block("middle.2", depth + 1)
    for index in range(depth + 1):
        weights.block(f"up.{index}", depth + 2 + index)
    weights.norm("norm_out", f"{UNET}GroupNorm_0")
    weights.layer("leave", f"{UNET}Conv_1", convolution)
    assert not weights.theirs
    network = PixelUNet(config, group_channels=1)
    network.load_state_dict(weights.ours)
    return network.eval()


@unets
def test_unet(name):
    case = load(name)
    network, scalar = build(case), (TIME_SCALE * case["t"]).float()
    logits = network(case["z"].flatten(1), scalar=scalar)
    case.close(logits.view(case["logits"].shape), "logits")
    precise = network.double()(case["z"].flatten(1), scalar=scalar)
    case.close(precise.view(case["logits"].shape), "logits", atol=1e-6, rtol=1e-6)


@unets
def test_embedding_of_times(name):
    case = load(name)
    features = case["time_embedding"].shape[1]
    ours = sinusoid((TIME_SCALE * case["t"]).float(), features, inclusive=True)
    case.close(torch.cat(ours.chunk(2, dim=-1)[::-1], dim=-1), "time_embedding")


@unets
def test_unet_as_the_network_of_md4(name):
    """Hidden pixels alone are asked for, and the mask has no probability."""
    case = load(name)
    method, tokens = MD4(build(case)), case["z"].flatten(1)
    hidden = tokens == method.mask_id
    rows, positions = hidden.nonzero(as_tuple=True)
    ours = method.predict(
        torch.zeros_like(tokens).where(hidden, tokens), ~hidden, rows, positions, case["t"]
    )
    theirs = case["logits"].flatten(1, 3)[rows, positions].log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
