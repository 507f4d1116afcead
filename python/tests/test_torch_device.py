"""What shoal.torch asks of CUDA and of NCCL, with a stand-in for the driver and for torch's NCCL:
all of it up to the call itself. Everything runs on the thread of the test.
"""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist

from shoal.torch import cuda
from shoal.torch.cuda import Communicator, Device

PORTABLE = 1  # cudaHostRegisterPortable


class Driver:
    """A stand-in for libcudart as torch shows it, which keeps its calls. A test sets `error`, the
    code that every call returns; 0 is success.
    """

    def __init__(self):
        """No calls yet, and no error. `current` is the device in whose context calls are made."""
        self.calls, self.error, self.current = [], 0, "cuda:0"

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802, CUDA's name
        """Keep the call, and return `error`."""
        self.calls.append(("register", address, nbytes, flags, self.current))
        return self.error

    def cudaHostUnregister(self, address):  # noqa: N802
        """Keep the call, and return `error`."""
        self.calls.append(("unregister", address, self.current))
        return self.error

    @contextlib.contextmanager
    def on_device(self, device):
        """A block in which another device is the current one."""
        before, self.current = self.current, str(device)
        yield
        self.current = before


@pytest.fixture
def driver(monkeypatch):
    """A Driver, which torch.cuda has for the driver until the end of the test."""
    one = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: one)
    monkeypatch.setattr(torch.cuda, "device", one.on_device)
    return one


def test_memory_is_registered_for_every_context(driver):
    """Pinned memory is registered with the flag for all contexts, and in that of the worker's own
    device: the driver makes one for the current device, which takes memory there.
    """
    device = Device(torch.device("cuda:1"))
    device.pin(1 << 40, 16 << 20)
    device.unpin(1 << 40)
    assert driver.calls == [
        ("register", 1 << 40, 16 << 20, PORTABLE, "cuda:1"),
        ("unregister", 1 << 40, "cuda:1"),
    ]
    assert driver.current == "cuda:0"


@pytest.mark.parametrize(
    "call", [lambda device: device.pin(0, 4096), lambda device: device.unpin(0)]
)
def test_what_the_driver_refuses_is_an_error(driver, call):
    """A code of the driver's that is not 0 raises RuntimeError with the code."""
    driver.error = 712  # cudaErrorHostMemoryAlreadyRegistered
    with pytest.raises(RuntimeError, match="cudaError 712"):
        call(Device(torch.device("cuda:0")))


class Operation:
    """A stand-in for a reduction of NCCL's. The second wait tells of errors: before, the device
    only thinks that it is over.
    """

    def __init__(self, error):
        """An operation that ends with an error; with an empty text it succeeds."""
        self.error, self.waits = error, 0

    def wait(self, timeout=None):
        """Count the wait; the second one raises the error."""
        self.waits += 1
        if self.waits == 2 and self.error:
            raise RuntimeError(self.error)


class Group:
    """A stand-in for torch.distributed.ProcessGroupNCCL, which keeps what is made of it: the class
    has all groups in `made`, and in `error` the text with which operations end, "" for success.
    The fixture `group` resets both.
    """

    made, error = [], ""

    class Options:
        """Options that can be set."""

        def __init__(self):
            """Options in which it is not said whether NCCL may block."""
            self.config = types.SimpleNamespace(blocking=None)

    def __init__(self, store, rank, size, options):
        """Keep the arguments, and the group among those made."""
        self.place, self.blocking = (store, rank, size), options.config.blocking
        self.tensors, self.operations, self.aborts = [], [], 0
        Group.made.append(self)

    def allreduce(self, tensors):
        """Keep the tensors, and return an operation."""
        self.tensors += tensors
        self.operations.append(Operation(Group.error))
        return self.operations[-1]

    def abort(self):
        """Count the abort."""
        self.aborts += 1


class Silent(Device):
    """A device whose streams have nothing to do."""

    def current_stream(self):
        """No stream."""
        return None

    def record_event(self, stream):
        """An event that has happened."""
        return types.SimpleNamespace(synchronize=lambda: None)


@pytest.fixture
def group(monkeypatch):
    """The class Group, which torch has for NCCL's process group until the end of the test."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(Group, "error", "")
    for name in ("ASYNC_ERROR_HANDLING", "DUMP_ON_TIMEOUT"):
        monkeypatch.setenv(f"TORCH_NCCL_{name}", "2")  # so that it is put back
    return Group


def make_communicator():
    """A communicator of rank 1 of 3, by the stand-in for NCCL's process group."""
    return Silent(torch.device("cuda:0")).communicator("store", 1, 3)


def test_sums_are_waited_for_until_they_tell_of_errors(group):
    """Each sum is waited for twice: for the device, and for its error."""
    one = make_communicator()
    assert isinstance(one, Communicator)
    tensors = [torch.zeros(2), torch.zeros(3)]
    for tensor in tensors:
        one.all_reduce(tensor)
    one.wait()
    (made,) = group.made
    assert made.place == ("store", 1, 3) and made.blocking == 0
    assert [t.data_ptr() for t in made.tensors] == [t.data_ptr() for t in tensors]
    assert [operation.waits for operation in made.operations] == [2, 2]
    one.wait()
    assert [operation.waits for operation in made.operations] == [
        2,
        2,
    ], "a sum is waited for again in the next step"


def test_an_error_of_nccl_is_raised(group):
    """`wait` raises the error that an operation has ended with."""
    group.error = "a cable is loose"
    one = make_communicator()
    one.all_reduce(torch.zeros(1))
    with pytest.raises(RuntimeError, match="a cable is loose"):
        one.wait()


def test_what_was_aborted_never_counts(group):
    """To the device an operation that was aborted is one that is over."""
    one = make_communicator()
    one.all_reduce(torch.zeros(1))
    one.abort()
    assert group.made[0].aborts == 1
    with pytest.raises(RuntimeError, match="aborted"):
        one.wait()


@pytest.mark.parametrize(
    "name, given, want",
    [
        ("ASYNC_ERROR_HANDLING", None, "2"),
        ("ASYNC_ERROR_HANDLING", "3", "3"),
        ("DUMP_ON_TIMEOUT", None, "0"),
        ("DUMP_ON_TIMEOUT", "1", "1"),
    ],
)
def test_a_lost_partner_does_not_end_the_process(group, monkeypatch, name, given, want):
    """torch is told not to end the process on errors, nor to hold up its end while it writes what
    was under way, unless the user has said otherwise.
    """
    import os

    monkeypatch.delenv(f"TORCH_NCCL_{name}")
    if given:
        monkeypatch.setenv(f"TORCH_NCCL_{name}", given)
    make_communicator()
    assert os.environ[f"TORCH_NCCL_{name}"] == want


def test_who_can_use_nccl(group, monkeypatch):
    """The identity of a device is its UUID and the version of NCCL."""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="GPU-7")
    )
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 21, 5))
    assert Device(torch.device("cuda:0")).identity() == ("GPU-7", 2 << 32 | 21 << 16 | 5)


@pytest.mark.parametrize("lacks", ["uuid", "abort", "NCCL"])
def test_who_cannot(group, monkeypatch, lacks):
    """A torch without NCCL, a UUID or an abort cannot use NCCL."""
    properties = types.SimpleNamespace() if lacks == "uuid" else types.SimpleNamespace(uuid="GPU-7")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    if lacks == "abort":
        monkeypatch.delattr(Group, "abort")
    elif lacks == "NCCL":
        monkeypatch.delattr(dist, "ProcessGroupNCCL")
    with pytest.raises(RuntimeError, match="no NCCL that can be aborted"):
        Device(torch.device("cuda:0")).identity()


@pytest.mark.parametrize(
    "visible, kinds", [(None, ["cpu", "cuda"]), ("", ["cpu"]), ("-1", ["cpu"])]
)
def test_to_look_for_devices_asks_no_driver(monkeypatch, tmp_path, visible, kinds):
    """The import of shoal.torch knows whether there are GPUs without torch, which would start
    threads for that.
    """

    def begin():
        raise AssertionError("CUDA is begun")

    monkeypatch.setattr(torch.cuda, "is_available", begin)
    monkeypatch.setattr(torch.cuda, "device_count", begin)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(cuda, "_DRIVERS", (str(tmp_path / "driver"),))
    assert cuda.device_types() == ["cpu"]
    (tmp_path / "driver").touch()
    assert cuda.device_types() == kinds
