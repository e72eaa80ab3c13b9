"""Guidance for each family of models: which prediction it mixes.

masked      the distribution of a hidden token
causal      the distribution of the next token
chain       the distribution of a clean token, from which the process computes its step
gaussian    the distribution of a clean token, and with it the mean of its embedding
score       log-scores, log p_t(y) / p_t(x), which mix like the logarithms of p_t
flexible    the distribution of a hidden token; the number of missing tokens is mixed in the same
            way, as a distribution if the network predicts one, otherwise as a rate
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from partita.contracts.layouts import DENSE, Layout
from partita.contracts.packed import PackedTokens
from partita.contracts.shapes import Indices, Labels, LogProbs, Marks, RowSteps, RowTimes, Tokens
from partita.methods.contracts import (
    CausalModel,
    Chain,
    Denoiser,
    EmbeddingModel,
    FlexibleModel,
    Model,
    ScoreModel,
)
from partita.networks.attention import KeyValueCache
from partita.networks.flexible import Answer, mean_count
from partita.registry import Registry
from partita.samplers.guidance import Guided, Ramp, check_guidable, guide, mix

GUIDED: Registry[type[Guided[Any]]] = Registry("family")
"""The guided form of a model, by the name of its family."""


def twice(x: Tensor) -> Tensor:
    """Repeat the rows: for the pass with labels, and for the one without."""
    return torch.cat([x, x])


def halves(both: Tensor) -> tuple[Tensor, Tensor]:
    """Split predictions into those with labels and those without."""
    conditional, unconditional = both.chunk(2)
    return conditional, unconditional


@GUIDED.register("masked")
class GuidedDenoiser(Guided[Denoiser], Denoiser):
    """MDLM, MD4, MaskGIT, PGM."""

    def predict(
        self,
        tokens: Tokens,
        revealed: Marks,
        rows: Indices,
        positions: Indices,
        time: RowTimes | None = None,
        label: Labels | None = None,
    ) -> Float[Tensor, "N V"]:
        both = self.model.predict(
            twice(tokens),
            twice(revealed),
            torch.cat([rows, rows + tokens.shape[0]]),
            twice(positions),
            None if time is None else twice(time),
            self._labels(label),
        )
        share = revealed.sum(-1).double() / max(1, revealed.shape[1] - 1)
        return guide(*halves(both), self._weights(share)[rows, None])


@GUIDED.register("causal")
class GuidedCausal(Guided[CausalModel], CausalModel):
    """AR. The caches hold both passes; the share of revealed tokens is that of the full length."""

    def shifted(self, tokens: Tokens, layout: Layout = DENSE) -> Int64[Tensor, "B L"]:
        return self.model.shifted(tokens, layout)

    def new_caches(self, batch: int) -> list[KeyValueCache]:
        return self.model.new_caches(2 * batch)

    def following(
        self, tokens: Int64[Tensor, "B N"], caches: list[KeyValueCache], label: Labels | None = None
    ) -> Float[Tensor, "B V"]:
        both = self.model.following(twice(tokens), caches, self._labels(label))
        read = torch.full((len(tokens),), caches[0].filled - 1.0, device=tokens.device)
        weights = self._weights(read.double() / max(1, self.length - 1))
        return guide(*halves(both), weights[:, None])


@GUIDED.register("chain")
class GuidedChain(Guided[Chain], Chain):
    """D3PM, GenMD4."""

    @property
    def steps(self) -> int | None:
        return self.model.steps

    def prior(self, like: Tokens) -> Float[Tensor, "B L S"]:
        return self.model.prior(like)

    def log_mean(self, tokens: Tokens, time: RowTimes, label: Labels | None = None) -> LogProbs:
        both = self.model.log_mean(twice(tokens), twice(time), self._labels(label))
        return guide(*halves(both), self._weights(1 - time)[:, None, None])

    def step(
        self, log_mean: LogProbs, tokens: Tokens, s: RowTimes, t: RowTimes
    ) -> Float[Tensor, "B L S"]:
        return self.model.step(log_mean, tokens, s, t)


@GUIDED.register("gaussian")
class GuidedEmbeddings(Guided[EmbeddingModel], EmbeddingModel):
    """DDPM on embeddings."""

    def vectors(self) -> Float[Tensor, "V D"]:
        return self.model.vectors()

    def clean(self, log_probs: LogProbs) -> Float[Tensor, "B L D"]:
        return self.model.clean(log_probs)

    def log_probabilities(
        self, x_t: Float[Tensor, "B L D"], t: RowSteps, label: Labels | None = None
    ) -> LogProbs:
        both = self.model.log_probabilities(twice(x_t), twice(t), self._labels(label))
        share = 1 - t.double() / self.model.process.steps
        return guide(*halves(both), self._weights(share)[:, None, None])


@GUIDED.register("score")
class GuidedScore(Guided[ScoreModel], ScoreModel):
    """SEDD."""

    def log_score(
        self,
        tokens: Tokens,
        time: RowTimes,
        rows: Indices,
        positions: Indices,
        label: Labels | None = None,
    ) -> Float[Tensor, "N S"]:
        queries = torch.cat([rows, rows + tokens.shape[0]]), twice(positions)
        both = self.model.log_score(twice(tokens), twice(time), *queries, self._labels(label))
        conditional, unconditional = halves(both)
        weight = self._weights(1 - time)[rows, None].to(both.dtype)
        guided = mix(conditional, unconditional, weight)
        absorbing = self.model.graph.mask_id
        if absorbing is not None:
            # The scores of a mask sum to 1 / (e^sigma - 1) under any distribution: the schedule
            # alone decides when it is revealed, the distribution which token it becomes. So the
            # sum is kept. The ratio of the masked state to itself is no part of it.
            ones = torch.arange(both.shape[-1], device=both.device) == absorbing
            total = conditional.masked_fill(ones, -torch.inf).logsumexp(-1, keepdim=True)
            tokens_only = guided.masked_fill(ones, -torch.inf).log_softmax(-1)
            guided = torch.where(ones, conditional, tokens_only + total)
        return torch.where(weight == 0, conditional, guided)


@GUIDED.register("flexible")
class GuidedGrowth(Guided[FlexibleModel], FlexibleModel):
    """FlexMDM."""

    def ask(
        self, text: PackedTokens, t: RowTimes, queries: Indices, label: Labels | None = None
    ) -> tuple[Float[Tensor, "N V"], Answer]:
        lengths = twice(text.lengths)
        copies = PackedTokens.of_texts(twice(text.tokens), lengths, text.max_seqlen)
        both_queries = torch.cat([queries, queries + text.tokens.numel()])
        both, answer = self.model.ask(copies, twice(t), both_queries, self._labels(label))
        weights = self._weights(1 - t)
        log_probs = guide(*halves(both), weights[text.sequence_ids[queries], None])
        gaps = torch.repeat_interleave(weights, text.lengths + 1)
        return log_probs, self._missing(answer, gaps, log_probs)

    def _missing(self, answer: Answer, weight: Tensor, logits: Tensor) -> Answer:
        """Mixed predictions of missing tokens; expected numbers are mixed by their logarithms."""
        if answer.counts is None:
            conditional, unconditional = halves(answer.gaps)
            rates = mix(conditional.log(), unconditional.log(), weight.to(conditional.dtype)).exp()
            rates = rates.clamp(max=float(self.length))
            return Answer(logits, torch.where(weight == 0, conditional, rates), None)
        counts = guide(*halves(answer.counts.log_softmax(-1)), weight[:, None])
        return Answer(logits, mean_count(counts), counts)


def guided(model: Model, weight: float, ramp: str | Ramp = "constant") -> Guided[Model]:
    """A labeled model under classifier-free guidance, for any sampler.

    `ramp` is how the weight rises: "constant", "linear", "cosine", or a function of the share of
    revealed tokens.
    """
    check_guidable(model)
    return GUIDED[model.family](model, weight, ramp)
