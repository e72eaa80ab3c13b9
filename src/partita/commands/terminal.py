"""The one way from a verb to whoever reads: consoles, bars and JSON in which texts are texts.

Names of files, prompts, labels and what models write may hold anything. Here none of it is markup,
an emoji or a command to a terminal: on a terminal, what would move the cursor, change colors or
reverse the order of letters is shown as a picture or by its number. Where no terminal reads, in a
pipe or a file, texts stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from partita.commands.streams import UNSAFE, printable

# What a layout of lines and cells has no place for, and rich would drop without a word.
_NO_PLACE = {code: printable(chr(code)) for code in (7, 8, 11, 12, 13)}


Part = tuple[str, str]
"""A text and its style, "" for none."""


class Terminal(Console):
    """A console that takes texts for texts."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, stderr=stderr)

    @property
    def animates(self) -> bool:
        """Whether what is on it can be drawn anew."""
        return self.is_terminal and not self.is_dumb_terminal

    def shown(self, text: str) -> str:
        """A text as it is laid out here."""
        return printable(text) if self.is_terminal else text.translate(_NO_PLACE)

    def styled(self, *parts: Part) -> Text:
        """A text of parts that may have styles."""
        return Text.assemble(*((self.shown(text), style) for text, style in parts))

    def write(self, *parts: Part, soft_wrap: bool = True) -> None:
        """A text and the end of its line: the very characters, where no terminal reads them."""
        if self.is_terminal:
            self.print(self.styled(*parts), soft_wrap=soft_wrap)
            return
        self.file.write("".join(text for text, _ in parts) + "\n")
        self.file.flush()

    # What everything passes on its way to the terminal.

    def render_str(self, text: str, **options: Any) -> Text:
        """A string, also one in a cell or a title, as a text."""
        return super().render_str(self.shown(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Pieces of text, none of which a terminal obeys but rich's own."""
        for segment in super().render(renderable, options):
            if self.is_terminal and segment.control is None and UNSAFE.search(segment.text):
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


def heading(text: str) -> Text:
    """A text that stands out."""
    return Text(text, style="bold")


@contextmanager
def telling(console: Terminal, what: str) -> Iterator[Callable[[str], None]]:
    """A line that stays while work goes on, and what changes it; lines, where none can be redrawn.

    The first line is not worth one of its own.
    """
    if not console.animates:
        yield lambda text: console.print(text, soft_wrap=True)
        return
    # Of itself, a status reads strings as markup.
    with console.status(Text(console.shown(what))) as status:
        yield lambda text: status.update(Text(console.shown(text)))


class Words(TextColumn):
    """Words about a task, such as "step {task.completed}"."""

    def __init__(self, console: Terminal, pattern: str) -> None:
        super().__init__(pattern, markup=False)
        self.console = console

    def render(self, task: Task) -> Text:
        """The words as they are now."""
        return Text(self.console.shown(self.text_format.format(task=task)))


def bar(console: Terminal, before: str, after: str | None = None, **options: Any) -> Progress:
    """A bar between words before and after it, then the time that is left."""
    columns: list[ProgressColumn] = [Words(console, before), BarColumn()]
    columns += [] if after is None else [Words(console, after)]
    return Progress(*columns, TimeRemainingColumn(), console=console, **options)


def passing_bar(console: Terminal) -> Progress:
    """A bar for work that takes a while, gone when the work is done."""
    return bar(console, "{task.description}", transient=True, disable=not console.animates)


def print_json(facts: object, indent: int | None = None) -> None:
    """Facts for machines, on one line unless indented."""
    readable = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(facts, ensure_ascii=not readable, indent=indent)
    if sys.stdout.isatty():
        text = UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    print(text)
