"""What is told of every action: to the audit log, and to whoever wants to be notified."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from emberq.admin.access.gate import Visitor
from emberq.admin.audit import Audit, Deed, Outcome
from emberq.admin.notification import Notifier
from emberq.cluster.upstream import ClusterError
from emberq.http.message import HttpError, Request

T = TypeVar("T")


class Recorder:
    """Owned by the daemon."""

    def __init__(self, audit: Audit, notifier: Notifier) -> None:
        self.audit = audit
        self._notifier = notifier

    async def carry_out(
        self,
        work: Awaitable[T],
        deeds: Sequence[Deed],
        request: Request,
        visitor: Visitor,
        *,
        notify_of_failure: bool = False,
    ) -> T:
        """Do something and tell of it. Of what failed only the audit log is told, unless said otherwise."""
        try:
            result = await work
        except (ClusterError, HttpError) as failure:
            for deed in deeds:
                await self.audit.record(request, visitor, deed, Outcome.FAILED, str(failure))
                if notify_of_failure:
                    self._notifier.notify(request, visitor, deed)
            raise
        for deed in deeds:
            await self.audit.record(request, visitor, deed, Outcome.DONE, str(getattr(result, "message", "")))
            self._notifier.notify(request, visitor, deed)
        return result

    async def refuse(self, request: Request, visitor: Visitor | None, deed: Deed, reason: str) -> None:
        """Tell of an action that was not allowed."""
        await self.audit.record(request, visitor, deed, Outcome.REFUSED, reason)
