"""What a report says, and what it refuses."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest

from pipette_milp.cli import main
from pipette_milp.errors import InputError
from pipette_milp.report import html_report
from pipette_milp.report.launch import MOST_CHARACTERS, MOST_LINES, shortened
from pipette_milp.report.nodes import node_lines
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.output import write_json_atomically, write_text_atomically
from pipette_milp.schema.plan import Plan
from tests.unit.plots.cases import tiny_data

from .cases import SCRIPT, infeasible, one_gpu, page, two_stages

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def text_of(page: str) -> str:
    """The page's words without markup and drawings."""
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_what_a_reader_finds() -> None:
    _, result = two_stages()
    page_text = page("two stages")
    text = text_of(page_text)
    assert result.plan is not None
    for heading in (
        "The plan", "Why it won", "What came next, and why it lost", "Memory", "One iteration",
        "Links and placement", "Bounds and checks", "Assumptions", "Launch", "Provenance",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page_text
    assert f"{result.simulated_s:.4f} s per iteration" in text
    assert "no plan is more than 0.000 % faster (proven)" in text
    assert f"Next comes pipeline {result.plans[1].configuration.pipeline}" in text
    assert "every claim of the result holds" in text
    assert "links are nominal" in text.lower()
    assert "--tensor-model-parallel-size" in text
    assert "python -m pipette_milp export slurm 'my instance.json' r.json -o launch-slurm/" in text
    assert result.instance_sha256 in text
    assert all(f"{name} {version}" in text for name, version in result.versions.items())


def test_nothing_to_load_and_every_figure_described() -> None:
    whole = page("two stages")
    addresses = re.findall(r"(?:src|href|srcset|action|data)\s*=\s*[\"']([^\"']*)", whole)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "@import" not in whole
    assert not re.search(r"url\((?!#)", whole)
    assert "<script" not in whole
    alternatives = re.findall(r"<img [^>]*alt=\"([^\"]*)\"", whole)
    assert len(alternatives) == 7
    assert all(len(text) > 30 for text in alternatives)


def test_the_same_result_gives_the_same_bytes() -> None:
    again = html_report(*two_stages(), instance_file="my instance.json", result_file="r.json")
    assert again == page("two stages")


def test_names_are_escaped() -> None:
    whole = page("hostile names")
    assert SCRIPT not in whole
    assert "<img src=x" not in whole
    assert "<b>bold</b>" not in whole
    text = text_of(whole)
    assert "{{ 7 * 7 }}" in text
    assert "is no host name" in text, "launchers refuse such names, and the report says so"


def test_without_a_plan_the_reasons_are_shown() -> None:
    whole = page("infeasible")
    text = text_of(whole)
    assert "No plan exists (proven)." in text
    assert "GiB is usable" in text
    assert "<h2>Launch</h2>" not in whole


def test_one_gpu() -> None:
    assert "one node: no links between nodes" in text_of(page("one GPU"))


def test_a_result_that_does_not_hold_says_so() -> None:
    instance, result = two_stages()
    better = result.model_copy(update={"default_order_s": 1.0})
    text = text_of(html_report(instance, better))
    assert "This result does not hold: default_order_s" in text


def test_a_result_without_details_still_reports() -> None:
    """Files made by other programs may leave all that is optional out."""
    instance, result = two_stages()
    dropped = ("durations", "order", "critical_path", "breakdown", "throughput", "memory", "default_order_s")
    bare = result.model_copy(
        update={**dict.fromkeys(dropped), "plans": (), "trace": (), "configurations": ()}
    )
    text = text_of(html_report(instance, bare))
    assert "No figure: this result has no durations of its plan." in text
    assert "The result lists no other plans." in text


def test_another_instance_is_refused() -> None:
    with pytest.raises(InputError, match="another instance"):
        html_report(one_gpu()[0], two_stages()[1])


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(caught.value.code or 0)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Instance, result, and where the page goes."""
    instance, result = two_stages()
    write_json_atomically(tmp_path / "i.json", tiny_data("tiny-2x2-a100-nominal"))
    assert load_instance(tmp_path / "i.json") == instance
    write_text_atomically(tmp_path / "r.json", result.to_json())
    return tmp_path / "i.json", tmp_path / "r.json", tmp_path / "page.html"


def test_command(files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    instance, result, target = files
    assert run("report", instance, result, "-o", target) == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out == ""


def test_command_on_standard_output(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    instance, result, _ = files
    data = tiny_data("tiny-2x2-a100-nominal")
    data["cluster"]["gpu_types"]["A100-SXM4-80GB"]["memory"] = "1 GiB"
    write_json_atomically(instance, data)
    write_text_atomically(result, infeasible()[1].to_json())
    assert run("report", instance, result, "-o", "-") == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_command_of_a_result_that_does_not_hold(files: tuple[Path, Path, Path]) -> None:
    instance, result, target = files
    wrong = two_stages()[1].model_copy(update={"default_order_s": 1.0})
    write_text_atomically(result, wrong.to_json())
    assert run("report", instance, result, "-o", target) == 5
    assert "does not hold" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("no instance", "no such file"),
        ("no result", "no such file"),
        ("another instance", "another instance"),
        ("a plan", "termination"),
        ("no folder", "no such directory"),
        ("no matplotlib", "pip install 'pipette_milp[report]'"),
    ],
)
def test_command_refuses(
    files: tuple[Path, Path, Path],
    change: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, result, target = files
    if change == "no instance":
        instance = instance.with_name("absent.json")
    elif change == "no result":
        result = result.with_name("absent.json")
    elif change == "another instance":
        write_json_atomically(instance, tiny_data("tiny-4x2-a100-flat"))
    elif change == "a plan":
        plan = two_stages()[1].plan
        assert plan is not None
        write_json_atomically(result, plan.model_dump(mode="json"))
    elif change == "no folder":
        target = target.parent / "absent" / "page.html"
    else:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("report", instance, result, "-o", target) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert not target.exists()


def test_command_needs_to_know_where(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", files[0], files[1]) == 2
    assert "--output" in capsys.readouterr().err


def test_long_scripts_are_cut_and_say_so() -> None:
    text = "\n".join(["x" * (MOST_CHARACTERS + 7), *["y"] * MOST_LINES])
    cut = shortened(text).splitlines()
    assert cut[0].endswith("… 7 more characters in the file")
    assert cut[-1] == "… 1 more lines in the file"
    assert shortened("a\nb\n") == "a\nb"


def test_lines_of_nodes() -> None:
    data = tiny_data()
    data["cluster"]["exclude"] = {"nodes": ["node-001"], "gpus": []}
    data["search"] = {"use_all_gpus": False}
    instance = load_instance(data)
    configuration = {
        "pipeline": 2, "tensor": 1, "data": 2, "micro_batch": 1, "num_micro_batches": 4,
        "layers_per_stage": [3, 3],
    }  # fmt: skip
    plan = Plan.model_validate({"configuration": configuration, "placement": {"gpu_of_rank": [0, 4, 1, 5]}})
    lines = [(line.title, line.text) for line in node_lines(instance, plan)]
    assert lines == [("node-000", "0: 0; 1: 0"), ("node-002", "0: 1; 1: 1"), ("node-003", "idle")]


def test_neighbouring_nodes_of_a_large_cluster_share_a_line() -> None:
    data = tiny_data("tiny-2x2-a100-nominal")
    gpu = next(iter(data["cluster"]["gpu_types"]))
    data["cluster"]["nodes"] = [{"name": "n{:02d}", "count": 40, "gpu_type": gpu, "gpus": 1}]
    configuration = {
        "pipeline": 2, "tensor": 1, "data": 20, "micro_batch": 1, "num_micro_batches": 1,
        "layers_per_stage": [3, 3],
    }  # fmt: skip
    plan = Plan.model_validate(
        {"configuration": configuration, "placement": {"gpu_of_rank": list(range(40))}}
    )
    lines = [(line.title, line.text) for line in node_lines(load_instance(data), plan)]
    assert lines == [("n00 to n19 (20)", "0: 0-19"), ("n20 to n39 (20)", "1: 0-19")]
