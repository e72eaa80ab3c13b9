"""Estimates of bounds that are known exactly, with the standard errors that the library gives them.

    python -m tests.laws.honesty cases
    python -m tests.laws.honesty plants

Prints JSON: for every case the exact value and some hundreds of estimates, each with a seed of its
own. Plants are faults in the library itself. `test_honest_errors.py` runs this in a process of its
own, where no types are checked and a loss takes a fifth of the time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from partita.likelihood import bounds as likelihood
from partita.likelihood.bounds import nelbo
from tests.laws.tables import random_logits, table_mdlm, table_pgm
from tests.support import bounds as masked
from tests.support import genmd4_laws as genmd4
from tests.support import partition_bounds as partition
from tests.support import score_laws as sedd

SEEDS = 750
REPLICATES = 2
ROWS = 16
NOTICED = 1.25  # a standard error that is so many times too large or too small is noticed
X = torch.tensor([2, 0, 1])


def masked_case(law):
    method = table_mdlm(random_logits(3), schedule="cosine")
    exact = {
        "continuous": lambda: masked.continuous_bound(method, X),
        "discrete": lambda: masked.discrete_bound(method, X, 4),
        "subset": lambda: masked.subset_bound(method, X),
    }[law]()
    return method, X, exact, {"corruption": masked.CORRUPTIONS[law]}


def partition_case(law):
    """Both groups of each partition."""
    logits, x = random_logits(3, 1), torch.tensor([0, 1, 1])
    method = table_pgm(logits, schedule="cosine")
    exact = partition.exact_bound(law, logits, x, 2)
    return method, x, exact, {"corruption": partition.CORRUPTIONS[law]}


def genmd4_case():
    method = genmd4.table_genmd4()
    return method, X[:2], float(genmd4.continuous_bound(method, X[:2]).detach()), {}


def sedd_case(chain):
    method = sedd.model_of(chain)
    return method, X[:2], sedd.bound_of(method, X[:2]), {}


CASES: dict[str, Callable[[], tuple]] = {
    **{f"mdlm, {law}": lambda law=law: masked_case(law) for law in masked.CORRUPTIONS},
    **{f"pgm, {law}": lambda law=law: partition_case(law) for law in partition.CORRUPTIONS},
    "genmd4": genmd4_case,
    "sedd": lambda: sedd_case("absorbing"),
    "sedd-uniform": lambda: sedd_case("uniform"),
}
PLANTS = {"errors too large": NOTICED, "errors too small": 1 / NOTICED}


@contextmanager
def wrong_errors(factor: float) -> Iterator[None]:
    """The library's standard errors are so many times what they should be."""
    right = likelihood.standard_error
    likelihood.standard_error = lambda replicates: factor * right(replicates)
    yield
    likelihood.standard_error = right


def estimated(case: str) -> dict[str, object]:
    """The exact nats per token, the estimates of them, and their standard errors."""
    method, x, exact, options = CASES[case]()
    tokens = x.expand(ROWS, -1)
    estimates = [
        nelbo(method, tokens, replicates=REPLICATES, seed=seed, **options) for seed in range(SEEDS)
    ]
    return {
        "exact": exact / len(x),
        "nats": [estimate.nats for estimate in estimates],
        "errors": [estimate.nats_error for estimate in estimates],
    }


def planted(name: str) -> dict[str, object]:
    """One of the cases, with a fault in the library."""
    with wrong_errors(PLANTS[name]):
        return estimated("mdlm, subset")


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen, how = {"cases": (CASES, estimated), "plants": (PLANTS, planted)}[sys.argv[1]]
    json.dump({name: how(name) for name in chosen}, sys.stdout)
