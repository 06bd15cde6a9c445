"""What is public: it is there, documented, light to import, and its old names still lead to it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import emberq
import emberq.client
from docs.api import PUBLIC_MODULES, definition, exported, page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
INTERNAL_PACKAGES = sorted(
    {".".join(path.parent.relative_to(SOURCE).parts) for path in SOURCE.glob("emberq/**/__init__.py")}
    - {*PUBLIC_MODULES}
)
PUBLIC_NAMES = [(module, name) for module in PUBLIC_MODULES for name in exported(import_module(module))]
RENAMED = {
    "AuthRefused": "AuthError",
    "BadRequest": "BadRequestError",
    "BadReturnValue": "BadReturnValueError",
    "ConnectionFailed": "ConnectError",
    "ConnectionLost": "ConnectionLostError",
    "HandlerDeclined": "HandlerDeclinedError",
    "HandlerTimeout": "HandlerTimeoutError",
    "HandshakeFailed": "HandshakeError",
    "NotInFlight": "NotInFlightError",
    "PublishRefused": "PublishError",
    "RemoteFailure": "RemoteError",
    "RequestTimeout": "RequestTimeoutError",
    "WorkerCrashed": "WorkerCrashedError",
}


def test_the_page_of_the_public_api_is_what_the_source_says() -> None:
    assert (ROOT / "docs" / "API.md").read_text() == page(), "renew it: python docs/api.py"


@pytest.mark.parametrize(("module", "name"), PUBLIC_NAMES)
def test_a_public_name_is_there_and_has_a_docstring(module: str, name: str) -> None:
    assert hasattr(import_module(module), name)
    assert definition(module, name)[1].doc


@pytest.mark.parametrize("name", [name for name in emberq.__all__ if name not in ("NSQ_VERSION", "__version__")])
def test_the_package_exports_the_names_of_its_modules(name: str) -> None:
    home = "emberq.embedded" if name == "Embedded" else "emberq.client"
    assert getattr(emberq, name) is getattr(import_module(home), name)
    assert name in dir(emberq)


def test_names_of_the_package_can_be_imported_in_a_fresh_interpreter() -> None:
    program = "from emberq import *; print(Producer.__name__, Embedded.__name__, NSQ_VERSION); from emberq import sync"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == f"Producer Embedded {emberq.NSQ_VERSION}\n"


@pytest.mark.parametrize("module", ["emberq", "emberq.client"])
def test_a_name_that_does_not_exist_is_an_attribute_error(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Prodcuer'"):
        _ = import_module(module).Prodcuer


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_of_the_client_still_works_and_warns(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"emberq.client.{old} is now called {new}") as caught:
        found = getattr(emberq.client, old)
    assert found is getattr(emberq.client, new)
    assert caught[0].filename == __file__
    assert old not in emberq.client.__all__


@pytest.mark.parametrize(("module", "name"), PUBLIC_NAMES)
def test_a_public_exception_ends_in_error(module: str, name: str) -> None:
    value = getattr(import_module(module), name)
    is_error = isinstance(value, type) and issubclass(value, Exception)
    assert is_error == name.endswith("Error")
    if is_error and module == "emberq.client":
        assert issubclass(value, emberq.NsqError)


@pytest.mark.parametrize("package", INTERNAL_PACKAGES)
def test_an_internal_package_says_so(package: str) -> None:
    assert "internal" in (import_module(package).__doc__ or "").lower()
