"""The settings of a run as a typed schema: what config.yaml may say, within which limits, with which defaults.

    config = load(Path("config.yaml"), ["training.batch_size=16"])
    config.training.batch_size                      # 16

`task` says which schema holds: detection's (`Config`, the default) or another of `SCHEMAS`. Models are frozen and refuse
unknown keys. Reading, line numbers and `--set` live in `finite.settings`; a mistake comes out as one `UserError` with one
line for each thing that is wrong. Relative paths are relative to the working directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from finite import settings
from finite.config.common import Checkpoint, Guard, Incidents, LossScale, Optimizer, Spike, Summary
from finite.config.detection import Augment, Config, Data, Loss, Model, Stage, Term, Training
from finite.config.waveform import WaveformConfig
from finite.errors import UserError

__all__ = [
    "SCHEMAS", "Augment", "Checkpoint", "Config", "Data", "Guard", "Incidents", "Loss", "LossScale", "Model", "Optimizer", "Spike",
    "Stage", "Summary", "Term", "Training", "WaveformConfig", "dump", "load", "validated",
]

#: The schema of each task.
SCHEMAS: dict[str, type[Config]] = {"detection": Config, "waveform": WaveformConfig}


def validated(values: Mapping[str, Any]) -> Config:
    """Values as nested dictionaries (of a run folder, a checkpoint, an incident) as the configuration of their task. Raises
    pydantic's ValidationError."""
    return SCHEMAS.get(str(values.get("task")), Config).model_validate(values)


def load(path: Path | None, overrides: Sequence[str] = ()) -> Config:
    """The settings in the file `path` (None: the defaults), then `overrides` ("training.batch_size=16") in order.

    A group in the file may leave keys out (they keep their defaults); a list in the file replaces the default list.
    An override's value is YAML; list items are named by position or by their `name` ("stages.0.epochs=3",
    "stages.joint.epochs=3"). Raises UserError: one line for each mistake, with file and line or the override's key.
    """
    given = settings.Settings() if path is None else settings.read(path)
    values, defaults = _overridden(given, overrides, given.values.get("task", "detection"))
    if values.values["task"] != defaults["task"]:  # chosen by --set: what is not given has the defaults of that task
        values, defaults = _overridden(given, overrides, values.values["task"])
    task = values.values["task"]
    if not (isinstance(task, str) and task in SCHEMAS):
        key = ("task",)
        values.problems.append((key, values.place(key), f"{settings.shown(task)} is not allowed; must be {' or '.join(SCHEMAS)}"))
    try:
        config = SCHEMAS[defaults["task"]].model_validate(values.values)
    except ValidationError as error:
        values.explain(error.errors(include_url=False), defaults)
    if values.problems:
        raise UserError("\n".join(values.complaints()))
    return config


def _overridden(given: settings.Settings, overrides: Sequence[str], task: Any) -> tuple[settings.Settings, dict[str, Any]]:
    """What was given with the overrides over the defaults of a task (of the default one, if there is no such task), and
    those defaults."""
    known = task if isinstance(task, str) and task in SCHEMAS else "detection"
    defaults = SCHEMAS[known]().model_dump(mode="json")
    values = settings.Settings(settings.merge(defaults, given.values), dict(given.places), list(given.problems))
    for text in overrides:
        values.override(text)
    return values, defaults


def dump(config: Config) -> str:
    """`config` as YAML, every key written out; `load` of a file with this text gives an equal Config."""
    return yaml.dump(
        config.model_dump(mode="json"), Dumper=settings.Dumper, sort_keys=False, default_flow_style=None, width=120
    )
