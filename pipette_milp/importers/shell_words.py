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
from dataclasses import dataclass, field

from pipette_milp.errors import InputError, Problem

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENING = frozenset({"if", "case", "for", "while", "until", "select"})
_CLOSING = frozenset({"fi", "esac", "done"})
_TRANSPARENT = frozenset({"then", "do", "else", "elif", "{", "}", "!", "time"})
_DECLARING = frozenset({"export", "local", "declare", "readonly", "typeset"})

_Mark = str
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


_Char = tuple[str, int, int]
"""(character, line, column); the character of a mark is the whole mark."""


@dataclass
class _Raw:
    """A word before expansion: literal characters and expressions, quoted or not."""

    parts: list[tuple[str, list[_Char] | str, bool, int, int]] = field(default_factory=list)
    """("text", characters, quoted, line, column) or ("expression", inside of ${...}, quoted, line, column)"""
    line: int = 0
    column: int = 0

    def literal(self) -> str:
        """Leading unquoted literal text: enough to recognise keywords and assignments."""
        out = ""
        for kind, content, quoted, _, _ in self.parts:
            if kind != "text" or quoted or isinstance(content, str):
                break
            out += "".join(character for character, _, _ in content)
        return out


def commands(text: str, source: str, settings: Mapping[str, str] | None = None) -> list[list[Word]]:
    """Every simple command as its expanded words, in order; assignments take effect and are left out.

    A command that only assigns is listed as no command. Flags that a script keeps in variables appear
    where the variable is used.

    Args:
        settings: values of variables, which win over the script's.

    Raises:
        InputError: a quote, bracket or expansion that is never closed; with its place.
    """
    reader = _Reader(text, source)
    interpreter = _Interpreter(dict(settings or {}))
    for command in reader.commands():
        interpreter.run(command)
    return interpreter.commands


def variables(text: str, source: str, settings: Mapping[str, str] | None = None) -> dict[str, list[Word]]:
    """Every variable a script ends with, split into words."""
    interpreter = _Interpreter(dict(settings or {}))
    for command in _Reader(text, source).commands():
        interpreter.run(command)
    return {
        name: [word for item in value for word in _split(item)] for name, value in interpreter.values.items()
    }


class _Reader:
    """Splits a text into commands of raw words."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.line = 1
        self.start_of_line = 0

    def _error(self, message: str, line: int, column: int) -> InputError:
        return InputError(Problem(f"{self.source}:{line}:{column}", message))

    def _peek(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.text[position] if position < len(self.text) else ""

    def _next(self) -> _Char:
        character = self.text[self.at]
        place = (character, self.line, self.at - self.start_of_line + 1)
        self.at += 1
        if character == "\n":
            self.line += 1
            self.start_of_line = self.at
        return place

    def commands(self) -> list[list[_Raw | str]]:
        """Each command: raw words, and "(" and ")" of array assignments and functions."""
        found: list[list[_Raw | str]] = [[]]
        while self.at < len(self.text):
            character = self._peek()
            if character in " \t\r":
                self._next()
            elif character == "\\" and self._peek(1) == "\n":
                self._next()
                self._next()
            elif character == "\\" and self._peek(1) == "\r" and self._peek(2) == "\n":
                for _ in range(3):
                    self._next()
            elif character == "#":
                while self.at < len(self.text) and self._peek() != "\n":
                    self._next()
            elif character in "\n;&|":
                self._next()
                found.append([])
            elif character in "()":
                self._next()
                found[-1].append(character)
                if character == "(" and self._is_array(found[-1]):
                    self._array(found[-1])
                else:
                    found.append([])
            elif character in "<>":
                self._redirection()
            else:
                word = self._word()
                # "2" of "2>&1" names a file descriptor, it is no word.
                if not (self._peek() in ("<", ">") and word.literal().isdigit()):
                    found[-1].append(word)
        return [command for command in found if command]

    @staticmethod
    def _is_array(command: list[_Raw | str]) -> bool:
        previous = command[-2] if len(command) > 1 else None
        return isinstance(previous, _Raw) and bool(_ASSIGNMENT.fullmatch(previous.literal()))

    def _array(self, command: list[_Raw | str]) -> None:
        line, column = self.line, self.at - self.start_of_line
        while True:
            character = self._peek()
            if not character:
                raise self._error("this bracket is never closed", line, max(column, 1))
            if character == ")":
                self._next()
                command.append(")")
                return
            if character in " \t\r\n" or (character == "\\" and self._peek(1) in ("\n", "\r")):
                self._next()
            elif character == "#":
                while self.at < len(self.text) and self._peek() != "\n":
                    self._next()
            elif character in ";&|<>(":
                self._next()
            else:
                command.append(self._word())

    def _redirection(self) -> None:
        while self._peek() in ("<", ">", "&"):
            self._next()
        while self._peek() in (" ", "\t"):
            self._next()
        while self._peek() and self._peek() not in " \t\r\n;|":
            self._next()

    def _word(self) -> _Raw:
        word = _Raw(line=self.line, column=self.at - self.start_of_line + 1)
        while self.at < len(self.text):
            character = self._peek()
            if character in " \t\r\n;|()<>" or (character == "&"):
                break
            if character == "\\":
                self._escape(word)
            elif character == "'":
                self._single_quoted(word)
            elif character == '"':
                self._double_quoted(word)
            elif character == "$" or character == "`":
                self._expansion(word, quoted=False)
            else:
                word.parts.append(("text", [self._next()], False, word.line, word.column))
        return word

    def _escape(self, word: _Raw) -> None:
        self._next()
        if self._peek() == "\r" and self._peek(1) == "\n":
            self._next()
        if self._peek() == "\n":
            self._next()
        elif self._peek():
            word.parts.append(("text", [self._next()], True, self.line, 0))

    def _single_quoted(self, word: _Raw) -> None:
        _, line, column = self._next()
        characters: list[_Char] = []
        while self._peek() != "'":
            if not self._peek():
                raise self._error("this quote is never closed", line, column)
            characters.append(self._next())
        self._next()
        word.parts.append(("text", characters, True, line, column))

    def _double_quoted(self, word: _Raw) -> None:
        _, line, column = self._next()
        characters: list[_Char] = []
        while self._peek() != '"':
            character = self._peek()
            if not character:
                raise self._error("this quote is never closed", line, column)
            if character == "\\" and self._peek(1) in ("\n", '"', "\\", "$", "`", "\r"):
                self._next()
                if self._peek() == "\r":
                    self._next()
                skipped = self._next()
                if skipped[0] != "\n":
                    characters.append(skipped)
            elif character in "$`":
                word.parts.append(("text", characters, True, line, column))
                characters = []
                self._expansion(word, quoted=True)
            else:
                characters.append(self._next())
        self._next()
        word.parts.append(("text", characters, True, line, column))

    def _expansion(self, word: _Raw, quoted: bool) -> None:
        opening, line, column = self._next()
        if opening == "`":
            inside = self._until("`", line, column)
            word.parts.append(("expression", f"`{inside}", quoted, line, column))
            return
        character = self._peek()
        if character == "{":
            self._next()
            word.parts.append(("expression", self._balanced("{", "}", line, column), quoted, line, column))
        elif character == "(":
            self._next()
            inside = self._balanced("(", ")", line, column)
            word.parts.append(("expression", f"({inside}", quoted, line, column))
        elif character and (character.isalnum() or character in "_@*#?$!-"):
            match = _NAME.match(self.text, self.at)
            length = len(match[0]) if match else 1
            name = "".join(self._next()[0] for _ in range(length))
            word.parts.append(("expression", name, quoted, line, column))
        else:
            word.parts.append(("text", [(opening, line, column)], quoted, line, column))

    def _until(self, end: str, line: int, column: int) -> str:
        out = ""
        while self._peek() != end:
            if not self._peek():
                raise self._error("this expansion is never closed", line, column)
            out += self._next()[0]
        self._next()
        return out

    def _balanced(self, opening: str, closing: str, line: int, column: int) -> str:
        depth, out = 1, ""
        while True:
            if not self._peek():
                raise self._error("this expansion is never closed", line, column)
            character = self._next()[0]
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return out
            out += character


class _Interpreter:
    """Runs the assignments and collects the commands."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.values: dict[str, list[list[_Char]]] = {}
        self.depth = 0
        self.commands: list[list[Word]] = []

    def run(self, command: list[_Raw | str]) -> None:
        words = list(command)
        while words:
            first = words[0]
            if not isinstance(first, _Raw):
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
            elif _ASSIGNMENT.match(keyword):
                words = self._assign(words)
            else:
                break
        if words:
            expanded = [item for raw in words if isinstance(raw, _Raw) for item in self._expand(raw)]
            self.commands.append([word for characters in expanded if (word := _word(characters)) is not None])

    def _assign(self, words: list[_Raw | str]) -> list[_Raw | str]:
        raw = words[0]
        if not isinstance(raw, _Raw):
            return words[1:]
        match = _ASSIGNMENT.match(raw.literal())
        if match is None:
            return words[1:]
        name, append = match[1], bool(match[2])
        if len(words) > 1 and words[1] == "(":
            end = words.index(")") if ")" in words else len(words)
            items = [item for part in words[2:end] if isinstance(part, _Raw) for item in self._expand(part)]
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

    def _conditional(self, name: str, items: list[list[_Char]], append: bool) -> list[list[_Char]]:
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

    def _joined(self, raw: _Raw) -> list[_Char]:
        """The word as one text: what an assignment stores."""
        out: list[_Char] = []
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

    def _expand(self, raw: _Raw) -> list[list[_Char]]:
        """The words that a raw word becomes."""
        fields: list[list[_Char]] = [[]]
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

    def _value(self, expression: str, line: int, column: int) -> list[list[_Char]]:
        def marked(name: str) -> list[list[_Char]]:
            return [[(f"{_MARK}{name}{_MARK}", line, column)]]

        if expression.startswith("(("):
            inside = self._replace(expression[2:].removesuffix(")"))
            # Inside arithmetic a name stands for its value without a dollar sign.
            inside = _NAME.sub(lambda match: self._replace(f"${match[0]}"), inside)
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


def _without_prefix(raw: _Raw, length: int) -> _Raw:
    parts = list(raw.parts)
    removed = 0
    while removed < length:
        kind, content, quoted, line, column = parts.pop(0)
        if isinstance(content, str):
            break
        removed += len(content)
    del kind, quoted, line, column
    return _Raw(parts, raw.line, raw.column)


def _plain(item: list[_Char]) -> str:
    return "".join(character for character, _, _ in item)


def _plain_all(value: list[list[_Char]]) -> bool:
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


def _split_characters(value: list[_Char]) -> list[list[_Char]]:
    found: list[list[_Char]] = [[]]
    for item in value:
        if item[0] in " \t\r\n":
            if found[-1]:
                found.append([])
        else:
            found[-1].append(item)
    return [item for item in found if item]


def _split(value: list[_Char]) -> list[Word]:
    return [word for item in _split_characters(value) if (word := _word(item)) is not None]


def _word(characters: list[_Char]) -> Word | None:
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
