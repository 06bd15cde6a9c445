"""`until` under the name that the tests of subscriptions know it by."""

from tests.support.waiting import until as eventually

__all__ = ["eventually"]
