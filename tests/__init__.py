"""The test suite."""

from tests.support import typechecker

__all__ = ["typechecker"]
