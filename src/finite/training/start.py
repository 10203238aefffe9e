"""Where a new run's weights come from: drawn by the seed, then files that the configuration names, then another run.

    lines = start(network, task, constants, other)     # what was taken, and from where
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from mindspore import nn

from finite.errors import UserError
from finite.tasks.base import Task
from finite.training.checkpoint import BALANCE, Checkpoint
from finite.training.state import assign


def start(network: nn.Cell, task: Task, constants: frozenset[str], other: Checkpoint | None) -> list[str]:
    """Give a new network its first weights. `other`: those of another run, which come before files. Returns what to tell the user.

    Raises UserError when a file can't be used, or nothing of the other run's network fits.
    """
    filled = task.start_weights(network)
    return list(filled.values()) if other is None else from_run(network, task, constants, other, filled)


def from_run(network: nn.Cell, task: Task, constants: frozenset[str], other: Checkpoint, filled: Mapping[str, str]) -> list[str]:
    """Take a run's weights as far as they fit: its scaling statistics with the part that was trained with them, if that fits
    whole. `filled`: the parts that a file has filled, each with a line about it; such a part is replaced whole or not at all,
    as half of each would be neither. Returns what to tell the user. Raises UserError when nothing fits."""
    tensors = other.served()
    same_classes = other.state["task"].get("classes") == task.state().get("classes")
    # Learned loss weights belong to the training that learned them.
    parameters = {p.name: p for p in network.get_parameters() if not p.name.startswith(BALANCE + ".")}
    part_of = {name: next((part for part, pattern in task.groups.items() if fnmatchcase(name, pattern)), None)
               for name in parameters.keys() | tensors.keys()}
    fits = {name for name, p in parameters.items() if name in tensors and tuple(tensors[name].shape) == tuple(p.shape)
            and (same_classes or part_of[name] != task.class_part)}
    # A ResNet-34 holds all names of a ResNet-18, but is not one: a whole part has no tensor too many either.
    whole = set(task.groups) - {part_of[name] for name in part_of.keys() - fits}
    kept = filled.keys() - whole
    fits -= {name for name in fits if part_of[name] in kept}
    scaling: dict[str, list[str]] = {}
    for name in parameters:
        if part_of[name] is None and name in constants:
            part = next(part for pattern, part in task.scaling.items() if fnmatchcase(name, pattern))
            scaling.setdefault(part, []).append(name)
            if part not in whole:
                fits.discard(name)
    if fits <= constants:
        raise UserError(f"--init {other.path}: nothing of its network fits this one; check model.* in its config.yaml")
    assign([p for name, p in parameters.items() if name in fits], tensors)
    new = [name for name in parameters if name not in fits and part_of[name] is not None and part_of[name] not in kept]
    lines = [f"from {other.path}: {len(fits)} tensors taken"
             + (f", new: {', '.join(new[:6])}{' ...' if len(new) > 6 else ''}" if new else "")]
    for part in filled:
        lines.append(f"{filled[part]}; {part} of {other.path} does not fit whole and is not taken" if part in kept else
                     f"{part}: that of {other.path}, in the place of the file that the configuration names")
    for part, names in scaling.items():
        whence = f"from there, as {part} is" if part in whole else \
            f"as the file that filled {part} wants it" if part in kept else f"of these data, as {part} is not taken whole"
        lines.append(f"scaling ({', '.join(names)}): {whence}")
    if not same_classes:
        lines.append(f"other classes there ({', '.join(other.state['task']['classes'])}): {task.class_part} starts anew")
    return lines
