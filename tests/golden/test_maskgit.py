"""MaskGIT and Halton order, against MaskGIT's code and PGM's, which has them, too.

Where the reference does something odd, our behaviour is tested and the difference shown:

- its losses of MaskGIT count visible tokens too, and its softmax has a class for the mask;
- its confidence sampler draws revealed tokens again at every step;
- `sm_temp` multiplies logits: it is one over our temperature;
- its counts round the share of revealed tokens down, ours the share of hidden ones, and the
  confidence sampler's are those of i/(S-1), which ask for nothing at the first step.

Its learning rate schedule is a matter of `TrainingOptions`, and not compared here.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch.nn import functional as F

from partita.contracts.batch import Batch
from partita.errors import InputError
from partita.methods import MaskGIT
from partita.models.published.images import load_maskgit
from partita.networks import Transformer, TransformerConfig
from partita.networks.base import Network
from partita.processes.corruption import Corrupted, Rate
from partita.randomness import Noise
from partita.samplers.base import SamplingContext
from partita.samplers.confidence import CONFIDENCES, most_confident
from partita.samplers.counts import HIDDEN_SHARE, reveal_counts
from partita.samplers.guidance import RAMPS
from partita.samplers.halton import halton, halton_order
from partita.samplers.state import SamplerState
from partita.schedules import make_schedule
from tests.golden.cases import Case, load, parts, stated
from tests.support.references import mixed, probabilities, recorded

# MaskGIT's network -------------------------------------------------------------------------------


def test_maskgit_network():
    case = load("flex/maskgit_network")
    network = load_maskgit(case.state_dict("w."), case.config["heads"]).eval()
    label = case["y"].where(~case["drop_label"], case.config["nclass"])
    case.close(network(case["x"].flatten(1), label=label), "logits")


@pytest.mark.parametrize(
    ("file", "key"), parts("text/pgm_image_maskgit", lambda case: case.keys("out.logits"))
)
def test_maskgit_network_of_pgm(file, key):
    case = load(file)
    state = case.state_dict()
    if key.endswith("_reg0"):
        state.pop("reg_tokens.weight", None)
    network = load_maskgit(state, case.config["heads"]).eval()
    label = case["in.y"].where(~case["in.drop_label"], case.config["nclass"])
    case.close(network(case["in.codes"].flatten(1), label=label), key)


SIZES = {  # width, depth and heads of the published ones
    "tiny": (384, 6, 6),
    "small": (512, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "xlarge": (1152, 28, 16),
}


@pytest.mark.parametrize(
    ("file", "key"),
    parts("flex/maskgit_network", lambda case: case.config["param_counts_official"]),
)
def test_maskgit_sizes(file, key):
    """Ours has a head of its own, and no bias in the last norm."""
    name, side = key.split("_grid")
    width, depth, heads = SIZES[name]
    if width % heads:  # heads of 85: theirs drop what is left over
        with pytest.raises(InputError, match=r"network\.heads"):
            TransformerConfig(vocab_size=2, width=width, heads=heads)
        return
    side = int(side)
    config = TransformerConfig(
        vocab_size=16385,
        length=side**2,
        width=width,
        depth=depth,
        heads=heads,
        mlp_ratio=1.5 * 256 * -(-int(8 * width / 3) // 256) / width,
        options={"positions": "learned"},
        registers=1,
        head_bias=True,
        classes=1000,
        condition_width=width,
    )
    with torch.device("meta"):
        ours = sum(parameter.numel() for parameter in Transformer(config).parameters())
    theirs = load(file).config["param_counts_official"][key]
    assert ours - config.vocab_size * width + width == theirs


# MaskGIT's training ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "mode"), parts("flex/maskgit_training", lambda case: case.stems(".mask"))
)
def test_maskgit_hiding(file, mode):
    """Each rule of theirs is a rate; arccos and cosine are schedules as well, at t = 1 - r."""
    case, rate = load(file), HIDDEN_SHARE[mode]
    hidden = Rate(rate=rate)._rate(case["r"])[:, None, None]
    assert torch.equal(case["u"] < hidden, case[f"{mode}.mask"])
    masked = case["code"].masked_fill(case[f"{mode}.mask"], case.config["mask_token"])
    assert torch.equal(masked, case[f"{mode}.masked_code"])
    check_schedule(mode, case["r"])


@pytest.mark.parametrize(
    ("file", "mode"), parts("text/pgm_image_schedules", lambda case: case.config["modes"])
)
def test_hiding_of_pgm(file, mode):
    """The same rules; a start before the codes is hidden like any other."""
    case = load(file)
    group = case[f"in.rand.{mode}.000"] < HIDDEN_SHARE[mode](case["in.r"])[:, None]
    assert torch.equal(group, case[f"out.mask.{mode}"])
    check_schedule(mode, case["in.r"])


def check_schedule(mode, r):
    if mode in ("arccos", "cosine"):
        hidden = make_schedule(mode).one_minus_alpha(1 - r.double())
        torch.testing.assert_close(hidden, HIDDEN_SHARE[mode](r.double()))


class Recorded(Network):
    """A network whose logits were stored."""

    def __init__(self, logits):
        self.logits = logits
        self.config = TransformerConfig(vocab_size=logits.shape[-1], length=logits.shape[1])

    def __call__(self, tokens, *, queries, scalar=None, label=None):  # noqa: ARG002
        return self.logits[queries.rows, queries.positions]


def test_maskgit_loss():
    """Theirs is larger by what it gives to the mask, which ours cannot predict."""
    case = load("flex/maskgit_training")
    (mode,) = re.findall(r"(\w+) mask", case.meaning("loss_masked_only"))
    logits, mask = case["logits"].double(), case[f"{mode}.mask"].flatten(1)
    code = case["code"].flatten(1)
    method = MaskGIT(Recorded(logits), mask_id=case.config["mask_token"])
    corruption = Corrupted(mask, torch.ones_like(mask, dtype=torch.float64), None)
    loss = method.loss_given(Batch.of(code, is_token=torch.ones_like(mask)), corruption)
    given_away = -(1 - logits.softmax(-1)[..., method.mask_id]).log()
    theirs = loss.per_token.sum() + given_away[mask].sum()
    torch.testing.assert_close(
        theirs / mask.sum(), case["loss_masked_only"].double(), atol=1e-6, rtol=1e-6
    )
    assert torch.equal(loss.counted, mask)
    everywhere = F.cross_entropy(logits.flatten(0, 1), code.flatten())
    torch.testing.assert_close(everywhere, case["loss_all_tokens"].double(), atol=1e-6, rtol=1e-6)
    assert not torch.isclose(everywhere, case["loss_masked_only"].double())


# Orders and counts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "side"), parts("flex/halton_order", lambda case: case.config["grids"])
)
def test_halton_orders(file, side):
    case, order = load(file), halton_order(side, side)
    assert torch.equal(order, case[f"flat{side}"].long())
    assert torch.equal(cells(order, side), case[f"order{side}"].long())


@pytest.mark.parametrize(
    ("file", "side"), parts("text/pgm_image_schedules", lambda case: case.config["sides"])
)
def test_halton_orders_of_pgm(file, side):
    ours = cells(halton_order(side, side), side)
    assert torch.equal(ours, load(file)[f"out.halton_{side}"].long())


def cells(order, side):
    """Rows and columns."""
    return torch.stack([order // side, order % side], 1)


@pytest.mark.parametrize(
    ("file", "name"),
    parts("flex/maskgit_schedules", lambda case: case.stems(".new_tokens", "halton.")),
)
def test_halton_counts(file, name):
    side, steps = re.fullmatch(r"grid(\d+)\.steps(\d+)", name).groups()
    theirs = load(file)[f"halton.{name}.new_tokens"].long().cumsum(0)
    close_counts(int(side), int(steps), theirs)


@pytest.mark.parametrize(
    ("file", "name"),
    parts("text/pgm_image_schedules", lambda case: case.stems("", "out.halton_counts_")),
)
def test_halton_counts_of_pgm(file, name):
    side, steps = name.split("_steps")
    close_counts(int(side), int(steps), load(file)[f"out.halton_counts_{name}"].long())


def close_counts(side, steps, theirs):
    """One position earlier at most: we round what stays hidden down, they what is revealed."""
    ours = reveal_counts(torch.tensor([side**2]), steps, "arccos")[0].cumsum(0)
    assert ours[-1] == theirs[-1] == side**2
    assert (ours - theirs).abs().max() <= 1
    assert torch.any(ours != theirs) or side**2 <= 2 * steps


@pytest.mark.parametrize(
    ("file", "name"), parts("flex/maskgit_schedules", lambda case: case.stems(".raw", "conf."))
)
def test_confidence_counts(file, name):
    """The same shares at i/(S-1): their first step asks for none, and is then given one."""
    mode, side, steps = re.fullmatch(r"(\w+)\.grid(\d+)\.steps(\d+)", name).groups()
    side, steps, case = int(side), int(steps), load(file)
    raw, effective = (case[f"conf.{name}.{key}"] for key in ("raw", "effective"))
    close_shares(mode, side, raw)
    assert torch.equal(torch.maximum(raw, torch.arange(1, steps + 1)).int(), effective)
    assert raw[0] == 0
    ours = reveal_counts(torch.tensor([side**2]), steps, mode)[0]
    assert ours.sum() == side**2
    assert ours.min() >= (1 if steps <= side**2 else 0)


@pytest.mark.parametrize(
    ("file", "mode"), parts("text/pgm_image_schedules", lambda case: case.config["modes"])
)
def test_confidence_counts_of_pgm(file, mode):
    """The last step has them all, which tells the side."""
    theirs = load(file)[f"out.confidence_seq.{mode}"]
    close_shares(mode, math.isqrt(int(theirs[-1])), theirs)


def close_shares(mode, side, theirs):
    """The positions that shall be revealed by step i of S: a share for i/(S-1), rounded down."""
    shares = 1 - HIDDEN_SHARE[mode](torch.linspace(0, 1, len(theirs)))
    assert ((shares * side**2).int() - theirs).abs().max() <= 1


# MaskGIT's samplers ------------------------------------------------------------------------------


def prefixes(case: Case):
    """What the tensors of each run begin with, its name or else its number."""
    runs = case.config["runs"]
    return [run.get("prefix", f"run{number}.") for number, run in enumerate(runs)]


def settings(case: Case, prefix):
    return case.config["runs"][prefixes(case).index(prefix)]


def limits_of(case: Case):
    return stated(case.facts["tolerance"]["softmax_input"])


@pytest.mark.parametrize(("file", "prefix"), parts("flex/maskgit_confidence_sampler", prefixes))
def test_confidence_sampler(file, prefix):
    """Every step: guided probabilities, confidences, and which positions are revealed."""
    case = load(file)
    run, at, steps = settings(case, prefix), recorded(case, prefix), case.config["steps"]
    ramp = run["cfg_w"] * RAMPS["linear"](torch.arange(steps) / (steps - 1))
    torch.testing.assert_close(at["cfg_weight"], ramp)
    revealed_before = 0
    for step in range(steps):
        logs = at["logits_cond"][step].double().log_softmax(-1)
        if run["cfg_w"]:
            logs = mixed(logs, at["logits_uncond"][step], float(ramp[step]))
        probs = probabilities(logs, 1 / run["sm_temp"])
        theirs = at["softmax_input"][step].double().softmax(-1)
        torch.testing.assert_close(probs, theirs, **limits_of(case))

        hidden = torch.ones_like(at["code_before"][step], dtype=torch.bool)
        if step:
            hidden = at["mask_after"][step - 1]
        drawn = at["pred_code"][step]
        measured = CONFIDENCES["probability"](probs.log()[hidden], drawn[hidden])
        confidence = torch.zeros(hidden.shape, dtype=torch.float64)
        confidence[hidden] = measured
        if run["randomize"] == "linear":
            cooled = run["r_temp"] * (1 - step / (steps - 1))
            confidence = confidence.log() + cooled * at["gumbel"][step]
        if run["randomize"] == "random" or (run["randomize"] == "warm_up" and step < 2):
            confidence = at["confidence"][step]  # there is no measure
        theirs = at["confidence"][step]
        limits = stated(case.facts["tolerance"]["confidence"])
        torch.testing.assert_close(confidence[hidden], theirs[hidden], **limits)

        count = int(at["k"][step]) - revealed_before
        counts = torch.full((len(hidden),), count)
        keep = most_confident(confidence, hidden, counts)
        assert torch.equal(hidden & ~keep, at["mask_after"][step])
        assert torch.equal(at["code_after"][step][keep], drawn[keep])
        revealed_before = int(at["k"][step])
    assert at["mask_after"][-1].sum() == 0
    assert at["pred_code"].max() <= case.config["mask_token"]


def test_tokens_that_are_revealed_stay():
    """Theirs are drawn again at every step; ours never touches them (see above)."""
    case, rewritten = load("flex/maskgit_confidence_sampler"), 0
    for prefix in prefixes(case):
        before, after, hidden = (
            case[f"{prefix}{key}"] for key in ("code_before", "code_after", "mask_after")
        )
        hidden = torch.cat([torch.ones_like(hidden[:1]), hidden[:-1]])
        rewritten += int(((before != after) & ~hidden).sum())
    assert 0 < rewritten <= case.config["visible_tokens_rewritten_in_total"]


class Replay(SamplingContext):
    """A context whose tokens were stored, one table for each step."""

    def __init__(self, model, tables, roll):
        super().__init__(model, Rolled(roll, tables.shape[-1]))
        self.tables, self.calls, self.asked = tables, 0, []

    def ask(self, state, rows, positions, visible):  # noqa: ARG002
        asked = torch.zeros_like(state.revealed)
        asked[rows, positions] = True
        self.asked.append(asked)
        return torch.zeros(len(rows), 1)

    def draw(self, log_probs, step, rows, positions):  # noqa: ARG002
        self.calls += 1
        return self.tables[self.calls - 1][rows, positions]


class Rolled(Noise):
    """Noise in which every sample's first uniform is that of a given roll."""

    def __init__(self, roll, length):
        super().__init__(0, torch.arange(len(roll)))
        object.__setattr__(self, "told", (roll.double() + 0.5) / length)

    def uniform(self, purpose, step, positions):  # noqa: ARG002
        return self.told[:, None].expand(-1, positions.shape[-1])


@pytest.mark.parametrize(("file", "prefix"), parts("flex/halton_sampler", prefixes))
def test_halton_sampler(file, prefix):
    """Whole runs by our sampler: its cells at every step, rolled or not, and the final codes."""
    case = load(file)
    run, at = settings(case, prefix), recorded(case, prefix)
    side, steps = case.config["grid"], case.config["steps"]
    counts = at["new_mask"][:, 0].sum(-1).tolist()
    roll = at.get("roll", torch.zeros(case.config["B"], dtype=torch.long))
    network = Recorded(at["logits_cond"][0])
    model = MaskGIT(network, mask_id=case.config["mask_token"])
    context = Replay(model, at["pred_code"], roll)
    state = SamplerState.blank(case.config["B"], side**2, model.mask_id, torch.device("cpu"))
    options = {"steps": steps, "counts": counts, "columns": side, "roll": run["randomize"]}
    drawn = halton(context, state, **options)
    assert torch.equal(torch.stack(context.asked), at["new_mask"])
    assert torch.equal(drawn, at["code_after"][-1])
    for step in range(steps):
        logs = at["logits_cond"][step].double()
        if run["w"]:
            logs = mixed(logs, at["logits_uncond"][step], run["w"])
        temperature = 1 / float(at["temperature"][step])
        theirs = at["softmax_input"][step].double().softmax(-1)
        torch.testing.assert_close(probabilities(logs, temperature), theirs, **limits_of(case))
        if run["top_k"] > 0:
            kept = probabilities(logs, temperature, run["top_k"])
            kept = kept.sort(-1, descending=True).values[..., : run["top_k"]]
            stored = at["topk_weights"][step].double().sort(-1, descending=True).values
            torch.testing.assert_close(kept, stored, **limits_of(case))
