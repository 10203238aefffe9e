"""The tasks by the name that `task:` has in the configuration."""

from finite.tasks.base import Task
from finite.tasks.detection.task import DetectionTask

TASKS: dict[str, type[Task]] = {"detection": DetectionTask}
