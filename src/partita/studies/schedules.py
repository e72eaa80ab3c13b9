"""GenMD4's learned schedules: the tokens with the smallest and the largest exponents.

alpha_i(t) = 1 - t^(w_i) is the probability that token i is still visible at time t. Sampling goes
from t = 1 to t = 0: tokens with a large exponent are revealed early, those with a small one late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text

from partita.data.tokenizers import Tokenizer
from partita.errors import require, require_int
from partita.files.atomic import check_file
from partita.methods.genmd4 import GenMD4
from partita.plotting import matplotlib, picture


@dataclass(frozen=True)
class TokenSchedule:
    """One token and its exponent."""

    token: int
    text: str
    exponent: float


@dataclass(frozen=True)
class Extremes:
    """The tokens with the smallest and the largest exponents, the most extreme first, disjoint."""

    smallest: list[TokenSchedule]
    largest: list[TokenSchedule]


def extremes(
    method: GenMD4, tokenizer: Tokenizer, count: int = 10, among: set[int] | None = None
) -> Extremes:
    """The `count` tokens with the smallest exponents and as many with the largest.

    `among` are the tokens to consider: the exponent of one that never occurs is not trained.
    """
    require_int(count, "count")
    tokens = method.mask_id
    problem = f"has {tokenizer.vocab_size} tokens, the model has {tokens}"
    remedy = "use the one that the model was trained with"
    require(tokenizer.vocab_size == tokens, "tokenizer", problem, remedy)
    exponents = method.exponents.detach().double().cpu()
    order = torch.argsort(exponents, stable=True).tolist()
    order = [token for token in order if among is None or token in among]
    low = min(count, (len(order) + 1) // 2)
    high = min(count, len(order) - low)

    def row(token: int) -> TokenSchedule:
        return TokenSchedule(token, tokenizer.decode([token]), float(exponents[token]))

    rising, falling = order[:low], order[::-1][:high]
    return Extremes([row(token) for token in rising], [row(token) for token in falling])


def schedule_table(found: Extremes) -> Table:
    """Both lists side by side, for a terminal. Texts are quoted, so that blanks can be seen."""
    table = Table()
    for title in ("smallest w", "token", "id", "largest w", "token", "id"):
        table.add_column(title, justify="left" if title == "token" else "right")
    for index in range(max(len(found.smallest), len(found.largest))):
        sides = [side[index : index + 1] for side in (found.smallest, found.largest)]
        cells = [(f"{s.exponent:.4f}", repr(s.text), str(s.token)) for side in sides for s in side]
        # As texts: a token such as [bold] is not markup.
        table.add_row(*(Text(cell) for row in cells for cell in row))
    return table


def draw_schedules(method: GenMD4, found: Extremes, path: str | Path, count: int = 5) -> None:
    """Write a picture (PNG) of alpha_i(t) of the extreme tokens, at most `count` on each side."""
    path = Path(path)
    check_file(path, "path")
    times = torch.linspace(0, 1, 201, dtype=torch.float64)
    with torch.no_grad():
        alpha = method.alpha(times.to(method.raw.device)).cpu().numpy()
    with picture(path, 8, 5) as (figure, (axes,)):
        maps = matplotlib().colormaps
        for every, colors in ((found.smallest, "Blues"), (found.largest, "Oranges")):
            side = every[:count]
            for rank, row in enumerate(side):
                color = maps[colors](0.95 - 0.55 * rank / len(side))
                axes.plot(times.numpy(), alpha[:, row.token], color=color, label=_label(row))
        axes.plot([0, 1], [1, 0], color="grey", linestyle=":", label="w = 1 (linear)")
        axes.set(xlabel="t", ylabel="share that is visible, alpha(t)")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small", title="smallest w, largest w")


def _label(row: TokenSchedule) -> str:
    """Quoted and in ASCII, which every font has; a dollar sign would start a formula."""
    shown = ascii(row.text)
    shown = shown if len(shown) <= 24 else shown[:21] + "..."
    return shown.replace("$", r"\$") + f"  w = {row.exponent:.3f}"
