"""Options of the client library on a tool's command line."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from emberq import __version__
from emberq.base.flag import SettingError
from emberq.base.settings import OptionsError
from emberq.client.backoff import BackoffStrategy
from emberq.client.config import OFF, ClientConfig, ConsumerConfig
from emberq.tools.client_flags import ClientOptions, client_config, consumer_config, parse_client_option
from tests.support.certificates import Authority


def client(*texts: str) -> ClientConfig:
    return client_config(map(parse_client_option, texts), tool="nsq_tail")


def consumer(*texts: str) -> ConsumerConfig:
    return consumer_config(map(parse_client_option, texts), max_in_flight=200)


def complaint(text: str) -> str:
    with pytest.raises(ValueError, match=r"invalid|failed") as caught:
        ClientOptions().from_text(text)
    return str(caught.value)


@pytest.mark.conformance(263)
def test_unknown_options_bad_values_and_tls_1_3_are_refused() -> None:
    assert complaint("not_a_real_config_value,") == "invalid option not_a_real_config_value"
    assert complaint("tls_v1,lol").startswith("failed to coerce option tls_v1 (lol) - ")
    assert complaint("tls-min-version,tls1.3").endswith('"tls1.3" is not a tls version')


@pytest.mark.conformance(263)
def test_tls_1_2_and_skipping_verification_are_accepted() -> None:
    context = client("tls_v1", "tls-min-version,tls1.2", "tls-insecure-skip-verify").tls
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_in_flight,-1", "invalid max_in_flight ! -1 < 0"),
        ("deflate_level,17", "invalid deflate_level ! 17 > 9"),
        ("sample-rate,100", "invalid sample_rate ! 100 > 99"),
        ("lookupd_poll_jitter,2", "invalid lookupd_poll_jitter ! 2 > 1"),
        ("read_timeout,1ms", "invalid read_timeout ! 1ms < 100ms"),
        ("msg_timeout,17", "failed to coerce option msg_timeout (17) - parse error"),
        ("msg_timeout", "failed to coerce option msg_timeout (true) - parse error"),
        ("max_attempts,x", "failed to coerce option max_attempts (x) - parse error"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert complaint(text) == reason


def test_a_file_of_authorities_that_cannot_be_read_is_refused() -> None:
    assert "failed to read custom Certificate Authority file /no/file" in complaint("tls_root_ca_file,/no/file")


def test_mistakes_can_be_ignored() -> None:
    kind = ClientOptions(ignores_mistakes=True)
    assert kind.from_text("bogus,1") == ()
    assert kind.from_text("max_attempts,3") == (parse_client_option("max_attempts,3"),)


def test_the_last_of_several_values_counts() -> None:
    assert consumer("max_attempts,3", "max-attempts,7").max_attempts == 7


def test_options_reach_the_config_of_connections() -> None:
    config = client(
        "dial_timeout,2s",
        "client_id,me",
        "heartbeat_interval,5s",
        "output_buffer_timeout,-1ms",
        "msg_timeout,90s",
        "snappy",
        "auth_secret,a,b",
        "topology_zone,z",
        "max_msg_size,4096",
    )
    assert config.connect_timeout_s == 2.0
    assert config.client_id == "me"
    assert config.heartbeat_interval_ms == 5_000
    assert config.output_buffer_timeout_ms == OFF
    assert config.msg_timeout_ms == 90_000
    assert config.snappy is True
    assert config.auth_secret == b"a,b"
    assert config.topology_zone == "z"
    assert config.max_frame_bytes == 4096


def test_options_reach_the_config_of_consumers() -> None:
    config = consumer(
        "max_attempts,0",
        "backoff_strategy,full_jitter",
        "backoff_multiplier,500ms",
        "max_backoff_duration,0",
        "default_requeue_delay,10s",
        "lookupd_poll_interval,1s",
        "skip_lookupd_authorization,false",
    )
    assert config.max_attempts == 0
    assert config.backoff_strategy is BackoffStrategy.FULL_JITTER
    assert (config.backoff_unit_s, config.max_backoff_s) == (0.5, 0.0)
    assert config.default_requeue_delay_s == 10.0
    assert (config.lookupd_poll_interval_s, config.max_reconnect_delay_s) == (1.0, 1.0)
    assert config.authorize_lookupd is False


def test_the_tools_own_flag_and_user_agent_win() -> None:
    assert consumer("max_in_flight,7").max_in_flight == 200
    assert client("user_agent,mine").user_agent == f"nsq_tail/1.3.0-emberq emberq/{__version__}"


def test_an_option_without_effect_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="emberq.tools"):
        client("write_timeout,5s")
    assert [record.getMessage() for record in caplog.records] == ["option write_timeout has no effect here"]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["heartbeat_interval,2m"], "HeartbeatInterval 2m0s must be less than ReadTimeout 1m0s"),
        (["snappy", "deflate"], "snappy and deflate exclude each other"),
        (["tls_v1", "tls_cert,x"], "tls_cert and tls_key are given together or not at all"),
        (["tls_v1", "tls_cert,/no/a", "tls_key,/no/b"], "failed to load /no/a, /no/b"),
    ],
)
def test_what_does_not_go_together_is_refused(texts: list[str], reason: str) -> None:
    with pytest.raises(OptionsError, match=reason):
        client(*texts)


def test_a_negative_max_in_flight_is_refused() -> None:
    with pytest.raises(OptionsError, match="max_in_flight is -1"):
        consumer_config([], max_in_flight=-1)


def test_certificates_are_loaded(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("client")
    context = client(
        "tls_v1",
        f"tls_root_ca_file,{authority.path}",
        f"tls_cert,{pair.certificate_path}",
        f"tls_key,{pair.key_path}",
    ).tls
    assert context is not None
    assert context.check_hostname is True
    assert context.cert_store_stats()["x509_ca"] == 1


def test_without_tls_v1_there_is_no_tls() -> None:
    assert client("tls-insecure-skip-verify").tls is None


def test_the_secret_for_nsqlookupds_is_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text("in the file\n")
    assert consumer().lookupd_secret == b""
    monkeypatch.setenv("NSQ_LOOKUPD_SECRET", "in the environment")
    assert consumer().lookupd_secret == b"in the environment"
    config = consumer_config([], max_in_flight=1, lookupd_secret_file=str(path))
    assert config.lookupd_secret == b"in the file"
    with pytest.raises(SettingError, match=r"^--lookupd-secret-file: .*: No such file or directory$"):
        consumer_config([], max_in_flight=1, lookupd_secret_file=f"{path}.no")
