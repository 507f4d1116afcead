"""A worker of a replay: it sleeps where others compute, and sends and averages real bytes.

usage: replay_worker.py FOLDER SHOAL; FOLDER/cases.json has the cases, and rank 0 writes a line for
each into FOLDER/results.json.

For each case all workers first measure what a layer takes, what a message takes, and what averaging
does. Rank 0 has `shoal plan` predict a step from that; then they make the steps of the mesh.
"""

from __future__ import annotations

import collections
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

import shoal

REPEATS, MESSAGES = 3, 20  # how often a layer is measured, and a message
SMALL, LARGE = 1 << 14, 1 << 23  # bytes of the messages that are measured


def main():
    """Measure all cases of the command line."""
    folder, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    job = shoal.join()
    plan = json.loads((folder / "cases.json").read_text())
    for number, case in enumerate(plan["cases"]):
        layers = [measure_layer(job, layer) for layer in case["layers"]]
        link = measure_link(job)
        predicted = dict(mesh="", seconds=0)
        if job.rank == 0:
            predicted = predict(folder, program, case, layers, link, job.size)
        mesh_text = broadcast_text(job, predicted["mesh"])
        measured = run(job, case, mesh_text, plan["steps"])
        if job.rank == 0:
            result = dict(
                mesh=mesh_text, planned=not case["mesh"], predicted=predicted["seconds"],
                measured=statistics.median(measured), steps=measured, link=link,
                layers=layers, parts=predicted["parts"], case=number,
            )
            with open(folder / "results.json", "a") as out:
                print(json.dumps(result), file=out)


def measure_layer(job, layer):
    """The layer with what its sleeps take, the median of all workers' repeats."""
    took = dict(layer)
    for what in ("forward", "backward", "update"):
        times = []
        for _ in range(REPEATS):
            began = time.monotonic()
            time.sleep(layer[what])
            times.append(time.monotonic() - began)
        took[what] = median_of_all(job, times)
    return took


def median_of_all(job, times):
    """The median of what all workers have measured, the same on all."""
    return float(np.median(job.allgather(np.array(times))))


def measure_link(job):
    """Latency and rate of messages between neighbours, from those of two sizes, which pairs of
    workers send there and back at once.
    """
    messages = [job.zeros(size, np.uint8) for size in (SMALL, LARGE)]
    times = [[], []]
    partner = job.rank ^ 1
    for _ in range(MESSAGES):
        for x, list_of_times in zip(messages, times):
            time.sleep(0.005)  # as between passes: nobody waits on a processor
            began = time.monotonic()
            if partner < job.size and job.rank < partner:
                job.send_async(x, partner)
                job.recv(x, partner)
                list_of_times.append((time.monotonic() - began) / 2)
            elif partner < job.size:
                job.recv(x, partner)
                job.send(x, partner)
    small, large = (float(np.median(job.allgatherv(np.array(t)))) for t in times)
    rate = (LARGE - SMALL) / max(large - small, 1e-4)
    return dict(latency=max(small - SMALL / rate, 0), rate=rate)


def predict(folder, program, case, layers, link, workers):
    """What shoal plan says of a case: its mesh, and the seconds of a step."""
    ids = [str(i) for i in range(len(layers))]
    model = dict(
        shoal="model/1", name="replay",
        layers=[
            dict(id=i, params=layer["params"], state=0, out=layer["out"])
            for i, layer in zip(ids, layers)
        ],
        points=[dict(device="cpu", micro=1, layers={
            i: dict(forward=layer["forward"], backward=layer["backward"], update=layer["update"],
                    kept=0)
            for i, layer in zip(ids, layers)
        })],
    )
    cluster = dict(
        shoal="cluster/1", kinds=[dict(name="cpu", memory=1 << 40)],
        hosts=[dict(name="here", kind="cpu", places=workers)],
        links=[dict(link, inside=True)],
    )
    for name, value in dict(model=model, cluster=cluster).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    command = [program, "plan", folder / "model.json", "--cluster", folder / "cluster.json"]
    command += ["--batch", case["batch"], "--json"]
    command += ["--mesh", case["mesh"]] if case["mesh"] else []
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True, text=True)
    deployment = json.loads(done.stdout)
    return dict(mesh=deployment["mesh"], seconds=deployment["predicted"]["seconds"],
                parts=deployment["predicted"])


def broadcast_text(job, text):
    """The text of rank 0, on all."""
    data = np.zeros(1024, np.uint8)
    data[: len(text)] = np.frombuffer(text.encode(), np.uint8)
    return bytes(job.broadcast(data)).rstrip(b"\0").decode()


class Stage:
    """What this worker does of a step."""

    def __init__(self, job, case, mesh):
        """The stage of this rank on a mesh."""
        self.dp, self.pp = mesh["dp"], mesh["pp"]
        here = mesh.part("pp", len(case["layers"]))
        self.layers = [case["layers"][i] for i in here]
        self.micro = case["batch"] // self.dp.size
        self.held = min(mesh.ahead or self.pp.size - self.pp.rank, self.micro)
        self.first, self.last = self.pp.rank == 0, self.pp.rank == self.pp.size - 1
        before = 1 if self.first else case["layers"][here.start - 1]["out"]
        after = self.layers[-1]["out"]
        # Each micro-batch has its own memory, which is there for as long as it is on its way.
        self.buffers = [
            [job.zeros(size, np.uint8) for size in (before, before, after, after)]
            for _ in range(self.micro)
        ]
        self.gradient = job.zeros(sum(x["params"] for x in self.layers) // 4, np.float32)

    def step(self):
        """Make a step: all passes in order, the average, the optimizer."""
        self.sends = []
        flight = collections.deque()
        for turn in range(self.micro + self.held - 1):
            if turn < self.micro:
                self.forward(turn)
                flight.append(turn)
            if turn >= self.held - 1:
                self.backward(flight.popleft())
        if self.dp.size > 1:
            self.dp.allreduce(self.gradient)
        for layer in self.layers:
            time.sleep(layer["update"])
        for send in self.sends:
            send.wait()

    def forward(self, number):
        """Take a micro-batch forward."""
        came, _, out, _ = self.buffers[number]
        if not self.first:
            self.pp.recv(came, self.pp.rank - 1)
        for layer in self.layers:
            time.sleep(layer["forward"])
        if not self.last:
            self.sends.append(self.pp.send_async(out, self.pp.rank + 1))

    def backward(self, number):
        """Take a micro-batch back."""
        _, gradient, _, came = self.buffers[number]
        if not self.last:
            self.pp.recv(came, self.pp.rank + 1)
        for layer in reversed(self.layers):
            time.sleep(layer["backward"])
        if not self.first:
            self.sends.append(self.pp.send_async(gradient, self.pp.rank - 1))


def run(job, case, text, steps):
    """Seconds of so many steps on a mesh, after one that is not counted, as this worker sees
    them.
    """
    mesh = job.mesh(text)
    stage, times = Stage(job, case, mesh), []
    job.barrier()
    for number in range(1 + steps):
        began = time.monotonic()
        stage.step()
        job.barrier()
        if number >= 1:
            times.append(time.monotonic() - began)
    mesh.free()
    return times


if __name__ == "__main__":
    main()
