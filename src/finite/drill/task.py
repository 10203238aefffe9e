"""The drill's task: single-object detection whose samples, network and terms can be at fault."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from finite.drill.formulas import Code, DrillNetwork, DrillTerms
from finite.tasks.base import Field, Source, Sources
from finite.tasks.detection.task import DetectionTask

Row = dict[str, np.ndarray]
#: The field that switches faults on; see formulas.Code.
SWITCH = Field("fault", (), np.int32, 0, 100, "input")


class SpoiltSource:
    """A source whose rows pass through `spoil(number, row)`; every row says which formula is in use (`code`)."""

    def __init__(self, source: Source, code: int, spoil: Callable[[int, Row], Row] | None):
        self.source, self.code, self.spoil = source, code, spoil
        self.ids, self.origins = source.ids, source.origins
        self.fields = (*source.fields, SWITCH)

    def __len__(self) -> int:
        return len(self.source)

    def row(self, index: int, seed: int, epoch: int | None) -> Row:
        row = self.source.row(index, seed, epoch) | {"fault": np.array(self.code, np.int32)}
        return row if self.spoil is None else self.spoil(index, row)


class DrillTask(DetectionTask):
    """`code`: the formula in use for all samples; `spoil`: what is wrong with single samples; `sparse`: see DrillTerms;
    `start`: changes the new network's weights."""

    code = 0
    spoil: Callable[[int, Row], Row] | None = None
    sparse = False
    start: Callable[[DrillNetwork], None] | None = None

    def data(self, folder: Path) -> Sources:
        sources = super().data(folder)
        return replace(sources, train=SpoiltSource(sources.train, self.code, self.spoil))

    def network(self) -> DrillNetwork:
        model = self.config.model
        network = DrillNetwork(len(self._known_classes()), model.image_size, model.width, model.box_channels, model.box_hidden,
                               self.config.seed, code=self.code if self.code == Code.STANDARDISE else 0)
        if self.statistics:
            network.set_statistics(**self.statistics)
        if self.start is not None:
            self.start(network)
        return network

    def terms_cell(self, network, used=None) -> DrillTerms:
        loss = self.config.loss
        return DrillTerms(network, loss.label_smoothing, loss.box, loss.huber_delta, self.sparse)
