"""The pass criteria of a scenario, stricter than the suite's, which passes a client that does nothing at all.

A scenario passes when its checks exist, none of them failed, warned or was skipped, no result in them says that a
tool failed, and at least as many succeeded as the table says.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tests.conformance.suite import Check, Leg

__all__ = ["LEAST", "LEAST_OF_OLDEST", "complaints", "old_complaints"]

UNWANTED: Final = frozenset({"FAILURE", "WARNING", "SKIPPED"})
FAILS_ON_PURPOSE: Final = "tools-call-error"  # the check whose tool has to fail

# Suite 0.1.16 posts it with the header of 2025-03-26 into a session of 2025-11-25, and misses what only the latter has.
OUT_OF_STEP: Final = "server-sse-polling"

# The suite expects the headers of the handshake, too, in a revision that has none.
OF_ANOTHER_ERA: Final = frozenset(
    f"Client did not send a {method} request; Mcp-Method header was not exercised for this method."
    for method in ("initialize", "notifications/initialized")
)

LEAST: Final[Mapping[str, Mapping[Leg, Mapping[str, int]]]] = {
    "2025-11-25": {
        "server": {
            "server-initialize": 3,
            "logging-set-level": 2,
            "ping": 2,
            "completion-complete": 2,
            "tools-list": 3,
            "tools-call-simple-text": 2,
            "tools-call-image": 2,
            "tools-call-audio": 2,
            "tools-call-embedded-resource": 2,
            "tools-call-mixed-content": 2,
            "tools-call-with-logging": 2,
            "tools-call-error": 2,
            "tools-call-with-progress": 2,
            "tools-call-sampling": 2,
            "tools-call-elicitation": 2,
            "elicitation-sep1034-defaults": 6,
            "server-sse-multiple-streams": 1,  # another one is for lists in event streams, and ours are JSON
            "elicitation-sep1330-enums": 6,
            "resources-list": 2,
            "resources-read-text": 2,
            "resources-read-binary": 2,
            "resources-templates-read": 2,
            "resources-subscribe": 2,
            "resources-unsubscribe": 2,
            "prompts-list": 2,
            "prompts-get-simple": 2,
            "prompts-get-with-args": 2,
            "prompts-get-embedded-resource": 2,
            "prompts-get-with-image": 2,
            "dns-rebinding-protection": 2,
            "server-session-lifecycle": 3,
            "json-schema-2020-12": 8,
            "server-sse-polling": 3,
        },
        "client": {
            "initialize": 1,
            "tools_call": 2,
            "elicitation-sep1034-client-defaults": 5,
            "sse-retry": 3,
            "auth/metadata-default": 18,
            "auth/metadata-var1": 18,
            "auth/metadata-var2": 18,
            "auth/metadata-var3": 18,
            "auth/basic-cimd": 13,
            "auth/scope-from-www-authenticate": 14,
            "auth/scope-from-scopes-supported": 14,
            "auth/scope-omitted-when-undefined": 14,
            "auth/scope-step-up": 22,
            "auth/scope-retry-limit": 10,
            "auth/token-endpoint-auth-basic": 19,
            "auth/token-endpoint-auth-post": 19,
            "auth/token-endpoint-auth-none": 19,
            "auth/pre-registration": 13,
            "auth/client-credentials-jwt": 8,
            "auth/client-credentials-basic": 8,
            "auth/enterprise-managed-authorization": 9,
            "auth/dpop": 12,
            "auth/dpop-nonce": 14,
            "auth/wif-jwt-bearer": 8,
            "json-schema-2020-12-preservation": 9,
        },
    },
    "2026-07-28": {
        "server": {
            "server-stateless": 30,
            "completion-complete": 2,
            "tools-list": 4,
            "tools-call-simple-text": 2,
            "tools-call-image": 2,
            "tools-call-audio": 2,
            "tools-call-embedded-resource": 2,
            "tools-call-mixed-content": 2,
            "tools-call-error": 2,
            "tools-call-with-progress": 2,
            "server-sse-multiple-streams": 1,
            "resources-list": 2,
            "resources-read-text": 2,
            "resources-read-binary": 2,
            "resources-templates-read": 2,
            "sep-2164-resource-not-found": 4,
            "prompts-list": 2,
            "prompts-get-simple": 2,
            "prompts-get-with-args": 2,
            "prompts-get-embedded-resource": 2,
            "prompts-get-with-image": 2,
            "dns-rebinding-protection": 2,
            "caching": 8,
            "input-required-result-basic-elicitation": 3,
            "input-required-result-basic-sampling": 3,
            "input-required-result-basic-list-roots": 3,
            "input-required-result-request-state": 3,
            "input-required-result-multiple-input-requests": 3,
            "input-required-result-multi-round": 4,
            "input-required-result-missing-input-response": 2,
            "input-required-result-non-tool-request": 3,
            "input-required-result-result-type": 2,
            "input-required-result-unsupported-methods": 2,
            "input-required-result-tampered-state": 2,
            "input-required-result-capability-check": 2,
            "input-required-result-ignore-extra-params": 2,
            "input-required-result-validate-input": 3,
            "tasks-lifecycle": 9,
            "tasks-capability-negotiation": 5,
            "tasks-wire-fields": 4,
            "tasks-request-state-removal": 3,
            "tasks-mrtr-input": 4,
            "tasks-request-headers": 5,
            "tasks-dispatch-and-envelope": 9,
            "tasks-required-task-error": 3,
            "tasks-mrtr-composition": 2,
            "json-schema-2020-12": 8,
            "http-header-validation": 14,
            "http-custom-header-server-validation": 10,
        },
        "client": {
            "tools_call": 2,
            "request-metadata": 8,
            "auth/metadata-default": 18,
            "auth/metadata-var1": 18,
            "auth/metadata-var2": 18,
            "auth/metadata-var3": 18,
            "auth/basic-cimd": 12,
            "auth/scope-from-www-authenticate": 14,
            "auth/scope-from-scopes-supported": 14,
            "auth/scope-omitted-when-undefined": 14,
            "auth/scope-step-up": 25,
            "auth/scope-retry-limit": 11,
            "auth/token-endpoint-auth-basic": 19,
            "auth/token-endpoint-auth-post": 19,
            "auth/token-endpoint-auth-none": 19,
            "auth/pre-registration": 12,
            "auth/resource-mismatch": 2,
            "auth/offline-access-scope": 12,
            "auth/offline-access-not-supported": 14,
            "auth/authorization-server-migration": 27,
            "auth/iss-supported": 14,
            "auth/iss-not-advertised": 14,
            "auth/iss-supported-missing": 8,
            "auth/iss-wrong-issuer": 8,
            "auth/iss-unexpected": 8,
            "auth/iss-normalized": 8,
            "auth/metadata-issuer-mismatch": 3,
            "sep-2322-client-request-state": 5,
            "http-standard-headers": 9,
            "http-custom-headers": 18,
            "http-invalid-tool-headers": 12,
            "json-schema-ref-no-deref": 1,
            "auth/client-credentials-jwt": 7,
            "auth/client-credentials-basic": 7,
            "auth/enterprise-managed-authorization": 8,
            "auth/dpop": 13,
            "auth/dpop-nonce": 15,
            "auth/wif-jwt-bearer": 7,
            "json-schema-2020-12-preservation": 9,
        },
    },
}
"""How many checks succeed at least, by revision and scenario."""

LEAST_OF_OLDEST: Final = {
    "auth/2025-03-26-oauth-metadata-backcompat": 12,
    "auth/2025-03-26-oauth-endpoint-fallback": 7,
}
"""The same for the scenarios of a revision that has no requirement set."""


def complaints(checks: Sequence[Check] | None, least: int, *, unwanted: Collection[str] = UNWANTED) -> list[str]:
    """The reasons why a scenario does not pass, in words."""
    if checks is None:
        return ["wrote no checks"]
    told = [
        f"{check['status']} {check['id']}: {check.get('errorMessage') or check.get('details')}"
        for check in checks
        if check["status"] in unwanted and check.get("errorMessage") not in OF_ANOTHER_ERA
    ]
    told += [f"{check['id']}: the tool failed: {check['details']['result']}" for check in checks if _tool_failed(check)]
    succeeded = Counter(check["status"] for check in checks)["SUCCESS"]
    if succeeded < least:
        told.append(f"only {succeeded} of at least {least} checks succeeded")
    return told


def old_complaints(scenario: str, checks: Sequence[Check] | None) -> list[str]:
    """The same for suite 0.1.16, which makes fewer checks."""
    if scenario == OUT_OF_STEP:
        return complaints(checks, 0, unwanted={"FAILURE"})
    return complaints(checks, 1)


def _tool_failed(check: Check) -> bool:
    """Return whether a check accepts any result, and has got one that says that the tool failed."""
    result = (check.get("details") or {}).get("result")
    return check["id"] != FAILS_ON_PURPOSE and isinstance(result, dict) and result.get("isError") is True
