"""Which tokens LLaDA and Fast-dLLM commit, step by step, from recorded logits.

Both networks have a logit for the mask, far below the others, so that it is never chosen.
"""

from __future__ import annotations

import re

import torch

import partita
from partita.categorical import Decoding, sample_categorical
from partita.methods.contracts import Denoiser
from partita.samplers.confidence import CONFIDENCES, above_threshold, most_confident
from partita.samplers.counts import even_counts
from partita.samplers.guidance import guide
from tests.golden.cases import Case, load


def names(case: Case, prefix):
    """The parts of a case whose names start with a prefix, such as "transfer0"."""
    found = sorted({key.split(".")[0] for key in case.keys(prefix)})
    assert found
    return found


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


class Run:
    """One recorded run of LLaDA: its settings, and its tensors by their short names."""

    def __init__(self, case: Case, name):
        self.name, self.settings = name, case.config["runs"][name]
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


def runs(case: Case):
    return [Run(case, name) for name in case.config["runs"]]


def test_llada_counts():
    case = load("flex/llada_generate")
    for name in names(case, "transfer"):
        counts = case[f"{name}.counts"]
        ours = even_counts(case[f"{name}.mask_index"].sum(-1), counts.shape[1])
        assert torch.equal(ours, counts)
    for run in runs(case):
        starts = range(0, run.settings["steps"], run.steps_per_block)
        plans = [even_counts(run.eligible(s).sum(-1), run.steps_per_block) for s in starts]
        assert torch.equal(torch.cat(plans, 1).T, run["k"].long()), run.name


def test_llada_steps():
    """Candidates, confidences and the committed tokens of every step of every run."""
    case = load("flex/llada_generate")
    rtol = float(re.search(r"rtol ([\d.e-]+)", case.facts["tolerance"]["confidence"]).group(1))
    for run in runs(case):
        hidden = torch.full((len(run["prompt"]), run.settings["gen_length"]), run.mask_id)
        state = torch.cat([run["prompt"], hidden], 1)
        for step in range(run.settings["steps"]):
            assert torch.equal(state, run["x_before"][step]), (run.name, step)
            tokens, eligible = run.candidates(step), run.eligible(step)
            if run.settings["remasking"] == "random":
                confidence = run["random_confidence"][step].double()
            else:
                # Without the Gumbel noise, whatever the temperature.
                confidence = probability(run.logits(step), tokens)
            theirs = run["confidence"][step]
            assert torch.equal(eligible, theirs > -torch.inf)
            torch.testing.assert_close(confidence[eligible], theirs[eligible], rtol=rtol, atol=0)
            commit = most_confident(confidence, eligible, run["k"][step].long())
            state = torch.where(commit, tokens, state)
            assert torch.equal(state, run["x_after"][step]), (run.name, step)


def test_llada_guidance_hides_the_prompt():
    """Their unconditional input is the sequence without its prompt."""
    case = load("flex/llada_generate")
    for run in runs(case):
        if run.settings["cfg_scale"] > 0:
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


def test_llada_greedy_runs_by_the_blocks_sampler():
    """Our sampler, from the prompt to the final tokens."""
    case = load("flex/llada_generate")
    greedy = [run for run in runs(case) if run.deterministic]
    assert greedy
    for run in greedy:
        start, final = run["x_before"][0], run["x_after"][-1]
        known = torch.arange(start.shape[1]).expand(start.shape) < run.prompt
        ours = partita.sample(
            Replayed(run),
            prompt=partita.Prompt(start, known),
            sampler="blocks",
            block_length=run.block,
            inner="confidence",
            counts="linear",
            steps=run.steps_per_block,
            temperature=0.0,
            label=torch.arange(len(start)),
        )
        assert torch.equal(ours, final), run.name


# Fast-dLLM ---------------------------------------------------------------------------------------


def test_fast_dllm_decisions():
    """A threshold that the most confident slot need not reach, and a number of slots per row."""
    case = load("flex/fastdllm_decision")
    for name in names(case, "decision"):
        logits, eligible = case[f"{name}.logits"].double(), case[f"{name}.mask_index"]
        tokens = most_probable(logits)
        assert torch.equal(torch.where(eligible, tokens, case[f"{name}.x"]), case[f"{name}.x0"])
        confidence = probability(logits, tokens)
        reached = above_threshold(confidence, eligible, float(case[f"{name}.threshold"]))
        assert torch.equal(reached, case[f"{name}.transfer_threshold"])
        best = most_confident(confidence, eligible, case[f"{name}.k"])
        assert torch.equal(best, case[f"{name}.transfer_topk"])
