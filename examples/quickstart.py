"""Train a model on people's data with user-level privacy: python examples/quickstart.py."""

import torch

import dpfedls

torch.manual_seed(0)
x = torch.randn(600, 20, 64)  # 500 people to train on and 100 to test on, 20 samples each
y = (x @ torch.randn(64, 10)).argmax(dim=-1)

result = dpfedls.train(
    model=torch.nn.Linear(64, 10),
    clients=list(zip(x[:500], y[:500], strict=True)),
    epsilon=4.0,
    test=(x[500:].flatten(0, 1), y[500:].flatten()),
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}, δ = {result.plan.delta:.2g}")
