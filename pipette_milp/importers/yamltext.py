"""YAML sources of importers, by PyYAML (extra ``formats``): plain values only, repeated keys refused."""

from __future__ import annotations

from typing import Any

from pipette_milp.errors import InputError, Problem


def load_yaml(text: str, source: str) -> Any:
    """The value of a YAML text.

    Raises:
        InputError: not YAML (with line and column), a repeated key, several documents, or PyYAML missing.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise InputError(
            "needs PyYAML to be read: pip install 'pipette_milp[formats]'", source=source
        ) from None

    class Loader(yaml.SafeLoader):
        """Without dates, which no setting is, and with keys that occur once."""

    Loader.yaml_implicit_resolvers = {
        sign: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        names = [getattr(key, "value", None) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        repeated = sorted({name for name in names if isinstance(name, str) and names.count(name) > 1})
        if repeated:
            place = f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
            raise InputError(Problem(place, f"key {', '.join(map(repr, repeated))} occurs more than once"))
        loader.flatten_mapping(node)
        return dict(loader.construct_pairs(node, deep=True))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text.lstrip("\ufeff"), Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"
        raise InputError(Problem(place, f"is not YAML: {error.problem or error.context}")) from None
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise InputError(Problem(source, f"cannot be read as YAML: {str(error)[:80]}")) from None
