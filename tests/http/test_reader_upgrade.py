"""An upgrade declined leaves the rest of the head as it was."""

from __future__ import annotations

import pytest

from emberq.http.reader import head_without_upgrade


@pytest.mark.parametrize(
    ("connection", "left"),
    [
        (b"Upgrade", b""),
        (b"upgrade, HTTP2-Settings", b"HTTP2-Settings"),
        (b"keep-alive,Upgrade", b"keep-alive"),
        (b"close, UPGRADE ,x", b"close, x"),
    ],
)
def test_only_the_offer_is_left_out(connection: bytes, left: bytes) -> None:
    headers = {b"host": b"x", b"connection": connection, b"upgrade": b"h2c", b"content-length": b"5"}
    head = head_without_upgrade(method=b"POST", target=b"/pub?topic=t", version="1.1", headers=headers)
    assert head == (b"POST /pub?topic=t HTTP/1.1\r\nhost: x\r\nconnection: " + left + b"\r\ncontent-length: 5\r\n\r\n")
