"""`trunkline lint`: problems that models, hosts and providers have with what a server offers."""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from trunkline.cli import printing
from trunkline.cli.commands import EXIT_FAILURE, EXIT_OK
from trunkline.cli.connection import TARGET_HELP, add_target_options, run_to_exit_code
from trunkline.cli.description import ServerDescription, fetch_description
from trunkline.cli.lint_rules import (
    RULES,
    Problem,
    Rule,
    Subject,
    as_finding,
    estimate_tokens,
    find_problems,
    select_rules,
)
from trunkline.cli.terminal import Terminal
from trunkline.errors import MisuseError

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline lint calculator.py
  trunkline lint https://example.org/mcp --select default,openai-strict,gemini
  trunkline lint calculator.py --ignore description --budget 2000 --json
  trunkline lint --rules                # all rules, with their reasons and fixes

A selection has ids of rules, groups (the first words of ids), `default` and `all`. The estimate of tokens is one for
every four bytes of a tool's name, description and input schema as JSON.

exit codes: 0 no rule with the verdict `failed` is violated (with --strict: no rule at all), 1 one is, or the tools take
more tokens than the budget, 2 wrong usage, 3 the server cannot be reached
"""


class _PrintRules(argparse.Action):
    """Print the table of rules and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        terminal = Terminal()
        for rule in RULES:
            about = "" if rule.default else ", not a default"
            terminal.line(f"{rule.id} ({rule.verdict}{about})\n  {rule.reason}\n  Fix: {rule.fix}")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_target_options(parser)
    parser.add_argument("--select", metavar="RULES", help="rules and groups to check, separated by commas (default)")
    parser.add_argument("--ignore", metavar="RULES", help="rules and groups to leave out")
    parser.add_argument("--budget", metavar="TOKENS", type=int, help="fail if all tools take more tokens than this")
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    parser.add_argument("--rules", action=_PrintRules, nargs=0, help="print all rules and exit")
    parser.epilog = f"{_EXAMPLES}\n{TARGET_HELP}"
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    terminal = Terminal()
    try:
        rules = select_rules(_split(options.select), _split(options.ignore))
    except LookupError as error:
        raise MisuseError(f"there is no rule or group {error}; `trunkline lint --rules` lists them") from None

    async def main() -> int:
        description = await fetch_description(options.target, options, terminal)
        return _report(description, rules, options, terminal)

    return run_to_exit_code(main(), terminal)


def _split(words: str | None) -> list[str]:
    return [word.strip() for word in (words or "").split(",") if word.strip()]


def _report(
    description: ServerDescription, rules: Sequence[Rule], options: argparse.Namespace, terminal: Terminal
) -> int:
    problems = find_problems(description, rules)
    tokens = sum(estimate_tokens(tool) for tool in description.tools)
    if options.budget is not None and tokens > options.budget:
        problems.append((_budget_rule(options.budget), Problem("server", f"all tools take about {tokens} tokens")))
    failed = sum(rule.verdict == "failed" for rule, _ in problems)
    if options.json:
        found = [
            {
                "rule": rule.id,
                "verdict": rule.verdict,
                "where": where,
                "seen": seen,
                "reason": rule.reason,
                "fix": rule.fix,
            }
            for rule, (where, seen) in problems
        ]
        sizes = [{"name": tool.name, "tokens": estimate_tokens(tool)} for tool in description.tools]
        counts = {"failed": failed, "warnings": len(problems) - failed, "tokens": tokens}
        terminal.json({**counts, "tools": sizes, "problems": found})
    else:
        printing.print_findings([as_finding(*one) for one in problems])
        count = len(description.tools)
        terminal.note(f"{count} tools, about {tokens} tokens: {failed} failed, {len(problems) - failed} warnings")
    return EXIT_FAILURE if failed or (options.strict and problems) else EXIT_OK


def _budget_rule(budget: int) -> Rule:
    return Rule(
        "size-budget",
        "failed",
        f"the budget is {budget} tokens",
        "shorten descriptions, remove tools or split the server",
        _check_nothing,
    )


def _check_nothing(_: Subject) -> tuple[Problem, ...]:
    """Return nothing: the budget is an option of the command, and is checked with it."""
    return ()
