"""Output of verbs: consoles, bars and JSON that never interpret a text as markup.

File names, prompts, labels and samples may contain anything. Here none of it is markup, an emoji
or a terminal command: on a terminal, characters that would move the cursor, change colors or
reverse the order of letters are shown as symbols or numbers. In a pipe or a file, texts stay as
they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
from partita.files.atomic import parents_made, write_whole

# Characters that do not fit in a layout of lines and cells; rich would drop them silently.
_NO_PLACE = {code: printable(chr(code)) for code in (7, 8, 11, 12, 13)}
Part = tuple[str, str]
"""A text and its style, "" for none."""


class Terminal(Console):
    """A console that prints texts as they are, without markup."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, stderr=stderr)

    @property
    def animates(self) -> bool:
        """Whether its output can be redrawn."""
        return self.is_terminal and not self.is_dumb_terminal

    def shown(self, text: str) -> str:
        """A text as it is displayed on this console."""
        return printable(text) if self.is_terminal else text.translate(_NO_PLACE)

    def styled(self, *parts: Part) -> Text:
        """A text made of parts with styles."""
        return Text.assemble(*((self.shown(text), style) for text, style in parts))

    def write(self, *parts: Part, soft_wrap: bool = True) -> None:
        """Print a line; in a pipe or a file, with exactly its characters."""
        if self.is_terminal:
            self.print(self.styled(*parts), soft_wrap=soft_wrap)
            return
        self.file.write("".join(text for text, _ in parts) + "\n")
        self.file.flush()

    def say(self, text: str) -> None:
        """Print a text without breaking its lines, so that file names stay whole."""
        self.print(text, soft_wrap=True)

    # Everything that is printed passes through these two.

    def render_str(self, text: str, **options: Any) -> Text:
        """A string, also one in a cell or a title, as a text."""
        return super().render_str(self.shown(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of text, without terminal commands except rich's own."""
        for segment in super().render(renderable, options):
            if self.is_terminal and segment.control is None and UNSAFE.search(segment.text):
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


@contextmanager
def telling(console: Terminal, what: str) -> Iterator[Callable[[str], None]]:
    """Show a status line during work; yields the function that changes it.

    If the console cannot redraw, each change prints a line, but `what` does not.
    """
    if not console.animates:
        yield console.say
        return
    # By default, a status reads strings as markup.
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
    """A progress bar with words before and after it, then the remaining time."""
    columns: list[ProgressColumn] = [Words(console, before), BarColumn()]
    columns += [] if after is None else [Words(console, after)]
    return Progress(*columns, TimeRemainingColumn(), console=console, **options)


def passing_bar(console: Terminal) -> Progress:
    """A progress bar that disappears when the work is done."""
    return bar(console, "{task.description}", transient=True, disable=not console.animates)


def deliver(
    console: Terminal,
    results: dict[str, Any],
    table: Callable[[dict[str, Any]], RenderableType],
    out: str | None,
    *,
    as_json: bool,
) -> None:
    """Print results, as JSON or as a table; then write them to a file, if one is named.

    They are printed first, so that a full disk does not lose them.
    """
    print_json(results) if as_json else console.print(table(results))
    save_json(results, out)


def save_json(results: object, out: str | None) -> None:
    """Write results to a file, if one is named."""
    if out is not None:
        with parents_made(Path(out)):
            write_whole(Path(out), json.dumps(results, indent=1))


def print_json(facts: object, indent: int | None = None) -> None:
    """Print facts as JSON, on one line unless `indent` is given."""
    readable = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(facts, ensure_ascii=not readable, indent=indent)
    if sys.stdout.isatty():
        text = UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    print(text)
