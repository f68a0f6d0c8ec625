"""GPT-2's small model in PyTorch, made-up weights, as tinygpt bench measures
it: prompts with the logits of the last row, decoding behind a cache, eight
slots, and a training step.  Run with an interpreter that has PyTorch (Debian:
python3-torch):

    /usr/bin/python3 torch_peer.py THREADS [what...]

Prints a line for each case, the second of two runs:
torch what threads slots tokens context seconds
"""
import sys
import time

import torch
import torch.nn.functional as F

V, N, C, L, H, D, WIDE = 50257, 1024, 768, 12, 12, 64, 3072


def made_up(*shape):
    return (torch.rand(*shape) - 0.5) * 0.07


class Model:
    def __init__(self):
        self.token, self.position = made_up(V, C), made_up(N, C)
        self.layers = [
            dict(g1=torch.ones(C), b1=made_up(C), qkv=made_up(3 * C, C),
                 qkv_b=made_up(3 * C), out=made_up(C, C), out_b=made_up(C),
                 g2=torch.ones(C), b2=made_up(C), up=made_up(WIDE, C),
                 up_b=made_up(WIDE), down=made_up(C, WIDE),
                 down_b=made_up(C)) for _ in range(L)]
        self.g, self.b = torch.ones(C), made_up(C)

    def parameters(self):
        yield from (self.token, self.position, self.g, self.b)
        for layer in self.layers:
            yield from layer.values()

    def forward(self, ids, cache=None, past=0, last=True):
        """ids [B,T]; cache: L pairs of [B,H,S,D], written behind `past`"""
        B, T = ids.shape
        x = self.token[ids] + self.position[past:past + T]
        mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
        for index, p in enumerate(self.layers):
            n = F.layer_norm(x, (C,), p["g1"], p["b1"])
            qkv = F.linear(n, p["qkv"], p["qkv_b"])
            q, k, v = (part.view(B, T, H, D).transpose(1, 2)
                       for part in qkv.split(C, dim=2))
            if cache is not None:
                keys, values = cache[index]
                keys[:, :, past:past + T] = k
                values[:, :, past:past + T] = v
                k, v = keys[:, :, :past + T], values[:, :, :past + T]
            scores = q @ k.transpose(2, 3) * D ** -0.5
            if T > 1:
                scores = scores.masked_fill(~mask, float("-inf"))
            context = (scores.softmax(-1) @ v).transpose(1, 2)
            x = x + F.linear(context.reshape(B, T, C), p["out"], p["out_b"])
            n = F.layer_norm(x, (C,), p["g2"], p["b2"])
            h = F.gelu(F.linear(n, p["up"], p["up_b"]))
            x = x + F.linear(h, p["down"], p["down_b"])
        if last:
            x = x[:, -1:]
        return F.linear(F.layer_norm(x, (C,), self.g, self.b), self.token)


def second(run):
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def say(what, slots, tokens, context, seconds):
    print("torch", what, threads, slots, tokens, context, f"{seconds:.9g}",
          flush=True)


def calls(model, what):
    ids = torch.randint(0, V, (8, N))
    with torch.inference_mode():
        if "prefill" in what:
            for T in (64, 512, 1024):
                say("prefill", 1, T, 0,
                    second(lambda: model.forward(ids[:1, :T])))
        for slots, context in ((1, 64), (1, 512), (8, 64)):
            name = "decode" if slots == 1 else "batch"
            if name not in what:
                continue
            cache = [(torch.rand(slots, H, context + 1, D),
                      torch.rand(slots, H, context + 1, D)) for _ in range(L)]

            def four():
                for _ in range(4):
                    model.forward(ids[:slots, :1], cache, context)
            say(name, slots, 1, context, second(four) / 4)


def train(model, B=4, T=64):
    parameters = list(model.parameters())
    for p in parameters:
        p.requires_grad_(True)
    adamw = torch.optim.AdamW(parameters, lr=1e-12)
    ids = torch.randint(0, V, (B, T + 1))

    def step():
        logits = model.forward(ids[:, :-1], last=False)
        loss = F.cross_entropy(logits.view(-1, V), ids[:, 1:].reshape(-1))
        adamw.zero_grad(set_to_none=False)
        loss.backward()
        adamw.step()
    step()
    say("train", B, T, 0, second(step))


threads = int(sys.argv[1])
what = sys.argv[2:] or ["prefill", "decode", "batch", "train"]
torch.set_num_threads(threads)
torch.manual_seed(1)
gpt = Model()
calls(gpt, what)
if "train" in what:
    train(gpt)
