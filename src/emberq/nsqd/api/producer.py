"""Who publishes, by the headers of a request: for producers that number what they send.

    X-Emberq-Producer: 5f0c…32 hexadecimal digits      chosen at random by the producer, once
    X-Emberq-Sequence: 17                              ascending with every request of this producer; gaps are allowed

A producer that does not know whether a request was carried out sends it again with the same number, before any later
one. A journaled topic then answers OK and stores nothing. Classic topics have no memory of numbers: on these they are
checked, and otherwise ignored.
"""

from __future__ import annotations

from emberq.http.message import HttpError, Request
from emberq.wire.producer import ProducerSequence, parse_producer_id, parse_sequence

_PRODUCER = b"x-emberq-producer"
_SEQUENCE = b"x-emberq-sequence"


def producer_of(request: Request) -> ProducerSequence | None:
    """As whom and with which number the request publishes; None if it does not say. HttpError if it is wrong."""
    producer = request.raw_header(_PRODUCER)
    sequence = request.raw_header(_SEQUENCE)
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise HttpError(400, "INVALID_PRODUCER")
    producer_id = parse_producer_id(producer.decode("latin-1"))
    number = parse_sequence(sequence)
    if producer_id is None or number is None:
        raise HttpError(400, "INVALID_PRODUCER")
    return ProducerSequence(producer_id, number)
