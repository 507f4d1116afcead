"""A small GPT (Radford et al. 2019): pre-norm transformer blocks with causal attention over
characters.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention over the past, then a perceptron at each place. Maps (batch, time, width) to the
    same shape.
    """

    def __init__(self, width, heads):
        """Random parameters; heads divides width."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attention(self, x):
        """Each place looks at itself and those before it; (batch, time, width) to the same."""
        batch, time, width = x.shape
        q, k, v = (
            self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        return self.out(
            (scores.masked_fill(future, -math.inf).softmax(dim=3) @ v)
            .transpose(1, 2)
            .reshape(x.shape)
        )

    def forward(self, x):
        """Returns x with attention and perceptron added."""
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Maps characters (batch, time ≤ context) to scores of the next one (batch, time,
    vocabulary).
    """

    def __init__(self, vocabulary, context=32, width=64, heads=4, layers=2):
        """Random parameters, drawn from torch's generator; `vocabulary` counts the characters."""
        super().__init__()
        self.context = context
        self.character, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, characters):
        """Returns the scores of the next character at each place."""
        x = self.character(characters) + self.place.weight[: characters.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    @torch.no_grad()
    def write(self, characters, count):
        """Returns (1, time) characters continued by count more, drawn one at a time from the
        model's distribution.
        """
        for _ in range(count):
            scores = self(characters[:, -self.context :])[:, -1]
            characters = torch.cat(
                [characters, torch.multinomial(F.softmax(scores, dim=1), 1)], dim=1
            )
        return characters
