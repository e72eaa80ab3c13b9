"""Gaussian diffusion against numbers known by other means: Bayes' rule on a grid, quadrature,
divergences of distributions, mixtures whose denoiser has a closed form, chains that can be
integrated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal, kl_divergence

from partita.contracts.batch import Batch
from partita.methods.ddpm import DDPM, bits_per_dimension
from partita.methods.diffusion_lm import Diffused
from partita.processes.gaussian import (
    GAUSSIAN_SCHEDULES,
    discretized_nats,
    make_process,
    normal_nats,
    wide,
)
from partita.randomness import Noise
from partita.samplers import sample
from partita.samplers.gaussian import sample_ddpm, step
from tests.laws.tables import LEVEL
from tests.support.gaussian_laws import GRID, all_terms, token_law, two_tokens

PAIRS = [(1, 2), (3, 4), (9, 10), (2, 7), (0, 5), (4, 10)]


def steps_of(*numbers):
    return torch.tensor(numbers)


def random_states(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The process -------------------------------------------------------------------------------------


def test_the_linear_schedule_is_the_papers():
    betas = make_process("linear").betas
    assert (len(betas), float(betas[0]), float(betas[-1])) == (1000, 1e-4, 0.02)
    assert float(make_process("linear").signal(steps_of(1000))) == pytest.approx(4.0e-5, rel=0.02)


@pytest.mark.parametrize("name", list(GAUSSIAN_SCHEDULES))
@pytest.mark.parametrize("steps", [2, 10, 1000])
def test_every_schedule_goes_from_data_to_noise(name, steps):
    process = make_process(name, steps)
    every = torch.arange(steps + 1)
    assert float(process.signal(every)[0]) == 1
    assert bool((process.signal(every).diff() < 0).all())
    assert float(process.signal(steps_of(steps))) < 0.02
    torch.testing.assert_close(
        process.signal(every) + process.variance(every), torch.ones(steps + 1).double()
    )


@pytest.mark.parametrize("name", list(GAUSSIAN_SCHEDULES))
def test_the_marginal_is_the_composition_of_steps(name):
    """Means and variances step by step: eq. 4 from eq. 2."""
    process = make_process(name, 10)
    one, nothing = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    mean, variance = one, nothing
    for number in range(1, 11):
        s, t = steps_of(number - 1), steps_of(number)
        shrunk = process.transition(one, s, t, nothing)
        added = process.transition(nothing, s, t, one)
        mean, variance = shrunk * mean, shrunk**2 * variance + added**2
        torch.testing.assert_close(process.marginal(one, t, nothing), mean)
        torch.testing.assert_close(process.marginal(nothing, t, one), variance.sqrt())


def test_the_posterior_is_the_papers():
    """Eq. 7, written with alphas and betas."""
    process = make_process("linear", 10)
    alpha, abar = 1 - process.betas, (1 - process.betas).cumprod(0)
    x_0, x_t = random_states(1, 3), random_states(1, 3, seed=1)
    for t in range(2, 11):
        beta, now, before = process.betas[t - 1], abar[t - 1], abar[t - 2]
        mean = before.sqrt() * beta / (1 - now) * x_0
        mean = mean + alpha[t - 1].sqrt() * (1 - before) / (1 - now) * x_t
        s, at = steps_of(t - 1), steps_of(t)
        torch.testing.assert_close(process.posterior_mean(x_0, x_t, s, at), mean)
        variance = (1 - before) / (1 - now) * beta
        torch.testing.assert_close(process.posterior_variance(s, at)[0], variance)


@pytest.mark.parametrize("name", list(GAUSSIAN_SCHEDULES))
@pytest.mark.parametrize(("s", "t"), PAIRS[:4])
def test_the_posterior_is_bayes_rule(name, s, t):
    """q(x_s | x_t, x_0) ~ q(x_t | x_s) q(x_s | x_0), on a grid."""
    process, x_0, x_t = make_process(name, 10), 0.7, -0.4
    signal, noise = process.signal(steps_of(s)), process.variance(steps_of(s))
    lost = process.lost(steps_of(s), steps_of(t))
    x_s = torch.linspace(-9, 9, 40_001, dtype=torch.float64)
    log_density = Normal(signal.sqrt() * x_0, noise.sqrt()).log_prob(x_s)
    log_density += Normal((1 - lost).sqrt() * x_s, lost.sqrt()).log_prob(torch.tensor(x_t))
    chance = log_density.softmax(0)
    mean = float((chance * x_s).sum())
    variance = float((chance * (x_s - mean) ** 2).sum())
    states = torch.tensor([[x_0]], dtype=torch.float64), torch.tensor([[x_t]], dtype=torch.float64)
    at = steps_of(s), steps_of(t)
    assert float(process.posterior_mean(*states, *at)) == pytest.approx(mean, abs=1e-6)
    assert float(process.posterior_variance(*at)) == pytest.approx(variance, rel=1e-5)


@pytest.mark.parametrize(("s", "t"), PAIRS[:4])
def test_two_predictions_differ_by_the_weight(s, t):
    process, at = make_process("cosine", 10), (steps_of(s), steps_of(t))
    x_t, a, b = (random_states(1, 4, seed=seed) for seed in range(3))
    variance = wide(process.posterior_variance(*at), x_t)
    means = (process.posterior_mean(x, x_t, *at) for x in (a, b))
    nats = normal_nats(next(means), variance, next(means), variance)
    torch.testing.assert_close(nats, process.divergence_weight(*at) * (a - b) ** 2)


def test_predictions_convert_into_one_another():
    process, t = make_process("linear", 50), torch.tensor([1, 7, 50])
    x_0, epsilon = random_states(3, 2, 4), random_states(3, 2, 4, seed=1)
    x_t = process.marginal(x_0, t, epsilon)
    torch.testing.assert_close(process.clean_of_noise(x_t, t, epsilon), x_0)
    torch.testing.assert_close(process.noise_of_clean(x_t, t, x_0), epsilon)
    velocity = process.velocity(x_0, t, epsilon)
    torch.testing.assert_close(process.clean_of_velocity(x_t, t, velocity), x_0)
    for prediction, answer in (("noise", epsilon), ("clean", x_0), ("velocity", velocity)):
        model = DDPM(lambda *_, a=answer: a, schedule=process, prediction=prediction)
        torch.testing.assert_close(model.clean(x_t, t), x_0)


# The bound ---------------------------------------------------------------------------------------


def wrong_denoiser(x, t):
    """A prediction of x_0 that no data would teach: the bound holds for any."""
    return torch.tanh(0.8 * x + 0.1) * (1 - 0.03 * t[:, None])


@pytest.mark.parametrize("variance", ["small", "large"])
@pytest.mark.parametrize("name", list(GAUSSIAN_SCHEDULES))
def test_terms_are_divergences(name, variance):
    """L_{t-1} = KL(q(x_{t-1} | x_t, x_0) || p(x_{t-1} | x_t)), L_T = KL(q(x_T | x_0) || N)."""
    process = make_process(name, 10)
    model = DDPM(wrong_denoiser, schedule=process, prediction="clean", variance=variance)
    x_0, epsilon = random_states(9, 3).clamp(-1, 1), random_states(9, 3, seed=1)
    t = torch.arange(2, 11)
    x_t = process.marginal(x_0, t, epsilon)
    sigma = process.posterior_variance(t - 1, t)[:, None].sqrt()
    other = process.betas[t - 1][:, None].sqrt() if variance == "large" else sigma
    q = Normal(process.posterior_mean(x_0, x_t, t - 1, t), sigma)
    p = Normal(process.posterior_mean(wrong_denoiser(x_t, t), x_t, t - 1, t), other)
    torch.testing.assert_close(model.term(x_0, t, epsilon), kl_divergence(q, p).sum(-1))
    end = steps_of(10).expand(9)
    q = Normal(process.signal(end)[:, None].sqrt() * x_0, process.variance(end)[:, None].sqrt())
    standard = Normal(torch.zeros(1).double(), torch.ones(1).double())
    torch.testing.assert_close(model.prior_term(x_0), kl_divergence(q, standard).sum(-1))


@pytest.mark.parametrize("levels", [2, 17, 256])
@pytest.mark.parametrize("deviation", [0.01, 0.3, 5.0])
def test_the_decoder_is_a_law_of_pixels(levels, deviation):
    """Eq. 13: masses of a normal on the bins, which sum to 1; also far out in the tails."""
    x = torch.linspace(-1, 1, levels, dtype=torch.float64)[:, None]
    for mean in (-0.999, 0.2, 1.7):
        nats = discretized_nats(
            x, torch.full_like(x, mean), torch.full_like(x, deviation**2), levels
        )
        assert bool(torch.isfinite(nats).all())
        assert float(nats.neg().exp().sum()) == pytest.approx(1, abs=1e-12)
        pixel = levels // 2
        edges = x[pixel].item() - 1 / (levels - 1), x[pixel].item() + 1 / (levels - 1)
        upper = math.inf if levels == 2 else edges[1]
        mass = np.diff(stats.norm(mean, deviation).cdf([edges[0], upper]))[0]
        if mass > 1e-10:
            assert float(nats[pixel]) == pytest.approx(-math.log(mass), rel=1e-5)


def test_the_decoder_has_gradients_everywhere():
    mean = torch.tensor([[-3.0], [0.0], [3.0]], requires_grad=True)
    discretized_nats(
        torch.tensor([[1.0], [-1.0], [0.0]]), mean, torch.full((3, 1), 1e-4), 256
    ).sum().backward()
    assert bool(torch.isfinite(mean.grad).all())


MEAN, DEVIATION = 0.3, 0.5  # of normal data, whose denoiser is a straight line


def line_denoiser(process):
    def clean(x, t):
        signal, noise = wide(process.signal(t), x), wide(process.variance(t), x)
        gain = signal.sqrt() * DEVIATION**2 / (signal * DEVIATION**2 + noise)
        return MEAN + gain * (x - signal.sqrt() * MEAN)

    return clean


def normal_chain(model, decoder=True):
    """p(x_0) under a straight denoiser: its mean and variance follow step by step.

    Samplers leave the decoder out: their last step adds no noise.
    """
    process = model.process
    mean, spread = torch.zeros(1, 1).double(), torch.ones(1).double()
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()
    for number in range(process.steps, 0, -1):
        t = steps_of(number)
        s = t - 1

        def reverse(x, s=s, t=t):
            return process.posterior_mean(model.clean(x, t), x, s, t)

        slope = float(reverse(one) - reverse(zero))
        # The last step is the decoder's: beta_1, or beta~_2 in place of beta~_1, which is 0.
        at = (s, t) if number > 1 or model.variance == "large" else (t, t + 1)
        added = model.reverse_variance(*at) if decoder or number > 1 else 0
        mean, spread = reverse(mean), slope**2 * spread + added
    return Normal(mean[0, 0], spread.sqrt()[0])


def test_the_bound_is_above_the_exact_likelihood_of_a_normal_chain():
    """And it is nearer to it with the large variance, the better one for normal data (3.2)."""
    rows, process = 4000, make_process("cosine", 40)
    x_0, noise = MEAN + DEVIATION * random_states(rows, 1), Noise.for_batch(1, rows)
    gaps = {}
    for variance in ("small", "large"):
        denoiser = line_denoiser(process)
        options = {"schedule": process, "prediction": "clean", "levels": None}
        model = DDPM(denoiser, variance=variance, **options)
        nats = -normal_chain(model).log_prob(x_0[:, 0])
        terms = all_terms(model, x_0, noise)
        assert terms.shape == (rows, 41)
        gap = terms.sum(1) - nats
        error = float(gap.std()) / math.sqrt(rows)
        assert float(gap.mean()) > -4 * error
        gaps[variance] = float(gap.mean())
        draws = torch.stack([model.bound(x_0, noise, i) for i in range(8)])
        apart = draws.mean(0) - terms.sum(1)
        assert abs(float(apart.mean())) < 4 * float(apart.std()) / math.sqrt(rows)
    assert gaps["small"] > 8 * error
    assert gaps["large"] < gaps["small"] / 4
    assert float(bits_per_dimension(nats, x_0)[0]) == pytest.approx(float(nats[0]) / math.log(2))


def test_the_bound_of_pixels_is_above_their_entropy():
    """Uniform pixels of 4 levels with their exact denoiser: 2 bits each, and a little more."""
    levels = torch.tensor([-1, -1 / 3, 1 / 3, 1], dtype=torch.float64)
    process = make_process("cosine", 400)

    def clean(x, t):
        signal, noise = (
            wide(process.signal(t), x)[..., None],
            wide(process.variance(t), x)[..., None],
        )
        log_mass = -((x[..., None] - signal.sqrt() * levels) ** 2) / (2 * noise)
        return log_mass.softmax(-1) @ levels

    model = DDPM(clean, schedule=process, prediction="clean", levels=4)
    x_0 = levels[torch.arange(3000) % 4][:, None]
    bits = bits_per_dimension(all_terms(model, x_0, Noise.for_batch(0, 3000)).sum(1), x_0).mean()
    assert 2 < float(bits) < 2.05


# Samplers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("s", "t"), PAIRS)
def test_ddim_with_all_its_noise_is_the_posterior(s, t):
    process, at = make_process("linear", 10), (steps_of(s), steps_of(t))
    x_t, x_0, z = (random_states(1, 4, seed=seed) for seed in range(3))
    x_s = step(process, x_t, x_0, *at, z, eta=1.0)
    sigma = process.posterior_variance(*at).sqrt()
    torch.testing.assert_close(x_s, process.posterior_mean(x_0, x_t, *at) + sigma * z)


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("s", "t"), PAIRS)
def test_ddim_keeps_the_marginals(s, t, eta):
    """x_t from q(x_t | x_0) and the true x_0 give x_s from q(x_s | x_0), for every eta."""
    process, at = make_process("cosine", 10), (steps_of(s), steps_of(t))
    zero, one = torch.zeros(1, 1).double(), torch.ones(1, 1).double()

    def move(x_0, epsilon, z):
        return step(process, process.marginal(x_0, at[1], epsilon), x_0, *at, z, eta=eta)

    torch.testing.assert_close(move(one, zero, zero), process.marginal(one, at[0], zero))
    variance = move(zero, one, zero) ** 2 + move(zero, zero, one) ** 2
    torch.testing.assert_close(variance[0], process.variance(at[0]))


@pytest.mark.parametrize("variance", ["small", "large"])
def test_samples_of_a_normal_chain_have_its_law(variance):
    process = make_process("cosine", 12)
    options = {"prediction": "clean", "variance": variance, "levels": None}
    model = DDPM(line_denoiser(process), schedule=process, **options)
    exact = normal_chain(model, decoder=False)
    law = stats.norm(float(exact.mean), float(exact.stddev)).cdf
    drawn = sample_ddpm(model, (1,), 20_000, seed=1, dtype=torch.float64)[:, 0].numpy()
    assert stats.kstest(drawn, law).pvalue > LEVEL
    if variance == "small":  # by DDIM's formula with the noise of DDPM
        again = sample_ddpm(model, (1,), 20_000, seed=2, steps=12, eta=1.0, dtype=torch.float64)
        assert stats.kstest(again[:, 0].numpy(), law).pvalue > LEVEL


WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
CENTRES = torch.tensor([[1.5, 0.0], [-1.0, 1.2], [-0.8, -1.4]], dtype=torch.float64)
WIDTH = 0.25


def mixture_noise(process):
    """The exact epsilon of a mixture of round normals: -sqrt(1 - abar) times the score."""

    def epsilon(x, t):
        signal, noise = wide(process.signal(t), x), wide(process.variance(t), x)
        variance = signal * WIDTH**2 + noise
        away = x[:, None] - signal.sqrt()[..., None] * CENTRES
        log_mass = WEIGHTS.log() - (away**2).sum(-1) / (2 * variance)
        score = -(log_mass.softmax(-1)[..., None] * away).sum(1) / variance
        return -noise.sqrt() * score

    return epsilon


@pytest.mark.parametrize(
    ("eta", "variance", "steps"),
    [(1.0, "small", None), (1.0, "large", None), (0.0, "small", 100), (0.5, "small", 100)],
)
def test_samples_of_a_mixture_have_its_law(eta, variance, steps):
    process, count = make_process("cosine", 200), 4000
    model = DDPM(mixture_noise(process), schedule=process, variance=variance, levels=None)
    drawn = sample_ddpm(model, (2,), count, eta=eta, steps=steps, seed=4, dtype=torch.float64)
    mode = torch.cdist(drawn, CENTRES).argmin(-1)
    counts = mode.bincount(minlength=3)
    assert stats.chisquare(counts.numpy(), (WEIGHTS * count).numpy()).pvalue > LEVEL
    for number, centre in enumerate(CENTRES):
        inside = drawn[mode == number]
        error = 1 / math.sqrt(len(inside))
        torch.testing.assert_close(inside.mean(0), centre, atol=4 * WIDTH * error, rtol=0)
        # 200 steps are not infinitely many: widths are up to 4 % off, besides their error.
        assert float((inside.std(0) / WIDTH - 1).abs().max()) < 0.04 + 4 * error / math.sqrt(2)
        assert abs(float(torch.corrcoef(inside.T)[0, 1])) < 4 * error


def test_without_noise_only_the_start_is_random():
    process = make_process("linear", 40)
    x, x_0 = random_states(2, 3), random_states(2, 3, seed=1)
    at = steps_of(10, 10), steps_of(30, 30)
    one, two = (step(process, x, x_0, *at, random_states(2, 3, seed=i), eta=0.0) for i in (2, 3))
    assert torch.equal(one, two)


# Tokens by way of their embeddings ---------------------------------------------------------------


def token_bound(model, token):
    """The three parts of the bound by quadrature, from distributions."""
    process, e = model.process, model.vectors()[token].item()
    end = steps_of(process.steps)
    q = Normal(process.signal(end).sqrt() * e, process.variance(end).sqrt())
    total = float(kl_divergence(q, Normal(torch.zeros(1).double(), torch.ones(1).double())))
    for number in range(1, process.steps + 1):
        t = torch.full((len(GRID),), number)
        at = process.signal(t[:1]).sqrt() * e, process.variance(t[:1]).sqrt()
        chance = Normal(*at).log_prob(GRID).exp() * (GRID[1] - GRID[0])
        log_probs = model.log_probabilities(GRID.float()[:, None, None], t).detach()
        if number == 1:
            nats = -log_probs[:, 0, token].double()
        else:
            x, sigma = GRID[:, None], process.posterior_variance(t - 1, t).sqrt()[:, None]
            truth = process.posterior_mean(torch.full_like(x, e), x, t - 1, t)
            guess = process.posterior_mean(
                model.clean(log_probs)[:, 0].double().detach(), x, t - 1, t
            )
            nats = kl_divergence(Normal(truth, sigma), Normal(guess, sigma))[:, 0]
        total += float((chance * nats).sum())
    return total


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.5])
def test_the_bound_of_tokens_is_above_their_exact_likelihood(strength):
    model = two_tokens(strength, steps=8)
    law = token_law(model)
    assert float(law.sum()) == pytest.approx(1, abs=1e-4)
    for token in (0, 1):
        bound = token_bound(model, token)
        assert bound > -math.log(law[token])
        rows = 4000
        tokens = torch.full((rows, 1), token)
        with torch.no_grad():
            drawn = torch.stack(
                [
                    model.loss_given(
                        Batch.of(tokens),
                        Diffused(torch.full((rows,), t), Noise.for_batch(3, rows), t),
                    ).per_sequence
                    for t in range(1, 9)
                ]
            ).mean(0)
        error = float(drawn.std()) / math.sqrt(rows)
        assert abs(float(drawn.mean()) - bound) < 4 * error
        with torch.no_grad():
            loss = model.loss(Batch.of(tokens), Noise.for_batch(3, rows)).per_sequence
        error = float(loss.std()) / math.sqrt(rows)
        assert abs(float(loss.mean()) - bound) < 4 * error


def test_the_bound_of_the_exact_denoiser_tends_to_the_entropy():
    """Logits of 0 are exact for uniform tokens: all that is left above ln 2 is in the steps."""
    gaps = [token_bound(two_tokens(0.0, steps), 0) - math.log(2) for steps in (16, 64, 256)]
    assert gaps[2] > 0
    for few, many in itertools.pairwise(gaps):
        assert many == pytest.approx(few / 4, rel=0.25)  # it falls as 1 / T


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.5])
def test_sampled_tokens_have_the_law_of_the_chain(strength):
    model, count = two_tokens(strength, steps=8), 20_000
    drawn = sample(model, count, sampler="ddpm", seed=2)
    counts = drawn[:, 0].bincount(minlength=2).double()
    law = token_law(model)
    expected = law / law.sum() * count
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > LEVEL
