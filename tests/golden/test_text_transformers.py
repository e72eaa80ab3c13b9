"""MD4's transformer for text with its own weights, in the three forms in which it comes.

What ours does not have is put in its place here: the gate of their MLP is a sigmoid where ours has
a SiLU, and so is the end of the condition. Theirs rotates channels (2i, 2i + 1) by a position, ours
(i, i + D/2), so the channels of queries and keys change places. Their sinusoids are sines first,
ours cosines first, and so do the rows of the layer that reads them. With a condition, their norms
have no gain.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita.methods.masked_method import TIME_SCALE
from partita.networks import Transformer, TransformerConfig
from partita.networks.layers import Conditioning, sinusoid
from tests.golden.cases import Case, load, named

BODY = "Transformer_0/"
TIME = "CondEmbedding_0/"

transformers = pytest.mark.parametrize("name", named("md4/net_transformer_*"))


class SigmoidMLP(nn.Module):
    """down(sigmoid(gate) * up)."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.gate, self.up, self.down = gate, up, down

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sigmoid(x @ self.gate) * (x @ self.up)) @ self.down


class SigmoidConditioning(Conditioning):
    """The vector of adaLN layers ends with a sigmoid."""

    def forward(self, scalar, label, batch):  # noqa: ARG002
        waves = sinusoid(scalar, self.features, inclusive=self.inclusive)
        hidden = nn.functional.silu(self.time_in(waves.to(self.time_in.weight.dtype)))
        return torch.sigmoid(self.time_out(hidden))


def config_of(case: Case) -> TransformerConfig:
    facts, timed = case.config, "t" in case.tensors
    return TransformerConfig(
        vocab_size=facts["vocab_size"] + 1,
        output_size=facts["vocab_size"],
        length=case["z"].shape[1],
        width=facts["dim"],
        depth=facts["n_layers"],
        heads=facts["num_heads"],
        norm="layer" if timed else "rms",
        qk_norm=False,
        time=timed,
        condition_width=facts["feature_dim"],
        rotary_base=facts["rope_theta"],
    )


class Weights:
    """Their parameters, each of which is taken once, and ours."""

    def __init__(self, case: Case) -> None:
        self.theirs, self.ours = case.state_dict("params/"), {}
        self.denses = (f"{BODY}Dense_{number}" for number in range(3))

    def matrix(self, name: str) -> Tensor:
        """Theirs is [in, out]."""
        return self.theirs.pop(f"{name}/kernel").T

    def layer(self, ours: str, theirs: str) -> None:
        self.ours[f"{ours}.weight"] = self.matrix(theirs)
        if f"{theirs}/bias" in self.theirs:
            self.ours[f"{ours}.bias"] = self.theirs.pop(f"{theirs}/bias")

    def norm(self, ours: str, theirs: str, width: int) -> None:
        self.ours[f"{ours}.weight"] = self.theirs.pop(f"{theirs}/scale", torch.ones(width))

    def embedding(self, facts) -> None:
        """A table, or one with a layer after it: together a table again."""
        if not facts["outside_embed"]:
            self.ours["embed.weight"] = self.theirs.pop(f"{BODY}Embed_0/embedding")
            return
        layer = next(self.denses)
        table, matrix = self.theirs.pop("Embed_0/embedding"), self.theirs.pop(f"{layer}/kernel")
        self.ours["embed.weight"] = table @ matrix + self.theirs.pop(f"{layer}/bias")

    def block(self, index: int, config: TransformerConfig) -> None:
        ours, theirs = f"blocks.{index}", f"{BODY}TransformerBlock_{index}"
        self.norm(f"{ours}.norm_attention", f"{theirs}/RMSNorm_0", config.width)
        self.norm(f"{ours}.norm_mlp", f"{theirs}/RMSNorm_1", config.width)
        width = config.width // config.heads
        halves = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
        query, key, value = (self.matrix(f"{theirs}/attention/w{x}") for x in "qkv")
        turned = (
            x.unflatten(0, (config.heads, width))[:, halves].flatten(0, 1) for x in (query, key)
        )
        self.ours[f"{ours}.attention.qkv.weight"] = torch.cat([*turned, value])
        self.layer(f"{ours}.attention.out", f"{theirs}/attention/wo")
        if config.conditioned:
            self.layer(f"{ours}.modulation", f"{theirs}/Dense_0")

    def mlp(self, index: int) -> SigmoidMLP:
        theirs = f"{BODY}TransformerBlock_{index}/feed_forward"
        return SigmoidMLP(*(self.matrix(f"{theirs}/w{number}").T for number in (1, 3, 2)))

    def condition(self) -> None:
        kernel = self.theirs.pop(f"{TIME}dense0/kernel")
        self.ours["conditioning.time_in.weight"] = torch.cat(kernel.chunk(2)[::-1]).T
        self.ours["conditioning.time_in.bias"] = self.theirs.pop(f"{TIME}dense0/bias")
        self.layer("conditioning.time_out", f"{TIME}Dense_0")


def build(case: Case) -> Transformer:
    """Our network with the case's weights; every one of theirs has a place."""
    config, weights = config_of(case), Weights(case)
    network, width = Transformer(config), config.condition_width
    weights.embedding(case.config)
    for index, block in enumerate(network.blocks):
        weights.block(index, config)
        block.mlp = weights.mlp(index)
    weights.norm("norm_out", f"{BODY}RMSNorm_0", config.width)
    if config.time:
        hidden = len(case[f"params/{TIME}dense0/bias"])
        network.conditioning = SigmoidConditioning(
            width, True, 0, features=width, hidden=hidden, inclusive=True
        )
        weights.condition()
        weights.layer("modulation_out", next(weights.denses))
    weights.layer("head", next(weights.denses))
    assert not weights.theirs
    network.load_state_dict(weights.ours)
    return network.eval()


@transformers
def test_transformer(name):
    case = load(name)
    scalar = (TIME_SCALE * case["t"]).float() if "t" in case.tensors else None
    case.close(build(case)(case["z"], scalar=scalar), "logits")


@pytest.mark.parametrize("name", named("md4/net_transformer_*", holding="time_embedding"))
def test_embedding_of_times(name):
    case = load(name)
    features = case["time_embedding"].shape[1]
    ours = sinusoid((TIME_SCALE * case["t"]).float(), features, inclusive=True)
    theirs = torch.cat(case["time_embedding"].chunk(2, -1)[::-1], -1)
    torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)
