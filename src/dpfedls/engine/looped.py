"""One client after another in plain torch: slow, and what defines the right result.

The faster engines are held to it, and it trains what they cannot.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from dpfedls.local_sgd import Update
from dpfedls.parameters import Updates, Vector
from dpfedls.people.batches import schedule
from dpfedls.people.losses import require_one_loss_per_sample
from dpfedls.people.steps import TRAININGS, Seen, following, lengths, project
from dpfedls.sampling import Indices


class LoopedUpdate(Update):
    """One client after another, one real batch after another: no padding, no masks, no vmap.

    Each client trains copies of model and loss, so that nothing these keep to themselves (a buffer,
    a counter) passes from one client to the next or leaves without noise.
    """

    def __call__(
        self,
        params: Vector,
        clients: Indices,
        round_: int,
        key: int,
        radius: float,
        pace: float = 1.0,
    ) -> Updates:
        order, groups = schedule(self.local, self.data, clients, key)
        updates = torch.zeros(len(clients), self.layout.dim, device=params.device)
        for place, rows in zip(order, (rows for group in groups for rows in group), strict=True):
            if rows.size:
                share, rate = params.new_ones(1), pace * self.local.rate(round_)
                for _ in range(TRAININGS):
                    updates[place], after = self._train(params, rows, rate, radius, share)
                    if after == share:
                        break
                    share = after
        return updates

    def _train(
        self, params: Vector, rows: Indices, rate: float, radius: float, share: Tensor
    ) -> tuple[Vector, Tensor]:
        """The update by a share of the gradients; and the share with which to train again."""
        weights, (model, loss) = params.clone(), copy.deepcopy((self.model, self.loss))
        model.to(self.local.dtype)
        trained = [model.get_parameter(name) for name in self.layout.names]
        means, first = [], params.new_zeros(1)
        for batch in rows:
            real = torch.from_numpy(batch[batch >= 0]).to(params.device)
            with torch.no_grad():
                for tensor, value in zip(trained, self.layout.split(weights).values(), strict=True):
                    tensor.copy_(value)
            with torch.enable_grad():
                features, targets = self.data.take(real)
                losses = loss(self._outputs(model, features), targets)
                require_one_loss_per_sample(losses, len(real))
                gradients = torch.autograd.grad(losses.mean(), trained, materialize_grads=True)
            gradient = torch.cat([g.to_dense().float().reshape(-1) for g in gradients])
            weights = weights - rate * (share * gradient + self.local.weight_decay * weights)
            means.append(losses.detach().mean())
            if len(means) == 1:
                first = lengths([(weights - params)[None]])
            if self.local.projection == "step" and radius < math.inf:
                project([weights[None]], [params], radius)
        seen = Seen.of(torch.stack(means).mean(), means[0], first, rate)
        return weights - params, following(share, seen, self.local, radius)
