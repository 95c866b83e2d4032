"""A denoiser is anything that turns a release into a direction: python examples/own_denoiser.py."""

import torch

import dpfedls


def half_step(release: dpfedls.Release) -> torch.Tensor:
    """Trust the release less where noise outweighs it; it sees nothing private, so this is free."""
    signal = release.value.square().mean()
    return release.value * (signal / (signal + release.noise_stddev**2))


torch.manual_seed(0)
x = torch.randn(250, 10, 16)
y = (x.sum(dim=-1) > 0).long()
plan = dpfedls.PrivacyPlan(
    sampler=dpfedls.FixedSizeSampling(cohort=20), num_clients=200, rounds=20, clip_norm=0.5
).calibrated(epsilon=3.0)
result = dpfedls.train(
    model=torch.nn.Linear(16, 2),
    clients=list(zip(x[:200], y[:200], strict=True)),
    plan=plan,
    local=dpfedls.LocalSGD(epochs=2, batch_size=5, learning_rate=0.2),
    denoiser=half_step,
    test=(x[200:].flatten(0, 1), y[200:].flatten()),
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}, δ = {plan.delta:.2g}")
