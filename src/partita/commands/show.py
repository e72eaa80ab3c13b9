"""Show text while it is written: hidden positions as blocks, new tokens in color."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.live import Live
from torch import Tensor

from partita.commands.terminal import Part, Terminal
from partita.data.tokenizers import BPETokenizer, Tokenizer
from partita.samplers import Step
from partita.samplers.base import Callback

FRAME_SECONDS = 0.1  # slow enough to follow
FRAMES = 60  # the most frames, so that a long text does not take long to watch
PRINTED_FRAMES = 4  # if the output cannot be animated
NEW = "bold green"


def picture(tokenizer: Tokenizer, tokens: Tensor, shown: Tensor, new: set[int]) -> list[Part]:
    """One sequence: hidden positions as blocks, new tokens in color.

    Neighbors of one kind are decoded together, since a character may be several tokens.
    """
    hidden = " ▒▒▒" if isinstance(tokenizer, BPETokenizer) else "▒"
    parts, run, style = list[Part](), list[int](), ""
    for position, (token, visible) in enumerate(zip(tokens.tolist(), shown.tolist(), strict=True)):
        wanted = NEW if position in new else ""
        if run and (not visible or wanted != style):
            parts.append((tokenizer.decode(run), style))
            run = []
        if visible:
            run.append(token)
            style = wanted
        else:
            parts.append((hidden, "dim"))
    return [*parts, (tokenizer.decode(run), style)]


@contextmanager
def animated(console: Terminal, tokenizer: Tokenizer) -> Iterator[Callback]:
    """A callback that shows the first sample: animated in a terminal, else as some frames."""
    frames = FRAMES if console.animates else PRINTED_FRAMES
    new: set[int] = set()
    with Live(console=console, auto_refresh=False) as live:

        def draw(frame: list[Part]) -> None:
            if console.animates:
                live.update(console.styled(*frame), refresh=True)
                time.sleep(FRAME_SECONDS)
            else:
                console.write(*frame)
                console.print()

        growth = _Growth(tokenizer, frames, draw)

        def show(step: Step) -> None:
            state = step.state
            if state.lengths is not None or not state.settled:
                growth.show(step)
                return
            new.update(step.positions[step.rows == 0].tolist())
            goes_on = bool(state.remaining[0].any())
            if not new or (goes_on and len(new) * frames < int(state.wanted[0].sum())):
                return
            frame = picture(tokenizer, state.tokens[0], state.revealed[0], new)
            new.clear()
            draw(frame)

        yield show
        growth.end()


class _Growth:
    """A text whose tokens move or change, drawn at evenly spaced steps.

    Either it grows: tokens are inserted between others, which keep their order. Or its length is
    fixed, and its tokens change.
    """

    def __init__(
        self, tokenizer: Tokenizer, frames: int, draw: Callable[[list[Part]], None]
    ) -> None:
        self.tokenizer, self.frames, self.draw = tokenizer, frames, draw
        self.fresh: list[bool] = []
        """For each token, in order, whether it is new since the last frame."""
        self.seen: list[int] = []
        self.waiting: list[Part] | None = None
        self.drawn = list[Part]()

    def show(self, step: Step) -> None:
        """Draw the text at evenly spaced steps; keep it at others, as it may be the last."""
        if step.state.lengths is None:
            self.waiting = self._changed(step.state.tokens[0])
        else:
            self.waiting = self._grown(step, int(step.state.lengths[0]))
        total = step.total or 1
        if step.index * self.frames // total < (step.index + 1) * self.frames // total:
            self.end()

    def _grown(self, step: Step, length: int) -> list[Part]:
        tokens, shown = step.state.tokens[0, :length], step.state.revealed[0, :length]
        places = shown.nonzero()[:, 0].tolist()
        newest, older = set(step.positions[step.rows == 0].tolist()), iter(self.fresh)
        self.fresh = [place in newest or next(older, False) for place in places]
        new = {place for place, fresh in zip(places, self.fresh, strict=True) if fresh}
        return picture(self.tokenizer, tokens, shown, new)

    def _changed(self, tokens: Tensor) -> list[Part]:
        """The text with all tokens shown except masks."""
        ids = tokens.tolist()
        before = self.seen if self.fresh else ids
        kept = self.fresh or [False] * len(ids)
        pairs = zip(ids, before, kept, strict=True)
        self.fresh = [fresh or token != old for token, old, fresh in pairs]
        self.seen = ids
        new = {place for place, fresh in enumerate(self.fresh) if fresh}
        return picture(self.tokenizer, tokens, tokens < self.tokenizer.vocab_size, new)

    def end(self) -> None:
        """Draw the last text, if it was not drawn."""
        if self.waiting is not None and self.waiting != self.drawn:
            self.draw(self.waiting)
            self.drawn, self.fresh = self.waiting, [False] * len(self.fresh)
        self.waiting = None
