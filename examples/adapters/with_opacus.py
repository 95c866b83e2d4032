"""DP-SGD-LS with Opacus: one line after make_private. pip install opacus (tried with 1.6.0)."""
# pyright: reportMissingImports=false

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from dpfedls import LaplacianSmoothing
from dpfedls.adapters.opacus import denoise_steps

torch.manual_seed(0)
signal = torch.sin(torch.linspace(0, 6.28, 64))
x = torch.randn(1000, 1) * signal + 0.5 * torch.randn(1000, 64)
y = (x @ signal > 0).long()
model = torch.nn.Linear(64, 2)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    data_loader=DataLoader(TensorDataset(x, y), batch_size=50),
    noise_multiplier=1.0,
    max_grad_norm=1.0,
)
denoise_steps(optimizer, LaplacianSmoothing(strength=1.0))
for batch, targets in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch), targets).backward()
    optimizer.step()
accuracy = (model(x).argmax(dim=1) == y).float().mean()
print(f"accuracy {accuracy:.2f} at ε = {engine.get_epsilon(1e-4):.2f}, δ = 1e-4")
