"""The test suite."""

from tests import typechecker

__all__ = ["typechecker"]
