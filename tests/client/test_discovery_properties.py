"""A hostile nsqlookupd: whatever it answers, a consumer gets addresses that it can try, or an error of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emberq.base.address import AddressError
from emberq.client.address import nsqd_address
from emberq.client.discovery import MAX_NSQDS, producer_addresses
from emberq.http.client import HttpQueryError
from tests.client.hostile_wire import values
from tests.support.examples import examples

hosts = st.one_of(
    st.text(max_size=12), st.sampled_from(["10.0.0.1", "::1", "a\nb", "\x1b[2J", "x" * 300, "a b", "nsqd"])
)
producers = st.one_of(
    st.fixed_dictionaries({"broadcast_address": hosts | values, "tcp_port": st.integers(-5, 70_000) | values}), values
)
documents = st.one_of(
    values,
    st.fixed_dictionaries({"producers": st.lists(producers, max_size=4)}),
    st.fixed_dictionaries({"data": st.fixed_dictionaries({"producers": st.lists(producers, max_size=4)}) | values}),
    st.fixed_dictionaries({"producers": values}),
)


@examples(300)
@given(documents)
def test_any_answer_gives_addresses_or_an_error_of_ours(document: Any) -> None:
    try:
        found = producer_addresses(document)
    except HttpQueryError:
        return
    for address in found:
        assert address.isprintable()
        assert len(address) < 300
        with suppress(AddressError):  # told in a line, when it is tried
            nsqd_address(address)


def test_only_so_many_nsqds_are_taken_from_an_answer() -> None:
    document = {"producers": [{"broadcast_address": f"nsqd{number}", "tcp_port": 4150} for number in range(5000)]}
    assert len(producer_addresses(document)) == MAX_NSQDS
