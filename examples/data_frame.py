"""A pandas table with one row per event and a column that says whose: examples/data_frame.py."""

import numpy as np
import pandas as pd
import torch

import dpfedls

rng = np.random.default_rng(0)
frame = pd.DataFrame(
    {
        "person": rng.integers(0, 400, 8000).astype(str),
        "age": rng.normal(0, 1, 8000),
        "visits": rng.normal(0, 1, 8000),
        "dose": rng.normal(0, 1, 8000),
    }
)
frame["readmitted"] = (frame.age + 2 * frame.dose + rng.normal(0, 1, 8000) > 0).astype(int)
test = pd.DataFrame(frame[frame.person.astype(int) >= 350])  # people who are not trained on

torch.manual_seed(0)
result = dpfedls.train(
    model=torch.nn.Linear(3, 2),
    clients=dpfedls.ClientData.from_frame(
        frame.drop(test.index), user="person", target="readmitted", most_samples=25
    ),
    epsilon=2.0,
    test=(test[["age", "visits", "dose"]].to_numpy(), np.asarray(test["readmitted"])),
)
print(f"accuracy {result.accuracy:.2f} at ε = {result.epsilon:.2f}, δ = {result.plan.delta:.2g}")
