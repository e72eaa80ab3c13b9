"""Custom matrices: one for all steps, or one for each."""

from __future__ import annotations

import pytest
import torch

from partita.processes.matrices import Own, make_transition

STEPS, SIZE = 4, 3
MATRICES = (torch.arange(1.0, 1 + STEPS * SIZE**2).double() ** 1.5 % 7 + 0.1).view(
    STEPS, SIZE, SIZE
)
MATRICES = MATRICES / MATRICES.sum(-1, keepdim=True)


@pytest.mark.parametrize("alone", [True, False])
def test_products(alone):
    """Between any two steps; rows, columns and single entries of different steps at once."""
    given = MATRICES[0] if alone else MATRICES
    chain = make_transition(given, SIZE, steps=STEPS if alone else None)
    used = [MATRICES[0 if alone else t] for t in range(STEPS)]
    pairs = [(s, t) for t in range(1, STEPS + 1) for s in range(t)]
    expected = torch.stack(
        [torch.linalg.multi_dot([torch.eye(SIZE).double(), *used[s:t]]) for s, t in pairs]
    )
    for (s, t), matrix in zip(pairs, expected, strict=True):
        torch.testing.assert_close(chain.matrix(s, t), matrix)
    s, t = torch.tensor(pairs).T
    x = torch.arange(SIZE).expand(len(pairs), -1)
    z = x.flip(1)
    torch.testing.assert_close(chain.rows(x, s, t), expected)
    torch.testing.assert_close(chain.columns(x, s, t), expected.mT)
    entries = torch.stack([matrix.flip(1).diagonal() for matrix in expected])
    torch.testing.assert_close(chain.entries(x, z, s, t), entries)


@pytest.mark.parametrize("ends", [[2], [4, 4, 4], [4, 1, 3, 1]])
def test_a_mean_is_pushed_through_its_own_steps(ends):
    chain = make_transition(MATRICES, SIZE)
    mean = torch.rand(len(ends), 5, SIZE, generator=torch.Generator().manual_seed(0)).double()
    found = chain.push(mean, torch.tensor(ends))
    for row, end in enumerate(ends):
        torch.testing.assert_close(found[row], mean[row] @ chain.matrix(0, end))


def test_matrices_have_no_mask_unless_said():
    assert (Own(MATRICES).tokens, Own(MATRICES, masks=True).tokens) == (SIZE, SIZE - 1)
