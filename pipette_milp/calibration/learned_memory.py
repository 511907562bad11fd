"""The learned memory estimator of Pipette beside the analytic one, on the same held-out runs.

A perceptron on eleven figures of model and configuration, and a soft margin below the GPU's memory, trained
on measured peaks: Pipette (DATE 2024), features, layer widths, activation, loss and margin as in its
published code. Not as there: a steady learning rate (scikit-learn has no step decay, under which theirs falls
from 0.1 to 1e-5), targets divided by their mean, and an early stop where the loss no longer falls.

Two splits. *folds*: runs in random folds, those of one set of features together, each judged by a perceptron
trained on the others. *larger*: trained on runs of at most `SMALL_GPUS` GPUs and judged on the rest, as
someone would who profiles a few nodes before using many. The analytic estimate is the shipped one, judged on
the same runs.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.accuracy import Judged
from pipette_milp.calibration.evaluate import GB, GIB
from pipette_milp.calibration.express import Expressed, express
from pipette_milp.errors import InputError

HIDDEN_LAYERS = (64, 48, 24, 12)
"""Widths between the eleven inputs and the output (published code, ``predict_gpu_mem``)."""
BATCH = 32
"""Runs a step (published code)."""
LEARNING_RATE = 1e-3
"""Adam's usual one; the published 0.1 with step decay is not to be had here."""
MOST_EPOCHS = 1000
PATIENCE_EPOCHS = 30
SOFT_MARGIN = 70_000 / 81_920
"""Predicted to fit up to this share of the GPU's memory: 70,000 of an A100's 81,920 MiB (published code)."""
SMALL_GPUS = 32
"""Four nodes of eight: what is profiled before a large cluster is used. A choice."""
FOLDS = 5
FEWEST_RUNS = 20
"""Fewer say nothing about a perceptron of this size."""
FEWEST_TRAINED = FEWEST_RUNS // 2
"""What one split must leave to train on; else its runs are not counted."""

Progress = Callable[[str], None]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """One run with all that either estimator needs."""

    subset: str
    features: tuple[float, ...]
    measured_bytes: float | None
    """None for a run that ran out of memory."""
    analytic_error: float | None
    capacity_bytes: float
    out_of_memory: bool | None
    analytic_fits: bool


@dataclass(frozen=True)
class MemoryComparison:
    """Both estimators on the held-out runs of one subset; relative errors, None where nothing is counted."""

    n: int
    analytic_mape: float | None
    learned_mape: float | None
    learned_bias: float | None
    larger_n: int
    larger_analytic_mape: float | None
    larger_learned_mape: float | None
    out_of_memory: int
    """Runs that the source says ran out of memory."""
    analytic_found: int
    """Of these judged as not fitting."""
    learned_found: int
    fitted: int
    """Runs that ran."""
    analytic_false: int
    """Of these judged as not fitting."""
    learned_false: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def features(expressed: Expressed) -> tuple[float, ...]:
    """The eleven of the published code: GPUs, layers, hidden size, heads, tensor, pipeline and data degree,
    layers a stage, micro-batch, global batch, batch of a replica."""
    model, c = expressed.instance.model, expressed.configuration
    return (
        float(c.num_gpus),
        float(model.layers),
        float(model.hidden_size),
        float(model.attention_heads),
        float(c.tensor),
        float(c.pipeline),
        float(c.data),
        model.layers / c.pipeline,
        float(c.micro_batch),
        float(c.global_batch_size),
        float(c.global_batch_size / c.data),
    )


def samples(judged: Sequence[Judged]) -> list[Sample]:
    """Runs with a measured memory figure or a statement that they ran out of it."""
    found = []
    for item in judged:
        if item.estimate is None or (item.memory_error is None and not item.out_of_memory):
            continue
        expressed = express(item.run)
        measured = item.run.number("measured_peak_mem_gb")
        unit = GIB if "gib" in item.run.text("mem_metric").lower() else GB
        known = item.memory_error is not None and measured is not None
        types = expressed.instance.cluster.gpu_types.values()
        found.append(
            Sample(
                subset=item.run.subset,
                features=features(expressed),
                measured_bytes=measured * unit if known and measured is not None else None,
                analytic_error=item.memory_error,
                capacity_bytes=min(declared.memory for declared in types),
                out_of_memory=item.out_of_memory,
                analytic_fits=item.estimate.fits,
            )
        )
    return found


def compare_memory(
    judged: Sequence[Judged], *, folds: int = FOLDS, seed: int = 0, progress: Progress | None = None
) -> dict[str, MemoryComparison]:
    """Both estimators by subset, and "all".

    Raises:
        InputError: scikit-learn is missing, or fewer than `FEWEST_RUNS` runs have a memory figure.
    """
    known = samples(judged)
    trainable = sum(sample.measured_bytes is not None for sample in known)
    if trainable < FEWEST_RUNS:
        raise InputError(
            f"{trainable} runs have a memory figure that can be compared, a learned estimator needs "
            f"{FEWEST_RUNS} (columns measured_peak_mem_gb and mem_metric)"
        )
    inputs = np.array([sample.features for sample in known])
    fold_of = assigned_folds(inputs, folds, seed)
    predicted = np.full(len(known), np.nan)
    for fold in range(folds):
        _predict(known, inputs, fold_of != fold, fold_of == fold, seed, predicted)
        if progress is not None:
            progress(f"perceptron {fold + 1} of {folds + 1} trained")
    larger = np.full(len(known), np.nan)
    small = inputs[:, 0] <= SMALL_GPUS
    _predict(known, inputs, small, ~small, seed, larger)
    if progress is not None:
        progress(f"perceptron {folds + 1} of {folds + 1} trained")
    groups: dict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(known):
        groups[sample.subset].append(index)
    groups["all"] = list(range(len(known)))
    return {
        name: _compared([known[i] for i in rows], predicted[rows], larger[rows])
        for name, rows in groups.items()
    }


def assigned_folds(inputs: Array, folds: int, seed: int) -> IntArray:
    """[n] fold of every run: equal features share one, because repeats of a run would teach its answer."""
    _, group = np.unique(inputs, axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.random.default_rng(seed).permutation(int(group.max()) + 1)
    return np.asarray(order[group] % folds, dtype=np.int64)


def _predict(
    known: Sequence[Sample], inputs: Array, train: BoolArray, test: BoolArray, seed: int, predicted: Array
) -> None:
    """Write bytes of the runs of ``test`` into ``predicted``; nan stays where too few runs train."""
    taught = np.array([sample.measured_bytes is not None for sample in known]) & train
    if not test.any() or taught.sum() < FEWEST_TRAINED:
        return
    targets = np.array([sample.measured_bytes or np.nan for sample in known])
    predicted[test] = trained(inputs[taught], targets[taught], seed)(inputs[test])


def trained(inputs: Array, targets_bytes: Array, seed: int) -> Callable[[Array], Array]:
    """A perceptron taught [n, 11] features and [n] bytes; it predicts bytes, never below zero.

    Raises:
        InputError: scikit-learn is not installed.
    """
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPRegressor
        from sklearn.preprocessing import StandardScaler
    except ModuleNotFoundError:
        raise InputError(
            "a learned memory estimator needs scikit-learn: pip install 'pipette_milp[learned]'"
        ) from None
    scaler = StandardScaler().fit(inputs)
    unit = float(targets_bytes.mean())
    network = MLPRegressor(
        hidden_layer_sizes=HIDDEN_LAYERS,
        activation="relu",
        solver="adam",
        batch_size=min(BATCH, len(inputs)),
        learning_rate_init=LEARNING_RATE,
        max_iter=MOST_EPOCHS,
        n_iter_no_change=PATIENCE_EPOCHS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # stopping at MOST_EPOCHS is the method's own stop, not a fault
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(scaler.transform(inputs), targets_bytes / unit)
    return lambda asked: np.asarray(np.maximum(network.predict(scaler.transform(asked)) * unit, 0.0))


def _compared(known: Sequence[Sample], predicted: Array, larger: Array) -> MemoryComparison:
    measured = np.array([sample.measured_bytes or np.nan for sample in known])
    analytic = np.array(
        [np.nan if sample.analytic_error is None else sample.analytic_error for sample in known]
    )
    learned, extrapolated = predicted / measured - 1.0, larger / measured - 1.0
    both, far = ~np.isnan(learned) & ~np.isnan(analytic), ~np.isnan(extrapolated) & ~np.isnan(analytic)
    capacity = np.array([sample.capacity_bytes for sample in known])
    refused = predicted > SOFT_MARGIN * capacity
    judged = ~np.isnan(predicted)
    stated = np.array([sample.out_of_memory is True for sample in known]) & judged
    ran = np.array([sample.out_of_memory is False for sample in known]) & judged
    unfit = np.array([not sample.analytic_fits for sample in known])
    return MemoryComparison(
        n=int(both.sum()),
        analytic_mape=_mean(np.abs(analytic[both])),
        learned_mape=_mean(np.abs(learned[both])),
        learned_bias=_mean(learned[both]),
        larger_n=int(far.sum()),
        larger_analytic_mape=_mean(np.abs(analytic[far])),
        larger_learned_mape=_mean(np.abs(extrapolated[far])),
        out_of_memory=int(stated.sum()),
        analytic_found=int((stated & unfit).sum()),
        learned_found=int((stated & refused).sum()),
        fitted=int(ran.sum()),
        analytic_false=int((ran & unfit).sum()),
        learned_false=int((ran & refused).sum()),
    )


def _mean(values: Array) -> float | None:
    return float(values.mean()) if values.size else None
