"""Allowed and forbidden addresses."""

import pytest

from trunkline import Settings
from trunkline.auth.ssrf import EgressDenied, EgressPolicy, parse_target
from trunkline.errors import ConfigError

FAR = parse_target("https://login.example/")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "::1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.127.255.255", "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1",
        "255.255.255.255", "192.0.0.8", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "198.19.255.255",
        "192.88.99.1", "::", "fc00::1", "fd12:3456::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "100::1",
        "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "5f00::1", "4000::1",
        "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::10.0.0.1", "::7f00:1",
        "::ffff:0:10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "64:ff9b:1::8.8.8.8", "2002:7f00:1::1", "2002:a9fe:a9fe::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "fe80::1%eth0", "2606:4700::1111%1", "fe80::1%25lo",
        "", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "8.8.8.8 ", "8.8.8.8/32",
    ],
)  # fmt: skip
def test_non_public_addresses_are_denied(address: str) -> None:
    assert EgressPolicy().denial_reason(FAR, address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "169.253.0.1",
        "192.0.1.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
        "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
    ],
)  # fmt: skip
def test_public_addresses_are_allowed(address: str) -> None:
    assert EgressPolicy().denial_reason(FAR, address) is None


def test_denial_names_host_address_and_reason() -> None:
    said = EgressPolicy().denial_reason(FAR, "169.254.169.254")
    assert said is not None
    assert said.startswith("login.example is at 169.254.169.254, which is link-local")
    assert "egress_allowed" in said


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://127.1/",
        "https://0x7f.1/", "https://127.0.0.1./", "https://10.0.0.1../", "https://[::1]/", "https://[::ffff:7f00:1]/",
        "https://[::ffff:127.0.0.1]/", "https://0/", "https://localhost/", "https://LOCALHOST./", "https://a.localhost/",
        "https://169.254.169.254/latest/meta-data", "https://2852039166/", "https://0xa9.0xfe.0xa9.0xfe/",
        "https://0251.0376.0251.0376/", "https://[fe80::1]/", "https://[64:ff9b::a9fe:a9fe]/",
    ],
)  # fmt: skip
def test_legacy_ip_spellings_are_recognised(url: str) -> None:
    with pytest.raises(EgressDenied):
        EgressPolicy().check(parse_target(url))


@pytest.mark.parametrize(
    "url",
    [
        "", "login.example", "//login.example/", "https://", "https:///path", "https://./", "https://...",
        "https:login.example", "https:/login.example", "https:\\\\login.example", "https://login.example\\@10.0.0.1/",
        "https://user@login.example/", "https://user:pw@login.example/", "https://login.example:pw@10.0.0.1/",
        "https://login.example/a b", "https://login.example/\r\nHost: a", "https://login.example/\x00", " https://a.example/",
        "https://login.example/\n", "https://login.example:0/", "https://login.example:65536/", "https://login.example:x/",
        "https://[::1", "https://::1/", "https://[::1%25eth0]/", "https://[fe80::1%eth0]/", "https://[v1.a]/",
        "https://[1:2]/", "https://1.2.3.4.5/", "https://1.2.3.256/", "https://0x/x", "https://09.0.0.1/",
        "https://127%2e0.0.1/", "https://①27.0.0.1/", "https://login。example/", "https://exämple.org/",
        "javascript:alert(1)", "data:text/html,hi", "file:///etc/passwd", "vbscript:x", "ftp://login.example/",
        "gopher://login.example/", "ws://login.example/", "HTTPSS://login.example/", "https://a.example/\u2028",
    ],
)  # fmt: skip
def test_ambiguous_urls_are_refused(url: str) -> None:
    with pytest.raises(EgressDenied):
        EgressPolicy().check(parse_target(url))


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example", "https://login.example/", "HTTPS://Login.Example./a?b=c#d", "https://xn--exmple-cua.org/",
        "https://8.8.8.8/", "https://134744072/", "https://[2606:4700::1111]:8443/", "https://login.example?x=1",
        "https://login_1.example/~a/(b)'", "https://1a.example/", "https://a.1b/", "https://login.example/a@b",
    ],
)  # fmt: skip
def test_ordinary_urls_are_parsed(url: str) -> None:
    EgressPolicy().check(parse_target(url))


def test_display_url_omits_query() -> None:
    assert parse_target("HTTPS://Login.Example:8443/a/b?code=secret#c").display_url == "https://Login.Example:8443/a/b"
    assert parse_target("https://login.example?code=secret").display_url == "https://login.example"


def test_denial_does_not_repeat_password() -> None:
    with pytest.raises(EgressDenied, match="user name or password") as raised:
        parse_target("https://user:hunter2@login.example/")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(EgressDenied, match="unsupported scheme 'javascript'"):
        parse_target("javascript:alert(1)")


# --- scope of the policy ------------------------------------------------------------------------


def test_http_needs_allowed_loopback() -> None:
    for url in ("http://127.0.0.1:80/", "http://localhost/", "http://[::1]/", "http://2130706433/"):
        EgressPolicy(loopback=True).check(parse_target(url))
        with pytest.raises(EgressDenied, match="https"):
            EgressPolicy().check(parse_target(url))
    for url in ("http://login.example/", "http://8.8.8.8/", "http://10.0.0.1/", "http://[64:ff9b::7f00:1]/"):
        with pytest.raises(EgressDenied, match="https"):
            EgressPolicy(loopback=True, allowed=("login.example", "10.0.0.0/8")).check(parse_target(url))


def test_local_name_with_remote_address_is_denied_over_http() -> None:
    reach = EgressPolicy(loopback=True, allowed=("10.0.0.0/8",))
    assert reach.denial_reason(parse_target("http://localhost/"), "127.0.0.1") is None
    assert reach.denial_reason(parse_target("http://localhost/"), "::1") is None
    for address in ("8.8.8.8", "10.0.0.1", "192.168.0.1"):
        assert "http is for this machine only" in str(reach.denial_reason(parse_target("http://localhost/"), address))


def test_any_network_can_be_allowed() -> None:
    reach = EgressPolicy(allowed=("10.1.0.0/16", "169.254.7.7", "fd00::/8"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "169.254.7.7", "fd00::5"):
        assert reach.denial_reason(FAR, address) is None
    for address in ("10.2.0.1", "169.254.7.8", "127.0.0.1", "64:ff9b::10.1.2.3"):
        assert reach.denial_reason(FAR, address) is not None


def test_allowed_name_may_be_private_but_not_link_local() -> None:
    reach = EgressPolicy(allowed=("Login.Example.", "*.corp.example"))
    for url in ("https://login.example/", "https://LOGIN.example./", "https://a.b.corp.example/"):
        assert reach.denial_reason(parse_target(url), "10.0.0.1") is None
        assert reach.denial_reason(parse_target(url), "169.254.169.254") is not None
        assert reach.denial_reason(parse_target(url), "0.0.0.0") is not None
    for url in ("https://x.login.example/", "https://corp.example/", "https://evilcorp.example/"):
        assert reach.denial_reason(parse_target(url), "10.0.0.1") is not None


def test_invalid_network_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="egress_allowed"):
        EgressPolicy(allowed=("10.0.0.0/99",))


def test_policy_for_url_allows_host_and_settings() -> None:
    reach = EgressPolicy.for_url("https://mcp.corp.example/mcp", Settings(egress_allowed=("10.0.0.0/8",)))
    assert reach == EgressPolicy(loopback=False, allowed=("mcp.corp.example", "10.0.0.0/8"))
    assert reach.denial_reason(parse_target("https://mcp.corp.example/"), "192.168.0.1") is None
    assert reach.denial_reason(FAR, "192.168.0.1") is not None
    assert reach.denial_reason(FAR, "127.0.0.1") is not None


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/mcp", "http://localhost/mcp", "https://[::1]/", "http://127.1/"]
)
def test_local_server_allows_local_servers(url: str) -> None:
    reach = EgressPolicy.for_url(url, Settings())
    assert reach.loopback
    reach.check(parse_target("http://localhost:9000/"))
    assert reach.denial_reason(FAR, "10.0.0.1") is not None


@pytest.mark.parametrize("url", ["https://10.0.0.5/", "https://167772165/", "https://[::ffff:10.0.0.5]/"])
def test_private_server_url_allows_itself(url: str) -> None:
    reach = EgressPolicy.for_url(url, Settings())
    reach.check(parse_target("https://10.0.0.5/.well-known/oauth-protected-resource"))
    with pytest.raises(EgressDenied):
        reach.check(parse_target("https://10.0.0.6/"))


def test_policy_for_invalid_url_has_only_settings() -> None:
    assert EgressPolicy.for_url("unix:///run/mcp.sock", Settings(egress_allowed=("a",))) == EgressPolicy(allowed=("a",))
