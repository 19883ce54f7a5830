"""Features that are imported with their first request."""

import subprocess
import sys

import pytest

from trunkline.rpc.dispatch import Feature
from trunkline.server.features import FEATURES, subscriptions, tasks

MINIMAL = """
import sys
from trunkline import Server
server = Server("minimal")
server.add_tool(lambda: 1, name="one")
print([name for name in sys.modules if name.startswith(("trunkline.server.tasks", "trunkline.server.sessions"))])
"""


@pytest.mark.parametrize("feature", [subscriptions.FEATURE, tasks.FEATURE], ids=lambda feature: feature.name)
def test_lazy_feature_has_the_methods_of_its_module(feature: Feature) -> None:
    lazy = next(one for one in FEATURES if one.name == feature.name)
    assert lazy.handlers.keys() == feature.handlers.keys()


def test_minimal_server_imports_neither_tasks_nor_sessions() -> None:
    ended = subprocess.run([sys.executable, "-c", MINIMAL], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
