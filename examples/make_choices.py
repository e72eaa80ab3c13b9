"""Multiple-choice questions from any text: which of four sentences comes next?

    python examples/make_choices.py test.txt quiz.jsonl --count 500 --seed 1
    partita accuracy runs/notes-mdlm quiz.jsonl --task choices

Questions are for `partita accuracy`. The context is a few sentences of one paragraph; the choices
are the next sentence and others from elsewhere in the text, in random order. Texts may be
compressed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from partita.data.documents import Corpus
from partita.data.scored_rows import sentences, whole_documents
from partita.errors import InputError
from partita.files.atomic import check_file, write_whole

LOOKED_AT = 20  # sentences drawn for each choice: some are equal, or of the same paragraph


def questions(
    paragraphs: list[list[str]], count: int, choices: int, before: int, seed: int
) -> Iterator[dict[str, object]]:
    """Questions of `before` sentences, the next one, and some from other paragraphs."""
    positions = [
        (number, position)
        for number, paragraph in enumerate(paragraphs)
        for position in range(before, len(paragraph))
    ]
    everything = [(number, sentence) for number, p in enumerate(paragraphs) for sentence in p]
    draw = random.Random(seed)
    for number, position in draw.sample(positions, min(count, len(positions))):
        truth = paragraphs[number][position]
        some = draw.sample(everything, min(len(everything), LOOKED_AT * choices))
        elsewhere = dict.fromkeys(s for n, s in some if n != number and s != truth)
        options = [truth, *elsewhere][:choices]
        if len(options) == choices:
            draw.shuffle(options)
            context = " ".join(paragraphs[number][position - before : position])
            yield {"context": context, "choices": options, "answer": options.index(truth)}


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", help="a text whose paragraphs have several sentences")
    parser.add_argument("out", type=Path, help="the JSONL file to write")
    parser.add_argument("--count", type=int, default=500, help="questions, at most")
    parser.add_argument("--choices", type=int, default=4, help="sentences to choose from")
    parser.add_argument("--before", type=int, default=2, help="sentences of the context")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, least in (("count", 1), ("choices", 2), ("before", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    try:
        check_file(options.out, "out")
        paragraphs = [sentences(text) for text, _ in whole_documents(Corpus(options.text), "")]
    except InputError as refused:
        parser.error(str(refused))
    wanted = options.count, options.choices, options.before, options.seed
    rows = [json.dumps(row, ensure_ascii=False) for row in questions(paragraphs, *wanted)]
    if not rows:
        problem = f"paragraphs with more than {options.before} sentences, or other sentences"
        parser.error(f"{options.text} lacks {problem}")
    write_whole(options.out, "\n".join(rows) + "\n")
    print(f"{options.out}: {len(rows)} questions")


if __name__ == "__main__":
    main()
