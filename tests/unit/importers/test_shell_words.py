from __future__ import annotations

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers.shell_words import commands, variables


def words(text: str, **settings: str) -> list[str]:
    return [word.text for command in commands(text, "f", settings) for word in command]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("run --a 1 # comment\n", ["run", "--a", "1"]),
        ("run --a \\\n  1\n", ["run", "--a", "1"]),
        ("run --a \\\r\n  1\r\n", ["run", "--a", "1"]),
        ("X='a b'\nrun $X \"$X\"\n", ["run", "a", "b", "a b"]),
        ("A=(--x 1 # note\n --y)\nA+=(--z)\nrun ${A[@]}\n", ["run", "--x", "1", "--y", "--z"]),
        ('A="--x 1"\nA+=" --y 2"\nrun $A\n', ["run", "--x", "1", "--y", "2"]),
        ("run ${N:-4} ${N-5}\n", ["run", "4", "5"]),
        ("G=8\nN=4\nrun $((G*N)) $(( $G * 2 ))\n", ["run", "32", "16"]),
        ("export X=3; run $X && other\n", ["run", "3", "other"]),
        ("run 2>&1 | tee log\n", ["run", "tee", "log"]),
        ('run \'single $X\' "a\\"b"\n', ["run", "single $X", 'a"b']),
        ("X=1 run $Y\n", ["run", "\x00Y\x00"]),
    ],
)
def test_words(script: str, expected: list[str]) -> None:
    assert words(script) == expected


def test_settings_win_over_the_script() -> None:
    assert words("TP=2\nrun $TP\n", TP="8") == ["run", "8"]


def test_places_are_those_of_the_assignment() -> None:
    (command,) = commands("ARGS=(\n  --a 1\n)\nrun ${ARGS[@]}\n", "f")
    assert [(word.text, word.line, word.column) for word in command[1:]] == [("--a", 2, 3), ("1", 2, 7)]


@pytest.mark.parametrize(
    "script",
    [
        "if [ $A = 1 ]; then X=1; else X=2; fi\nrun $X\n",
        "case $A in\n a) X=1 ;;\n b) X=2 ;;\nesac\nrun $X\n",
        "X=$(nproc)\nrun $X\n",
        "run $1\n",
    ],
)
def test_what_the_script_does_not_decide_is_marked(script: str) -> None:
    marked = [word for command in commands(script, "f") for word in command if word.text.count("\x00")]
    assert marked
    assert marked[-1].undecided


def test_a_branch_that_changes_nothing_is_no_doubt() -> None:
    assert words("X=1\nif true; then X=1; fi\nrun $X\n")[-1] == "1"


@pytest.mark.parametrize("script", ["run 'a", 'run "a', "run ${X", "A=(1 2", "run $((1+2"])
def test_what_is_never_closed_is_named(script: str) -> None:
    with pytest.raises(InputError, match=r"f:1:\d+: this \w+ is never closed"):
        commands(script, "f")


@pytest.mark.parametrize("expression", ["9**9**9", "__import__('os')", "1/0", "(" * 500, "a.b"])
def test_arithmetic_is_only_arithmetic(expression: str) -> None:
    marked = (
        commands(f"run $(({expression}))\n", "f") if expression.count("(") == expression.count(")") else []
    )
    assert all("\x00" in command[1].text for command in marked)


def test_variables_are_split_into_words() -> None:
    assert [word.text for word in variables("A='--x 1'\n", "f")["A"]] == ["--x", "1"]
