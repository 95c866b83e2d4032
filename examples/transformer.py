"""A small transformer on tokens, evaluated by perplexity: python examples/transformer.py."""

import torch
from torch import Tensor, nn

import dpfedls

WORDS, LENGTH = 12, 8


class Reader(nn.Module):
    """Predicts the next token from those before it; positions are a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.register_buffer("positions", torch.eye(LENGTH, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(16, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.block(self.embedding(tokens) + self.positions)[:, -1])


torch.manual_seed(0)
start = torch.randint(WORDS, (200, 10, 1))
text = (start + 3 * torch.arange(LENGTH + 1)) % WORDS  # people who count in steps of three
x, y = text[..., :-1], text[..., -1]
result = dpfedls.train(
    model=Reader(),
    clients=list(zip(x[:150], y[:150], strict=True)),
    epsilon=8.0,
    local=dpfedls.LocalSGD(steps=4, learning_rate=0.1),  # what is given is not chosen
    metrics={"perplexity": lambda out, y: nn.functional.cross_entropy(out, y).exp()},
    test=(x[150:].flatten(0, 1), y[150:].flatten()),
)
print(f"perplexity {result.metrics['perplexity']:.2f} of {WORDS} at ε = {result.epsilon:.2f}")
