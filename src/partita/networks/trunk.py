"""The parts around a network's blocks: token embedding, conditioning and output head."""

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

EMBEDDING_STD = 1.0  # no smaller than the blocks' outputs, so that tokens matter from the start


class Trunk(nn.Module):
    """Embedding, conditioning and head; a subclass adds its blocks, then calls `_add_head`."""

    recompute: bool = False
    """Activation checkpointing: recompute the blocks' activations in the backward pass."""

    fused: bool | None = None
    """Whether losses use `project=False` and never store all logits; None: on GPUs."""

    Options: ClassVar[type[KindOptions]] = KindOptions
    """The class of its `network.options`."""

    kind: ClassVar[str | None] = None
    """Its name in `network.kind`, set when it is registered."""

    fusible: ClassVar[bool] = True
    """Whether each input vector of the head belongs to one token."""

    tokens_each: int = 1
    """How many tokens share a position of the network: those of a pixel, or of a patch."""

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
        """See `AnyNetwork`: every block attends to all pairs."""
        return self.config.depth * self.config.width

    def _check_levels(self) -> None:
        """Refuse an ordered head if the outputs are not exactly the real tokens."""
        real = 2 <= self.config.outputs == self.config.vocab_size - 1
        problem = "is 'logistic', but this method predicts ids that are no levels in order"
        remedy = "use a method that predicts real tokens alone, such as md4, or leave it out"
        require(real or not self.options.ordered, f"{WHERE}.levels_head", problem, remedy)

    @property
    def head_size(self) -> int:
        """How many numbers of the head parameterize the distribution of a token."""
        return self.options.head_size(self.config.outputs)

    @property
    def fuses(self) -> bool:
        """Whether the loss should apply the head itself, calling with `project=False`."""
        if not self.fusible or self.options.ordered:  # such networks have no linear head
            return False
        return self.head.weight.is_cuda and KERNELS if self.fused is None else self.fused

    def _add_head(self, width: int, tokens: int = 1) -> None:
        """Add the output head: a hidden vector to the logits of `tokens` tokens."""
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
        """Rotations for the positions; none if positions are learned."""
        turned = positions if self.places is None else torch.full_like(positions, NOWHERE)
        return Rotary.at(turned, head_width, self.config.rotary_base, self.config.grid)

    def _run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """Run a block, with activation checkpointing under `recompute`."""
        run: Callable[..., Tensor] = block
        if self.recompute and self.training and torch.is_grad_enabled():
            dropping = self.config.dropout > 0  # then both passes must drop the same activations
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
        require(scalar is None or self.config.time, "time", "this network takes no time")
        require(label is None or classes > 0, "label", "this network has no class labels")
        if label is not None and readable(label):
            problem = f"must lie in 0..{classes - 1} ({classes} for none), got {label.tolist()}"
            require(bool(((label >= 0) & (label <= classes)).all()), "label", problem)

    def _project(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        return self._logits(self._numbers(hidden, condition))

    def _logits(self, numbers: Tensor) -> Tensor:
        """The head's outputs for each token, as logits."""
        if self.options.ordered:
            return mixture_log_probabilities(numbers, self.config.outputs)
        return numbers

    def _numbers(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        """The head's outputs: `head_size` numbers for each token."""
        numbers: Tensor = self.head(self._vectors(hidden, condition))
        return numbers

    def _vectors(self, hidden: Tensor, condition: Condition | None) -> Tensor:
        """The inputs of the head."""
        vectors: Tensor = self.norm_out(hidden)
        if self.modulation_out is not None and condition is not None:
            shift, scale = through(self.modulation_out, condition).chunk(2, -1)
            vectors = modulate(vectors, shift, scale)
        return vectors
