"""Kernels in Triton. Each has a reference in torch, which is what CPUs run.

What Triton compiles is marked `no_type_check`: the type checker of the tests wraps functions, and
a wrapped one is no kernel.
"""

from importlib.util import find_spec

KERNELS = find_spec("triton") is not None
"""Whether kernels of our own can run on a GPU; torch brings what they need on most machines."""
