"""A shell script split into commands of raw words, in which nothing is replaced yet."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipette_milp.errors import InputError, Problem

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")

Char = tuple[str, int, int]
"""(character, line, column); the character of a mark is the whole mark."""


@dataclass
class RawWord:
    """A word before expansion: literal characters and expressions, quoted or not."""

    parts: list[tuple[str, list[Char] | str, bool, int, int]] = field(default_factory=list)
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


class ShellReader:
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

    def _next(self) -> Char:
        character = self.text[self.at]
        place = (character, self.line, self.at - self.start_of_line + 1)
        self.at += 1
        if character == "\n":
            self.line += 1
            self.start_of_line = self.at
        return place

    def commands(self) -> list[list[RawWord | str]]:
        """Each command: raw words, and "(" and ")" of array assignments and functions."""
        found: list[list[RawWord | str]] = [[]]
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
    def _is_array(command: list[RawWord | str]) -> bool:
        previous = command[-2] if len(command) > 1 else None
        return isinstance(previous, RawWord) and bool(ASSIGNMENT.fullmatch(previous.literal()))

    def _array(self, command: list[RawWord | str]) -> None:
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

    def _word(self) -> RawWord:
        word = RawWord(line=self.line, column=self.at - self.start_of_line + 1)
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

    def _escape(self, word: RawWord) -> None:
        self._next()
        if self._peek() == "\r" and self._peek(1) == "\n":
            self._next()
        if self._peek() == "\n":
            self._next()
        elif self._peek():
            word.parts.append(("text", [self._next()], True, self.line, 0))

    def _single_quoted(self, word: RawWord) -> None:
        _, line, column = self._next()
        characters: list[Char] = []
        while self._peek() != "'":
            if not self._peek():
                raise self._error("this quote is never closed", line, column)
            characters.append(self._next())
        self._next()
        word.parts.append(("text", characters, True, line, column))

    def _double_quoted(self, word: RawWord) -> None:
        _, line, column = self._next()
        characters: list[Char] = []
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

    def _expansion(self, word: RawWord, quoted: bool) -> None:
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
            match = NAME.match(self.text, self.at)
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
