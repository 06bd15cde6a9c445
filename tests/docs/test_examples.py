"""The example programs do what they say, against a real nsqd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from emberq.embedded import EmbeddedThread
from emberq.sync import Consumer, Producer
from tests.support.caught_signal import catches
from tests.support.waiting import PATIENCE_S, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "client"


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(program: subprocess.Popen[str]) -> str:
    try:
        output, _ = program.communicate(timeout=PATIENCE_S)
    finally:
        program.kill()
    assert program.returncode == 0, output
    return output


def test_the_order_service_bills_orders_and_stops_in_order(nsq: EmbeddedThread) -> None:
    (address,) = nsq.nsqd_tcp_addresses
    with Producer(address) as producer:
        producer.publish("orders", json.dumps({"id": 7, "items": [{"price": 2}, {"price": 3}]}).encode())
    service = start("order_service.py", address)
    with Consumer("bills", "read", nsqd_addresses=[address]) as consumer:
        bill = consumer.get(timeout_s=PATIENCE_S)
        assert bill is not None
        assert json.loads(bill.body) == {"order": 7, "amount": 5}
        bill.finish()
    wait_until(lambda: service.poll() is not None or catches(service.pid, signal.SIGTERM))
    service.send_signal(signal.SIGTERM)
    assert output_of(service).endswith("stopped\n")


def test_the_archive_holds_every_message(nsq: EmbeddedThread, tmp_path: Path) -> None:
    (address,) = nsq.nsqd_tcp_addresses
    bodies = [b"%d" % number for number in range(1500)]
    with Producer(address) as producer:
        producer.publish_many("t", bodies)
    path = tmp_path / "archive"
    assert output_of(start("archive_batches.py", "t", str(path), address)) == "1500 messages\n"
    assert sorted(path.read_bytes().splitlines()) == sorted(bodies)
