"""`trunkline completion`: completions for shells, made from the parsers of the commands."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from trunkline.cli.commands import EXIT_OK

__all__ = ["configure"]

_EXAMPLES: Final = """\
examples:
  trunkline completion bash > ~/.local/share/bash-completion/completions/trunkline
  trunkline completion zsh > "${fpath[1]}/_trunkline"
  trunkline completion fish > ~/.config/fish/completions/trunkline.fish
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    parser.epilog = _EXAMPLES
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    write = {"bash": _for_bash, "zsh": _for_zsh, "fish": _for_fish}[options.shell]
    sys.stdout.write(write(_options_by_command()))
    return EXIT_OK


def _options_by_command() -> dict[str, list[str]]:
    """Return the visible options of every command, as its help shows them."""
    import re

    from trunkline.cli.main import COMMANDS, build_command_parser

    found: dict[str, list[str]] = {}
    for name in COMMANDS:
        usage = build_command_parser(name).format_usage()
        found[name] = sorted({"--help", *re.findall(r"--[a-z][a-z-]*", usage)})
    return found


def _summaries() -> Mapping[str, str]:
    from trunkline.cli.main import COMMANDS

    return {name: command.summary for name, command in COMMANDS.items()}


def _for_bash(options: Mapping[str, Sequence[str]]) -> str:
    cases = "\n".join(f'        {name}) words="{" ".join(words)}" ;;' for name, words in options.items())
    return f"""\
_trunkline() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(options)} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
        *) COMPREPLY=($(compgen -f -- "$current")) ;;
    esac
}}
complete -o filenames -F _trunkline trunkline
"""


def _for_zsh(options: Mapping[str, Sequence[str]]) -> str:
    commands = "\n".join(f"        '{name}:{_quoted(about)}'" for name, about in _summaries().items())
    cases = "\n".join(f"        {name}) choices=({' '.join(words)}) ;;" for name, words in options.items())
    return f"""\
#compdef trunkline
_trunkline() {{
    local -a commands choices
    commands=(
{commands}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case "$words[2]" in
{cases}
    esac
    compadd -a choices
    _files
}}
_trunkline "$@"
"""


def _for_fish(options: Mapping[str, Sequence[str]]) -> str:
    lines = [
        f"complete -c trunkline -n __fish_use_subcommand -f -a {name} -d '{_quoted(about)}'"
        for name, about in _summaries().items()
    ]
    for name, words in options.items():
        lines += [
            f"complete -c trunkline -n '__fish_seen_subcommand_from {name}' -l {word.removeprefix('--')}"
            for word in words
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("'", "").replace(":", " ")
