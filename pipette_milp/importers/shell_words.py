"""The words of the commands in a shell script, with variables replaced as far as the script itself sets them.

Nothing is executed. Understood: quotes, line continuations, comments, plain and array assignments, ``+=``,
``$X``, ``${X}``, ``${X:-default}``, ``${X[@]}`` and whole-number arithmetic ``$((...))``. What depends on
something else (the environment, another program, a branch) is marked, so that whoever needs its value can
say which name to set.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipette_milp.importers.shell_reader import ASSIGNMENT, NAME, Char, RawWord, ShellReader

_OPENING = frozenset({"if", "case", "for", "while", "until", "select"})
_CLOSING = frozenset({"fi", "esac", "done"})
_TRANSPARENT = frozenset({"then", "do", "else", "elif", "{", "}", "!", "time"})
_DECLARING = frozenset({"export", "local", "declare", "readonly", "typeset"})

# A marked value inside a text: a character that no file holds (zero bytes are refused), around the reason.
_MARK = "\x00"


@dataclass(frozen=True)
class Word:
    """One word of a command."""

    text: str
    line: int
    column: int

    @property
    def undecided(self) -> tuple[str, ...]:
        """Reasons why the script alone does not give this word; empty when it does."""
        return tuple(self.text.split(_MARK)[1::2])


def commands(text: str, source: str, settings: Mapping[str, str] | None = None) -> list[list[Word]]:
    """Every simple command as its expanded words, in order; assignments take effect and are left out.

    A command that only assigns is listed as no command. Flags that a script keeps in variables appear
    where the variable is used.

    Args:
        settings: values of variables, which win over the script's.

    Raises:
        InputError: a quote, bracket or expansion that is never closed; with its place.
    """
    reader = ShellReader(text, source)
    interpreter = _Interpreter(dict(settings or {}))
    for command in reader.commands():
        interpreter.run(command)
    return interpreter.commands


def variables(text: str, source: str, settings: Mapping[str, str] | None = None) -> dict[str, list[Word]]:
    """Every variable a script ends with, split into words."""
    interpreter = _Interpreter(dict(settings or {}))
    for command in ShellReader(text, source).commands():
        interpreter.run(command)
    return {
        name: [word for item in value for word in _split(item)] for name, value in interpreter.values.items()
    }


class _Interpreter:
    """Runs the assignments and collects the commands."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.values: dict[str, list[list[Char]]] = {}
        self.depth = 0
        self.commands: list[list[Word]] = []

    def run(self, command: list[RawWord | str]) -> None:
        words = list(command)
        while words:
            first = words[0]
            if not isinstance(first, RawWord):
                words.pop(0)
                continue
            keyword = first.literal()
            if keyword in _OPENING:
                self.depth += 1
                return
            if keyword in _CLOSING:
                self.depth = max(self.depth - 1, 0)
                words.pop(0)
            elif keyword in _TRANSPARENT or keyword in _DECLARING or keyword.endswith(")"):
                words.pop(0)
            elif ASSIGNMENT.match(keyword):
                words = self._assign(words)
            else:
                break
        if words:
            expanded = [item for raw in words if isinstance(raw, RawWord) for item in self._expand(raw)]
            self.commands.append([word for characters in expanded if (word := _word(characters)) is not None])

    def _assign(self, words: list[RawWord | str]) -> list[RawWord | str]:
        raw = words[0]
        if not isinstance(raw, RawWord):
            return words[1:]
        match = ASSIGNMENT.match(raw.literal())
        if match is None:
            return words[1:]
        name, append = match[1], bool(match[2])
        if len(words) > 1 and words[1] == "(":
            end = words.index(")") if ")" in words else len(words)
            items = [
                item for part in words[2:end] if isinstance(part, RawWord) for item in self._expand(part)
            ]
            rest = words[end + 1 :]
        else:
            items = [self._joined(_without_prefix(raw, len(match[0])))]
            rest = words[1:]
        if name in self.settings:
            return rest
        if self.depth:
            items = self._conditional(name, items, append)
            append = False
        if append and name in self.values:
            old = self.values[name]
            if len(words) > 1 and words[1] == "(":
                items = [*old, *items]
            else:
                items = [*old[:-1], [*old[-1], *items[0]]] if old else items
        self.values[name] = items
        return rest

    def _conditional(self, name: str, items: list[list[Char]], append: bool) -> list[list[Char]]:
        """A value set in a branch: kept when it is what the variable has anyway, else marked."""
        old = self.values.get(name)
        if (
            not append
            and old is not None
            and [_plain(item) for item in old] == [_plain(item) for item in items]
        ):
            return items
        line, column = next(((line, column) for item in items for _, line, column in item), (1, 1))
        mark = f"{_MARK}{name}{_MARK}"
        if append and old is not None:
            return [*old, [(mark, line, column)]]
        return [[(mark, line, column)]]

    def _joined(self, raw: RawWord) -> list[Char]:
        """The word as one text: what an assignment stores."""
        out: list[Char] = []
        for kind, content, quoted, line, column in raw.parts:
            if kind == "text" and not isinstance(content, str):
                out += content
            else:
                values = self._value(str(content), line, column)
                for index, value in enumerate(values):
                    if index:
                        out.append((" ", line, column))
                    out += value
            del quoted
        return out

    def _expand(self, raw: RawWord) -> list[list[Char]]:
        """The words that a raw word becomes."""
        fields: list[list[Char]] = [[]]
        for kind, content, quoted, line, column in raw.parts:
            if kind == "text" and not isinstance(content, str):
                fields[-1] += content
                continue
            values = self._value(str(content), line, column)
            if not quoted:
                values = [part for value in values for part in _split_characters(value)]
            elif len(values) > 1 and "[@]" not in str(content):
                values = [[item for value in values for item in [*value, (" ", line, column)]][:-1]]
            for index, value in enumerate(values):
                if index:
                    fields.append([])
                fields[-1] += value
        return [item for item in fields if item]

    def _value(self, expression: str, line: int, column: int) -> list[list[Char]]:
        def marked(name: str) -> list[list[Char]]:
            return [[(f"{_MARK}{name}{_MARK}", line, column)]]

        if expression.startswith("(("):
            inside = self._replace(expression[2:].removesuffix(")"))
            # Inside arithmetic a name stands for its value without a dollar sign.
            inside = NAME.sub(lambda match: self._replace(f"${match[0]}"), inside)
            number = _arithmetic(inside)
            if number is None:
                reasons = inside.split(_MARK)[1::2]
                return marked(reasons[0] if reasons else f"$({expression[1:]})")
            return [[(digit, line, column) for digit in str(number)]]
        if expression.startswith(("(", "`")):
            return marked(f"$({expression[1:]})")
        match = re.fullmatch(r"(\w+|[@*])(\[[@*]\])?(?:(:?[-=])(.*))?", expression, re.DOTALL)
        if match is None:
            return marked(f"${{{expression}}}")
        name, default = match[1], match[4]
        if name in self.settings:
            return [[(character, line, column) for character in self.settings[name]]]
        value = self.values.get(name)
        if value is not None and (_plain_all(value) or default is None):
            return value
        if default is not None:
            text = self._replace(default)
            return [[(part, line, column) for part in _marked_characters(text)]]
        return marked(name)

    def _replace(self, text: str) -> str:
        """Variables inside a default or an arithmetic expression."""

        def one(match: re.Match[str]) -> str:
            return "".join(
                character for item in self._value(match[1] or match[2], 0, 0) for character, _, _ in item
            )

        text = re.sub(r"\$\{([^{}]*)\}|\$(\w+)", one, text)
        return text.strip('"').strip("'")


def _without_prefix(raw: RawWord, length: int) -> RawWord:
    parts = list(raw.parts)
    removed = 0
    while removed < length:
        kind, content, quoted, line, column = parts.pop(0)
        if isinstance(content, str):
            break
        removed += len(content)
    del kind, quoted, line, column
    return RawWord(parts, raw.line, raw.column)


def _plain(item: list[Char]) -> str:
    return "".join(character for character, _, _ in item)


def _plain_all(value: list[list[Char]]) -> bool:
    return any(_plain(item) for item in value)


def _marked_characters(text: str) -> list[str]:
    """Characters, with each mark kept in one piece."""
    parts = text.split(_MARK)
    out: list[str] = []
    for index, part in enumerate(parts):
        if index % 2:
            out.append(f"{_MARK}{part}{_MARK}")
        else:
            out += part
    return out


def _split_characters(value: list[Char]) -> list[list[Char]]:
    found: list[list[Char]] = [[]]
    for item in value:
        if item[0] in " \t\r\n":
            if found[-1]:
                found.append([])
        else:
            found[-1].append(item)
    return [item for item in found if item]


def _split(value: list[Char]) -> list[Word]:
    return [word for item in _split_characters(value) if (word := _word(item)) is not None]


def _word(characters: list[Char]) -> Word | None:
    if not characters:
        return None
    return Word(_plain(characters), characters[0][1], characters[0][2])


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,  # the shell divides whole numbers
    ast.Mod: operator.mod,
}
# Nothing in a launch script is larger; keeps a damaged expression from growing without bound.
_LARGEST = 10**15


def _arithmetic(text: str) -> int | None:
    """Value of a whole-number expression, None when it is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    def value(node: ast.AST) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = value(node.operand)
            return None if inner is None else -inner
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = value(node.left), value(node.right)
            if left is None or right is None:
                return None
            if right == 0 and not isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
                return None
            result = _OPERATORS[type(node.op)](left, right)
            return int(result) if abs(result) <= _LARGEST else None
        return None

    try:
        return value(tree)
    except RecursionError:
        return None
