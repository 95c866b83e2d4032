"""Train a model on people's data with user-level privacy: python examples/quickstart.py."""

import torch

import dpfedls

torch.manual_seed(0)
truth = torch.randn(64, 10)
x = torch.randn(600, 20, 64)  # 500 people to train on and 100 to test on, 20 samples each
y = (x @ truth).argmax(dim=-1)

plan = dpfedls.PrivacyPlan(
    sampler=dpfedls.PoissonSampling(rate=0.05),
    num_clients=500,
    rounds=30,
    clip_norm=0.3,
    delta=1e-3,
).calibrated(epsilon=4.0)
result = dpfedls.train(
    model=torch.nn.Linear(64, 10),
    clients=list(zip(x[:500], y[:500], strict=True)),
    plan=plan,
    local=dpfedls.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1),
    denoiser=dpfedls.LaplacianSmoothing(strength=0.0),  # weights of random data are not smooth
    test=(x[500:].flatten(0, 1), y[500:].flatten()),
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}, δ = {plan.delta:g}")
