"""The whole way on a public model: config.json, topology and bandwidth log in, launch files out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipette_milp.cli import main
from pipette_milp.cluster import Cluster
from pipette_milp.plans import placement_of_cells
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.plan import Configuration, Plan, split_stages
from pipette_milp.schema.result import load_plan
from tests.importer_samples import DATA
from tests.launch_cases import planned, replay_openmpi, replay_slurm, replay_torchrun

MODEL = DATA / "models/llama-3.1-8b.config.json"
TOPOLOGY = DATA / "topology/a100_nvswitch.topo.txt"
BANDWIDTH = DATA / "bandwidth/mpigraph.out"
REPLAY = {"slurm": replay_slurm, "openmpi": replay_openmpi, "torchrun": replay_torchrun}


def command(*words: str | Path) -> int:
    """Exit code of a command."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def instance_file(tmp_path: Path) -> Path:
    path = tmp_path / "instance.json"
    code = command(
        "import",
        MODEL,
        TOPOLOGY,
        BANDWIDTH,
        "--gpu-type",
        "a100-80gb",
        "--card-bandwidth",
        "24GB/s",
        "--sequence-length",
        "4096",
        "--global-batch",
        "192",
        "-o",
        path,
    )
    assert code == 0
    return path


def hand_made_plan(problem: Instance) -> Plan:
    """TP 8, PP 3, DP 1 with the nodes turned round."""
    configuration = Configuration(
        pipeline=3,
        tensor=8,
        data=1,
        micro_batch=1,
        num_micro_batches=192,
        stages=split_stages((11, 11, 10)),
        sequence_parallel=True,
        recompute="selective",
    )
    cells = np.array([[2], [0], [1]])
    return Plan(
        configuration=configuration, placement=placement_of_cells(Cluster.of(problem), configuration, cells)
    )


def test_files_make_an_instance(instance_file: Path) -> None:
    problem = load_instance(instance_file)
    assert problem.model.layers == 32
    assert [node.name for node in problem.cluster.nodes] == ["hosta", "hostb", "hostc"]
    inter_node = problem.cluster.network.inter_node
    assert inter_node is not None
    assert (inter_node.measures, inter_node.simultaneous_flows) == ("flow", 2)
    assert problem.missing_pairs() == []


@pytest.mark.parametrize("target", REPLAY)
def test_a_plan_makes_a_launch_with_every_rank_on_its_gpu(
    target: str, instance_file: Path, tmp_path: Path
) -> None:
    problem = load_instance(instance_file)
    plan = hand_made_plan(problem)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    folder = tmp_path / "launch"
    assert command("export", target, instance_file, tmp_path / "plan.json", "-o", folder) == 0
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert REPLAY[target](files) == planned(problem, plan)
    assert REPLAY[target](files)[0] == ("hostc", 0)
    # what is launched, imported again, is the plan's configuration and model
    back = tmp_path / "back.json"
    assert command("import", folder / "megatron_args.sh", "--plan", tmp_path / "today.json", "-o", back) == 0
    assert Plan.model_validate_json((tmp_path / "today.json").read_text()).configuration == plan.configuration
    found = json.loads(back.read_text())["model"]
    assert {name: found[name] for name in ("layers", "hidden_size", "kv_heads", "vocab_size")} == {
        "layers": 32,
        "hidden_size": 4096,
        "kv_heads": 8,
        "vocab_size": 128256,
    }


def test_the_whole_way_with_a_solved_plan(instance_file: Path, tmp_path: Path) -> None:
    """Import, solve, export; the search is narrowed to one set of degrees to keep this quick."""
    data = json.loads(instance_file.read_text())
    data["search"] |= {"tensor": 8, "pipeline": 3, "micro_batch": 1}
    data["training"] |= {"recompute": "none", "sequence_parallel": True, "data_sharding": "none"}
    instance_file.write_text(json.dumps(data))
    result = tmp_path / "result.json"
    words = ["--gap", "0.05", "--time-limit", "60", "--threads", "1", "--seed", "0", "--quiet"]
    assert command("solve", instance_file, "-o", result, *words) == 0
    problem, plan = load_instance(instance_file), load_plan(result)
    for target, replay in REPLAY.items():
        folder = tmp_path / target
        assert command("export", target, instance_file, result, "-o", folder) == 0
        files = {path.name: path.read_text() for path in folder.iterdir()}
        assert replay(files) == planned(problem, plan)
    assert (
        command(
            "import",
            tmp_path / "slurm/megatron_args.sh",
            "--plan",
            tmp_path / "back.json",
            "-o",
            tmp_path / "sections.json",
        )
        == 0
    )
    assert Plan.model_validate_json((tmp_path / "back.json").read_text()).configuration == plan.configuration
    # a result of another instance is refused
    data["training"]["global_batch_size"] = 96
    instance_file.write_text(json.dumps(data))
    assert command("export", "slurm", instance_file, result, "-o", tmp_path / "other") == 2


def test_a_run_of_today_becomes_a_baseline(tmp_path: Path) -> None:
    plan = tmp_path / "today.json"
    assert command("import", DATA / "megatron/llama_8b.sh", "--plan", plan, "-o", tmp_path / "run.json") == 0
    assert Plan.model_validate_json(plan.read_text()).configuration.layers_per_stage == (9, 8, 8, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", DATA / "bandwidth/matrix.tsv"], "--simultaneous-flows"),
        (["import", DATA / "bandwidth/pairs.txt", "--unit", "gb/s"], "--unit"),
        (["import", DATA / "absent.txt"], "no such file"),
        (["import", MODEL, "--kind", "excel"], "unknown kind"),
        (["import", MODEL, "--measures", "all"], "--measures"),
        (["import", MODEL, "--set", "TP"], "NAME=VALUE"),
        (["import", MODEL, "--plan", "x.json"], "no plan to write"),
        (["import", TOPOLOGY, "--card-bandwidth", "24"], "--card-bandwidth"),
    ],
)
def test_mistakes_are_named(
    words: list[str | Path], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_target_and_a_foreign_plan_are_refused(
    instance_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(hand_made_plan(load_instance(instance_file)).model_dump_json())
    assert command("export", "ray", instance_file, plan, "-o", tmp_path / "out") == 2
    assert "known are megatron" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    plan.write_text(plan.read_text().replace("[16,", "[99,"))
    assert command("export", "slurm", instance_file, plan, "-o", tmp_path / "out") == 2
    assert "GPU 99 does not exist" in capsys.readouterr().err


def test_slow_nodes_are_named_on_standard_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        command("import", DATA / "bandwidth/pairs.txt", "--measures", "node_pair", "-o", tmp_path / "x.json")
        == 0
    )
    said = capsys.readouterr()
    assert "slow node: r2-b" in said.err
    assert said.out == ""
    assert "slow node: r2-b" in " ".join(json.loads((tmp_path / "x.json").read_text())["diagnosis"])


def test_logs_of_single_pairs_are_judged_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, figure in (("ab", 90), ("bc", 91), ("cd", 40), ("ad", 41)):
        (tmp_path / f"{name}.txt").write_text(f"# GB/s\n{name[0]} {name[1]} {figure}\n")
    logs = sorted(tmp_path.glob("*.txt"))
    assert command("import", *logs, "--measures", "node_pair", "-o", tmp_path / "x.json") == 0
    assert "all files together: slow node: d" in capsys.readouterr().err
