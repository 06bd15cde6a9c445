"""Lets pytest explain a failing assertion of the contract as it does those of a test module."""

import pytest

pytest.register_assert_rewrite("tests.integration.contract", "tests.integration.connection_kind")
