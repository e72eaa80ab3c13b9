"""Parts of the reference implementations that tests repeat."""

from __future__ import annotations

import torch

from partita.categorical import Decoding, weights
from partita.models.published.reference import load_dit
from partita.networks import CausalTransformer, Transformer
from partita.samplers.guidance import guide
from tests.golden.cases import Case


def agree(case, ours, theirs, what):
    """Assert that a part of a stored tensor agrees with ours within the case's tolerance."""
    limits = {name: case.facts["tolerance"][name] for name in ("atol", "rtol")}
    torch.testing.assert_close(
        ours.to(theirs.dtype), theirs, **limits, msg=lambda text: f"{case.name} {what}: {text}"
    )


def gumbel_argmax(probs, u):
    """The reference's draw from unnormalized probabilities, with its recorded uniforms."""
    return (probs / (1e-10 - torch.log(u + 1e-10))).argmax(-1)


def build(case: Case, kind: type[Transformer]) -> Transformer:
    """Our network with the case's weights."""
    model, causal = case.config["model"], kind is CausalTransformer
    return load_dit(case.state_dict(), model["n_heads"], model["length"], causal).eval()


LAST_TIME = 1e-5  # where the reference's grid of times ends


QUERIES = {  # theirs: ours
    "learn": "learned",
    "learn+freqs": "positions",
    "learn+freqs+mean": "mean",
    "learn+freqs+logsumexp": "logsumexp",
}


def probabilities(logits, temperature=1.0, top_k=None):
    """The library's distribution of a token."""
    table = weights(logits.reshape(-1, logits.shape[-1]), Decoding(temperature, top_k))
    return (table / table.sum(-1, keepdim=True)).view(logits.shape)


def mixed(conditional, unconditional, weight):
    """The library's guided log-probabilities from recorded logits, in float64."""
    logs = [x.double().log_softmax(-1) for x in (conditional, unconditional)]
    return guide(*logs, weight)


def recorded(case: Case, prefix):
    """The tensors of a run by their short names."""
    return {key.removeprefix(prefix): case[key] for key in case.keys(prefix)}
