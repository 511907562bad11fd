"""Reading files strictly: JSON without repeated keys or NaN, and every problem with its JSON path."""

from __future__ import annotations

import difflib
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from pipette_milp.errors import InputError, Problem

Location = tuple[int | str, ...]
Model = typing.TypeVar("Model", bound=BaseModel)


def json_path(location: Location) -> str:
    """``("cluster", "nodes", 3, "gpus")`` as ``cluster.nodes[3].gpus``."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() or part == "":
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys occurred more than once."""

    repeated: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        result.repeated = tuple(dict.fromkeys(name for name in names if names.count(name) > 1))
    return result


def read_text(path: str | Path) -> str:
    """Text of a file, ``-`` = standard input.

    Raises:
        InputError: the file is missing, a directory, unreadable or not UTF-8.
    """
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", source=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a directory, expected a file", source=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", source=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None


def parse_json(text: str, source: str = "") -> Any:
    """The JSON value of ``text``; `structural_problems` finds its repeated keys and non-finite numbers.

    Raises:
        InputError: not JSON; the message has line and column.
    """
    if not text.strip():
        raise InputError("is empty, expected JSON", source=source)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}", source=source
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply to be read", source=source) from None


def structural_problems(value: Any) -> list[tuple[Location, str]]:
    """Repeated keys and numbers that are not finite, anywhere in a parsed JSON value."""
    problems: list[tuple[Location, str]] = []
    # A stack, not recursion: files may be nested as deeply as the parser allows. Numbers are looked at in
    # place, because a matrix of 1,024 nodes has a million.
    stack: list[tuple[Location, Any]] = [((), {"": value})]
    while stack:
        location, item = stack.pop()
        for name in getattr(item, "repeated", ()):
            problems.append(((*location, name), "this key occurs more than once, keep one"))
        containers = []
        for name, below in item.items() if isinstance(item, dict) else enumerate(item):
            if isinstance(below, float):
                if not math.isfinite(below):
                    problems.append(((*location, name), f"{below} is not accepted, expected a finite number"))
            elif isinstance(below, dict | list | tuple):
                containers.append(((*location, name), below))
        stack += reversed(containers)
    return [(location[1:], message) for location, message in problems]


def problems_error(problems: Iterable[tuple[Location, str]]) -> PydanticCustomError:
    """What a validator raises to report several problems at places below its own field."""
    listed = [(tuple(location), message) for location, message in problems]
    text = "; ".join(
        f"{json_path(location)}: {message}" if location else message for location, message in listed
    )
    # Braces in the text would be read as a template.
    return PydanticCustomError("problems", "{text}", {"text": text, "problems": listed})


def not_supported(what: str = "") -> PydanticCustomError:
    """The one wording for what the contract allows and nothing models yet."""
    text = f"not supported yet{f': {what}' if what else ''}"
    return PydanticCustomError("not_supported", "{text}", {"text": text})


def validation_problems(
    error: ValidationError, root: type[BaseModel], prefix: Location = ()
) -> list[tuple[Location, str]]:
    """Every problem of a pydantic error in this package's words, with its place in the file."""
    found: list[tuple[Location, str]] = []
    for detail in error.errors(include_url=False):
        location: Location = (*prefix, *detail["loc"])
        kind, context = detail["type"], detail.get("ctx", {})
        if kind == "problems":
            found += [((*location, *below), message) for below, message in context["problems"]]
        elif kind == "missing":
            found.append((location, "is required"))
        elif kind == "extra_forbidden":
            found.append((location, _unknown_key(root, detail["loc"])))
        else:
            message = str(context["error"]) if kind == "value_error" else detail["msg"]
            message = message[:1].lower() + message[1:] if message.startswith("Input") else message
            found.append((location, _with_input(message, kind, detail.get("input"))))
    return list(dict.fromkeys(found))


def _with_input(message: str, kind: str, value: Any) -> str:
    if kind in ("value_error", "not_supported") or isinstance(value, Mapping | list | tuple):
        return message
    return f"{message}, got {value!r}"


def _unknown_key(root: type[BaseModel], location: tuple[int | str, ...]) -> str:
    model = _model_at(root, location[:-1])
    if model is None:
        return "unknown key"
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    if close:
        return f'unknown key, did you mean "{close[0]}"?'
    return f"unknown key, known here are {', '.join(known)}"


def _model_at(root: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    current: Any = root
    for part in location:
        current = _strip(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            if field is None:
                return None
            current = field.annotation
        else:
            arguments = [item for item in typing.get_args(current) if item is not Ellipsis]
            if not arguments:
                return None
            current = arguments[-1]  # dict value or sequence item
    current = _strip(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _strip(annotation: Any) -> Any:
    """Removes Annotated and Optional."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif origin in (typing.Union, types.UnionType):
            choices = [item for item in typing.get_args(annotation) if item is not type(None)]
            annotation = choices[0]
        else:
            return annotation


def input_error(problems: Iterable[tuple[Location, str]], source: str = "") -> InputError:
    """An `InputError` from located problems, one per place and message."""
    unique = dict.fromkeys((json_path(location), message) for location, message in problems)
    return InputError([Problem(path, message) for path, message in unique], source=source)


def validate(model: type[Model], value: Any, source: str = "") -> Model:
    """``value`` as a ``model``, all problems in one error.

    Raises:
        InputError: anything that is wrong, each with its JSON path.
    """
    problems = structural_problems(value)
    try:
        result = model.model_validate(value)
    except ValidationError as error:
        places = {location for location, _ in problems}
        problems += [item for item in validation_problems(error, model) if item[0] not in places]
    if problems:
        raise input_error(problems, source)
    return result
