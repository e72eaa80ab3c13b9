"""Triton kernels. Each has a reference in torch, which is used on CPUs.

Functions that Triton compiles are marked `no_type_check`: the tests' type checker wraps functions,
and Triton cannot compile wrapped ones.
"""

from importlib.util import find_spec

KERNELS = find_spec("triton") is not None
"""Whether Triton is installed, so that the kernels can run; torch includes it on most platforms."""
