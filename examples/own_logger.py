"""Anything that can be called watches a run: python examples/own_logger.py."""

import torch

import dpfedls


class Best:
    """Keeps the best round; it sees public values only, so that costs no privacy."""

    def __init__(self) -> None:
        self.accuracy, self.round = 0.0, 0

    def __call__(self, record: dpfedls.RoundRecord) -> None:
        if record.accuracy is not None and record.accuracy > self.accuracy:
            self.accuracy, self.round = record.accuracy, record.round


torch.manual_seed(0)
x = torch.randn(400, 20, 16)
y = (x.sum(dim=-1) > 0).long()
best = Best()
result = dpfedls.train(
    model=torch.nn.Linear(16, 2),
    clients=list(zip(x[:350], y[:350], strict=True)),
    epsilon=2.0,
    test=(x[350:].flatten(0, 1), y[350:].flatten()),
    watch=[best],
    progress=True,
)
print(f"accuracy {result.accuracy:.2f} at the end, {best.accuracy:.2f} in round {best.round}")
