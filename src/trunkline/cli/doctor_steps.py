"""The steps of connecting to a server, one after the other, as findings.

The steps before the handshake (a program exists, a name resolves, a certificate is valid) are examined on their own,
since they explain a failure best. The handshake is that of a real client, so its finding is what a client experiences.
Problems become findings, not exceptions; after a failure the remaining steps are skipped.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from trunkline.cli.catalog import fetch_catalog
from trunkline.cli.connection import (
    add_options,
    find_entry,
    read_auth,
    read_headers,
    read_variables,
    set_variables,
    split_config,
)
from trunkline.cli.loading import NoServer, is_python_file, load_server, split_object
from trunkline.cli.terminal import Terminal, escape
from trunkline.config import Settings, inherited_environment, proxy_for
from trunkline.errors import (
    AuthorizationFailed,
    ConnectionClosed,
    HandshakeFailed,
    MisuseError,
    TransportError,
    TrunklineError,
)
from trunkline.facts import Fact, MessageUnreadable
from trunkline.findings import Finding
from trunkline.transports.addresses import HTTP_PORTS, WEBSOCKET_PORTS, Address, parse_address
from trunkline.transports.stdio.client import Command

if TYPE_CHECKING:
    from trunkline.client.client import Client

__all__ = ["diagnose"]

_SOON: Final = 14 * 24 * 3600.0  # seconds: a certificate that expires within them deserves a warning
_MAX_EXCERPTS: Final = 3
_MAX_STDERR: Final = 50  # lines of standard error that are kept
_PROBE: Final = 5.0  # seconds for the era probe
_TLS_SCHEMES: Final = frozenset({"https", "wss", "tls"})
_SCRIPTS: Final = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".jar")

# The end of standard error often names the cause: a text in it, and what to do.
_CAUSES: Final = (
    ("ModuleNotFoundError", "install the missing module for the Python that the command starts"),
    ("ImportError", "install the missing package, or its right version, for the Python that the command starts"),
    ("Cannot find module", "install the packages of the server: npm install"),
    ("ERR_MODULE_NOT_FOUND", "install the packages of the server: npm install"),
    ("E404", "check the name of the package"),
    ("No such file", "check the paths in the command and in its arguments"),
    ("Permission denied", "check the permissions of the files that it names"),
    ("address already in use", "stop the other process, or choose another port"),
    ("API key", "set the key in the environment of the command: --env, or `env` in the configuration"),
    ("environment variable", "set the variable: --env, or `env` in the configuration"),
    ("Traceback", "fix the error; the whole traceback comes with --stderr"),
)


async def diagnose(options: argparse.Namespace, terminal: Terminal) -> list[Finding]:
    """Examine the steps of connecting to the target of a command."""
    diagnosis = _Diagnosis(options, terminal)
    with contextlib.suppress(_Stop):
        await diagnosis.run(options.target)
    return diagnosis.findings


class _Stop(Exception):
    """A step has failed that the next ones need."""


class _Diagnosis:
    """One examination and its findings."""

    def __init__(self, options: argparse.Namespace, terminal: Terminal) -> None:
        self.findings: list[Finding] = []
        self._options = options
        self._terminal = terminal
        self._stderr: list[str] = []
        timeout = options.timeout
        self._settings = Settings(
            connect_timeout=timeout,
            initialize_timeout=timeout,
            quick_timeout=timeout,
            probe_timeout=min(timeout, _PROBE),
            egress_timeout=timeout,
            auto_reconnect=False,
        )

    def ok(self, hop: str, seen: str) -> None:
        """Add a step that succeeded."""
        self.findings.append(Finding(hop, "ok", seen))

    def warn(self, hop: str, seen: str, mend: str) -> None:
        """Add a step with a problem that does not stop a client."""
        self.findings.append(Finding(hop, "warning", seen, mend=mend))

    def fail(self, hop: str, seen: str, mend: str, *, skipped: Iterable[str] = ()) -> None:
        """Add a step that failed, and the steps that are not tried therefore; then stop."""
        self.findings.append(Finding(hop, "failed", seen, mend=mend))
        self.findings += [Finding(one, "skipped", f"not tried, since {hop!r} failed") for one in skipped]
        raise _Stop

    async def run(self, target: str) -> None:
        """Examine a target of any kind."""
        if "://" in target:
            await self._examine_address(target, None)
            return
        path, name = split_config(target)
        if path is not None:
            await self._examine_entry(path, name)
        elif is_python_file(target) or (split_object(target)[1] is not None and " " not in target):
            await self._examine_python(target)
        else:
            env = {**os.environ, **read_variables(self._options)}
            try:
                command = Command(target, env=env, on_stderr=self._keep_stderr, settings=self._settings)
            except MisuseError as error:
                self.fail("target", str(error), "pass the command as one word, in quotes")
                return
            self.ok("target", f"a command, {Path(command.argv[0]).name}")
            await self._examine_command(command, env, None)

    # --- Python files and configurations --------------------------------------------------------

    async def _examine_python(self, target: str) -> None:
        """Examine a Python file or module: a server of ours, or a script to run."""
        set_variables(self._options)
        began = time.perf_counter()
        try:
            with self._terminal.reserved():
                server = load_server(target)
        except NoServer:
            if not is_python_file(target):
                self.fail("import", f"{target} has no trunkline.Server", "name the object: module:server")
            self.ok("target", f"a script without a trunkline.Server, which is run by {sys.executable}")
            command = Command(
                [sys.executable, target], env=os.environ, on_stderr=self._keep_stderr, settings=self._settings
            )
            await self._examine_command(command, os.environ, None)
            return
        except MisuseError as error:
            self.fail(
                "import", str(error), "let `python FILE` run without an error first", skipped=["handshake", "lists"]
            )
            return
        took = time.perf_counter() - began
        self.ok("import", f"{target} has the server {server.name!r}; importing took {took:.2f} s")
        if took > self._options.timeout:
            self.warn(
                "import", f"importing took {took:.1f} s", "hosts give up after a while: import large modules on use"
            )
        await self._shake_hands(server)

    async def _examine_entry(self, path: Path, name: str | None) -> None:
        """Examine an entry of a configuration file."""
        try:
            entry = add_options(find_entry(path, name), self._options)
        except MisuseError as error:
            self.fail("target", str(error), "check the path, the name and the JSON of the file")
            return
        self.ok("target", f"the entry {entry.name!r} of {path}, {'a URL' if entry.url is not None else 'a command'}")
        if entry.disabled:
            self.warn("target", "the entry is disabled, so hosts do not start it", "enable it")
        try:
            connector = entry.connector(self._settings, auth=read_auth(self._options), on_stderr=self._keep_stderr)
        except MisuseError as error:
            mend = "set the variable before the host starts, or write the value into `env`"
            self.fail("environment", str(error), mend, skipped=["start", "handshake", "lists"])
            return
        if not isinstance(connector, Command):
            await self._examine_address(connector.name, connector, entry.headers)
            return
        empty = [name for name, value in entry.env.items() if not value]
        if empty:
            self.warn("environment", f"{', '.join(empty)} is empty", "fill it in, or remove it")
        env = {**inherited_environment(), **entry.env}
        await self._examine_command(connector, env, entry.cwd)

    # --- processes -------------------------------------------------------------------------------

    async def _examine_command(self, command: Command, env: Mapping[str, str], cwd: str | None) -> None:
        self._check_command(command, env, cwd)
        await self._shake_hands(command)

    def _check_command(self, command: Command, env: Mapping[str, str], cwd: str | None) -> None:
        """Check that a command can be started."""
        program = command.argv[0]
        later = ["start", "handshake", "lists"]
        if cwd is not None and not Path(cwd).is_dir():
            self.fail("command", f"there is no folder {cwd!r} to start it in", "correct `cwd`", skipped=later)
        found = shutil.which(program, path=env.get("PATH"))
        if found is None and shutil.which(program) is not None:
            mend = f"write the whole path, {shutil.which(program)}, or set PATH in `env`"
            self.fail("command", f"{program!r} is not on the PATH of the command", mend, skipped=later)
        if found is None:
            exists = Path(program).exists()
            mend = "make it executable: chmod +x" if exists else "install it, or write the whole path of the program"
            why = "is not executable" if exists else "is not on PATH"
            self.fail("command", f"the program {program!r} {why}", mend, skipped=later)
        self.ok("command", f"{program} is {found}")
        base = Path(cwd or ".")
        for word in command.argv[1:]:
            if word.endswith(_SCRIPTS) and not word.startswith(("-", "http")) and not (base / word).exists():
                mend = "write the whole path; a host starts commands in a folder of its own"
                self.warn("command", f"there is no file {word!r} in {base.resolve()}", mend)
        missing = [name for name in ("PATH", "HOME") if name not in env and name in os.environ]
        if missing:
            self.warn("environment", f"the process has no {' and no '.join(missing)}", "set it in `env`")
        else:
            self.ok("environment", f"{len(env)} variables for the process")

    def _keep_stderr(self, line: str) -> None:
        self._stderr.append(line)
        del self._stderr[:-_MAX_STDERR]
        if self._options.stderr:
            self._terminal.note(escape(line))

    # --- addresses ---------------------------------------------------------------------------------

    async def _examine_address(self, url: str, connector: Any, configured: Mapping[str, str] | None = None) -> None:
        try:
            address = parse_address(url)
        except MisuseError as error:
            self.fail("target", str(error), "write an address such as https://example.org/mcp")
            return
        if connector is None:
            self.ok("target", f"an address, over {address.transport}")
        proxy = proxy_for(url) if address.scheme in HTTP_PORTS else None
        if proxy is not None:
            self.ok("network", "through the proxy that the environment names; the steps to the host are not examined")
        elif address.socket_path:
            self._examine_socket_file(address.socket_path)
        else:
            await self._examine_network(address)
        headers = {**(configured or {}), **read_headers(self._options)}
        if address.scheme in HTTP_PORTS and "authorization" not in {name.lower() for name in headers}:
            await self._examine_authorization(url)
        if connector is None:
            connector = self._web_connector(url, address, headers)
        await self._shake_hands(connector)

    def _web_connector(self, url: str, address: Address, headers: Mapping[str, str]) -> Any:
        """Return the target for an address. A token is passed to the connector, with the headers."""
        if address.scheme in HTTP_PORTS:
            from trunkline.transports.http.client.connector import HttpConnector

            return HttpConnector(url, headers=headers, auth=read_auth(self._options), settings=self._settings)
        if address.scheme in WEBSOCKET_PORTS:
            from trunkline.transports.websocket.client import WebSocketConnector

            return WebSocketConnector(url, auth=read_auth(self._options), settings=self._settings)
        return url

    def _examine_socket_file(self, path: str) -> None:
        if not Path(path).is_socket():
            mend = "start the server, or correct the path"
            self.fail("socket", f"there is no socket at {path}", mend, skipped=["handshake", "lists"])
        if not os.access(path, os.W_OK):
            self.fail(
                "socket", f"this user may not write to {path}", "change its mode or its group", skipped=["handshake"]
            )
        self.ok("socket", path)

    async def _examine_network(self, address: Address) -> None:
        later = ["connect", *(["tls"] if address.scheme in _TLS_SCHEMES else []), "handshake", "lists"]
        try:
            async with asyncio.timeout(self._options.timeout):
                loop = asyncio.get_running_loop()
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else _reason(error)
            mend = "check the spelling of the host, and the connection to the name server"
            self.fail("dns", f"{address.host} cannot be resolved: {why}", mend, skipped=later)
            return
        hosts = list(dict.fromkeys(str(one[4][0]) for one in found))
        self.ok("dns", f"{address.host} is {', '.join(hosts)}")
        async with self._connected(address, None, "connect", later[1:]):
            self.ok("connect", f"{address.host} accepts connections at port {address.port}")
        if address.scheme in _TLS_SCHEMES:
            await self._examine_tls(address)

    @contextlib.asynccontextmanager
    async def _connected(
        self, address: Address, context: ssl.SSLContext | None, hop: str, later: Iterable[str]
    ) -> AsyncGenerator[asyncio.StreamWriter]:
        """Open a connection. A failure becomes a finding."""
        try:
            async with asyncio.timeout(self._options.timeout):
                _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        except ssl.SSLCertVerificationError as error:
            mend = _mend_certificate(error)
            self.fail(hop, f"the certificate is not accepted: {error.verify_message}", mend, skipped=later)
            return
        except ssl.SSLError as error:
            mend = "see that the server speaks TLS at this port, and use http:// if it does not"
            self.fail(hop, f"no TLS connection: {error.reason or error}", mend, skipped=later)
            return
        except (OSError, TimeoutError) as error:
            why = f"no answer within {self._options.timeout:g} s" if isinstance(error, TimeoutError) else _reason(error)
            mend = "see that the server runs, that it listens at this address and port, and that no firewall is between"
            self.fail(hop, f"no connection to {address.host} at port {address.port}: {why}", mend, skipped=later)
            return
        try:
            yield writer
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    async def _examine_tls(self, address: Address) -> None:
        context = ssl.create_default_context()
        async with self._connected(address, context, "tls", ["handshake", "lists"]) as writer:
            certificate: dict[str, Any] = writer.get_extra_info("peercert") or {}
            version = writer.get_extra_info("ssl_object").version()
            expires = str(certificate.get("notAfter", ""))
            left = ssl.cert_time_to_seconds(expires) - time.time() if expires else _SOON
            if left < _SOON:
                self.warn("tls", f"the certificate expires at {expires}", "renew the certificate")
            else:
                self.ok("tls", f"{version}; the certificate is valid until {expires or 'an unknown time'}")

    async def _examine_authorization(self, url: str) -> None:
        """Add the findings of the authorization doctor, without its first hop, which the steps before have covered."""
        try:
            from trunkline.auth.doctor.examine import examine
            from trunkline.auth.fetch import Egress
            from trunkline.auth.ssrf import EgressPolicy
        except ModuleNotFoundError as error:
            mend = "pip install 'trunkline[auth]'"
            self.findings.append(
                Finding("authorization", "skipped", f"not examined: {error.name} is not installed", mend=mend)
            )
            return
        egress = Egress(EgressPolicy.for_url(url, self._settings), settings=self._settings)
        found = await examine(url, egress, timeout=self._options.timeout)
        self.findings += [
            replace(finding, hop=f"authorization {finding.hop}") for finding in found if finding.hop != "address"
        ]

    # --- the handshake -----------------------------------------------------------------------------

    async def _shake_hands(self, target: Any) -> None:
        """Connect with a client and list everything."""
        from trunkline.client.client import Client

        unreadable = _Unreadable()
        client = Client(
            target,
            name="trunkline-doctor",
            revision=self._options.revision,
            settings=self._settings,
            observers=[unreadable],
        )
        is_process = isinstance(target, Command)
        try:
            await client.open()
        except TrunklineError as error:
            self._report_failure(error, target if is_process else None, unreadable)
        try:
            self._soften_authorization()
            if is_process:
                self.ok("start", "the process runs")
            self._report_output(unreadable, failed=False)
            self._report_handshake(client)
            await self._report_lists(client)
        finally:
            with contextlib.suppress(TrunklineError):
                await client.close()

    def _soften_authorization(self) -> None:
        """Turn failures of the authorization steps into warnings: the client has connected nevertheless."""
        for at, finding in enumerate(self.findings):
            if finding.verdict == "failed":
                self.findings[at] = replace(finding, verdict="warning")

    def _report_output(self, unreadable: "_Unreadable", *, failed: bool) -> None:
        if not unreadable.excerpts:
            return
        shown = ", ".join(repr(one) for one in unreadable.excerpts[:_MAX_EXCERPTS])
        seen = f"it prints lines that are no messages of the protocol: {shown}"
        mend = "print to standard error instead: print(…, file=sys.stderr), console.error(…); check the log handler"
        self.findings.append(Finding("output", "failed" if failed else "warning", seen, "stdio transport", mend))

    def _report_failure(self, error: TrunklineError, command: Command | None, unreadable: "_Unreadable") -> None:
        words = self._stderr or (error.last_words.splitlines() if isinstance(error, ConnectionClosed) else [])
        last = next((line for line in reversed(words) if line.strip()), "")
        said = f"; its standard error ends with {last.strip()[:300]!r}" if last else ""
        cause = next((mend for text, mend in _CAUSES if any(text.lower() in line.lower() for line in words)), None)
        ended = isinstance(error, ConnectionClosed) and error.status is not None
        started = command is None or ended or not _is_start_error(error)
        message = error.message if isinstance(error, ConnectionClosed) else str(error)
        if command is not None and (ended or not started):
            self._report_output(unreadable, failed=True)
            mend = cause or f"run it in a terminal to see more: {shlex.join(command.argv)}"
            self.fail("start", f"{message}{said}", mend, skipped=["handshake", "lists"])
        if command is not None:
            self.ok("start", "the process runs")
        self._report_output(unreadable, failed=True)
        self.fail("handshake", f"{message}{said}", cause or self._mend_handshake(error, command), skipped=["lists"])

    def _mend_handshake(self, error: TrunklineError, command: Command | None) -> str:
        if isinstance(error, AuthorizationFailed) or self._requires_token():
            return "sign in with --login, or pass a token with --token"
        if _is_timeout(error) and command is not None:
            return (
                "see that the command is a server for stdio and not, for example, for HTTP, and that it does not wait "
                "for something; --timeout allows more time"
            )
        if _is_timeout(error):
            return "see that the path is that of the MCP endpoint; --timeout allows more time"
        if isinstance(error, HandshakeFailed):
            return "see that both sides support a common revision; --revision tries an older one"
        return "see that the address is that of an MCP server; its log may say more"

    def _requires_token(self) -> bool:
        """Return whether the authorization doctor went beyond the first response, as it does after 401."""
        hops = {finding.hop for finding in self.findings if finding.verdict != "skipped"}
        return any(hop.startswith("authorization ") for hop in hops - {"authorization server"})

    def _report_handshake(self, client: "Client") -> None:
        from trunkline.protocol.revisions import HANDSHAKE

        info = client.server_info
        era = "by a handshake" if client.revision in HANDSHAKE else "without a handshake"
        name = "a server without a name" if info is None else f"{info.name} {info.version}"
        self.ok("handshake", f"{name}, revision {client.revision}, {era}")

    async def _report_lists(self, client: "Client") -> None:
        try:
            catalog = await fetch_catalog(client)
        except TrunklineError as error:
            self.fail("lists", str(error), "see the log of the server; `trunkline list` shows each kind on its own")
            return
        counts = {
            "tools": catalog.tools,
            "resources": catalog.resources,
            "resource templates": catalog.templates,
            "prompts": catalog.prompts,
        }
        offered = [f"{len(entries)} {kind}" for kind, entries in counts.items() if entries]
        if offered:
            self.ok("lists", ", ".join(offered))
        else:
            self.warn("lists", "the server offers nothing", "see that it registers its tools before it runs")


class _Unreadable:
    """Observer of messages that cannot be read."""

    failures_only = True
    immediate = True

    def __init__(self) -> None:
        self.excerpts: list[str] = []

    def on(self, fact: Fact) -> None:
        """Keep the beginning of an unreadable message."""
        if isinstance(fact, MessageUnreadable) and len(self.excerpts) < _MAX_EXCERPTS:
            self.excerpts.append(fact.excerpt[:80].decode("utf-8", "replace").strip() or fact.why)


def _is_start_error(error: TrunklineError) -> bool:
    return isinstance(error, TransportError) and not isinstance(error, HandshakeFailed | ConnectionClosed)


def _is_timeout(error: BaseException | None) -> bool:
    return isinstance(error, TimeoutError) or (
        error is not None and (_is_timeout(error.__cause__) or _is_timeout(error.__context__))
    )


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return str(text or error)


def _mend_certificate(error: ssl.SSLCertVerificationError) -> str:
    known: dict[str, str] = {
        "expired": "renew the certificate",
        "self-signed": "use a certificate of a public authority, or add yours to the system (SSL_CERT_FILE)",
        "self signed": "use a certificate of a public authority, or add yours to the system (SSL_CERT_FILE)",
        "unable to get local issuer": "let the server send its whole chain, or add its authority (SSL_CERT_FILE)",
        "ostname mismatch": "use the name that the certificate is for",
        "IP address mismatch": "use the name that the certificate is for, not the address",
    }
    found = next((mend for text, mend in known.items() if text in error.verify_message), None)
    return found or "check the certificate of the server"
