"""`partita accuracy`: questions out of files made by hand, numbers for people and machines."""

from __future__ import annotations

import gzip
import json
import lzma
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from partita.commands import main
from partita.data.documents import Corpus
from partita.data.tokenizers import BPETokenizer, ByteTokenizer
from partita.errors import InputError
from partita.evaluation.cloze import Answers, Blank, Mean
from partita.evaluation.questions import (
    Choice,
    Choices,
    blank_results,
    choice_results,
    choices,
    last_words,
    words_inside,
)
from partita.models.trained import load

BYTES = ByteTokenizer()
EXAMPLE = Path(__file__).parents[2] / "examples" / "make_choices.py"
SENTENCES = "\n\n".join(
    f"This is note {n}. It has sentence {n} too. And it ends with {n}!" for n in range(20)
)
SIZES = "--network.width 16 --network.depth 2 --network.heads 2 --network.length 24"


def text_of(blank, tokenizer=BYTES):
    """A blank with its answer between brackets."""
    parts = blank.ids[: blank.start], blank.answer, blank.ids[blank.stop :]
    return "{}[{}]{}".format(*map(tokenizer.decode, parts))


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer.train(["the cat sat on the mat. the dog sat on the log. "] * 9, 300)


# Questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_last_words(tmp_path, suffix):
    path = tmp_path / f"passages.txt{suffix}"
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(pack(b"the cat sat\n\nit said : ` no '' \nand so on it went\n"))
    found = last_words(Corpus(path), BYTES, 12)
    assert list(map(text_of, found.blanks)) == ["the cat [sat]", "id : ` no ['']", "o on it [went]"]
    assert found.cut == 2
    assert len(last_words(Corpus(path), BYTES, 12, 2).blanks) == 2
    short = last_words(Corpus(path), BYTES, 3)
    assert (list(map(text_of, short.blanks)), short.left_out) == (["[sat]", " ['']"], 1)


def test_words_of_a_byte_pair_encoding_take_their_space_along(tmp_path, bpe):
    path = tmp_path / "passages.txt"
    path.write_text("the cat sat\non the mat.\n")
    found = last_words(Corpus(path), bpe, 50).blanks
    assert [text_of(blank, bpe) for blank in found] == ["the cat[ sat]", "on the[ mat.]"]
    assert [blank.ids for blank in found] == [bpe.encode("the cat sat"), bpe.encode("on the mat.")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("one\ntwo words\n", "passages.txt text 1 has one word alone; leave it out"),
        ("two words\n", "holds 1 text, and a standard error needs two"),
        (
            "two words\nanother " + "a" * 13,
            "holds 1 text that the model is long enough for (1 it is not), and",
        ),
    ],
)
def test_passages_that_cannot_be_asked(tmp_path, content, problem):
    (tmp_path / "passages.txt").write_text(content)
    with pytest.raises(InputError) as refused:
        last_words(Corpus(tmp_path / "passages.txt"), BYTES, 12)
    assert problem in str(refused.value)
    assert refused.value.argument == "file"


def test_choices_of_a_file(tmp_path):
    rows = [
        {"context": "two and two are", "choices": ["four", " six"], "answer": 0},
        {"context": "", "choices": ["a", "b", "c"], "answer": 2},
        {"context": "so\n", "choices": ["x y", "z"], "answer": 1},
    ]
    path = tmp_path / "quiz.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = choices(path, BYTES, 12)
    assert [list(map(text_of, question.endings)) for question in found.questions] == [
        ["two are [four]", " two are[ six]"],
        ["[a]", "[b]", "[c]"],
        ["so\n[x y]", "so\n[z]"],
    ]
    assert [question.answer for question in found.questions] == [0, 2, 1]
    assert (found.cut, len(found.blanks)) == (2, 7)
    assert len(choices(path, BYTES, 12, 2).questions) == 2
    short = choices(path, BYTES, 3)
    assert (len(short.questions), short.left_out) == (2, 1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("[1]", "line 2 is no question"),
        ('{"context": "a", "choices": ["b", "c"]}', "line 2 is no question"),
        ('{"context": 3, "choices": ["b", "c"], "answer": 0}', "line 2: context is no text"),
        ('{"context": "a", "choices": ["b"], "answer": 0}', "choices are no list of two or more"),
        ('{"context": "a", "choices": ["b", " "], "answer": 0}', "choices are no list of two"),
        ('{"context": "a", "choices": "bc", "answer": 0}', "choices are no list of two or more"),
        ('{"context": "a", "choices": ["b", "c"], "answer": 2}', "from 0 to 1, got 2"),
        ('{"context": "a", "choices": ["b", "c"], "answer": true}', "from 0 to 1, got True"),
        ('{"context": "a", "choices": ["b", "\\ud800"], "answer": 0}', "is no Unicode text"),
        (
            '{"context": "a", "choices": ["b", "0123456789abc"], "answer": 0}',
            "holds 1 question that the model is",
        ),
        ("{", "line 2 is not JSON"),
        ("", "holds 1 question, and"),
    ],
)
def test_questions_that_cannot_be_asked(tmp_path, row, problem):
    good = '{"context": "a", "choices": ["b", "c"], "answer": 0}'
    (tmp_path / "quiz.jsonl").write_text(f"{good}\n{row}\n")
    with pytest.raises(InputError) as refused:
        choices(tmp_path / "quiz.jsonl", BYTES, 12)
    assert problem in str(refused.value)


def test_words_inside_a_text(tmp_path):
    path = tmp_path / "test.txt"
    path.write_text(
        "don't hide 3rd it's; but hide these words, all\n\nof them, and no others.\n" * 9
    )
    corpus = Corpus(path)
    found = words_inside(corpus, BYTES, 20, 1000).blanks
    words = {BYTES.decode(blank.answer) for blank in found}
    assert words == {"hide", "but", "these", "words", "all", "them", "and", "no", "others"}
    for blank in found:
        assert len(blank.ids) == 20
        assert abs(blank.start - (20 - blank.stop)) <= 1  # in the middle
        assert BYTES.decode(blank.ids) in path.read_text()
    few = words_inside(corpus, BYTES, 20, 5, seed=1).blanks
    assert few == words_inside(corpus, BYTES, 20, 5, seed=1).blanks
    assert few == words_inside(corpus, BYTES, 20, 9, seed=1).blanks[:5]
    assert few != words_inside(corpus, BYTES, 20, 5, seed=2).blanks
    with pytest.raises(InputError, match="has no word with 900 tokens around it"):
        words_inside(corpus, BYTES, 900, 5)


def test_words_inside_a_text_of_byte_pairs(tmp_path, bpe):
    path = tmp_path / "test.txt"
    path.write_text("the cat sat on the mat. the dog sat on the log. " * 40)
    for blank in words_inside(Corpus(path, documents="file"), bpe, 30, 20).blanks:
        assert len(blank.ids) == 30
        assert bpe.decode(blank.answer)[0] == " "
        assert bpe.decode(blank.ids) in path.read_text()


# Numbers -----------------------------------------------------------------------------------------


def test_means_have_an_error_over_questions_and_one_of_the_draws():
    values = torch.tensor([[1.0, 5.0], [3.0, 7.0]], dtype=torch.float64)
    mean = Mean.of(values)
    assert (mean.value, mean.error, mean.draws_error) == pytest.approx((4, 2, 1))
    assert Mean.of(values[:1]).draws_error == 0


def test_results_of_blanks():
    answers = Answers(
        torch.tensor([True, False]), torch.tensor([[2.0, 6.0]], dtype=torch.float64).log()
    )
    results = blank_results(answers, [Blank([1, 2, 3], 1, 3), Blank([1], 0, 1)])
    assert (results["accuracy"], results["accuracy_error"]) == pytest.approx((0.5, 0.5))
    assert results["bits_per_answer"] == pytest.approx((1 + 2.584962) / 2)
    assert results["bits_per_token"] == pytest.approx((1 + 2.584962) / 3)
    assert results["tokens_per_answer"] == 1.5


def test_results_of_choices():
    """Per token the long ending wins, altogether the short one does."""

    def ending(size):
        return Blank([0] * (size + 1), 1, size + 1)

    asked = Choices([Choice([ending(1), ending(4)], 1), Choice([ending(1)] * 3, 0)], 0)
    nats = torch.tensor([[2.0, 4.0, 1.0, 2.0, 3.0]], dtype=torch.float64)
    results = choice_results(Answers(torch.zeros(5, dtype=torch.bool), nats), asked)
    assert (results["accuracy"], results["accuracy_raw"]) == (1.0, 0.5)
    assert (results["accuracy_error"], results["accuracy_raw_error"]) == (0.0, 0.5)
    assert results["chance"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert results["bits_per_token"] == pytest.approx(5 / 5 / 0.6931472)


def made(*words):
    """What the example ends with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLE), *words])
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as left:
            return left.code
    return 0


# The verb ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accuracy")
    (folder / "test.txt").write_text(SENTENCES)
    (folder / "passages.txt").write_text("\n".join(f"note {n} is short" for n in range(9)))
    pace = f"{SIZES} --training.batch_size 4 --run.previews 0 --data.cache {folder / 'prepared'}"
    assert made(str(folder / "test.txt"), str(folder / "quiz.jsonl"), "--count", "6") == 0
    for name in ("mdlm", "pgm", "ar", "md4"):
        words = f"train {folder / 'test.txt'} --method.name {name} --out {folder / name} {pace}"
        assert main(shlex.split(f"{words} --training.steps 2")) == 0
    return folder


def asked(words, capsys):
    assert main(shlex.split(f"accuracy {words} --json")) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("model", ["mdlm", "pgm", "ar", "md4"])
def test_every_task_of_every_model_that_can(capsys, model):
    for task, file in (("last-word", "passages.txt"), ("choices", "quiz.jsonl")):
        results = asked(f"{model} {file} --task {task} --out out.json", capsys)
        assert results == json.loads(Path("out.json").read_text())
        assert {"date", "device", "torch"} <= set(results["environment"])
        assert results["exact"] == (model == "ar") == (results["bits_per_answer_draws_error"] == 0)
        assert results["sees"] == "left side"
    assert results["chance"] == 0.25
    assert main(shlex.split(f"accuracy {model} quiz.jsonl --task choices")) == 0
    shown = capsys.readouterr().out
    for part in ("chance", "25.0%", "accuracy by bits per token", "accuracy by all bits"):
        assert part in shown
    results = asked(f"{model} test.txt --task infill --count 9 --length 20", capsys)
    assert (results["count"], results["length"]) == (9, 20)
    assert results["sees"] == ("left side" if model == "ar" else "both sides")
    again = asked(f"{model} test.txt --task infill --count 9 --length 20 --batch_size 2", capsys)
    assert again["bits_per_answer"] == pytest.approx(results["bits_per_answer"], rel=1e-5)
    assert main(shlex.split(f"accuracy {model} test.txt --task infill --count 9")) == 0
    shown = capsys.readouterr().out
    assert ("cannot see what follows" in shown) == (model == "ar")
    assert ("at most" in shown) == (model != "ar")


@pytest.mark.usefixtures("here")
def test_bits_of_last_words_are_those_of_the_whole_less_those_of_the_context(capsys):
    results = asked("ar passages.txt --task last-word", capsys)
    model, lines = load("ar"), Path("passages.txt").read_text().splitlines()
    bits = [model.score(line).bits - model.score(line[:-5]).bits for line in lines]
    assert results["bits_per_answer"] == pytest.approx(sum(bits) / len(bits), abs=1e-3)


# The example -------------------------------------------------------------------------------------


def test_questions_are_made_of_a_text(tmp_path):
    text = tmp_path / "notes.txt.xz"
    text.write_bytes(lzma.compress(SENTENCES.encode()))
    words = [str(text), str(tmp_path / "quiz.jsonl"), "--count", "12", "--seed", "3"]
    assert made(*words) == 0
    first = (tmp_path / "quiz.jsonl").read_text()
    rows = [json.loads(line) for line in first.splitlines()]
    assert len(rows) == 12
    for row in rows:
        assert len(set(row["choices"])) == 4
        assert f"{row['context']} {row['choices'][row['answer']]}" in SENTENCES
    assert len({row["answer"] for row in rows}) > 1
    made(*words)
    assert (tmp_path / "quiz.jsonl").read_text() == first
    short = tmp_path / "short.txt"
    short.write_text("One. Two. Three.")
    for bad in ([str(short), words[1]], ["nowhere.txt", words[1]], [*words, "--choices", "1"]):
        assert made(*bad) == 2
    assert (tmp_path / "quiz.jsonl").read_text() == first
