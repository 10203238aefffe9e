"""A run's network and a stage's step, made the same way for training, for eager replays and for incidents."""

from collections.abc import Sequence

from mindspore import Parameter, nn

from finite.config import Config, Stage
from finite.tasks.base import Field, Task
from finite.training.average import WeightAverage
from finite.training.balance import attach, log_variances
from finite.training.batchnorm import synchronise
from finite.training.optimizers import RatedOptimizer
from finite.training.parallel import ALONE, Workers
from finite.training.parallel_step import ParallelStep
from finite.training.stages import freeze
from finite.training.step import GuardedStep, rules_of, running_statistics


def make_network(config: Config, task: Task, workers: Workers = ALONE) -> nn.Cell:
    """A new network as it is trained: the task's, with learned loss weights where they are configured, and BatchNorm over
    the rows of all workers."""
    network = task.network()
    attach(network, config.loss.balance, task.terms)
    if workers.size > 1 and config.training.batch_norm == "synchronised":
        synchronise(network, workers, config.training.batch_size)
    return network


def make_optimizer(config: Config, network: nn.Cell, trained: Sequence[Parameter]) -> RatedOptimizer:
    """The optimizer of a stage that trains these of the network's parameters; the network is in the stage's mode."""
    settings = config.training
    average = WeightAverage(settings.average, [*trained, *running_statistics(network)]) if settings.average else None
    return RatedOptimizer(config.optimizer, trained, average, log_variances(network), settings.accumulate > 1)


def make_step(config: Config, task: Task, network: nn.Cell, computing: nn.Cell, constants: frozenset[str], stage: Stage,
              fields: Sequence[Field], workers: Workers = ALONE) -> GuardedStep:
    """Put the network into the stage's mode and make its optimizer and its step (`.optimizer`, `.parameters_trained`).

    `computing` is the network in the run's precision; `constants` are those of the network when it was new.
    """
    trained = freeze(network, stage.freeze, task.groups, constants)
    optimizer = make_optimizer(config, network, trained)
    used = [name for name in task.terms if stage.weights.get(name)]
    given = (task.terms_cell(computing, used), optimizer, fields, task.terms, task.points, task.groups,
             config.training.batch_size, rules_of(config, stage), log_variances(network))
    return GuardedStep(*given) if workers.size == 1 else ParallelStep(*given, workers)
