"""Options of a network that a recipe sets; data and method determine the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from partita.errors import InputError, require, require_int, require_known, require_positive
from partita.networks.base import NetworkConfig
from partita.networks.layers import MLPS, NORMS, QKNorm
from partita.networks.old_names import knows_old_keywords

DEEPEST = 1 << 16  # blocks: even empty ones take time to make
QK_NORMS = ("head", "width")


@knows_old_keywords
@dataclass(frozen=True, kw_only=True)
class TransformerOptions:
    """Options of a network that a recipe sets; data and method determine the rest."""

    kind: str | None = None
    """Kind of network: transformer (of tokens), or for pixels unet (convolutions) or patches (a
    transformer of patches); the method's own unless given, such as pgm's partition."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of its kind, for example {patch: 4} of patches, {decoder_depth: 2} of
    partition; `partita methods NAME` lists them."""
    length: int = 1024
    """Longest sequence."""
    width: int = 768
    """Channels of each token."""
    depth: int = 12
    """Number of blocks; of a partition network, encoder and decoder together; of a unet, on the
    way in (on the way out there is one more)."""
    heads: int = 12
    """Attention heads of each block."""
    mlp: str = "swiglu"
    """Kind of MLP: swiglu, gelu or relu2."""
    mlp_ratio: float = 4.0
    """Hidden channels of the MLP, in widths."""
    norm: str = "rms"
    """Kind of norm: rms, layer (a gain) or affine (layer norm with gain and bias)."""
    qk_norm: bool = True
    """Whether queries and keys are normalized."""
    qk_norm_over: str = "head"
    """What is normalized together: the channels of a head, or of the whole width."""
    qk_scale: float = 2.0
    """Factor on the attention logits of normalized queries and keys; without it they are too small
    for heads to pick single tokens out of many."""
    head_bias: bool = False
    """Whether the output projection has a bias."""
    dropout: float = 0.0
    """Dropout rate of each branch's output in training."""
    classes: int = 0
    """Number of class labels; 0 for none."""
    condition_width: int = 128
    """Channels of the vector that embeds time and label."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies; longer sequences need a larger one."""
    grid: int = 0
    """Columns of the grid that positions fill row by row (images); 0 for a line. On a grid, rotary
    positions rotate half of the channels by the row and half by the column."""
    registers: int = 0
    """Number of registers: learned vectors that all tokens attend to and that are not predicted."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", dict(self.options or {}))  # null means no options
        for name in ("length", "width", "heads", "condition_width"):
            require_int(getattr(self, name), f"network.{name}")
        require_int(self.depth, "network.depth", 1, DEEPEST)
        for name in ("mlp_ratio", "rotary_base", "qk_scale"):
            require_positive(getattr(self, name), f"network.{name}")
        narrow = f"{self.mlp_ratio} times width {self.width} is no channel"
        require(self.mlp_ratio * self.width >= 1, "network.mlp_ratio", narrow, "give more")
        _ = MLPS[self.mlp], NORMS[self.norm]
        check_heads(self.width, self.heads, "network.heads", self.grid)
        for name in ("classes", "grid", "registers"):
            require_int(getattr(self, name), f"network.{name}", 0)
        require_known(self.qk_norm_over, "network.qk_norm_over", QK_NORMS)
        rest = f"length {self.length} is no whole number of rows of {self.grid}"
        require(not self.grid or self.length % self.grid == 0, "network.grid", rest)
        require(0 <= self.dropout < 1, "network.dropout", f"must be in [0, 1), got {self.dropout}")


@knows_old_keywords
@dataclass(frozen=True, kw_only=True)
class TransformerConfig(TransformerOptions, NetworkConfig):
    """Sizes and options of a transformer."""

    vocab_size: int
    """Number of input ids, a mask or start token included (PGM has neither)."""
    output_size: int | None = None
    """Number of logits; the same as vocab_size unless given."""
    time: bool = False
    """Condition on a scalar (time or noise level)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.vocab_size, "network.vocab_size", 2)
        problem = f"must lie in 1..{self.vocab_size} (vocab_size), got {self.output_size}"
        require(1 <= self.outputs <= self.vocab_size, "network.output_size", problem)

    @property
    def outputs(self) -> int:
        return self.vocab_size if self.output_size is None else self.output_size

    @property
    def query_key_norm(self) -> QKNorm | None:
        """How queries and keys are normalized; None if they are not."""
        return QKNorm(self.qk_norm_over, self.qk_scale) if self.qk_norm else None

    @property
    def conditioned(self) -> bool:
        return self.time or self.classes > 0


def check_heads(width: int, heads: int, argument: str, grid: int = 0) -> None:
    """Require heads of equal and even width, as rotary positions rotate pairs of channels.

    On a grid there are as many pairs for the row as for the column.
    """
    problem = f"width {width} must be an even multiple of heads {heads}"
    require(width % (2 * heads) == 0, argument, problem)
    problem = f"width {width} must be a multiple of 4 times heads {heads} on a grid"
    require(not grid or width % (4 * heads) == 0, argument, problem)


def refuse_options(options: TransformerOptions, network: str, **reasons: str) -> None:
    """Refuse options that a kind of network does not support, for the given reasons."""
    plain = TransformerOptions()
    for name, reason in reasons.items():
        value = getattr(options, name)
        if value != getattr(plain, name):
            problem = f"is {value!r}, but {network} {reason}"
            raise InputError(f"network.{name}", problem, "leave it out")
