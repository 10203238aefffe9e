"""The tasks by the name that `task:` has in the configuration."""

from finite.tasks.base import Task
from finite.tasks.detection.task import DetectionTask
from finite.tasks.waveform.task import WaveformTask

TASKS: dict[str, type[Task]] = {"detection": DetectionTask, "waveform": WaveformTask}
