"""The blocking facade, against a real nsqd: from threads, notebooks, forks, and under Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from emberq.base.clock import ManualClock
from emberq.client import (
    ClientConfig,
    ClosedError,
    ConnectError,
    ConsumerConfig,
    Message,
    RequestTimeoutError,
    RetryPolicy,
)
from emberq.embedded import EmbeddedThread
from emberq.sync import Consumer, Producer
from tests.support.embedded import Broker
from tests.support.waiting import PATIENCE_S, wait_until

NOWHERE = "127.0.0.1:1"
SOON_S = 0.3
"""Longer than nsqd keeps a message back to send it with others."""
ONE_AT_A_TIME = ConsumerConfig(concurrency=1)


def consumer(nsq: EmbeddedThread, topic: str = "t", **options: object) -> Consumer:
    return Consumer(topic, "c", nsqd_addresses=nsq.nsqd_tcp_addresses, **options)  # type: ignore[arg-type]


def publish(nsq: EmbeddedThread, *bodies: bytes, topic: str = "t") -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer:
        producer.publish_many(topic, bodies)


def take(taking: Consumer, count: int) -> list[bytes]:
    """So many, however long it takes until they come."""
    bodies = []
    for _ in range(count):
        message = taking.get(timeout_s=PATIENCE_S)
        assert message is not None
        bodies.append(message.body)
        message.finish()
    return bodies


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_consumer_waits_until_it_is_connected(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as connecting:
        connecting.wait_until_connected()
        assert connecting.statistics().addresses == tuple(nsq.nsqd_tcp_addresses)
    with Consumer("t", "c", nsqd_addresses=NOWHERE) as alone, pytest.raises(ConnectError):
        alone.wait_until_connected(timeout_s=0.01)


def test_threads_wait_when_as_many_messages_as_may_be_are_under_way(nsq: EmbeddedThread) -> None:
    with Producer(nsq.nsqd_tcp_addresses, max_pending=1) as producer, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: producer.publish("t", b"%d" % number), range(50)))
    with consumer(nsq) as taking:
        assert sorted(map(int, take(taking, 50))) == list(range(50))


# Publishing


def test_what_is_published_in_every_way_can_be_consumed(nsq: EmbeddedThread) -> None:
    with Producer(nsq.nsqd_tcp_addresses[0]) as producer:
        producer.publish("t", b"one")
        producer.publish_many("t", [b"two", b"three"])
        producer.publish_deferred("t", b"later", delay_s=0.001)
    with consumer(nsq) as taking:
        assert sorted(take(taking, 4)) == [b"later", b"one", b"three", b"two"]


def test_many_threads_share_a_producer(nsq: EmbeddedThread) -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer, ThreadPoolExecutor(8) as threads:
        bodies = [b"%d" % number for number in range(200)]
        list(threads.map(lambda body: producer.publish("t", body), bodies))
        assert len(threads_named("emberq-producer")) == 1
    with consumer(nsq) as taking:
        assert sorted(take(taking, len(bodies))) == sorted(bodies)


async def test_it_works_where_an_event_loop_is_running_as_in_a_notebook(nsq: EmbeddedThread) -> None:
    publish(nsq, b"from a cell")
    with consumer(nsq) as taking:
        assert take(taking, 1) == [b"from a cell"]


def test_an_unreachable_nsqd_is_the_clients_own_error() -> None:
    with Producer(NOWHERE, retry=RetryPolicy(timeout_s=0.01)) as producer:
        with pytest.raises(ConnectError, match="no nsqd could be reached"):
            producer.publish("t", b"x")
        with pytest.raises(ConnectError):
            producer.wait_until_connected()


def test_a_call_waits_no_longer_than_it_was_told() -> None:
    with Producer(NOWHERE) as producer, pytest.raises(RequestTimeoutError, match=r"within 0\.01 s"):
        producer.publish("t", b"x", timeout_s=0.01)


def test_a_handler_that_exits_has_failed_and_the_consumer_goes_on(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x", b"y")
    seen: list[bytes] = []
    config = ConsumerConfig(concurrency=1, max_backoff_s=0, default_requeue_delay_s=0)
    with consumer(nsq, config=config) as taking:

        async def handle(message: Message) -> None:
            seen.append(message.body)
            if len(seen) == 1:
                raise SystemExit(3)
            if len(seen) == 3:
                taking.stop(wait=False)

        taking.run(handle)
    assert sorted(seen[1:]) == [b"x", b"y"]


def test_a_handler_behind_a_lambda_is_awaited(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    seen: list[bytes] = []
    with consumer(nsq) as taking:

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            seen.append(message.body)
            taking.stop(wait=False)

        taking.run(lambda message: handle(message))
    assert seen == [b"x"]


def test_slips_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="write 'localhost:4150'"):
        Consumer("t", "c", nsqd_addresses="localhost")
    with pytest.raises(ValueError, match="write 'lookup:4161'"):
        Consumer("t", "c", lookupd_addresses="tcp://lookup:4160")
    with Consumer("t", "c", nsqd_addresses=NOWHERE) as taking:
        with pytest.raises(TypeError, match="handler is a list"):
            taking.run([NOWHERE])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_size is 0"):
            taking.batches(max_size=0)
    with Producer(NOWHERE) as producer, pytest.raises(TypeError, match="a message is bytes; encode it"):
        producer.publish("t", "x")  # type: ignore[arg-type]


def test_one_address_will_do_where_several_may_stand(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    with Consumer("t", "c", nsqd_addresses=f" tcp://{nsq.nsqd_tcp_addresses[0]}/") as taking:
        assert take(taking, 1) == [b"x"]


def test_what_is_wrong_raises_where_it_is_said() -> None:
    with pytest.raises(ValueError, match="at least one nsqd"):
        Producer([])
    with pytest.raises(ValueError, match="not a valid topic name"):
        Consumer("no topic", "c", nsqd_addresses=[NOWHERE])
    with Producer(NOWHERE) as producer, pytest.raises(ValueError, match="must not be empty"):
        producer.publish("t", b"")


def test_a_closed_producer_says_so_and_its_thread_is_gone(nsq: EmbeddedThread) -> None:
    producer = Producer(nsq.nsqd_tcp_addresses)
    producer.publish("t", b"x")
    producer.close()
    producer.close()
    assert not threads_named("emberq-producer")
    with pytest.raises(ClosedError):
        producer.publish("t", b"x")


def test_a_producer_that_was_never_used_closes() -> None:
    with Producer(NOWHERE):
        assert not threads_named("emberq-producer")


def test_closing_ends_what_other_threads_wait_for() -> None:
    producer = Producer(NOWHERE)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.publish, "t", b"x")
        wait_until(lambda: "1 messages under way" in repr(producer))
        producer.close(timeout_s=0)
        with pytest.raises(ClosedError):
            waiting.result()


def test_a_forgotten_producer_is_disconnected(nsq: EmbeddedThread) -> None:
    producer = Producer(nsq.nsqd_tcp_addresses)
    producer.publish("t", b"x")
    del producer
    gc.collect()
    wait_until(lambda: not threads_named("emberq-producer"))


def test_health_is_that_of_the_connections(nsq: EmbeddedThread) -> None:
    with Producer([*nsq.nsqd_tcp_addresses, NOWHERE]) as producer:
        producer.wait_until_connected()
        assert [health.address for health in producer.health()] == [*nsq.nsqd_tcp_addresses, NOWHERE]
        assert producer.health()[0].is_connected


# Consuming


def test_iteration_goes_on_until_stop(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"last")
    seen = []
    with consumer(nsq) as taking:
        for message in taking:
            seen.append(message.body)
            message.finish()
            if message.body == b"last":
                taking.stop()
    assert sorted(seen) == [b"1", b"2", b"last"]


def test_batches_are_as_large_as_asked_for(nsq: EmbeddedThread) -> None:
    publish(nsq, *(b"%d" % number for number in range(10)))
    sizes = []
    with consumer(nsq) as taking:
        for batch in taking.batches(max_size=4, max_wait_s=PATIENCE_S, idle_timeout_s=PATIENCE_S):
            sizes.append(len(batch))
            batch.finish()
            if sum(sizes) == 8:
                break
    assert sizes == [4, 4]


def test_a_loop_ends_when_nothing_comes_for_as_long_as_it_was_told(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as taking:
        assert [message.body for message in taking.messages(idle_timeout_s=0.01)] == []


def test_get_gives_up_when_nothing_comes(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as taking:
        assert taking.get(timeout_s=0.01) is None


def test_what_was_not_taken_goes_back_at_once(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"3")
    with consumer(nsq) as taking:
        first = taking.get(timeout_s=PATIENCE_S)
        assert first is not None
        first.finish()
    with consumer(nsq) as taking:
        assert not {first.body} & set(take(taking, 2))


def test_what_was_taken_and_not_answered_goes_back_at_the_end_of_the_block(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    with consumer(nsq) as taking:
        assert taking.get(timeout_s=PATIENCE_S) is not None
    with consumer(nsq) as taking:
        assert take(taking, 1) == [b"x"]


def test_stop_ends_the_loops_of_other_threads(nsq: EmbeddedThread) -> None:
    taking = consumer(nsq)
    taking.start()
    with ThreadPoolExecutor(2) as threads:
        loops = [threads.submit(lambda: [message.body for message in taking]) for _ in range(2)]
        taking.stop()
        assert [loop.result() for loop in loops] == [[], []]


def test_a_message_that_nsqd_has_given_to_others_is_not_handed_out(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2")
    clock = ManualClock()
    with consumer(nsq, clock=clock) as taking:
        taking.start()
        wait_until(lambda: taking.statistics().received == 2)
        first = taking.get(timeout_s=PATIENCE_S)
        assert first is not None
        clock.advance(seconds=3600)
        assert taking.get(timeout_s=0) is None


def test_a_handler_is_called_for_every_message_until_it_stops_the_consumer(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"3")
    seen = []
    taking = consumer(nsq, config=ONE_AT_A_TIME)

    def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            taking.stop(wait=False)

    taking.run(handle)
    taking.stop()
    assert sorted(seen) == [b"1", b"2", b"3"]
    assert not threads_named("emberq-consumer")


def test_a_handler_that_raises_gets_its_message_again(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    attempts = []
    config = ConsumerConfig(concurrency=1, default_requeue_delay_s=0, max_backoff_s=0)
    with consumer(nsq, config=config) as taking:

        def handle(message: Message) -> None:
            attempts.append(message.attempts)
            if message.attempts == 1:
                raise ValueError("as told")
            taking.stop(wait=False)

        taking.run(handle)
    assert attempts == [1, 2]


def test_ctrl_c_ends_run_after_the_handler(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    done = []

    def handle(message: Message) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        done.append(message.body)

    with consumer(nsq, config=ONE_AT_A_TIME) as taking:
        taking.run(handle)
    assert done == [b"x"]
    assert Broker(nsq).counts("t", "c").unfinished == 0


def test_ctrl_c_ends_run_after_the_handler_even_while_others_are_still_connected_to(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    done = []

    def handle(message: Message) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        done.append(message.body)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [*nsq.nsqd_tcp_addresses, "{}:{}".format(*silent.getsockname())]
        patient = ClientConfig(connect_timeout_s=PATIENCE_S)
        with Consumer("t", "c", nsqd_addresses=addresses, config=ONE_AT_A_TIME, client_config=patient) as taking:
            taking.run(handle)
    assert done == [b"x"]
    assert Broker(nsq).counts("t", "c").unfinished == 0


def test_ctrl_c_interrupts_a_wait_and_loses_nothing(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as taking:
        taking.start()
        interrupt = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the wait, if the machine is slow
            interrupt.start()
            taking.get()
        publish(nsq, b"x")
        assert take(taking, 1) == [b"x"]


def test_flow_can_be_changed(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as taking:
        taking.start()
        taking.set_max_in_flight(0)
        publish(nsq, b"x")
        assert taking.get(timeout_s=SOON_S) is None
        taking.set_max_in_flight(10)
        assert taking.max_in_flight == 10
        assert take(taking, 1) == [b"x"]


def test_an_iterating_consumer_cannot_be_given_a_handler(nsq: EmbeddedThread) -> None:
    with consumer(nsq) as taking:
        taking.start()
        with pytest.raises(RuntimeError, match="without a handler"):
            taking.run(lambda message: None)


def test_a_call_in_the_clients_own_loop_is_refused_instead_of_waiting_for_ever(nsq: EmbeddedThread) -> None:
    publish(nsq, b"x")
    refusals = []
    with consumer(nsq) as taking:

        async def handle(message: Message) -> None:
            try:
                taking.statistics()
            except RuntimeError as refusal:
                refusals.append(str(refusal))
            taking.stop(wait=False)

        taking.run(handle)
    assert len(refusals) == 1
    assert "cannot wait for itself" in refusals[0]


# Forks


def outcome_in_child(action: object) -> str:
    """What the call does in a forked process: what it raised, or `returned`."""
    assert callable(action)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            os.write(writer, b"returned")
        except BaseException as error:  # noqa: BLE001 - it is told to the parent
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_a_client_in_use_does_not_survive_fork_and_says_so(nsq: EmbeddedThread) -> None:
    with Producer(nsq.nsqd_tcp_addresses) as producer:
        producer.publish("t", b"x")
        assert "make another one in the child process" in outcome_in_child(lambda: producer.publish("t", b"x"))
        assert outcome_in_child(producer.close) == "returned"
        producer.publish("t", b"the parent's still works")


def test_a_client_that_was_not_used_yet_may_be_used_after_fork(nsq: EmbeddedThread) -> None:
    producer = Producer(nsq.nsqd_tcp_addresses)
    assert outcome_in_child(lambda: producer.publish("t", b"x")) == "returned"
