"""A tool that is offered ten times the calls that it admits: some succeed in time, the others are refused at once."""

import pytest
from bench import overload


@pytest.mark.row("Q02", "Q08")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_overloaded_server_admits_its_rate_and_refuses_the_rest_with_advice() -> None:
    print()
    assert overload.main(["--here", "--seconds", "10", "--targets", "trunkline"]) == 0
