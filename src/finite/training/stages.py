"""What a stage trains: freezing by parameter name, and the learning rate as a function of the step.

Freezing a parameter alone is not enough: a BatchNorm cell in training mode moves its statistics whatever its gamma may
do. So a cell whose parameters are all frozen is taken out of training mode too, after its parents were put into it
(`set_train` on a parent undoes it on the child).
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
import math

from mindspore import Parameter, nn

from finite.config import Stage
from finite.errors import UserError
from finite.training.checkpoint import BALANCE


def check(network: nn.Cell, stages: Iterable[Stage], groups: Mapping[str, str], heads: Mapping[str, str], constants: frozenset[str]) -> None:
    """Make sure that every stage can train this network, before the first one begins; `heads` as in `tasks.base.Task`.

    Raises UserError naming the stage when a pattern fits nothing, or nothing is left to train: all is frozen, or belongs to
    a term of weight 0 (learned loss weights alone train nothing).
    """
    for stage in stages:
        candidates, frozen = _chosen(network, stage.freeze, constants, f"stage {stage.name}")
        idle = {term: part for term, part in heads.items() if not stage.weights.get(term)}
        if not any(p.name not in frozen and not p.name.startswith(BALANCE + ".")
                   and not any(fnmatchcase(p.name, groups[part]) for part in idle.values()) for p in candidates):
            because = "".join(f"; {part} learns from the term {term} alone, whose weight is 0" for term, part in idle.items())
            raise UserError(f"stage {stage.name}: freeze {list(stage.freeze)} leaves nothing to train{because}")


def _chosen(network: nn.Cell, patterns: Sequence[str], constants: frozenset[str], where: str) -> tuple[list[Parameter], set[str]]:
    """The parameters that a stage may train, and the names of those that it freezes. Raises UserError."""
    candidates = [p for p in network.get_parameters() if p.name not in constants]
    for pattern in patterns:
        if not any(fnmatchcase(p.name, pattern) for p in candidates):
            parts = ", ".join(sorted({p.name.partition(".")[0] + ".*" for p in candidates}))
            raise UserError(f"{where}: freeze pattern '{pattern}' fits no parameter; the network's parts are {parts}")
    frozen = {p.name for p in candidates if any(fnmatchcase(p.name, pattern) for pattern in patterns)}
    if len(frozen) == len(candidates):
        raise UserError(f"{where}: freeze {list(patterns)} leaves nothing to train")
    return candidates, frozen


def freeze(network: nn.Cell, patterns: Sequence[str], groups: Mapping[str, str], constants: frozenset[str]) -> list[Parameter]:
    """Put the network into a stage's training mode and return the parameters that it trains, in the network's order.

    Args:
        patterns: shell patterns of parameter names ("backbone.*") that stay as they are, BatchNorm statistics included.
        groups: part name -> pattern; a part that is frozen whole and that the network can cut off (it has an attribute
            `frozen_<part>`) gets no backward pass.
        constants: names of parameters that no stage trains (scaling and running statistics).

    Raises UserError when a pattern fits nothing, or nothing is left to train.
    """
    candidates, frozen = _chosen(network, patterns, constants, "stages")
    trained = [p for p in candidates if p.name not in frozen]
    for p in candidates:
        p.requires_grad = p.name not in frozen
    network.set_train(True)
    for _, cell in network.cells_and_names():
        own = [p.name for p in cell.get_parameters(expand=False) if p.name not in constants]
        if own and all(name in frozen for name in own):
            cell.set_train(False)
    for part, pattern in groups.items():
        if hasattr(network, f"frozen_{part}"):
            names = [p.name for p in candidates if fnmatchcase(p.name, pattern)]
            setattr(network, f"frozen_{part}", bool(names) and all(name in frozen for name in names))
    return trained


def constants_of(network: nn.Cell) -> frozenset[str]:
    """Names of the parameters that a new network marks as not trainable: running and scaling statistics."""
    return frozenset(p.name for p in network.get_parameters() if not p.requires_grad)


def learning_rate(stage: Stage, step: int, steps_per_epoch: int) -> float:
    """The rate of a stage's step (from 0): linear warm-up, then constant, or half a cosine down to 0 at the end.

    Cosine annealing without restarts: Loshchilov and Hutter, arXiv 1608.03983. A pure function of the step number, so
    refused steps and resumes can't shift it.
    """
    warmup = round(stage.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return stage.learning_rate * (step + 1) / warmup
    if stage.schedule == "constant":
        return stage.learning_rate
    total = stage.epochs * steps_per_epoch
    return stage.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))
