"""A GPT on a mesh: data, tensor and pipeline parallel training, written out over the groups of a
job.

    $ TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    $ shoal run -n 4 -- python3 examples/gpt/mesh_gpt.py --mesh dp=1,pp=2,tp=2 $TEXT
    [0] step   50  loss 3.3382  on dp=1,pp=2,tp=2, 48,096 parameters here
    [0] step  100  loss 2.7651  on dp=1,pp=2,tp=2, 48,096 parameters here

The mesh has the axes dp, tp and pp, in any order and of any degree, and `shoal reshape` changes it
while the job runs. It may say how many blocks each stage has and how micro-batches go through them,
as in pp=2(4/1;micro=2;ahead=3/1). The losses are the same whatever the mesh, also without the
launcher: each tensor is made whole, by its name, and then cut, and all workers together take one
global batch a step.
"""

import argparse
import collections
import math
import typing
import zlib

import shoal
import torch
from torch.nn import functional as F

BATCH, MICRO, RATE, SEED = 12, 3, 3e-3, 1  # samples of a step and of a micro-batch
CONTEXT, WIDTH, HEADS, LAYERS = 32, 48, 12, 5
HEAD = WIDTH // HEADS
FIRST, LAST = 0, -1  # stages of the pipeline; blocks are spread over all of them


class Kind(typing.NamedTuple):
    """Logical tensors of one kind, and where they lie: on a stage, or on that of their block;
    whole, or cut between units of rows along a dimension, where each of several fused blocks is cut
    by itself. Everything is the same along dp.
    """

    shape: tuple
    stage: typing.Optional[int] = None
    dim: typing.Optional[int] = None
    unit: int = 1
    blocks: int = 1

    def place(self):
        """The placement in the language of docs/formats/layout.md."""
        pp = f"pp=spread(1,{LAYERS},balanced)" if self.stage is None else f"pp=at({self.stage})"
        return (
            pp
            if self.dim is None
            else f"{pp}, tp=shard({self.dim},balanced,unit={self.unit},blocks={self.blocks})"
        )

    def cut(self, whole, tp):
        """What a rank of a tensor parallel group `tp` has of a whole tensor: the same as the
        placement says.
        """
        if self.dim is None:
            return whole
        fused = whole.chunk(self.blocks, self.dim)
        bounds = [self.unit * n for n in cuts(fused[0].shape[self.dim] // self.unit, tp.size)]
        return torch.cat(
            [
                x.narrow(self.dim, bounds[tp.rank], bounds[tp.rank + 1] - bounds[tp.rank])
                for x in fused
            ],
            self.dim,
        )


def cuts(count, parts):
    """Where to cut so many things into parts that differ by one at most, the longer first: the
    bounds of all parts.
    """
    each, more = divmod(count, parts)
    return [each * i + min(i, more) for i in range(parts + 1)]


def kinds(vocabulary):
    """The parameters by their names, where # is the number of a block."""
    return {
        "character.weight": Kind((vocabulary, WIDTH), FIRST),
        "place.weight": Kind((CONTEXT, WIDTH), FIRST),
        "blocks.#.norm1.weight": Kind((WIDTH,)),
        "blocks.#.qkv.weight": Kind((3 * WIDTH, WIDTH), dim=0, unit=HEAD, blocks=3),
        "blocks.#.out.weight": Kind((WIDTH, WIDTH), dim=1, unit=HEAD),
        "blocks.#.norm2.weight": Kind((WIDTH,)),
        "blocks.#.up.weight": Kind((4 * WIDTH, WIDTH), dim=0),
        "blocks.#.down.weight": Kind((WIDTH, 4 * WIDTH), dim=1),
        "norm.weight": Kind((WIDTH,), LAST),
        "head.weight": Kind((vocabulary, WIDTH), LAST),
    }


def parameters(vocabulary):
    """Every parameter of the model by its full name."""
    for name, kind in kinds(vocabulary).items():
        for block in range(LAYERS if "#" in name else 1):
            yield name.replace("#", str(block)), kind


def initial(name, shape, dtype):
    """A whole parameter as training begins, drawn from a seed that is its name."""
    if "norm" in name:
        return torch.ones(shape, dtype=dtype)
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (0.02 * torch.randn(shape, generator=source, dtype=torch.float64)).to(dtype)


def catalogue(vocabulary, dtype):
    """The logical tensors of the training state, as the file shoal-layout.json lists them."""
    kept = {name: list(kind.shape) for name, kind in parameters(vocabulary)}
    of = {torch.float32: "f32", torch.float64: "f64"}[dtype]
    listed = [
        {"name": prefix + name, "dtype": of, "shape": shape}
        for prefix in ("", *MOMENTS)
        for name, shape in kept.items()
    ]
    return [*listed, {"name": COUNT, "dtype": "i64", "shape": []}]


def layout(vocabulary):
    """Where they lie on any mesh: a spec of docs/formats/layout.md. The moments of the optimizer
    lie like their parameters.
    """
    rules = [
        {"match": "**" + name, "place": kind.place()} for name, kind in kinds(vocabulary).items()
    ]
    return {"shoal": "layout/1", "mesh": "dp=1,pp=1,tp=1", "rules": [*rules, {"match": COUNT}]}


class Copied(torch.autograd.Function):
    """Before a column-parallel product: each rank takes x whole, so x has the sum of the ranks'
    gradients.

    With Summed the conjugate operators f and g of Megatron-LM (Shoeybi et al. 2019, section 3).
    """

    @staticmethod
    def forward(ctx, x, group):
        """Returns x."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """Returns the sum of the gradients of the ranks."""
        return ctx.group.allreduce(gradient.clone()), None


class Summed(torch.autograd.Function):
    """After a row-parallel product: the ranks' partial products add up, and each has the gradient
    of the sum.
    """

    @staticmethod
    def forward(ctx, partial, group):
        """Returns the sum of the partial products of the ranks."""
        return group.allreduce(partial.clone())

    @staticmethod
    def backward(ctx, gradient):
        """Returns the gradient as it is."""
        return gradient, None


MOMENTS, COUNT = ("optimizer.exp_avg.", "optimizer.exp_avg_sq."), "optimizer.step"


class MeshGPT:
    """This rank's part of the model and of Adam's state on a mesh. A step is `gradients`, on all
    ranks together, and then `update`. One thread uses it.
    """

    def __init__(self, mesh, text, vocabulary, dtype):
        """Memory for this rank's part, not filled yet. `text` is a tensor of character numbers, and
        `vocabulary` how many characters there are.
        """
        self.mesh, self.text = mesh, text
        self.dp, self.pp, self.tp = mesh["dp"], mesh["pp"], mesh["tp"]
        self.first, self.last = self.pp.rank == 0, self.pp.rank == self.pp.size - 1
        self.blocks = mesh.part("pp", LAYERS)
        self.kinds = {name: kind for name, kind in parameters(vocabulary) if self.has(name, kind)}
        shapes = {
            name: kind.cut(torch.empty(kind.shape, device="meta"), self.tp).shape
            for name, kind in self.kinds.items()
        }
        self.weights = {
            name: torch.empty(shape, dtype=dtype, requires_grad=True)
            for name, shape in shapes.items()
        }
        # One memory for all gradients, so that one all-reduce adds them up.
        self.gradient = torch.empty(sum(w.numel() for w in self.weights.values()), dtype=dtype)
        for w, part in zip(
            self.weights.values(), self.gradient.split([w.numel() for w in self.weights.values()])
        ):
            w.grad = part.view_as(w)
        self.moments = {
            m: {name: torch.empty_like(w, requires_grad=False) for name, w in self.weights.items()}
            for m in MOMENTS
        }
        self.count = torch.empty((), dtype=torch.int64)

    def adopt(self, tensors):
        """Keep the state in these, by name. They lie in memory of the job, so that nothing is
        copied here when the mesh changes.
        """
        for name, w in self.weights.items():
            w.data = tensors[name]
        self.moments = {m: {name: tensors[m + name] for name in self.weights} for m in MOMENTS}
        self.count = tensors[COUNT]

    @torch.no_grad()
    def initialize(self):
        """Set the state to what training begins with. When the mesh changes it comes from other
        ranks, and nobody calls this.
        """
        for name, kind in self.kinds.items():
            self.weights[name].copy_(
                kind.cut(initial(name, kind.shape, self.gradient.dtype), self.tp)
            )
            for moments in self.moments.values():
                moments[name].zero_()
        self.count.zero_()

    def has(self, name, kind):
        """Whether a parameter is on this stage."""
        if kind.stage is None:
            return int(name.split(".")[1]) in self.blocks
        return self.first if kind.stage == FIRST else self.last

    def tensors(self):
        """The state by name, as this rank has it: parameters, moments of Adam, the count of steps.
        What is written there counts.
        """
        state = {name: w.detach() for name, w in self.weights.items()}
        state.update(
            (prefix + name, moment)
            for prefix, moments in self.moments.items()
            for name, moment in moments.items()
        )
        return {**state, COUNT: self.count}

    def gradients(self, indices):
        """This rank's gradients for a global batch, which is given by where its windows begin in
        the text, on all ranks alike; returns this rank's share of the mean loss, of shape [1]. The
        state stays as it is, so a step that fails can be made again.

        A stage takes as many micro-batches forward as it may hold, and then goes one back and one
        forward. Where the mesh does not say how many, it is one more for each stage after it, 1F1B
        (Narayanan et al. 2021, section 2.2). Sends are not waited for: neighbours send to each
        other at once.
        """
        self.gradient.zero_()
        # what came into this stage and left it, for micro-batches whose gradient is not back
        self.flight = collections.deque()
        self.sends, self.loss, self.scale = (
            [],
            torch.zeros(1, dtype=torch.float64),
            1 / (len(indices) * CONTEXT),
        )
        here = self.mesh.part("dp", len(indices))
        micro = torch.as_tensor(indices[here.start : here.stop]).split(self.mesh.micro or MICRO)
        held = self.mesh.ahead or self.pp.size - self.pp.rank
        for turn in range(len(micro) + held - 1):
            if turn < len(micro):
                self.forward(micro[turn])
            if turn >= held - 1:
                self.backward()
        for send in self.sends:
            send.wait()
        self.dp.allreduce(self.gradient)
        return self.loss if self.last and self.tp.rank == 0 else torch.zeros_like(self.loss)

    def forward(self, starts):
        """Takes a micro-batch through this stage: from the stage before, or the text, to the stage
        after, or the loss. It waits for the stage before.
        """
        windows = self.text[starts[:, None] + torch.arange(CONTEXT + 1)]
        if self.first:
            x = (
                F.embedding(windows[:, :-1], self.weights["character.weight"])
                + self.weights["place.weight"]
            )
        else:
            x = self.pp.recv(
                self.gradient.new_empty(len(starts), CONTEXT, WIDTH), self.pp.rank - 1
            ).requires_grad_()
        y = x
        for block in self.blocks:
            y = self.block(f"blocks.{block}.", y)
        if self.last:
            scores = (
                F.layer_norm(y, (WIDTH,), self.weights["norm.weight"])
                @ self.weights["head.weight"].T
            )
            y = self.scale * F.cross_entropy(
                scores.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum"
            )
            self.loss += y.item()
        else:
            self.sends.append(self.pp.send_async(y.detach(), self.pp.rank + 1))
        self.flight.append((x, y))

    def backward(self):
        """Takes the gradient of the oldest micro-batch whose gradient is not back through this
        stage. It waits for the stage after.
        """
        x, y = self.flight.popleft()
        y.backward(None if self.last else self.pp.recv(torch.empty_like(y), self.pp.rank + 1))
        if not self.first:
            self.sends.append(self.pp.send_async(x.grad, self.pp.rank - 1))

    def block(self, at, x):
        """Returns what a block of the transformer makes of x; its parameters begin with `at`. A
        tensor parallel rank has some heads and some columns of the perceptron.
        """
        inside = Copied.apply(F.layer_norm(x, (WIDTH,), self.weights[at + "norm1.weight"]), self.tp)
        x = x + Summed.apply(
            self.attention(at, inside) @ self.weights[at + "out.weight"].T, self.tp
        )
        inside = Copied.apply(F.layer_norm(x, (WIDTH,), self.weights[at + "norm2.weight"]), self.tp)
        hidden = F.gelu(inside @ self.weights[at + "up.weight"].T)
        return x + Summed.apply(hidden @ self.weights[at + "down.weight"].T, self.tp)

    def attention(self, at, x):
        """Each place looks at those before it, with the heads of this rank: (batch, time, width) to
        (batch, time, heads here * HEAD).
        """
        q, k, v = (
            (x @ self.weights[at + "qkv.weight"].T)
            .view(*x.shape[:2], 3, -1, HEAD)
            .permute(2, 0, 3, 1, 4)
        )
        future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(2, 3) / math.sqrt(HEAD)).masked_fill(future, -math.inf)
        return (scores.softmax(dim=3) @ v).transpose(1, 2).flatten(2)

    @torch.no_grad()
    def update(self, beta1=0.9, beta2=0.999, eps=1e-8):
        """Changes the state by a step of Adam (Kingma and Ba 2015, algorithm 1)."""
        self.count += 1
        first, second = (1 - beta ** self.count.item() for beta in (beta1, beta2))
        for name, w in self.weights.items():
            mean, square = (self.moments[m][name] for m in MOMENTS)
            mean.mul_(beta1).add_(w.grad, alpha=1 - beta1)
            square.mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
            w -= RATE * (mean / first) / ((square / second).sqrt() + eps)


def build(mesh, book, dtype=torch.float32):
    """Returns this rank's part of the model for a text, on a mesh; all ranks alike get the same
    numbers for its characters.
    """
    alphabet = sorted(set(book))
    numbers = {character: i for i, character in enumerate(alphabet)}
    return MeshGPT(mesh, torch.tensor([numbers[c] for c in book]), len(alphabet), dtype)


def training(path, axes, steps, dtype=torch.float32):
    """Trains on a text file for so many steps, and yields each step when it is committed; `axes` is
    the mesh to begin with. All workers of the job call it.
    """
    with open(path, encoding="utf-8") as file:
        book = file.read()
    vocabulary = len(set(book))
    return shoal.train(
        lambda mesh: build(mesh, book, dtype),
        layout=layout(vocabulary),
        catalogue=catalogue(vocabulary, dtype),
        mesh=axes,
        samples=len(book) - CONTEXT,
        batch=BATCH,
        seed=SEED,
        steps=steps,
    )


def main():
    """Trains as the command line says, as one worker of the job; rank 0 prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--mesh",
        default="dp=1",
        help="the degrees of parallelism to begin with, such as dp=1,pp=2,tp=2",
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--checkpoints",
        help=(
            "a folder to write one to every 50 steps; the program goes on from the newest, on any"
            " mesh"
        ),
    )
    parser.add_argument(
        "text", help="such as $(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt"
    )
    arguments = parser.parse_args()
    job, losses = shoal.join(), collections.deque(maxlen=50)
    if arguments.checkpoints:
        job.checkpoint(arguments.checkpoints, every=50)
    for step in training(arguments.text, arguments.mesh, arguments.steps):
        losses.append(step.loss)
        done, loss = step.number + 1, sum(losses) / len(losses)
        if job.rank == 0 and (done % 50 == 0 or done == arguments.steps):
            job.report(step=done, loss=loss, samples=done * BATCH)
            print(
                f"step {done:4d}  loss {loss:.4f}  on {step.mesh}, {step.model.gradient.numel():,}"
                " parameters here",
                flush=True,
            )


if __name__ == "__main__":
    main()
