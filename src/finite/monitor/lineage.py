"""Lineage: what MindInsight compares runs by (hyper-parameters, data, metrics), and the graph of the data pipeline.

Everything is taken from the configuration, the facts about the data and the figures of the run. MindInsight has fixed
fields for some of it; the rest are fields of our own. Importing this imports MindSpore.
"""

from collections.abc import Mapping, Sequence
import json
import math
from pathlib import Path
import time
from typing import Any

from mindspore.train.lineage_pb2 import DatasetGraph, EvaluationLineage, LineageEvent, TrainLineage, UserDefinedInfo

from finite.config import Config


def event(**what: Any) -> bytes:
    return LineageEvent(wall_time=time.time(), **what).SerializeToString()


def training(config: Config, network: str, samples: int, loss: float, checkpoint: Path, workers: int) -> bytes:
    """The training: fixed fields of MindInsight. `network` in a few words; `loss` is the total of the last epoch; `workers` how
    many processes share the batch."""
    last = config.stages[-1]
    weights = " + ".join(f"{weight:g} {name}" for name, weight in last.weights.items() if weight)
    found = TrainLineage()
    hyper = found.hyper_parameters
    hyper.optimizer, hyper.learning_rate, hyper.batch_size = config.optimizer.name, last.learning_rate, config.training.batch_size
    hyper.loss_function = f"{weights}, {config.loss.bound} at {config.loss.cap:g}"
    hyper.epoch = sum(stage.epochs for stage in config.stages)
    hyper.parallel_mode, hyper.device_num = "stand_alone" if workers == 1 else "data_parallel", workers
    found.train_dataset.train_dataset_path, found.train_dataset.train_dataset_size = str(config.data.root), samples
    found.algorithm.network = network
    if math.isfinite(loss):
        found.algorithm.loss = loss
    if checkpoint.exists():
        found.model.path, found.model.size = str(checkpoint), checkpoint.stat().st_size
    return event(train_lineage=found)


def evaluation(metrics: Mapping[str, Mapping[str, Any]], path: Path, samples: int) -> bytes:
    """Figures by split, `{"validation": {"top1": ...}, ...}`, and the data that the last of them are of."""
    figures = {f"{split}_{name}": value for split, found in metrics.items() for name, value in found.items()
               if isinstance(value, float) and math.isfinite(value) and name != "training_seconds"}  # fmt: skip
    found = EvaluationLineage(metric=json.dumps(figures))
    found.valid_dataset.valid_dataset_path, found.valid_dataset.valid_dataset_size = str(path), samples
    return event(evaluation_lineage=found)


def fields(values: Mapping[str, str | int | float]) -> bytes:
    """Fields of our own, by which runs can be filtered and sorted too."""
    found = UserDefinedInfo()
    for name, value in values.items():
        item = found.user_info.add()
        kind = "map_str" if isinstance(value, str) else "map_int32" if isinstance(value, int) else "map_double"
        getattr(item, kind)[name] = value
    return event(user_defined_info=found)


def own_fields(config: Config, settings: Mapping[str, str | int | float], counts: Mapping[str, int]) -> dict[str, str | int | float]:
    """What else tells runs of this trainer apart; `settings` are the task's own."""
    return {
        "seed": config.seed, "stages": ", ".join(f"{s.name} {s.epochs}" for s in config.stages),
        "learning_rates": ", ".join(f"{s.learning_rate:g}" for s in config.stages),
        "precision": config.training.precision, "clip_norm": config.training.clip_norm,
        "weight_decay": config.optimizer.weight_decay, **settings,
        **{f"steps_{name}" if name in ("healthy", "overflow", "skipped") else name: n for name, n in counts.items()
           if name not in ("refused", "rerun")},
    }  # fmt: skip


def data(config: Config, pipeline: Sequence[tuple[str, Mapping[str, Any], Sequence[tuple[str, Mapping[str, Any]]]]]) -> bytes:
    """The data pipeline as a graph, from the files to the batch; the innermost child is where it begins. `pipeline` is the
    task's: reading, then what is done to a sample."""
    source, *rest = pipeline
    steps = [source, ("Shuffle", {"order": "by (seed, epoch)", "seed": config.seed}, []), *rest,
             ("Batch", {"batch_size": config.training.batch_size, "drop_remainder": False}, [])]
    inner: DatasetGraph | None = None
    for kind, values, operations in steps:
        node = DatasetGraph()
        _fill(node.parameter, {"op_type": kind, **values})
        for name, options in operations:
            _fill(node.operations.add().operationParam, {"tensor_op_name": name, **options})
        if inner is not None:
            node.children.append(inner)
        inner = node
    return event(dataset_graph=inner)


def _fill(target: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, bool):
            target.mapBool[name] = value
        elif isinstance(value, int):
            target.mapInt[name] = value
        elif isinstance(value, float):
            target.mapDouble[name] = value
        elif isinstance(value, (list, tuple)):
            target.mapStrList[name].strValue.extend(map(str, value))
        else:
            target.mapStr[name] = str(value)
