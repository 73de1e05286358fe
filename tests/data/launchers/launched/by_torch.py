import torch


def axpy(x, y, out, alpha):
    x, y, out = map(torch.from_dlpack, (x, y, out))
    torch.add(y, x, alpha=alpha, out=out)


@torch.compile
def fused(x, y, out, alpha):
    torch.add(alpha * x, y, out=out)


def compiled(x, y, out, alpha):
    fused(*map(torch.from_dlpack, (x, y, out)), alpha)


def tensor(x, y, out, alpha):
    assert type(x) is type(out) is torch.Tensor
    torch.add(y, x, alpha=alpha, out=out)


def new_tensor(x, y, alpha):
    return torch.add(y, x, alpha=alpha)


def step(w, *, gradient, rate):
    return w.sub_(gradient, alpha=rate)
