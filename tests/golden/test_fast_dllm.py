"""Fast-dLLM's generation in blocks, with its tiny network of LLaDA's kind.

Runs without a cache are ours, call by call. Those with its caches reuse keys and values that are
out of date, which no sampler of ours does: of them the calls that see the whole sequence are
compared. The network's own logit for the mask takes part in every softmax, as theirs does.
"""

from __future__ import annotations

import pytest
import torch

import partita
from partita.methods.contracts import Denoiser
from partita.networks import Transformer, TransformerConfig
from tests.golden.cases import Case, load, parts, stated

LAYERS = {
    "attn_norm": "norm_attention",
    "ff_norm": "norm_mlp",
    "attn_out": "attention.out",
    "ff_out": "mlp.down",
}


def build(case: Case) -> Transformer:
    """Our network with the case's weights."""
    facts, theirs, ours = case.config, case.state_dict("w.transformer."), {}
    config = TransformerConfig(
        vocab_size=facts["vocab"],
        length=facts["prompt_len"] + facts["gen_length"],
        width=facts["d_model"],
        depth=facts["n_layers"],
        heads=facts["n_heads"],
        mlp="swiglu",
        mlp_ratio=3 * facts["mlp_hidden"] / (2 * facts["d_model"]),  # of which 2/3 are taken
        norm="rms",
        qk_norm=False,
        rotary_base=float(facts["rope_theta"]),
    )
    ours["embed.weight"] = theirs.pop("wte.weight")
    ours["norm_out.weight"] = theirs.pop("ln_f.weight")
    ours["head.weight"] = theirs.pop("ff_out.weight")
    for index in range(config.depth):
        block, name = f"blocks.{index}", f"blocks.{index}"
        for layer, its_name in LAYERS.items():
            ours[f"{name}.{its_name}.weight"] = theirs.pop(f"{block}.{layer}.weight")
        attention = [theirs.pop(f"{block}.{x}_proj.weight") for x in "qkv"]
        ours[f"{name}.attention.qkv.weight"] = torch.cat(attention)
        halves = [theirs.pop(f"{block}.{x}_proj.weight") for x in ("ff", "up")]
        spare = (0, 0, 0, -len(halves[0]) % 8)  # ours comes in eights; zeros add nothing
        halves = [torch.nn.functional.pad(half, spare) for half in halves]
        ours[f"{name}.mlp.up.weight"] = torch.cat(halves)
        down = torch.nn.functional.pad(ours[f"{name}.mlp.down.weight"], (0, spare[3]))
        ours[f"{name}.mlp.down.weight"] = down
    assert not theirs
    network = Transformer(config)
    network.load_state_dict(ours)
    return network.eval()


class Watched(Denoiser):
    """The network as a model whose states are written down."""

    family, timed, schedule = "masked", False, partita.make_schedule("linear")

    def __init__(self, case: Case) -> None:
        self.network, self.mask_id = build(case), case.config["mask_id"]
        self.length, self.vocab_size = self.network.config.length, case.config["vocab"]
        self.states: list[torch.Tensor] = []

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):  # noqa: ARG002
        self.states.append(torch.where(revealed, tokens, self.mask_id))
        logits = self.network(self.states[-1]).double()
        return logits[rows, positions].log_softmax(-1)


def calls(case: Case, prefix, what):
    """The inputs or the logits of a run's calls, in their order."""
    count = len(case.stems(f".{what}", f"{prefix}call"))
    return [case[f"{prefix}call{number}.{what}"] for number in range(count)]


runs = pytest.mark.parametrize(
    ("file", "prefix"), parts("flex/fastdllm_cache_generate", lambda case: case.config["results"])
)


@runs
def test_logits_of_calls_that_see_everything(file, prefix):
    case = load(file)
    network, whole = build(case), case[f"{prefix}final"].shape
    limits = stated(case.facts["tolerance"]["logits"])
    seen = zip(calls(case, prefix, "input"), calls(case, prefix, "logits"), strict=True)
    compared = [(tokens, theirs) for tokens, theirs in seen if tokens.shape == whole]
    assert compared
    for tokens, theirs in compared:
        torch.testing.assert_close(network(tokens).detach(), theirs, **limits)


@runs
def test_runs_without_a_cache(file, prefix):
    """Every state that the network is shown, how often it is asked, and the final tokens."""
    case = load(file)
    facts, run = case.config, case.config["results"][prefix]
    final = case[f"{prefix}final"]
    assert torch.equal(final, torch.tensor(run["out"]).view_as(final))
    assert int(case[f"{prefix}nfe"]) == run["nfe"] == len(calls(case, prefix, "input"))
    if not prefix.startswith("nocache"):
        return
    hidden = torch.full((len(final), facts["gen_length"]), facts["mask_id"])
    start = torch.cat([case["prompt"], hidden], 1)
    known = (torch.arange(start.shape[1]) < facts["prompt_len"]).expand_as(start)
    steps = facts["steps"] * facts["block_length"] // facts["gen_length"]
    inner = {"inner": "confidence", "counts": "linear", "steps": steps}
    if run["threshold"] is not None:
        inner = {"inner": "threshold", "threshold": run["threshold"]}
    model = Watched(case)
    ours = partita.sample(
        model,
        prompt=partita.Prompt(start, known),
        sampler="blocks",
        block_length=facts["block_length"],
        temperature=0.0,
        **inner,
    )
    assert torch.equal(ours, final)
    for state, theirs in zip(model.states, calls(case, prefix, "input"), strict=True):
        assert torch.equal(state, theirs)
