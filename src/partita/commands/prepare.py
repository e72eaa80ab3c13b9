"""`partita prepare`: turn text or images into tokens on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from partita.commands.parsing import reader
from partita.commands.terminal import Terminal, Words
from partita.config.data import NAMES, DataOptions, TokenizerOptions
from partita.data.kinds import kind_of
from partita.data.prepared import PrepareCallback, Prepared
from partita.errors import naming, require


@dataclass(frozen=True)
class Options:
    """The sections of a recipe on which the tokens depend."""

    corpus: str | None = None
    data: DataOptions = DataOptions()  # noqa: RUF009 - frozen
    tokenizer: TokenizerOptions = TokenizerOptions()  # noqa: RUF009


options = reader(
    "prepare",
    "Turn text or images into tokens on disk. The input is plain text, JSONL or Parquet, also\n"
    "compressed (.gz, .xz, .zst), in a file or a folder of files, or a Hugging Face data set\n"
    "(hf:NAME). It may be larger than memory. With a tokenizer for images (pixels, or one\n"
    "that `partita vq` trained), the input is a set of images. The result is cached: the same\n"
    "data with the same options are not processed again. `partita train` does all this\n"
    "itself.",
    [
        "partita prepare notes.txt",
        "partita prepare corpus/ --tokenizer.name bpe --tokenizer.vocab_size 8192",
        "partita prepare dump.jsonl.gz --data.field body --data.validation_fraction 0.01",
        "partita prepare digits --tokenizer.name pixels",
    ],
    Options,
    corpus="?a file, a folder whose files are read, hf:NAME, or a set of images",
)


def run(words: Sequence[str]) -> None:
    """Prepare, and show how much has been read."""
    chosen = options(words)
    data = chosen.data if chosen.corpus is None else replace(chosen.data, path=chosen.corpus)
    require(bool(data.path), "corpus", "no text is given", "name a file: partita prepare FILE")
    console, kind = Terminal(), chosen.tokenizer.kind
    with naming(NAMES), counter(console, kind.unit) as count:
        if console.animates:
            count.say(f"reading {kind.name}")
        prepared = kind.prepare(data, chosen.tokenizer, callback=count)
    report(console, prepared)


class counter(PrepareCallback):  # noqa: N801 - reads as a function
    """A spinner that shows how much has been read or checked; it appears with the first count."""

    def __init__(self, console: Terminal, unit: str) -> None:
        self.bar = Progress(
            SpinnerColumn(),
            Words(console, "{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=None)
        self.unit, self.started = unit, False

    def __enter__(self) -> counter:
        return self

    def on_prepare(self, characters: int) -> None:
        self.say(f"reading: {characters:,} {self.unit}")

    def on_check(self, done: int, total: int) -> None:
        self.say(f"checking tokens: {done >> 20:,} of {total >> 20:,} MiB")

    def say(self, words: str) -> None:
        """Show what is being done."""
        if not self.started:
            self.bar.start()
            self.started = True
        self.bar.update(self.task, description=words)

    def __exit__(self, *_: object) -> None:
        if self.started:
            self.bar.stop()


def report(console: Terminal, prepared: Prepared) -> None:
    """Print how many tokens there are, and where."""
    how = "Prepared" if prepared.fresh else "Nothing changed since it was prepared:"
    console.print(f"{how} {summary(prepared)}")
    console.say(str(prepared.folder))


def summary(prepared: Prepared) -> str:
    """The number of tokens, as text."""
    each = kind_of(prepared.tokenizer).each
    count = prepared.train.manifest["documents"]
    return (
        f"{len(prepared.train):,} tokens for training "
        f"({count:,} {each}{'s' if count != 1 else ''}) and {len(prepared.valid):,} for "
        f"validation ({prepared.valid.manifest['documents']:,}), {prepared.tokenizer.vocab_size:,} "
        "ids."
    )
