"""`partita import`: published checkpoints give the numbers that the reference gave.

The files are made of golden cases in the layout that Lightning saves, with everything around the
weights that such files hold. What a stranger may put there instead is in `test_import_safety.py`.
"""

from __future__ import annotations

import collections
import functools
import json
import pathlib
import sys
import types

import huggingface_hub
import pytest
import safetensors.torch
import tokenizers
import torch

from partita import load
from partita.commands import import_model as verb
from partita.commands import main
from partita.contracts.batch import Batch
from partita.files.atomic import sha256
from partita.methods.mdlm import subs
from partita.models.published import archives
from partita.models.published.folding import fold_time
from partita.models.published.reference import load_dit, load_partition
from partita.networks import Transformer
from tests.golden import cases
from tests.support.checkpoints import lightning, other, parameters, state_of, write_tokenizer
from tests.support.partition_oracle import predict_both

CLOSE = {"atol": 2e-5, "rtol": 0.0}
QUERIES = {
    "learned": "learn",
    "positions": "learn+freqs",
    "mean": "learn+freqs+mean",
    "logsumexp": "learn+freqs+logsumexp",
}
MDLM, LINEAR, MLP = "text/mdlm_dit", "text/pgm_text_linear", "text/pgm_text_mlp4"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a tokenizer; nothing is looked up elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def run(*words):
    return main(["import", *words, "--tokenizer", "tokenizer.json", "--length", "16"])


def imported(content, *words):
    """The model that a checkpoint becomes, from the file to the folder and back."""
    torch.save(content, "model.ckpt")
    assert run("model.ckpt", "model", *words) == 0
    return load("model", device="cpu")


def both_ways(state):
    """Words and a checkpoint in which these weights are the average, then the raw ones."""
    names = parameters(state)
    yield [], lightning(other(state), [state[name] for name in names])
    yield ["--weights", "ema"], lightning(other(state), [state[name] for name in names])
    yield ["--weights", "raw"], lightning(state, [other(state)[name] for name in names])
    yield [], lightning(state)


def mdlm_error(model, case):
    """The largest difference to the reference's log-probabilities, everywhere, without a time."""
    tokens, mask_id = case["in.tokens"], case.facts["info"]["mask_index"]
    rows, positions = torch.ones_like(tokens).nonzero(as_tuple=True)
    with torch.no_grad():
        ours = model.method.predict(tokens, tokens != mask_id, rows, positions)
    theirs = subs(case["out.logits_sigma0"], mask_id)[rows, positions]
    return (ours - theirs)[:, :mask_id].abs().max().item()


def pgm_error(model, case, queries):
    """The same for PGM: all tokens of both groups."""
    with torch.no_grad():
        ours, at = predict_both(
            model.method, Batch.of(case["in.tokens"]), case["in.group_idxs"].bool()
        )
    theirs = case[f"out.{QUERIES[queries]}.train"][..., :-1].log_softmax(-1)
    return (ours - theirs[at.rows, at.positions]).abs().max().item()


# The same numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", range(4))
def test_mdlm(way):
    case = cases.own(MDLM)
    words, content = list(both_ways(state_of(case)))[way]
    model = imported(content, *words)
    assert mdlm_error(model, case) < 2e-5
    assert model.recipe.method.name == "mdlm"
    assert not any("modulation" in name for name in model.method.state_dict())


@pytest.mark.parametrize("name", [LINEAR, MLP])
@pytest.mark.parametrize("queries", QUERIES)
def test_pgm(name, queries):
    case = cases.own(name)
    state = state_of(case)
    words, content = next(both_ways(state))
    model = imported(content, *words, "--queries", queries)
    assert pgm_error(model, case, queries) < 2e-5
    assert model.method.network.embed.num_embeddings == model.tokenizer.vocab_size == 36
    assert len(model.sample(1, length=8, steps=4)) == 1


@pytest.mark.parametrize("way", range(4))
def test_pgm_with_each_set_of_weights(way):
    case = cases.own(LINEAR)
    words, content = list(both_ways(state_of(case)))[way]
    assert pgm_error(imported(content, *words), case, "positions") < 2e-5


def test_pgm_answers_from_revealed_tokens_alone():
    """The reference's inference mode: packed clean tokens, some positions asked for."""
    case = cases.own(LINEAR)
    model = imported(lightning(state_of(case)))
    asked = case["in.inf.noisy_positions"]
    real = torch.arange(asked.shape[1]) < case["in.n_noisy"][:, None]
    rows, place = real.nonzero(as_tuple=True)
    with torch.no_grad():
        ours = model.method.predict(
            case["in.tokens"], case["in.group_idxs"] == 0, rows, asked[rows, place]
        )
    theirs = case["out.learn+freqs.inference"][rows, place, :-1].log_softmax(-1)
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_mdlm_that_is_told_the_time():
    case = cases.own(MDLM)
    timed = {"config": {"parameterization": "subs", "time_conditioning": True}}
    content = lightning(state_of(case), hyper_parameters=timed)
    model = imported(content, "--conditioning", "sigma")
    hidden = case["in.xt"] == case.facts["info"]["mask_index"]
    rows, positions = hidden.nonzero(as_tuple=True)
    with torch.no_grad():
        ours = model.method.predict(case["in.xt"], ~hidden, rows, positions, case["in.t"])
    theirs = case["out.logp_time_cond"][rows, positions]
    torch.testing.assert_close(ours.exp(), theirs.exp(), **CLOSE)
    assert model.recipe.method.conditioning == "sigma"
    assert model.recipe.network.norm == "layer"


def test_the_autoregressive_baseline():
    case = cases.own("text/pgm_ar_dit")
    settings = {"config": {"algo": {"name": "ar", "backbone": "dit", "parameterization": "ar"}}}
    model = imported(lightning(state_of(case), hyper_parameters=settings))
    with torch.no_grad():
        ours = model.method.network(case["in.tokens"])
    torch.testing.assert_close(ours, case["out.logits"], **CLOSE)
    assert model.recipe.method.name == "ar"
    write_tokenizer(pathlib.Path("tokenizer.json"), last="<|endoftext|>")
    assert run("model.ckpt", "again") == 0
    rows = load("again", device="cpu").method.network.embed.weight
    assert torch.equal(rows[36], rows[35])  # rows of the reference begin with the end of a document
    assert torch.equal(rows[:36], case["sd.vocab_embed.embedding"][:36])


# The parts ---------------------------------------------------------------------------------------


def test_averages_have_the_order_of_the_state_dict_without_its_buffer():
    longer = "param_names_in_parameters_order"
    for name, key in ((MDLM, "param_names"), (LINEAR, longer), (MLP, longer)):
        case = cases.own(name)
        assert parameters(state_of(case)) == case.facts["info"][key]


@pytest.mark.parametrize("time", [0.0, 0.7])
def test_folding_is_exact_at_any_time(time):
    """In float64, where nothing is lost: the same function, not nearly the same."""
    case = cases.own(MDLM)
    network = load_dit(case.state_dict(), 2, 16).double()
    config = type(network.config)(**vars(network.config) | {"norm": "affine", "time": False})
    folded = Transformer(config).double()
    folded.load_state_dict(fold_time(network.state_dict(), time))
    scalar = torch.full((3,), time)
    with torch.no_grad():
        difference = network(case["in.tokens"], scalar=scalar) - folded(case["in.tokens"])
    assert difference.abs().max() < 5e-6  # norms are computed in float32


@pytest.mark.parametrize("name", [LINEAR, MLP])
@pytest.mark.parametrize("queries", QUERIES)
def test_partition_networks_with_the_references_weights(name, queries):
    case = cases.own(name)
    network = load_partition(case.state_dict(), 2, 16, queries)
    groups = case["in.group_idxs"].bool()
    with torch.no_grad():
        for scalar, key in ((None, "train"), (case["in.sigma"], "train_sigma")):
            logits, at = network.both(case["in.tokens"], groups, scalar=scalar)
            theirs = case[f"out.{QUERIES[queries]}.{key}"][at.rows, at.positions, :-1]
            torch.testing.assert_close(logits, theirs, **CLOSE)


@pytest.mark.parametrize(
    "prefix", ["", "backbone.", "module.", "_orig_mod.", "backbone._orig_mod.", "module.backbone."]
)
def test_prefixes_of_wrappers_are_dropped(prefix):
    case = cases.own(MDLM)
    assert mdlm_error(imported(lightning(state_of(case), prefix=prefix)), case) < 2e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_other_types_become_float32(dtype):
    case = cases.own(MDLM)
    rounded = {name: tensor.to(dtype) for name, tensor in state_of(case).items()}
    once = imported(lightning({name: tensor.float() for name, tensor in rounded.items()}))
    torch.save(lightning(rounded), "rounded.ckpt")
    assert run("rounded.ckpt", "rounded") == 0
    twice = load("rounded", device="cpu").method.state_dict()
    assert all(
        torch.equal(tensor, twice[name]) for name, tensor in once.method.state_dict().items()
    )


def test_safetensors_are_read_too():
    case = cases.own(LINEAR)
    state = {f"backbone.{name}": tensor for name, tensor in state_of(case).items()}
    safetensors.torch.save_file(state, "model.safetensors")
    assert run("model.safetensors", "plain") == 0
    assert pgm_error(load("plain", device="cpu"), case, "positions") < 2e-5


def test_a_state_dict_by_itself():
    case = cases.own(LINEAR)
    torch.save(state_of(case), "model.pt")
    assert run("model.pt", "plain") == 0
    assert pgm_error(load("plain", device="cpu"), case, "positions") < 2e-5


def test_tensors_that_are_views_of_others():
    case = cases.own(MDLM)
    state = state_of(case)
    for name, tensor in state.items():
        if tensor.ndim == 2:  # transposed in memory, and inside of something larger
            wide = torch.randn(tensor.shape[1] + 2, tensor.shape[0] + 3)
            wide[1:-1, 2:-1] = tensor.T
            state[name] = wide[1:-1, 2:-1].T
    content = lightning(state)
    content["state_dict"] = {f"backbone.{name}": tensor for name, tensor in state.items()}
    assert mdlm_error(imported(content), case) < 2e-5


def test_keys_can_be_left_out_on_purpose():
    case = cases.own(MDLM)
    state = state_of(case)
    content = lightning(other(state), [state[name] for name in parameters(state)])
    for name, tensor in other(state).items():
        content["state_dict"][f"teacher.backbone.{name}"] = tensor
    content["state_dict"]["noise.rate"] = torch.ones(3)
    assert mdlm_error(imported(content, "--skip", "teacher.,noise."), case) < 2e-5


def test_heads_where_the_file_does_not_tell(capsys):
    case = cases.own(MDLM)
    state = {name: tensor for name, tensor in state_of(case).items() if "rotary" not in name}
    torch.save(lightning(state), "model.ckpt")
    assert run("model.ckpt", "model") == 2
    problem = "--heads: cannot be determined: the width 32 is no multiple of 64; give --heads"
    assert capsys.readouterr().err == f"partita: {problem}\n"
    assert mdlm_error(imported(lightning(state), "--heads", "2"), case) < 2e-5


# What surrounds the weights ----------------------------------------------------------------------

built = []


def build(*arguments):
    built.append(arguments)
    return Recorder()


class Recorder:
    """Says so if anything ever rebuilds it."""

    def __reduce__(self):
        return build, ("called",), {"state": 1}, iter([1, 2]), iter([("key", "value")])

    def __setstate__(self, state):
        built.append(state)


class Old:
    """Rebuilt through `__new__`."""

    def __new__(cls, *arguments):
        built.append(arguments)
        return super().__new__(cls)

    def __getnewargs__(self):
        return ("new",)


@pytest.fixture
def surroundings(monkeypatch):
    """Everything that hyper-parameters may hold; one class is gone when they are read."""
    module = types.ModuleType("configuration_library")
    exec("class Node(dict):\n    pass", module.__dict__)
    module.Node.__module__ = "configuration_library"
    monkeypatch.setitem(sys.modules, "configuration_library", module)
    node = module.Node(width=32)
    node.parent, node.content = node, {"deep": [module.Node()]}
    held = {
        "config": node,
        "folder": pathlib.Path("/data"),
        "recorder": [Recorder(), Old()],
        "partial": functools.partial(print, "called", end=""),
        "defaults": collections.defaultdict(list, {"a": [1]}),
        "set": {1, 2},
        "frozen": frozenset({3}),
        "bytes": [b"a", bytearray(b"b"), 1 + 2j, range(3), -(10**30), None, 1.5],
        "tokenizer": tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")),
        "size": torch.Size([1, 2]),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "module": torch.nn.Linear(2, 2),
        "generator": torch.ones(2, dtype=torch.complex64),
    }
    held["self"] = held
    return held


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_around_the_weights_is_rebuilt(surroundings, protocol, capsys):
    case = cases.own(MDLM)
    content = lightning(state_of(case), hyper_parameters=surroundings, callbacks=[Recorder()])
    torch.save(content, "model.ckpt", pickle_protocol=protocol)
    del sys.modules["configuration_library"]
    built.clear()
    assert run("model.ckpt", "model", "--method", "mdlm") == 0
    assert built == []
    assert "called" not in capsys.readouterr().out
    assert mdlm_error(load("model", device="cpu"), case) < 2e-5


def test_what_is_not_needed_is_not_read(monkeypatch):
    """An optimiser's state may be twice the weights."""
    case = cases.own(MDLM)
    state = state_of(case)
    average = [state[name] for name in parameters(state)]
    torch.save(lightning(other(state), average), "model.ckpt")
    read = []
    part = archives.Archive._part

    def watched(self, name, start, size):
        read.append((name, size))
        return part(self, name, start, size)

    monkeypatch.setattr(archives.Archive, "_part", watched)
    assert run("model.ckpt", "model") == 0
    numbers = sum(size for name, size in read if name.startswith("data/"))
    assert numbers == sum(4 * tensor.numel() for tensor in state.values())


# What comes out ----------------------------------------------------------------------------------


def test_what_is_printed_and_kept(capsys):
    case = cases.own(LINEAR)
    words, content = next(both_ways(state_of(case)))
    model = imported(content, *words)
    out = capsys.readouterr().out
    parameters = sum(tensor.numel() for tensor in model.method.state_dict().values())
    assert [line.strip().split(maxsplit=1) for line in out.splitlines()[-6:-1]] == [
        ["method", "pgm (PartitionDIT, time layers folded)"],
        ["parameters", f"{parameters:,}"],
        ["network", "2 + 2 blocks (encoder and decoder) of width 32, 2 heads"],
        ["weights", "ema"],
        ["tokenizer", "tokenizer.json, 36 tokens"],
    ]
    assert out.splitlines()[-1] == "Try: partita sample model"
    facts = model.provenance
    assert (facts["source"], facts["weights"], facts["step"]) == ("model.ckpt", "ema", 1000)
    assert facts["sha256"] == sha256(pathlib.Path("model.ckpt"))
    assert "imported from model.ckpt" in pathlib.Path("model/README.md").read_text()


def test_a_saved_model_is_the_same_model():
    case = cases.own(LINEAR)
    model = imported(lightning(state_of(case)), "--queries", "mean")
    model.save("again")
    again = load("again", device="cpu")
    assert again.recipe == model.recipe
    assert again.provenance == model.provenance
    assert pgm_error(again, case, "mean") < 2e-5
    written = json.loads(pathlib.Path("model/config.json").read_text())
    assert written["recipe"]["network"]["options"]["queries"] == "mean"
    assert main(["info", "again"]) == 0


def test_files_on_the_hub(monkeypatch, capsys):
    case = cases.own(MDLM)
    torch.save(lightning(state_of(case)), "fetched.ckpt")
    asked = []

    def fetch(where, file):
        asked.append((where.repository, file, where.revision))
        return pathlib.Path("fetched.ckpt")

    monkeypatch.setattr(verb, "fetch", fetch)
    assert run("hf:someone/models/sub/mdlm.ckpt@v1", "model") == 0
    assert run("hf:someone/models/mdlm.ckpt", "more") == 0
    assert asked == [
        ("someone/models", "sub/mdlm.ckpt", "v1"),
        ("someone/models", "mdlm.ckpt", None),
    ]
    assert "Fetching sub/mdlm.ckpt of someone/models" in capsys.readouterr().out
