"""Which tokens LLaDA and Fast-dLLM commit, step by step, from recorded logits.

Both networks have a logit for the mask, far below the others, so that it is never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import partita
from partita.categorical import Decoding, sample_categorical
from partita.methods.contracts import Denoiser
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.blocks import blocks
from partita.samplers.confidence import CONFIDENCES, above_threshold, most_confident
from partita.samplers.counts import even_counts
from partita.samplers.guidance import guide
from partita.samplers.state import SamplerState
from tests.golden.cases import Case, load, parts, stated


def most_probable(logits):
    """The library's candidates at temperature 0, for logits [B, T, V]."""
    rows = logits.flatten(0, 1)
    u = torch.zeros(len(rows), dtype=torch.float64)
    return sample_categorical(rows, u, Decoding(temperature=0.0)).view(logits.shape[:-1])


def probability(logits, tokens):
    """The library's confidence of candidates [B, T]."""
    measured = CONFIDENCES["probability"](logits.log_softmax(-1).flatten(0, 1), tokens.flatten())
    return measured.view(tokens.shape)


# LLaDA -------------------------------------------------------------------------------------------


LLADA = "flex/llada_generate"
runs = pytest.mark.parametrize(("file", "name"), parts(LLADA, lambda case: case.config["runs"]))


class Run:
    """One recorded run of LLaDA: its settings, and its tensors by their short names."""

    def __init__(self, case: Case, name):
        self.case, self.settings = case, case.config["runs"][name]
        self.mask_id = case.config["mask_id"]
        self.tensors = {key.removeprefix(f"{name}."): case[key] for key in case.keys(f"{name}.")}
        self.prompt = self["prompt"].shape[1]
        self.block = self.settings["block_length"]
        self.steps_per_block = self.settings["steps"] * self.block // self.settings["gen_length"]

    def __getitem__(self, key):
        return self.tensors[key]

    @property
    def deterministic(self):
        return self.settings["temperature"] == 0 and self.settings["remasking"] != "random"

    def logits(self, step):
        """What the tokens are chosen from, in float64: guided if the run is."""
        conditional, scale = self["logits"][step].double(), self.settings["cfg_scale"]
        if scale == 0:
            return conditional
        return guide(conditional, self["logits_uncond"][step].double(), scale)

    def eligible(self, step):
        """The masks of the block that a step fills. Blocks are counted from the prompt's end."""
        start = self.prompt + step // self.steps_per_block * self.block
        hidden = self["x_before"][step] == self.mask_id
        positions = torch.arange(hidden.shape[1])
        return hidden & (positions >= start) & (positions < start + self.block)

    def candidates(self, step):
        """Argmax, or their Gumbel rule exp(logits) / (-log u)^temperature with the recorded u."""
        logits, temperature = self.logits(step), self.settings["temperature"]
        if temperature > 0:
            logits = logits - temperature * torch.log(-torch.log(self["uniform"][step]))
        return most_probable(logits)


@pytest.mark.parametrize(("file", "name"), parts(LLADA, lambda case: case.stems(".counts")))
def test_llada_counts(file, name):
    case = load(file)
    counts = case[f"{name}.counts"]
    ours = even_counts(case[f"{name}.mask_index"].sum(-1), counts.shape[1])
    assert torch.equal(ours, counts)


@runs
def test_llada_counts_of_a_run(file, name):
    run = Run(load(file), name)
    starts = range(0, run.settings["steps"], run.steps_per_block)
    plans = [even_counts(run.eligible(s).sum(-1), run.steps_per_block) for s in starts]
    assert torch.equal(torch.cat(plans, 1).T, run["k"].long())


@runs
def test_llada_steps(file, name):
    """Candidates, confidences and the committed tokens of every step."""
    run = Run(load(file), name)
    limits = stated(run.case.facts["tolerance"]["confidence"])
    hidden = torch.full((len(run["prompt"]), run.settings["gen_length"]), run.mask_id)
    state = torch.cat([run["prompt"], hidden], 1)
    for step in range(run.settings["steps"]):
        assert torch.equal(state, run["x_before"][step]), step
        tokens, eligible = run.candidates(step), run.eligible(step)
        if run.settings["remasking"] == "random":
            confidence = run["random_confidence"][step].double()
        else:
            # Without the Gumbel noise, whatever the temperature.
            confidence = probability(run.logits(step), tokens)
        theirs = run["confidence"][step]
        assert torch.equal(eligible, theirs > -torch.inf)
        torch.testing.assert_close(confidence[eligible], theirs[eligible], **limits)
        commit = most_confident(confidence, eligible, run["k"][step].long())
        state = torch.where(commit, tokens, state)
        assert torch.equal(state, run["x_after"][step]), step


@runs
def test_llada_guidance_hides_the_prompt(file, name):
    """Their unconditional input is the sequence without its prompt."""
    run = Run(load(file), name)
    guided = run.settings["cfg_scale"] > 0
    assert guided == ("x_uncond" in run.tensors) == ("logits_uncond" in run.tensors)
    if guided:
        expected = run["x_before"].clone()
        expected[..., : run.prompt] = run.mask_id
        assert torch.equal(run["x_uncond"], expected)


class Replayed(Denoiser):
    """A model that knows the recorded logits of every state that a run visited.

    A row's label is its number in the run.
    """

    family, timed, schedule = "masked", False, partita.make_schedule("linear")

    def __init__(self, run: Run):
        self.run, self.mask_id, self.length = run, run.mask_id, run["x_before"].shape[-1]
        self.vocab_size = run["logits"].shape[-1]

    def predict(self, tokens, revealed, rows, positions, time=None, label=None):  # noqa: ARG002
        states = torch.where(revealed, tokens, self.mask_id)
        answers = [self.logits(state, int(row)) for state, row in zip(states, label, strict=True)]
        return torch.stack(answers)[rows, positions]

    def logits(self, state, row):
        # Steps that commit nothing repeat a state; the last of equals is the one that commits.
        step = int((self.run["x_before"][:, row] == state).all(-1).nonzero()[-1])
        logits = self.run.logits(step)[row]
        logits[:, self.mask_id] = -torch.inf
        return logits.log_softmax(-1)


@dataclass(frozen=True)
class Drawn(Noise):
    """The recorded noise of a run; blocks have streams of their own, counted from 1."""

    run: Run | None = None

    def at(self, step):
        """The number in the run of a block's step."""
        return (self.stream - 1) * self.run.steps_per_block + step

    def uniform(self, purpose, step, positions):  # noqa: ARG002
        confidence = self.run["random_confidence"][self.at(step)].double()
        return confidence[self.samples].gather(1, positions.expand(len(self.samples), -1))


class Redrawn(SamplingContext):
    """A context that chooses candidates by the recorded noise."""

    def draw(self, log_probs, step, rows, positions):  # noqa: ARG002
        candidates = self.noise.run.candidates(self.noise.at(step))
        return candidates[self.noise.samples[rows], positions]


@runs
def test_llada_runs_by_the_blocks_sampler(file, name):
    """Our sampler, from the prompt to the final tokens."""
    run = Run(load(file), name)
    start, final = run["x_before"][0], run["x_after"][-1]
    numbers = torch.arange(len(start))
    known = torch.arange(start.shape[1]).expand(start.shape) < run.prompt
    prompt, model = partita.Prompt(start, known), Replayed(run)
    plan = {"block_length": run.block, "counts": "linear", "steps": run.steps_per_block}
    if run.deterministic:
        greedy = {"sampler": "blocks", "inner": "confidence", "temperature": 0.0, "label": numbers}
        ours = partita.sample(model, prompt=prompt, **greedy, **plan)
        assert torch.equal(ours, final)
    context = Redrawn(model, Drawn(0, numbers, run=run), label=numbers)
    confidence = "random" if run.settings["remasking"] == "random" else "probability"
    state = SamplerState.from_prompt(prompt, run.mask_id)
    ours = blocks(context, state, inner="confidence", confidence=confidence, **plan)
    assert torch.equal(ours, final)


# Fast-dLLM ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    parts("flex/fastdllm_decision", lambda case: case.stems(".transfer_threshold")),
)
def test_fast_dllm_decisions(file, name):
    """A threshold that the most confident slot need not reach, and a number of slots per row."""
    case = load(file)
    logits, eligible = case[f"{name}.logits"].double(), case[f"{name}.mask_index"]
    tokens = most_probable(logits)
    assert torch.equal(torch.where(eligible, tokens, case[f"{name}.x"]), case[f"{name}.x0"])
    confidence = probability(logits, tokens)
    reached = above_threshold(confidence, eligible, float(case[f"{name}.threshold"]))
    assert torch.equal(reached, case[f"{name}.transfer_threshold"])
    best = most_confident(confidence, eligible, case[f"{name}.k"])
    assert torch.equal(best, case[f"{name}.transfer_topk"])
