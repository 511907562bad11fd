"""The page: content and figures put into the template."""

from __future__ import annotations

import importlib
from importlib.resources import files
from typing import Any

from pipette_milp.errors import InputError
from pipette_milp.report import content
from pipette_milp.report.launch import launchers
from pipette_milp.report.nodes import node_lines
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.verify import verify
from pipette_milp.verify.claims import Report as Checks

TEMPLATE = "report.html.j2"
STYLE = "report.css"
EXTRAS = ("jinja2", "matplotlib")


def html_report(
    instance: Instance,
    result: SolveResult,
    *,
    checks: Checks | None = None,
    instance_file: str = "instance.json",
    result_file: str = "result.json",
) -> str:
    """A result as one HTML file; the same result gives the same bytes.

    Every name and sentence of instance and result is escaped: nothing in them can become markup.

    Args:
        checks: what `verify` says about the result; it is asked if this is left out.
        instance_file, result_file: how the launch commands name the files.

    Raises:
        InputError: jinja2 or matplotlib is missing, or the result is of another instance.
    """
    check_extras()
    if instance.sha256() != result.instance_sha256:
        raise InputError("the result was found for another instance")
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from pipette_milp.report.figures import link_facts, pictures

    folder = files("pipette_milp.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / TEMPLATE).read_text(encoding="utf-8"))
    checked = verify(instance, result) if checks is None else checks
    refusals, more_refusals = content.refusals(result)
    values: dict[str, Any] = {
        "style": Markup((folder / STYLE).read_text(encoding="utf-8")),
        "title": instance.name,
        "headline": content.headline(instance, result),
        "verdict": content.verdict(result),
        "facts": content.key_facts(result),
        "termination": str(result.termination),
        "has_plan": result.plan is not None,
        "why_it_won": content.why_it_won(instance, result),
        "competitors": content.competitors(result),
        "memory_rows": content.memory_rows(result),
        "space_rows": content.space_rows(result),
        "refusals": refusals,
        "more_refusals": more_refusals,
        "claims": content.claims(checked),
        "checks_ok": checked.ok,
        "by_solver": sum(claim.how == "solver" for claim in checked.claims),
        "failed": [claim.claim for claim in checked.failed],
        "assumptions": content.assumptions(instance, result),
        "settings": content.settings_rows(result),
        "provenance": content.provenance_rows(instance, result),
        "pictures": pictures(instance, result),
        "link_facts": link_facts(instance) or "one node: no links between nodes",
        "plan_rows": [],
        "nodes": [],
        "launchers": [],
        "arguments": "",
    }
    if result.plan is not None:
        values["plan_rows"] = content.plan_rows(instance, result.plan.configuration)
        values["nodes"] = node_lines(instance, result.plan)
        values["launchers"], values["arguments"] = launchers(
            instance, result.plan, instance_file, result_file
        )
    return template.render(values)


def check_extras() -> None:
    """Refuses before the work starts.

    Raises:
        InputError: what a report needs is not installed.
    """
    for package in EXTRAS:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise InputError(
                f"a report needs {package}, which is not installed: pip install 'pipette_milp[report]'"
            ) from None
