"""Directives that read the program: `kcl-commands` shows every command and option, `kcl-list` a list of `kcl list`."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from kcl.cli.commands import COMMANDS, _parser, main


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("kcl-commands", Commands)
    app.add_directive("kcl-list", List)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        parser = _parser()
        [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        text = "\n".join(_section(name, COMMANDS[name].help, commands.choices[name]) for name in COMMANDS)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class List(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["list", self.arguments[0]])
        lines: list[str] = []
        for line in printed.getvalue().splitlines():
            name, _, text = line.strip().partition(" ")
            if line.endswith(":"):
                lines += ["", f"**{line.removesuffix(':')}**", "", "| name | meaning |", "|---|---|"]
            else:
                lines += [] if lines else ["| name | meaning |", "|---|---|"]
                lines.append(f"| `{name}` | {_plain(text.strip()).replace('|', chr(92) + '|')} |")
        return self.parse_text_to_nodes("\n".join(lines))


def _section(name: str, summary: str, parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=88)  # type: ignore[assignment]
    lines = [f"## kcl {name}", "", _plain(summary[0].upper() + summary[1:]) + ".", ""]
    lines += ["```text", parser.format_usage().removeprefix("usage: ").rstrip(), "```", ""]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if actions:
            lines += [f"**{group.title}**", ""]
            for action in actions:
                lines += [f"`{_spelled(action)}`", f": {_help(parser, action)}", ""]
    if parser.epilog:
        lines += ["```text", parser.epilog.rstrip(), "```", ""]
    return "\n".join(lines)


def _spelled(action: argparse.Action) -> str:
    """The option as it is typed, with what it takes."""
    takes = str(action.metavar or "")
    if action.nargs != 0 and not takes:
        takes = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    names = ", ".join(action.option_strings)
    return f"{names} {'' if action.nargs == 0 else takes}".strip()


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _plain(parser._get_formatter()._expand_help(action)) if action.help else "–"


def _plain(text: str) -> str:
    """Text as Markdown, with links to the pages it names."""
    text = re.sub(r"([<*_])", r"\\\1", text)
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](../\1)", text)
