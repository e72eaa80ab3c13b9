"""Hugging Face data sets and tokenizers, without a network: folders, a cache, a small hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from partita.data.documents import Corpus
from partita.data.hugging_face import DataSet
from partita.data.prepare import PrepareOptions, cache_key, prepare
from partita.data.tokenizers import BPETokenizer
from partita.errors import InputError
from tests.support.texts import texts

ROWS = [f"row number {n}, which is short" for n in range(100)]
FIRST, SECOND = BPETokenizer.train("first text", 260), BPETokenizer.train("another one", 262)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """What HF_HOME and HF_HUB_OFFLINE would have set, had they been there at the import."""
    import datasets
    import huggingface_hub

    home = tmp_path / "home"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return home


def write_rows(path, rows, field="text"):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("\n".join(json.dumps({field: row, "n": n}) for n, row in enumerate(rows)))


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "data" / "train.jsonl", ROWS)
    write_rows(tmp_path / "data" / "test.jsonl", ["a test", None, "", "another"])
    return tmp_path / "data"


def keep(home, name, tokenizer, commit="0" * 40):
    """A tokenizer where the hub's own cache keeps it."""
    place = home / "hub" / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots" / commit).mkdir(parents=True)
    (place / "snapshots" / commit / "tokenizer.json").write_text(tokenizer.backend.to_str())


@pytest.mark.parametrize(
    ("path", "data_set"),
    [
        ("hf:name", DataSet("name")),
        ("hf:owner/name?split=test", DataSet("owner/name", None, "test")),
        ("hf:a/b?config=en&split=train[:10%]", DataSet("a/b", "en", "train[:10%]")),
        ("hf:a/b?split=train+test&config=x=y", DataSet("a/b", "x=y", "train+test")),
    ],
)
def test_names(path, data_set):
    assert Corpus(path).data_set == data_set
    assert Corpus(Path(path)).data_set == data_set
    assert Corpus(path).files() == []


@pytest.mark.parametrize(
    "path", ["hf:", "hf:?split=a", "hf:a?spilt=b", "hf:a?split", "hf:a?split="]
)
def test_what_is_no_name(path):
    with pytest.raises(InputError) as caught:
        Corpus(path)
    assert caught.value.argument == "path"


@pytest.mark.usefixtures("offline")
def test_rows_of_a_local_folder(folder):
    corpus = Corpus(f"hf:{folder}")
    assert texts(corpus) == ROWS
    assert texts(Corpus(f"hf:{folder}?split=test")) == ["a test", "another"]
    assert texts(Corpus(f"hf:{folder}?config=default&split=train[:3]")) == ROWS[:3]
    assert corpus.data_set.load().data.cache_files  # on disk, and mapped from there


@pytest.mark.usefixtures("offline")
def test_prepared_once(tmp_path, folder):
    corpus, cache = Corpus(f"hf:{folder}"), tmp_path / "cache"
    first, again = prepare(corpus, cache), prepare(corpus, cache)
    assert (first.fresh, again.fresh) == (True, False)
    assert len(first.train) + len(first.valid) == sum(len(row) + 2 for row in ROWS)


@pytest.mark.usefixtures("offline")
def test_changed_rows_are_never_served_stale(folder):
    """Not even if the file is as long as before and says that it is as old as before."""
    corpus, file = Corpus(f"hf:{folder}"), folder / "train.jsonl"
    keys = {cache_key(corpus, PrepareOptions()), cache_key(corpus, PrepareOptions())}
    keys.add(cache_key(replace(corpus, path=f"{corpus.path}?split=test"), PrepareOptions()))
    assert len(keys) == 2
    before = file.stat()
    file.write_text(file.read_text().replace("short", "brief"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert texts(corpus) == [row.replace("short", "brief") for row in ROWS]
    keys.add(cache_key(corpus, PrepareOptions()))
    write_rows(folder / "train.jsonl", ROWS[:50])
    assert texts(corpus) == ROWS[:50]
    keys.add(cache_key(corpus, PrepareOptions()))
    assert len(keys) == 4


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("path", "field", "argument", "word"),
    [
        ("hf:{}?split=valid", "text", "path", r"\['train', 'test'\]|\['test', 'train'\]"),
        ("hf:{}?config=french", "text", "path", r"french.*\['default'\]"),
        ("hf:{}", "body", "field", "no column 'body'; it has: text, n"),
        ("hf:{}", "n", "field", "row 0 holds no text under 'n' but int"),
        ("hf:{}/nowhere", "text", "path", "which is no folder here"),
        ("hf:owner/name", "text", "path", "'owner/name', which is no folder here"),
        ("hf:{}/../empty", "text", "path", "any data files"),
        ("hf:{}/../broken", "text", "path", "JSON parse error"),
    ],
)
def test_errors_say_what_there_is(folder, path, field, argument, word):
    (folder.parent / "empty").mkdir()
    (folder.parent / "broken").mkdir()
    (folder.parent / "broken" / "a.jsonl").write_text('{"text": "a"}\n{"te')
    with pytest.raises(InputError, match=word) as caught:
        list(Corpus(path.format(folder), field).pieces())
    assert caught.value.argument == argument
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'partita\[datasets\]'"):
        list(Corpus(f"hf:{folder}").pieces())


@pytest.mark.parametrize("name", ["owner/name", "hf:owner/name", "hf:name"])
def test_a_tokenizer_by_name(tmp_path, offline, name):
    (tmp_path / "a.txt").write_text("first text")
    corpus, options = Corpus(tmp_path / "a.txt"), PrepareOptions(name)
    keep(offline, name.removeprefix("hf:"), FIRST)
    key = cache_key(corpus, options)
    prepared = prepare(corpus, tmp_path / "cache", options)
    assert prepared.tokenizer.describe() == FIRST.describe()
    assert prepared.folder.name == key
    keep(offline, name.removeprefix("hf:"), SECOND, commit="1" * 40)
    assert cache_key(corpus, options) != key
    assert prepare(corpus, tmp_path / "cache", options).tokenizer.describe() == SECOND.describe()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["owner/name", "hf:name", "a b/c", "hf:", "folder/tokenizer.json"])
def test_a_tokenizer_that_cannot_be_fetched(tmp_path, name):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match=r"--tokenizer\.name") as caught:
        prepare(Corpus(tmp_path / "a.txt"), tmp_path / "cache", PrepareOptions(name))
    assert caught.value.argument == "tokenizer"
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_file_comes_before_a_name_on_the_hub(tmp_path, offline, monkeypatch):
    keep(offline, "owner/name", FIRST)
    (tmp_path / "owner").mkdir()
    SECOND.backend.save(str(tmp_path / "owner" / "name"))
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    prepared = prepare(Corpus(tmp_path / "a.txt"), tmp_path / "cache", PrepareOptions("owner/name"))
    assert prepared.tokenizer.describe() == SECOND.describe()


class Hub(BaseHTTPRequestHandler):
    """A hub with one repository, "owner/bare", that has no tokenizer."""

    def do_HEAD(self):
        known = self.path.startswith("/owner/bare/")
        self.send_response(404)
        self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


VERB = """
import json, sys
from partita.commands import main
print([main(words) for words in json.loads(sys.argv[1])])
"""


def outcome(calls, **environment):
    """The verb as a user has it, with an environment of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-c", VERB, json.dumps(calls)],
        env=clean | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_hub_says_why(tmp_path, folder, hub):
    words = ["prepare", str(folder), "--tokenizer.name"]
    calls = [[*words, "owner/bare"], [*words, "owner/nobody"]]
    result = outcome(calls, HF_HOME=tmp_path, HF_ENDPOINT=hub, no_proxy="*")
    assert result.stdout.splitlines()[-1] == "[2, 2]", result.stderr
    assert "the repository has no tokenizer.json" in result.stderr
    assert "there is no such repository" in result.stderr


def test_the_verb(tmp_path, folder):
    keep(tmp_path, "owner/name", FIRST)
    words = ["prepare", f"hf:{folder}", "--data.cache", str(tmp_path / "cache")]
    calls = [
        [*words, "--tokenizer.name", "owner/name"],
        [*words, "--tokenizer.name", "owner/name"],
        [*words, "--tokenizer.name", "owner/nobody"],
        ["prepare", f"hf:{folder}?split=no"],
    ]
    result = outcome(calls, HF_HOME=tmp_path, HF_HUB_OFFLINE=1)
    assert result.stdout.splitlines()[-1] == "[0, 0, 2, 2]", result.stderr
    assert "Nothing changed" in result.stdout
    assert "the hub cannot be reached" in result.stderr
    assert 'Unknown split "no"' in result.stderr
