"""Kernels in Triton. Each has a plain twin in torch, which is what CPUs run.

What Triton compiles is marked `no_type_check`: the type checker of the tests wraps functions, and
a wrapped one is no kernel.
"""
