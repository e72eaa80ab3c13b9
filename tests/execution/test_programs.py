"""Programs: which models have one, what is kept with a model, and what brings it up to date."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
import torch

from partita.errors import InputError
from partita.execution import sampling
from partita.execution.choice import sample
from partita.execution.program import SIZES, GraphBuffers
from partita.execution.sampling import has_program
from partita.methods import MDLM, METHODS
from partita.networks.options import TransformerOptions
from partita.samplers import guided
from partita.samplers.guidance import Guided
from tests.support.captured import CLASSES, LENGTH, ROWS, VOCAB, build, randomise, same

# Which models have one ---------------------------------------------------------------------------


class Warm(MDLM):
    """A parameterisation of its own, which no kernel knows."""

    def log_probabilities(self, logits):
        return super().log_probabilities(logits / 2)


class Asked(MDLM):
    """A prediction of its own."""

    def predict(self, *args, **options):
        return super().predict(*args, **options).flip(0)


def built(name, **options):
    return METHODS[name].build(
        TransformerOptions(length=LENGTH, width=16, depth=2, heads=2, **options), VOCAB
    )


WITHOUT = {
    "a guided model without one": lambda: guided(
        built("pgm", classes=2, options={"queries": "mean"}), 1.0
    ),
    "queries that summarise": lambda: built("pgm", options={"queries": "mean"}),
    "levels in order": lambda: built("md4", options={"levels_head": "logistic"}),
    "patches": lambda: built("md4", kind="patches", grid=4, options={"patch": 1}),
    "its own parameterisation": lambda: Warm(build().network),
    "its own prediction": lambda: Asked(build().network),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_a_program(name):
    """They are refused where one is asked for, and sampled as ever where none is."""
    model = WITHOUT[name]()
    assert not has_program(model)
    label = {"label": 1} if isinstance(model, Guided) else {}
    for speed in ("cudagraph", "compile"):
        with pytest.raises(InputError, match=r"speed: is '.*', but there is no program for this"):
            sample(model, 1, speed=speed, steps=3, **label)
    plain = sample(model, 2, speed="eager", steps=3, **label)
    assert torch.equal(sample(model, 2, steps=3, **label), plain)


@pytest.mark.parametrize(
    "options", [{"sampler": "confidence"}, {"sampler": "threshold"}, {"sampler": "blocks"}]
)
def test_samplers_without_a_plan(options):
    with pytest.raises(InputError, match=r"is 'cudagraph', but the sampler '.*' has no plan"):
        sample(build(), 1, speed="cudagraph", **options)
    sample(build(), 1, **options)


@pytest.mark.parametrize("name", ["ar", "sedd", "genmd4"])
def test_families_without_plans(name):
    with pytest.raises(InputError, match=r"is 'cudagraph', but the sampler '.*' has no plan"):
        sample(built(name), 1, speed="cudagraph")


# What is kept ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_the_newest_weights_are_used(name):
    model = build(name)
    before = same(model, steps=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)
    assert not torch.equal(same(model, steps=4), before)
    model.load_state_dict(randomise(build(name), seed=9).state_dict())
    same(model, steps=4)


def test_another_precision_and_another_network():
    model = build().bfloat16()
    sample(model, ROWS, steps=4, speed="cudagraph")
    same(randomise(model.double()), steps=4)
    model.network = build("mdlm with learned positions").network
    same(model, steps=4)


def test_autocast_has_a_copy_of_its_own():
    model = build().float()
    with torch.autocast("cpu", torch.bfloat16):
        drawn = sample(model, ROWS, steps=4, speed="cudagraph")
    assert int(drawn.max()) < VOCAB
    same(model, steps=4)


def test_inside_and_outside_of_inference_mode():
    model = build()
    with torch.inference_mode():
        same(model, steps=4)
    same(model, steps=4, seed=1)


NO_MORE_GRAPHS = """
import torch
from partita.contracts.batch import Batch
from partita.execution.compilation import compile_parts
from partita.methods import METHODS
from partita.networks.options import TransformerOptions
from partita.randomness import Noise

model = METHODS["pgm"].build(TransformerOptions(length=24, width=16, depth=2, heads=2), 30)
compile_parts(model.network)
graphs = []
for step in range(6):
    batch = Batch.of(torch.randint(30, (4, 24)))
    model.loss(batch, Noise.for_batch(0, 4), step).objective.backward()
    graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
assert graphs[0] > 0 and graphs[1] == graphs[-1], graphs
"""


def test_a_partition_network_is_compiled_once():
    """Whatever sizes the groups of a partition have."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("compiling for the CPU needs a C++ compiler")
    # In a process of its own: the type checker of the test run cannot be compiled.
    subprocess.run([sys.executable, "-c", NO_MORE_GRAPHS], check=True, timeout=300)


def test_compiled_blocks():
    model = build()
    with torch.compiler.set_stance("force_eager"):
        compiled = sample(model, ROWS, steps=4, speed="compile")
    assert torch.equal(compiled, sample(model, ROWS, steps=4, speed="eager"))


def test_programs_are_kept_but_not_for_ever():
    model = build()
    for count in range(1, sampling.KEPT + 3):
        sample(model, count, steps=2, speed="cudagraph")
    (held,) = sampling._KEPT[model].values()
    assert [key[0] for key in held.programs] == [*range(3, sampling.KEPT + 3)]
    kept = [*held.programs.values()]
    sample(model, 3, steps=2, speed="cudagraph", seed=1)
    assert [*held.programs.values()] == [*kept[1:], kept[0]]  # the same one, now the newest


def test_sizes_are_rounded_up_to_few():
    model = build()
    sample(model, 1, steps=2, speed="cudagraph")
    (program,) = next(iter(sampling._KEPT[model].values())).programs.values()
    buffers = GraphBuffers.blank(30, 250, 2, torch.device("cpu"))
    program, everything = replace(program, buffers=buffers), 30 * 250
    sizes = {count: program._rounded(count, count) for count in range(everything + 1)}
    assert all(size.read >= count <= size.queried for count, size in sizes.items())
    assert len({size.read for size in sizes.values()}) <= SIZES
    assert all(size.queried <= count + max(16, count / 4) for count, size in sizes.items())


def test_a_model_is_not_kept_by_its_programs():
    model = build()
    sample(model, 1, steps=2, speed="cudagraph")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["mdlm", "pgm"])
def test_a_broken_network(name):
    model = build(name)
    torch.nn.init.constant_(model.network.head.weight, torch.nan)
    for speed in ("eager", "cudagraph"):
        with pytest.raises(
            InputError, match=r"logits: .*the network's weights or inputs are broken"
        ):
            sample(model, 2, steps=3, speed=speed)
    same(randomise(model), steps=3)


def test_labels_that_fit_nothing():
    for name, label in (("mdlm", 1), ("mdlm with registers", CLASSES + 1)):
        with pytest.raises(InputError, match="label"):
            sample(build(name), 2, steps=3, speed="cudagraph", label=label)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_stays(training):
    """Dropout is off while sampling, in the twin of a model that was training too."""
    model = randomise(built("md4", dropout=0.5)).train(training)
    same(model, steps=4)
    assert model.training == model.network.training == training
