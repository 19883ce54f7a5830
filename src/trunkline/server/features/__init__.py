"""Request handlers, one module per page of the specification."""

from trunkline.server.features import (
    completion,
    discovery,
    lifecycle,
    logging,
    prompts,
    resources,
    roots,
    subscriptions,
    tasks,
    tools,
)

__all__ = ["FEATURES"]

FEATURES = (
    lifecycle.FEATURE,
    discovery.FEATURE,
    subscriptions.FEATURE,
    tools.FEATURE,
    tasks.FEATURE,
    resources.FEATURE,
    prompts.FEATURE,
    completion.FEATURE,
    logging.FEATURE,
    roots.FEATURE,
)
"""All features. A server with fewer features does not have the methods of the others."""
