"""Token-wise layers that networks are built of: norms, rotary positions, MLPs, conditioning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from partita.registry import Registry

NORMS: Registry[Callable[[int], nn.Module]] = Registry("network.norm")
MLPS: Registry[Callable[[int, float], nn.Module]] = Registry("network.mlp")

NORM_EPS = 1e-5  # as in the reference networks; guards the division for a constant input
TIME_FEATURES = 256


def rms_normalize(x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens D"]:
    """x / sqrt(mean(x^2)), in float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=NORM_EPS).to(x.dtype)


@dataclass(frozen=True)
class QKNorm:
    """Normalizes queries and keys, so that weights cannot make attention arbitrarily sharp.

    Over each "head" of width D, a logit is then scale sqrt(D) times the cosine of the angle between
    query and key; over the whole "width", that holds for heads of average norm.
    """

    over: str = "head"
    scale: float = 1.0

    def __call__(
        self, query: Float[Tensor, "*q H D"], key: Float[Tensor, "*k H D"]
    ) -> tuple[Float[Tensor, "*q H D"], Float[Tensor, "*k H D"]]:
        return self._normal(query) * self.scale, self._normal(key)

    def _normal(self, x: Tensor) -> Tensor:
        if self.over == "head":
            return rms_normalize(x)
        return rms_normalize(x.flatten(-2)).view(x.shape)


def normalized(
    query: Float[Tensor, "*q H D"], key: Float[Tensor, "*k H D"], norm: QKNorm | None
) -> tuple[Float[Tensor, "*q H D"], Float[Tensor, "*k H D"]]:
    """Queries and keys with QK normalization, or unchanged if there is none."""
    return (query, key) if norm is None else norm(query, key)


@NORMS.register("rms")
class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), NORM_EPS).to(x.dtype)


@NORMS.register("layer")
class LayerNorm(nn.Module):
    """Layer norm with a gain and no bias, computed in float32 (the reference DIT's)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        return F.layer_norm(x.float(), x.shape[-1:], self.weight.float(), None, NORM_EPS).to(
            x.dtype
        )


@NORMS.register("affine")
class AffineLayerNorm(nn.Module):
    """Layer norm with a gain and a bias, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        gain, bias = self.weight.float(), self.bias.float()
        return F.layer_norm(x.float(), x.shape[-1:], gain, bias, NORM_EPS).to(x.dtype)


def on_grid(
    positions: Int[Tensor, "*tokens"], columns: int
) -> tuple[Int[Tensor, "*tokens"], Int[Tensor, "*tokens"]]:
    """Row and column of positions that fill a grid row by row."""
    return positions // columns, positions % columns


class Rotary(NamedTuple):
    """Rotary positions: channel pairs (i, i + D/2) turn by position * base^(-2i/D).

    On a grid, the first half of the pairs turns with the row and the second half with the column,
    each as if the head had half of its channels.
    """

    cos: Float[Tensor, "*tokens 1 half"]
    sin: Float[Tensor, "*tokens 1 half"]

    @staticmethod
    def at(
        positions: Int[Tensor, "*tokens"], head_width: int, base: float, columns: int = 0
    ) -> Rotary:
        """The rotations of the given positions, on a line or on a grid of `columns` columns."""
        if columns:
            row, column = (Rotary.at(x, head_width // 2, base) for x in on_grid(positions, columns))
            turns = zip((row.cos, row.sin), (column.cos, column.sin), strict=True)
            return Rotary(*(torch.cat(pair, dim=-1) for pair in turns))
        half = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32)
        angles = positions.float()[..., None] * base ** (-half / head_width)
        return Rotary(angles.cos()[..., None, :], angles.sin()[..., None, :])

    def rotate(self, x: Float[Tensor, "*tokens H D"]) -> Float[Tensor, "*tokens H D"]:
        """Rotate queries or keys."""
        first, second = x.float().chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        return torch.cat(turned, dim=-1).to(x.dtype)


@MLPS.register("gelu")
class GeluMLP(nn.Module):
    """Linear, tanh-GELU, linear, with biases (the reference DIT's)."""

    def __init__(self, width: int, ratio: float) -> None:
        super().__init__()
        hidden = round(ratio * width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        result: Tensor = self.down(F.gelu(self.up(x), approximate="tanh"))
        return result


@MLPS.register("relu2")
class SquaredReluMLP(nn.Module):
    """Linear, squared ReLU, linear, without biases."""

    def __init__(self, width: int, ratio: float) -> None:
        super().__init__()
        hidden = round(ratio * width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        result: Tensor = self.down(F.relu(self.up(x)).square())
        return result


@MLPS.register("swiglu")
class SwigluMLP(nn.Module):
    """down(silu(gate) * up), with 2/3 of the hidden width to match the other MLPs' parameters."""

    several: ClassVar = {"up": 2}

    def __init__(self, width: int, ratio: float) -> None:
        super().__init__()
        hidden = 8 * math.ceil(2 * ratio * width / 3 / 8)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "*tokens W"]) -> Float[Tensor, "*tokens W"]:
        gate, up = self.up(x).chunk(2, dim=-1)
        result: Tensor = self.down(F.silu(gate) * up)
        return result


def sinusoid(
    x: Float[Tensor, "B"], features: int = TIME_FEATURES, *, inclusive: bool = False
) -> Float[Tensor, "B features"]:
    """[cos(x f_j), sin(x f_j)] with f_j = 10000^(-2j/features), which never reaches 1/10000.

    With `inclusive`, the last frequency is 1/10000: f_j = 10000^(-2j/(features - 2)).
    """
    half = features // 2
    steps = max(half - 1, 1) if inclusive else half
    frequencies = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / steps))
    angles = x.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Conditioning(nn.Module):
    """Embeds a scalar (time or noise level) and a class label as one vector for adaLN layers."""

    def __init__(
        self,
        width: int,
        time: bool,
        classes: int,
        *,
        features: int = TIME_FEATURES,
        hidden: int | None = None,
        inclusive: bool = False,
    ) -> None:
        """`features` is the number of sinusoids of the scalar; see `sinusoid` for `inclusive`."""
        super().__init__()
        self.features, self.inclusive = features, inclusive
        self.time_in = nn.Linear(features, hidden or width) if time else None
        self.time_out = nn.Linear(hidden or width, width) if time else None
        # One row more than there are classes: the last is "no label".
        self.label = nn.Embedding(classes + 1, width) if classes else None

    def forward(
        self, scalar: Float[Tensor, "B"] | None, label: Int[Tensor, "B"] | None, batch: int
    ) -> Float[Tensor, "B C"]:
        total: Tensor | None = None
        if self.time_in is not None and self.time_out is not None:
            if scalar is None:
                scalar = torch.zeros(batch, device=self.time_in.weight.device)
            waves = sinusoid(scalar, self.features, inclusive=self.inclusive)
            total = self.time_out(F.silu(self.time_in(waves.to(self.time_in.weight.dtype))))
        if self.label is not None:
            if label is None:
                none = self.label.num_embeddings - 1
                label = torch.full((batch,), none, device=self.label.weight.device)
            embedded = self.label(label)
            total = embedded if total is None else total + embedded
        assert total is not None, "a network without time and label has no conditioning module"
        return F.silu(total)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """adaLN: x (1 + scale) + shift."""
    return x * (1 + scale) + shift


def zero_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer initialized at zero, so that a new branch contributes nothing at first."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.zeros_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
