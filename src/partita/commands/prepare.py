"""`partita prepare`: text files to tokens on disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from partita.data.documents import Corpus
from partita.data.prepare import Prepared, PrepareOptions, prepare

DEFAULT_CACHE = Path("prepared")


def parser() -> argparse.ArgumentParser:
    """The options of the verb."""
    result = argparse.ArgumentParser(
        prog="partita prepare",
        description="Turn text into tokens on disk, once. Reads plain text, JSONL and Parquet, "
        "plain or compressed (.gz, .xz, .zst), a file or a folder of files, larger than memory if "
        "need be. The result is kept under a name made of everything that went into it: nothing "
        "changed, nothing done.",
        epilog="examples: partita prepare notes.txt; "
        "partita prepare corpus/ --tokenizer bpe --vocab-size 8192; "
        "partita prepare dump.jsonl.gz --field body --valid 0.01",
        allow_abbrev=False,
    )
    result.add_argument("path", type=Path, help="a file, or a folder whose files are all read")
    result.add_argument(
        "--field", default="text", help="field of JSONL and Parquet (default: text)"
    )
    result.add_argument(
        "--documents",
        default="paragraph",
        help="what is a document in plain text: paragraph (up to a blank line), line or file "
        "(default: paragraph)",
    )
    result.add_argument(
        "--tokenizer",
        default="bytes",
        help="bytes, characters, text8, bpe, or the path of a tokenizer.json (default: bytes)",
    )
    result.add_argument(
        "--vocab-size", type=int, default=4096, help="size of a trained bpe (default: 4096)"
    )
    result.add_argument(
        "--valid",
        type=float,
        default=0.05,
        help="share of tokens set aside for validation, in whole documents (default: 0.05)",
    )
    result.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_CACHE,
        help="where to keep the tokens (default: prepared)",
    )
    return result


def run(options: argparse.Namespace) -> None:
    """Prepare, with a counter of what has been read."""
    corpus = Corpus(options.path, options.field, options.documents)
    choice = PrepareOptions(options.tokenizer, options.vocab_size, options.valid)
    console = Console(highlight=False)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} characters"),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("read", total=None)
        prepared = prepare(
            corpus, options.out, choice, lambda read: bar.update(task, completed=read)
        )
    report(console, prepared)


def report(console: Console, prepared: Prepared) -> None:
    """What there is now, and where."""
    how = "Prepared" if prepared.fresh else "Nothing changed since it was prepared:"
    console.print(
        f"{how} {len(prepared.train):,} tokens for training "
        f"({prepared.train.manifest['documents']:,} documents) and {len(prepared.valid):,} for "
        f"validation ({prepared.valid.manifest['documents']:,}), {prepared.tokenizer.vocab_size:,} "
        "ids."
    )
    console.print(str(prepared.folder), soft_wrap=True)
