"""FlexMDM's states, posteriors and loss on a toy distribution, by enumeration.

Their time runs from the empty text to the data, ours the other way: t here is 1 - theirs.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from partita.contracts.batch import Batch
from partita.contracts.packed import PackedTokens
from partita.methods.flexmdm import LEAST, Thinned
from partita.processes.insertion import Interpolant, order_nats
from tests.golden.cases import Case, load, parts
from tests.support.flexible_references import agree, model_of, pairs, process_of

CLEAN, MASKED, GONE = range(3)


NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(160))


def share_clean(process, t):
    """The probability that a token is clean at time t, by quadrature over when it disappears.

    Inverses of schedules may be steep at both ends, so the nodes are dense there. A schedule that
    does not reach 0 has tokens that are there from the very start. The same quadrature checks that
    the times that are drawn have this law.
    """
    s = (1 + NODES) / 2
    place, density = s**3 * (10 - 15 * s + 6 * s**2), 30 * s**2 * (1 - s) ** 2
    there, ever = (process.insertion.alpha(x) for x in (t, torch.ones_like(t)))
    u = ever + (there - ever) * place
    gone = process.insertion.inverse(u)
    clean = process.unmasking.reveal_probability(t.expand_as(gone), gone)
    _, masked = process.times(u[None], clean[None])
    torch.testing.assert_close(masked[0], t.expand_as(u))
    from_the_start = ever * process.unmasking.reveal_probability(t, torch.ones_like(t))
    return from_the_start + (there - ever) * (WEIGHTS / 2 * density * clean).sum()


def enumerated(case: Case, process, t):
    """Every text with every fate of its tokens: the texts, their states and their probabilities."""
    there, clean = process.insertion.alpha(t), share_clean(process, t)
    law = torch.stack([clean, there - clean, 1 - there])
    texts, fates, chances = [], [], []
    for text, chance in zip(case["data_strings"], case["data_prob"], strict=True):
        length = int((text != case.config["pad_token"]).sum())
        for fate in itertools.product((CLEAN, MASKED, GONE), repeat=length):
            texts.append(text)
            fates.append(list(fate) + [GONE] * (len(text) - length))
            chances.append(chance * law[list(fate)].prod())
    texts, fates = torch.stack(texts), torch.tensor(fates)
    real = texts != case.config["pad_token"]
    times = torch.full((len(texts),), 0.5)
    gone, masked = (fates != GONE).double(), (fates == CLEAN).double()
    mask = case.config["mask_token"]
    state = Interpolant.state(texts, real, times, gone, masked, mask)
    return texts, real, state, torch.stack(chances)


def numbers_of(case: Case, state):
    """Which of the stored states each text is."""
    rows = state.text.padded(case.config["pad_token"], case["states"].shape[1])
    same = (rows[:, None] == case["states"]).all(-1)
    assert bool((same.sum(-1) == 1).all())
    return same.long().argmax(-1)


oracles = pytest.mark.parametrize(("file", "pair"), parts("flex/flex_oracle", pairs))


@oracles
def test_law_of_the_states(file, pair):
    case, prefix = load(file), f"{pair}."
    process, laws, masked = process_of(case, pair), [], []
    for time in 1 - case[f"{prefix}t_grid"]:
        _, _, state, chances = enumerated(case, process, time)
        law = torch.zeros(len(case["states"]), dtype=torch.float64)
        laws.append(law.index_add(0, numbers_of(case, state), chances))
        masked.append(process.insertion.alpha(time) - share_clean(process, time))
    agree(torch.stack(laws), case[f"{prefix}state_marginals"], prefix, rtol=0, atol=1e-9)
    agree(torch.stack(masked), case[f"{prefix}mask_prob"], prefix, rtol=0, atol=1e-6)


def posteriors(case: Case, process, t):
    """Given each state: the law of its tokens [S, L, V] and the mean of its gaps [S, L + 1]."""
    texts, _, state, chances = enumerated(case, process, t)
    number, size = numbers_of(case, state), case["states"].shape
    mass = torch.zeros(size[0], dtype=torch.float64).index_add(0, number, chances)
    place = (
        number[state.text.sequence_ids],
        state.text.position_ids,
        texts[state.text.sequence_ids, state.source],
    )
    tokens = torch.zeros(*size, len(case.config["tokens"]), dtype=torch.float64)
    tokens = tokens.index_put(place, chances[state.text.sequence_ids], accumulate=True)
    gaps = PackedTokens.of_texts(state.gaps, state.text.lengths + 1)
    means = torch.zeros(size[0], size[1] + 1, dtype=torch.float64).index_put(
        (number[gaps.sequence_ids], gaps.position_ids),
        chances[gaps.sequence_ids] * gaps.tokens,
        accumulate=True,
    )
    return mass, tokens / mass[:, None, None], means / mass[:, None]


def neighbours(case: Case):
    """Every schedule as one of insertions, with the next one as that of unmasking."""
    names = list(case.config["schedules"])
    return [f"{one}+{other}" for one, other in zip(names, names[1:] + names[:1], strict=True)]


@pytest.mark.parametrize(("file", "pair"), parts("flex/flex_oracle", neighbours))
def test_posteriors_depend_on_the_insertion_schedule_alone(file, pair):
    """A state that has no chance at all has a stored limit, but no posterior.

    As long as no token is there yet, that is every state but the empty one.
    """
    case = load(file)
    process, size = process_of(case, pair), len(case["states"])
    for index, alpha in enumerate(case["alpha_grid"]):
        mass, tokens, gaps = posteriors(case, process, process.insertion.inverse(alpha))
        possible = mass > 0
        assert int(possible.sum()) == (size if alpha > 0 else 1)
        for ours, key in ((tokens, "token_posterior"), (gaps, "expected_gaps")):
            stored = case[f"oracle_{key}"][index][possible]
            agree(ours[possible], stored, f"{key} at {float(alpha)}", rtol=0, atol=1e-9)


@oracles
def test_loss_of_the_posteriors(file, pair):
    """The two terms at some times, and what is left of their integral: the entropy of the data.

    A gap in which nothing can be missing is expected to miss 0 tokens; our loss takes at least
    `LEAST`, which is its divergence then.
    """
    case, prefix = load(file), f"{pair}."
    process, terms, longest = process_of(case, pair), [], case.config["max_data_length"]
    for time in 1 - case[f"{prefix}t_grid"]:
        _, tokens, gaps = posteriors(case, process, time)
        texts, real, state, chances = enumerated(case, process, time)
        number = numbers_of(case, state)
        method = model_of(process, tokens.log()[number], gaps[number])
        loss = method.loss_given(
            Batch.of(texts, is_token=real), Thinned(state, time.expand(len(texts)))
        )
        masks = process.unmasking.weight(time) * loss.cross_entropy.sum(-1)
        whole = loss.per_token.sum(-1) + order_nats(longest)[real.sum(-1)]
        places = torch.arange(longest + 1)
        none = (gaps[number] < LEAST) & (places <= state.text.lengths[:, None])
        whole = whole - process.insertion.weight(time) * LEAST * none.sum(-1)
        terms.append(torch.stack([chances @ masks, chances @ (whole - masks)]))
    agree(torch.stack(terms), case[f"{prefix}oracle_loss"], prefix, rtol=0, atol=1e-9)
    results = case.facts["results"]
    lengths = (case["data_strings"] != case.config["pad_token"]).sum(-1)
    entropy = torch.special.entr(case["data_prob"]).sum()
    factorials = torch.lgamma(lengths + 1.0).double()
    expected = float(case["data_prob"] @ factorials)
    assert expected == pytest.approx(results["expected_log_factorial_length"])
    above = float(case["data_prob"] @ order_nats(longest)[lengths])
    integral = results["combos"][pair]["integral_total"]
    assert integral - above == pytest.approx(float(entropy), abs=1e-9)
