"""What every importer and every export target must do, over the registries."""

from __future__ import annotations

import importlib

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import registry
from pipette_milp.importers.describe import record_of
from tests.importer_samples import KIND_OF_SAMPLE, sample


def parse(kind: str, text: str, source: str = "file") -> object:
    return registry.parse(text, source, kind)


def test_every_kind_has_a_sample() -> None:
    assert set(KIND_OF_SAMPLE.values()) == set(registry.KINDS)


@pytest.mark.parametrize("name", KIND_OF_SAMPLE)
def test_samples_are_recognised(name: str) -> None:
    assert registry.guess_kind(sample(name), name) == KIND_OF_SAMPLE[name]


@pytest.mark.parametrize("name", KIND_OF_SAMPLE)
def test_only_one_kind_is_sure(name: str) -> None:
    text = sample(name)
    sure = [
        kind for kind, module in registry.KINDS.items() if importlib.import_module(module).detect(text) >= 0.9
    ]
    assert sure in ([KIND_OF_SAMPLE[name]], [])


@pytest.mark.parametrize("name", KIND_OF_SAMPLE)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(name: str) -> None:
    kind, text = KIND_OF_SAMPLE[name], sample(name)
    plain = parse(kind, text, "file")
    windows = parse(kind, text.replace("\n", "\r\n"), "file")
    facts = zip(
        plain if isinstance(plain, tuple) else (plain,),
        windows if isinstance(windows, tuple) else (windows,),
        strict=True,
    )
    assert all(record_of(one) == record_of(two) for one, two in facts)


@pytest.mark.parametrize("kind", registry.KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "hello world\n",
        "{}",
        "[]",
        "null",
        '{"a": ',
        "# only a comment\n",
        "\x1b[4m\x1b[0m",
        "1 2 3\n",
    ],
)
def test_what_is_no_such_file_is_refused_with_its_name(kind: str, text: str) -> None:
    with pytest.raises(InputError, match=r"file\.txt"):
        parse(kind, text, "file.txt")


@pytest.mark.parametrize("text", ["", "hello world\n", "{}", "GPU0"])
def test_unknown_content_asks_for_the_kind(text: str) -> None:
    with pytest.raises(InputError, match=r"--kind"):
        registry.guess_kind(text, "file")


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="nvidia-smi-topo"):
        registry.parse("", "file", "excel")
