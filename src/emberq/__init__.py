"""emberq: NSQ, the realtime message queue, in Python.

    from emberq import Consumer, Message, Producer

What stands here is loaded when it is first used, so `import emberq` alone costs nothing.

Public are this package, `emberq.client`, `emberq.client.opentelemetry`, `emberq.sync`, `emberq.embedded`, the pytest
fixture `nsq`, `emberq.spark` and `emberq.spark.pipeline`, each with what its `__all__` lists (docs/API.md describes all
of it). Every other module is internal and may change with any release.
"""

TYPE_CHECKING = False  # that of `typing`, without loading it

__version__ = "0.1.0"
"""The version of emberq."""

NSQ_VERSION = "1.3.0-emberq"
"""The level of NSQ our daemons are compatible with, shown wherever NSQ shows its version (clients compare it)."""

__all__ = [
    "NSQ_VERSION",
    "ClientConfig",
    "Consumer",
    "ConsumerConfig",
    "Embedded",
    "Message",
    "MessageBatch",
    "NsqError",
    "Producer",
    "RetryPolicy",
    "__version__",
]

if TYPE_CHECKING:
    from emberq.client import (
        ClientConfig,
        Consumer,
        ConsumerConfig,
        Message,
        MessageBatch,
        NsqError,
        Producer,
        RetryPolicy,
    )
    from emberq.embedded import Embedded
else:  # hidden from type checkers, which would take any name for granted

    def __getattr__(name):
        """Load a name of `__all__` at its first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home = "emberq.embedded" if name == "Embedded" else "emberq.client"
        value = globals()[name] = getattr(import_module(home), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
