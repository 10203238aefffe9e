"""The loss scale of half precision: MindSpore's DynamicLossScaleManager, driven from the guarded step's verdict.

float16 gradients below 6e-8 vanish and above 65504 overflow, so the loss is multiplied by a scale before the backward
pass and the gradients divided by it (Micikevicius et al., arXiv 1710.03740). The manager halves the scale after an
overflow and doubles it after a window of good steps. It cures overflow and nothing else: it is told of a bad step
only when the verdict says overflow, so that bad data can't drive the scale down.
"""

from mindspore.amp import DynamicLossScaleManager

from finite.config import LossScale as LossScaleConfig

#: All of the manager's state; each is a number.
STATE = ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step")


class LossScale:
    """The scale of the next step. In float32 it is 1 and stays there."""

    def __init__(self, half: bool, config: LossScaleConfig):
        self.half = half
        self.manager = DynamicLossScaleManager(config.initial, config.factor, config.window)
        self.manager.bad_step_max = 2**62  # the manager would raise after 1,000; the guard decides when a run ends

    @property
    def value(self) -> float:
        return float(self.manager.get_loss_scale()) if self.half else 1.0

    def update(self, overflow: bool) -> None:
        """After a step that was healthy or overflowed. Not to be called after any other bad step."""
        if self.half:
            self.manager.update_loss_scale(overflow)

    def state(self) -> dict[str, float]:
        return {name: getattr(self.manager, name) for name in STATE}

    def load(self, state: dict[str, float]) -> None:
        for name in STATE:
            setattr(self.manager, name, state[name])
