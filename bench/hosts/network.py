"""Hosts on a switch: each a network namespace with one cable that carries so much and no more."""

from __future__ import annotations

import argparse
import json
import os
import subprocess

# A cable takes its packets from a bucket. One that holds less than the 64 KiB which the kernel
# gives a network card at a time would have the processor cut them up, which cards do themselves.
BURST = "96kb"
QUEUE = "1mb"  # what waits in front of a cable before packets are lost: 8 ms at 1 Gbit/s
RATES = {"mbit": 1e6, "gbit": 1e9}


def parse_rate(text: str) -> str:
    """The type of an argument: what a cable carries, such as 100mbit; returned as it is."""
    if text[:-4].isdigit() and text[-4:] in RATES:
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is no rate: write a number and one of {', '.join(RATES)}"
    )


def bits(rate: str) -> float:
    """Returns the bits per second of a rate as parse_rate returns it."""
    return int(rate[:-4]) * RATES[rate[-4:]]


class Network:
    """Hosts on a switch: made when it is created, and taken away again by close; needs root. One
    thread uses it, and each method waits for ip or tc; what fails is a CalledProcessError.
    """

    def __init__(self, hosts: int, rate: str, mtu: int) -> None:
        """Makes so many hosts, whose cables carry `rate` each way in packets of `mtu` bytes."""
        self._name = f"shoalbench{os.getpid()}"
        self.hosts = list(range(hosts))  # their numbers
        self.address = [f"10.78.0.{h + 1}" for h in self.hosts]
        self._made: list[str] = []  # the namespaces that close removes
        try:
            self._add_namespace(self._name)
            self._ip(self._name, "link", "add", "switch", "mtu", str(mtu), "type", "bridge")
            self._ip(self._name, "link", "set", "switch", "up")
            for h in self.hosts:
                self._connect(h, rate, str(mtu))
        except BaseException:  # also when it is told to end
            self.close()
            raise

    def _connect(self, h: int, rate: str, mtu: str) -> None:
        """Makes the namespace of host h, and its cable to the switch."""
        space, port = self.namespace(h), f"port{h}"
        self._add_namespace(space)
        self._ip(
            self._name,
            "link",
            "add",
            "name",
            port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            space,
        )
        self._ip(self._name, "link", "set", "dev", port, "mtu", mtu, "master", "switch", "up")
        self._ip(space, "address", "add", f"{self.address[h]}/24", "dev", "eth0")
        self._ip(space, "link", "set", "lo", "up")
        self._ip(space, "link", "set", "eth0", "mtu", mtu, "up")
        self.set_rate(h, rate)

    def set_rate(self, h: int, rate: str) -> None:
        """Has the cable of host h carry `rate` each way from now on."""
        for where, device in ((self._name, f"port{h}"), (self.namespace(h), "eth0")):
            tbf = ["tbf", "rate", rate, "burst", BURST, "limit", QUEUE]
            subprocess.run(
                ["tc", "-n", where, "qdisc", "replace", "dev", device, "root", *tbf], check=True
            )

    def namespace(self, h: int) -> str:
        """Returns the name of the namespace of host h."""
        return f"{self._name}h{h}"

    def command(self, h: int, *words: str) -> list[str]:
        """Returns the words that run a command on a host, under a host name of its own."""
        return [
            "ip",
            "netns",
            "exec",
            self.namespace(h),
            "unshare",
            "--uts",
            "sh",
            "-c",
            f'hostname h{h}; exec "$@"',
            "sh",
            *words,
        ]

    def sent_bytes(self) -> list[int]:
        """Returns the bytes that each host has put on its cable so far, with the headers of every
        packet.
        """

        def sent_by(h: int) -> int:
            """Returns the bytes of host h."""
            shown = subprocess.run(
                ["tc", "-n", self.namespace(h), "-j", "-s", "qdisc", "show", "dev", "eth0"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            return json.loads(shown)[0]["bytes"]

        return [sent_by(h) for h in self.hosts]

    def _add_namespace(self, name: str) -> None:
        """Makes a namespace, which close removes."""
        subprocess.run(["ip", "netns", "add", name], check=True)
        self._made.append(name)

    @staticmethod
    def _ip(space: str, *words: str) -> None:
        """Runs ip in a namespace."""
        subprocess.run(["ip", "-n", space, *words], check=True)

    def close(self) -> None:
        """Removes what was made; no process may run there any more. What cannot be removed stays.
        """
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False)
