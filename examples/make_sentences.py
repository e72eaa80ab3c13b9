"""The sentences of any text, each once, one on a line, in random order.

    python examples/make_sentences.py text.txt sentences.txt --longest 64
    python examples/make_sentences.py text.txt filled.txt --longest 64 --fill "|"

`--fill` pads every line to the same length, so that a model of fixed length learns where sentences
end. Texts may be compressed.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from partita.data.documents import Corpus
from partita.data.scored_rows import sentences, whole_documents
from partita.errors import InputError
from partita.files.atomic import check_file, write_whole


def main() -> None:
    """Read, choose, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", help="a text of sentences")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--longest", type=int, default=64, help="characters, at most")
    parser.add_argument("--fill", help="a character to fill lines up with")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    options = parser.parse_args()
    if options.fill is not None and len(options.fill) != 1:
        parser.error(f"--fill takes one character, got {options.fill!r}")
    try:
        check_file(options.out, "out")
        texts = (text for text, _ in whole_documents(Corpus(options.text), ""))
        found = (sentence for text in texts for sentence in sentences(text))
        short = dict.fromkeys(
            s for s in found if s.isascii() and len(s) <= options.longest and s[-1] in ".!?"
        )
    except InputError as refused:
        parser.error(str(refused))
    lines = [line for line in short if options.fill is None or options.fill not in line]
    if not lines:
        parser.error(f"{options.text} has no sentence of at most {options.longest} characters")
    random.Random(options.seed).shuffle(lines)
    if options.fill is not None:
        lines = [line.ljust(options.longest, options.fill) for line in lines]
    write_whole(options.out, "\n".join(lines) + "\n")
    print(f"{options.out}: {len(lines):,} sentences")


if __name__ == "__main__":
    main()
