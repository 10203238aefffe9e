"""The tasks by their kind (`Config.kind`): the name that `task:` has in the configuration, or the head's own."""

from finite.tasks.base import Task
from finite.tasks.detection.dense.task import DenseTask
from finite.tasks.detection.task import DetectionTask
from finite.tasks.waveform.task import WaveformTask

TASKS: dict[str, type[Task]] = {"detection": DetectionTask, "dense": DenseTask, "waveform": WaveformTask}
