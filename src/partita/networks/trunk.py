"""What every network has around its blocks: an embedding, conditions, and a way to logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partita.contracts.packed import NOWHERE
from partita.devices import readable
from partita.errors import require
from partita.kernels import KERNELS
from partita.networks.conditions import Condition, through
from partita.networks.kind_options import WHERE, KindOptions
from partita.networks.layers import NORMS, Conditioning, Rotary, modulate, zero_linear
from partita.networks.levels import mixture_log_probabilities
from partita.networks.options import TransformerConfig

EMBEDDING_STD = 1.0  # no smaller than what blocks add: tokens are heard from the start


class Trunk(nn.Module):
    """A subclass adds its blocks, initialises them, and then calls `_add_head`."""

    recompute: bool = False
    """Keep no activations inside the blocks for the gradient: compute them twice instead."""

    fused: bool | None = None
    """Whether a loss takes `project=False`, and never holds all logits; on GPUs unless told."""

    Options: ClassVar[type[KindOptions]] = KindOptions
    """What it reads in `network.options`."""

    kind: ClassVar[str | None] = None
    """The `network.kind` that it is, which its registration writes here."""

    fusible: ClassVar[bool] = True
    """Whether what the head reads belongs to one token each."""

    tokens_each: int = 1
    """How many tokens share a place of the network: those of a pixel, or of a patch."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        problem = f"is {config.kind!r}, but this method's network is a {type(self).__name__}"
        fits = config.kind in (None, self.kind)
        require(fits, "network.kind", problem, f"it has to be {self.kind!r}, or left out")
        self.config = config
        self.options = self.Options.of(config, type(self).__name__)
        self._check_levels()
        registers = torch.empty(config.registers, config.width)
        self.registers = nn.Parameter(registers) if config.registers else None
        learned = self.options.learned
        self.places = nn.Parameter(torch.empty(config.length, config.width)) if learned else None
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.conditioning = (
            Conditioning(config.condition_width, config.time, config.classes)
            if config.conditioned
            else None
        )

    @property
    def attended_width(self) -> float:
        """As `AnyNetwork` has it: every block attends to all pairs."""
        return self.config.depth * self.config.width

    def _check_levels(self) -> None:
        """A head that knows the order of tokens has a value for each of them, and no more."""
        real = 2 <= self.config.outputs == self.config.vocab_size - 1
        problem = "is 'logistic', but this method predicts ids that are no levels in order"
        remedy = "use a method that predicts real tokens alone, such as md4, or leave it out"
        require(real or not self.options.ordered, f"{WHERE}.levels_head", problem, remedy)

    @property
    def head_size(self) -> int:
        """How many numbers tell the distribution of a token."""
        return self.options.head_size(self.config.outputs)

    @property
    def fuses(self) -> bool:
        """Whether the head can be left to a loss, and shall be."""
        if not self.fusible or self.options.ordered:  # some have no head of this kind
            return False
        return self.head.weight.is_cuda and KERNELS if self.fused is None else self.fused

    def _add_head(self, width: int, tokens: int = 1) -> None:
        """The way from a hidden vector to the logits of so many tokens."""
        config = self.config
        self.norm_out = NORMS[config.norm](width)
        self.modulation_out = (
            zero_linear(config.condition_width, 2 * width) if config.conditioned else None
        )
        nn.init.normal_(self.embed.weight, std=EMBEDDING_STD)
        for vectors in (self.registers, self.places):
            if vectors is not None:
                nn.init.normal_(vectors, std=EMBEDDING_STD)
        # Zero logits at the start: the untrained model is exactly uniform.
        self.head = zero_linear(width, tokens * self.head_size, config.head_bias)

    def _rotary(self, positions: Tensor, head_width: int) -> Rotary:
        """Learned positions leave rotary attention nothing to tell."""
        turned = positions if self.places is None else torch.full_like(positions, NOWHERE)
        return Rotary.at(turned, head_width, self.config.rotary_base, self.config.grid)

    def _run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """A block, whose activations are computed again for the gradient under `recompute`."""
        run: Callable[..., Tensor] = block
        if self.recompute and self.training and torch.is_grad_enabled():
            dropping = self.config.dropout > 0  # the second pass must then drop what the first did
            run = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=dropping)
        return run(*inputs)

    def condition(self, scalar: Tensor | None, label: Tensor | None, count: int) -> Tensor | None:
        """One vector for each of `count` rows; None if the network has no conditions."""
        self._check_condition(scalar, label)
        problem = "has a number for each token, but this network takes one for each row"
        require(scalar is None or scalar.ndim == 1, "time", problem)
        if self.conditioning is None:
            return None
        vectors: Tensor = self.conditioning(scalar, label, count)
        return vectors

    def _check_condition(self, scalar: Tensor | None, label: Tensor | None) -> None:
        classes = self.config.classes
        require(scalar is None or self.config.time, "time", "this network is not told the time")
        require(label is None or classes > 0, "label", "this network has no class labels")
        if label is not None and readable(label):
            require(
                bool(((label >= 0) & (label <= classes)).all()),
                "label",
                f"must lie in 0..{classes - 1} ({classes} for none), got {label.tolist()}",
            )

    def _project(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        return self._logits(self._numbers(hidden, condition))

    def _logits(self, numbers: Tensor) -> Tensor:
        """What the head says of each token, as logits."""
        if self.options.ordered:
            return mixture_log_probabilities(numbers, self.config.outputs)
        return numbers

    def _numbers(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        """The head: as many numbers as tell the distribution of a token."""
        numbers: Tensor = self.head(self._vectors(hidden, condition))
        return numbers

    def _vectors(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        """What the head reads."""
        vectors: Tensor = self.norm_out(hidden)
        if self.modulation_out is not None and condition is not None:
            shift, scale = through(self.modulation_out, condition).chunk(2, -1)
            vectors = modulate(vectors, shift, scale)
        return vectors
