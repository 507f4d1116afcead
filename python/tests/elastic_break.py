"""A worker that leaves its loop over each epoch after three batches: elastic_break.py range|epochs
END. It trains until the file END exists.
"""

import os
import sys

import torch

import shoal
import shoal.torch

torch.set_num_threads(1)
loader = shoal.torch.loader(torch.arange(1000.0).view(-1, 1), 8)
model = shoal.torch.ddp(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
passes, late = 0, shoal.join().outside
for epoch in (loader.epochs if sys.argv[1] == "epochs" else range)(1 << 30):
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if i == 2:
            break
    if not passes:
        print("JOINED" if late else "STEP 0", epoch, flush=True)
    passes += 1
    if os.path.exists(sys.argv[2]):
        break
