"""Estimates of likelihood in their units."""

from __future__ import annotations

import math

from partita.contracts.estimate import Estimate


def test_units():
    estimate = Estimate(math.log(8), 0.1, 4)
    assert math.isclose(estimate.bits, 3)
    assert math.isclose(estimate.perplexity, 8)
    assert math.isclose(estimate.perplexity_error, 0.8)


def test_a_perplexity_that_no_number_holds_is_infinite():
    """Finite weights can be so large that a token costs a thousand nats."""
    estimate = Estimate(710.0, 0.1, 4)
    assert (estimate.perplexity, estimate.perplexity_error) == (math.inf, math.inf)
    assert "perplexity inf" in str(estimate)
    exact = Estimate(710.0, 0.0, 4)
    assert (exact.perplexity, exact.perplexity_error) == (math.inf, 0.0)
