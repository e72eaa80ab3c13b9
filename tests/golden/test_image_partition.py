"""PGM for images, against what the reference implementation computed.

Its samplers leave the newest token out of attention; "fixed" runs do not. There is no fixed run of
its confidence sampler on a network: that one is tested on recorded logits.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partita.categorical import PLAIN, Decoding, weights
from partita.contracts.batch import Batch
from partita.contracts.layouts import Queries
from partita.methods import PGM
from partita.models.published.images import load_image_partition
from partita.models.published.reference import rename_partition
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.confidence import CONFIDENCES, most_confident
from partita.samplers.guidance import RAMPS
from partita.samplers.guided_models import guided
from partita.samplers.halton import halton_order, halton_ranks
from partita.samplers.planned import reveal_in_order
from partita.samplers.state import SamplerState
from tests.golden.cases import load, parts, rule_of
from tests.support import partition_oracle
from tests.support.references import agree, gumbel_argmax, mixed, probabilities, recorded


class Images:
    """A case of PGM on images: registers of both groups and the start come before the codes."""

    def __init__(self, name, registers=True):
        self.case = load(f"text/{name}")
        config = self.case.config
        state, model = self.case.state_dict(), config["model"]
        if not registers:
            state.pop("reg_tokens.weight", None)
        self.network = load_image_partition(state, model["n_heads"], model["length"]).eval()
        ids, half = config["codebook_size"] + 2, config["register"] // 2 if registers else 0
        self.prefix = torch.arange(ids, ids + 2 * half)
        self.prefix_groups = torch.arange(2 * half) < half
        self.method = PGM(self.network, mask_id=config["mask_value"])

    @property
    def before(self):
        return len(self.prefix)

    def label(self):
        dropped = self.case.config["model"]["n_class"]
        return self.case["in.y"].where(~self.case["in.drop_label"], dropped)

    def rows(self, tokens):
        return torch.cat([self.prefix.expand(len(tokens), -1), tokens], 1)

    def groups(self, groups):
        return torch.cat([self.prefix_groups.expand(len(groups), -1), groups.bool()], 1)

    def both(self, label, packed=True):
        tokens, groups = self.case["in.tokens"], self.case["in.group_idxs"]
        rows = self.rows(tokens)
        logits, asked = partition_oracle.both(
            self.network, rows, self.groups(groups), label=label, packed=packed
        )
        table = logits.new_zeros(*rows.shape, logits.shape[-1])
        return table.index_put(tuple(asked), logits)[:, self.before :]


@pytest.mark.parametrize("packed", [True, False])
def test_image_partition_logits(packed):
    images, bare = Images("pgm_image_dit"), Images("pgm_image_dit", registers=False)
    case, label = images.case, images.label()
    case.close(images.both(label, packed), "out.train")
    nothing = torch.full_like(label, case.config["model"]["n_class"])
    case.close(images.both(nothing, packed), "out.train_uncond")
    case.close(bare.both(label, packed), "out.train_reg0")


@pytest.mark.parametrize("registers", [True, False])
def test_image_partition_inference(registers):
    images = Images("pgm_image_dit", registers)
    case, before = images.case, images.before
    key = "out.inference_fixed" if registers else "out.inference_reg0"
    clean, lengths = case["in.inf.clean_positions"], case["in.inf.concrete_lengths"]
    tokens = torch.zeros_like(case["in.tokens"])
    revealed = torch.zeros_like(tokens, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        tokens[row, clean[row, :length]] = case["in.inf.tokens"][row, :length]
        revealed[row, clean[row, :length]] = True
    known = torch.cat([~images.prefix_groups.expand(len(tokens), -1), revealed], 1)
    real = torch.arange(case[key].shape[1]) < case["in.n_noisy"][:, None]
    rows, slots = real.nonzero(as_tuple=True)
    asked = Queries(rows, case["in.inf.noisy_positions"][rows, slots] + before)
    ours = images.network(images.rows(tokens), known, queries=asked, label=images.label())
    agree(case, ours, case[key][rows, slots], key)
    if registers:  # the reference's own samplers leave a token out
        away = (ours - case["out.inference_official"][rows, slots]).abs().max()
        assert away > case.facts["info"]["parity"]["official_concrete_lengths"] / 2 > 0


def test_image_partition_loss_and_gradient_norms():
    """Plain cross-entropy of every code given the other group; the start is read, not scored."""
    images = Images("pgm_image_dit")
    case, before = images.case, images.before
    rows, groups = images.rows(case["in.tokens"]), images.groups(case["in.group_idxs"])
    log_probs, asked = partition_oracle.predict_both(
        images.method, Batch.of(rows, label=images.label()), groups
    )
    scored = asked.positions > before  # registers and start have no code
    target = rows[asked.rows, asked.positions][scored]
    mean = -log_probs[scored].gather(1, target[:, None]).mean()
    case.close(mean, "out.loss")
    mean.backward()
    ours = {name: p.grad for name, p in images.network.named_parameters()}
    ids = case.config["codebook_size"] + 2
    ours["registers"] = ours["embed.weight"][ids:]
    ours["embed.weight"] = ours["embed.weight"][:ids]
    names = {"cls_embed.embedding_table.weight": "conditioning.label.weight"}
    names["reg_tokens.weight"] = "registers"
    for theirs, norm in case.facts["info"]["grad_l2"].items():
        name = names.get(theirs) or next(iter(rename_partition({theirs: torch.empty(0)})))
        gradient = ours[name]
        doubled = name == "conditioning.label.weight"
        if doubled or ("modulation" in name and name.endswith("weight")):
            plus, minus = gradient.chunk(2, 1)  # of [e, -e] and of [W, -W]
            gradient = plus - minus
        torch.testing.assert_close(float(gradient.norm()), norm, rtol=1e-3, atol=1e-6)


class ImageReplay(SamplingContext):
    """A context that draws by the reference's rule from its uniforms [rows * n, V]."""

    def __init__(self, images, model, label, uniforms, ranks, counts):
        super().__init__(model, Noise.for_batch(0, len(label)), PLAIN, label)
        self.images, self.uniforms, self.ranks = images, uniforms, ranks
        self.done, self.counts, self.step = 0, counts, 0

    def draw(self, log_probs, step, rows, positions):  # noqa: ARG002
        count = self.counts[self.step]
        place = self.ranks[positions] - self.done
        u = self.uniforms[self.step][rows * count + place]
        impossible = torch.arange(log_probs.shape[-1]) >= self.images.case.config["mask_value"]
        logs = log_probs.masked_fill(impossible, -torch.inf)
        warm = Decoding(temperature=2.0) if self.step == 0 else PLAIN  # one halved logit scale
        self.step, self.done = self.step + 1, self.done + count
        return gumbel_argmax(weights(logs, warm), u)


@pytest.mark.parametrize(
    ("file", "name"),
    parts("text/pgm_image_samplers", lambda case: case.stems("_fixed", "out.halton_w")),
)
def test_image_partition_halton_sampler(file, name):
    """Whole runs on the reference's network; its guidance ramps by the number of the step."""
    images, weight = Images(file.removeprefix("text/")), float(name)
    case, before = images.case, images.before + 1
    side, steps, label = case.config["side"], case.config["steps"], case["in.y"]
    uniforms = [case[key] for key in case.keys(f"in.rand.halton_w{name}.")]
    counts = [len(u) // len(label) for u in uniforms]
    prefix = images.rows(torch.full((len(label), 1), case.config["bos_value"]))
    codes = torch.full((len(label), side**2), images.method.mask_id)
    tokens = torch.cat([prefix, codes], 1)
    revealed = images.groups(torch.zeros_like(tokens[:, images.before :])) ^ True
    revealed[:, before:] = False
    wanted = torch.arange(tokens.shape[1]).expand(tokens.shape) >= before
    state = SamplerState(tokens, revealed, wanted)
    seen = [int(revealed[0].sum()) + sum(counts[:i]) for i in range(steps)]

    def by_step(share):
        known = (share * (tokens.shape[1] - 1)).round().long()
        return torch.tensor([seen.index(k) / (steps - 1) for k in known.tolist()])

    model = guided(images.method, weight, by_step) if weight else images.method
    zero = torch.zeros(1, dtype=torch.long)
    ranks = F.pad(halton_ranks(side, side, zero), (before, 0))[0]
    context = ImageReplay(images, model, label, uniforms, ranks, counts)
    keys, plan = ranks.expand(tokens.shape), torch.tensor(counts).expand(len(label), -1)
    drawn = reveal_in_order(context, state, keys, plan)[:, before:]
    assert torch.equal(drawn, case[f"out.halton_w{name}_fixed"].flatten(1))
    others = int((drawn != case[f"out.halton_w{name}"].flatten(1)).sum())
    assert others == case.facts["info"]["halton_official_vs_fixed_tokens_differ"][name]


@pytest.mark.parametrize(
    ("file", "name"),
    parts("flex/pgm_image_samplers", lambda case: case.stems(".final_code")),
)
def test_image_partition_samplers_on_recorded_logits(file, name):
    case, rule = load(file), rule_of(name, ("halton", "confidence"))
    config, steps = case.config, case.config["steps"]
    side, rows = config["grid"], torch.arange(config["B"])[:, None]
    code = torch.full((config["B"], side**2), config["mask_id"])
    order, done = halton_order(side, side), 0
    known = torch.zeros_like(code, dtype=torch.bool)
    for step in range(steps):
        at = recorded(case, f"{name}.step{step}.")
        fed = at["clean_positions"][:, 1:] - 1  # what is revealed, after the start
        assert bool((at["tokens"][:, 0] == config["bos_id"]).all())
        assert torch.equal(at["tokens"][:, 1:], code.gather(1, fed))
        assert torch.equal(torch.zeros_like(known).scatter(1, fed, value=True), known)
        assert bool((at["lengths"] == 1 + fed.shape[1]).all())
        logits = [at[f"logits_{kind}"] for kind in ("cond", "uncond")]
        weight = config["cfg_w"] * float(RAMPS["linear"](torch.tensor(step / (steps - 1))))
        logs = mixed(*logits, weight)
        warm = rule == "halton" and step < config["halton_temp_warmup"]
        if rule == "halton":  # mask and start cannot be drawn
            logs[..., config["mask_id"] :] = -torch.inf
        ours = probabilities(logs, 2.0 if warm else 1.0)
        torch.testing.assert_close(ours, at["probs"].double(), atol=1e-6, rtol=1e-4)
        cells, count = at["noisy_positions"] - 1, at["drawn"].shape[1]
        keep = torch.ones_like(at["drawn"], dtype=torch.bool)
        if rule == "halton":
            assert torch.equal(cells, order[done : done + count].expand_as(cells))
        elif step + 1 < steps:
            count = case[f"{name}.step{step + 1}.tokens"].shape[1] - 1 - done
            flat = CONFIDENCES["probability"](ours.log().flatten(0, 1), at["drawn"].flatten())
            cooled = config["r_temp"] * (1 - step / (steps - 1))
            noised = flat.view(cells.shape).log() + cooled * at["gumbel"]
            keep = most_confident(noised, keep, torch.full((len(cells),), count))
        assert not known[rows, cells].any()  # nothing is drawn twice
        chosen = rows.expand_as(cells)[keep], cells[keep]
        code[chosen], known[chosen] = at["drawn"][keep], True
        done += count
    assert known.all()
    assert torch.equal(code.clamp(max=config["mask_id"] - 1), case[f"{name}.final_code"].flatten(1))
