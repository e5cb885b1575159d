"""How some matrices are updated, if not by AdamW: the keys qk_update and muon_rate."""

import torch


class MatrixAdamW(torch.optim.Optimizer):
    """
    AdamW with one v for each parameter, a matrix, instead of one for each of its entries:

        m = 0.9 m + 0.1 g        v = beta2 v + (1 - beta2) mean(g^2)        w = w - lr (m / sqrt(v) + weight_decay w)

    So all entries of a matrix move at one rate. AdamW instead makes small gradients large, one by one, and so it
    prefers the coordinates that it works in. Here, if all gradients are rotated, the updates are rotated as well.
    """

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                state = self.state[w]
                if not state:
                    state.update(step=0, m=torch.zeros_like(w), v=torch.zeros((), device=w.device))
                state["step"] += 1
                state["m"].lerp_(w.grad, 1 - beta1)
                state["v"].lerp_(w.grad.square().mean(), 1 - beta2)

                # both means began at 0, so divide by how much of them is gradients yet, as Adam does
                m = state["m"] / (1 - beta1 ** state["step"])
                v = state["v"] / (1 - beta2 ** state["step"])
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.sub_(group["lr"] * m / (v.sqrt() + 1e-8))  # as AdamW: never by 0


def hand_over(adamw, cfg, model):
    """Moves matrices from AdamW to another optimizer, as qk_update or muon_rate say, and returns both as one."""
    if cfg.muon_rate:
        weights = [p for p in model.blocks.parameters() if p.ndim > 1]
    else:
        weights = []
        for block in model.blocks:
            weights += [block.attn.q.weight, block.attn.k.weight]

    # the two optimizers share no matrix
    matrices = adamw.param_groups[0]
    matrices["params"] = [p for p in matrices["params"] if not any(p is w for w in weights)]
    if cfg.qk_update == "matrix":
        other = MatrixAdamW(weights, cfg.learning_rate, (0.9, cfg.beta2), cfg.weight_decay)
    else:
        # Muon makes all singular values of an update nearly equal, and so has no coordinates of its own either.
        # match_rms_adamw gives its updates the size of AdamW's, so that with qk_update one learning rate fits both
        muon = dict(params=weights, peak=cfg.muon_rate or cfg.learning_rate)
        other = torch.optim.Muon([muon], cfg.learning_rate, cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
    return Both(adamw, other)


class Both:
    """Two optimizers as one, for different parameters."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    @property
    def param_groups(self):
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self):
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states):
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
