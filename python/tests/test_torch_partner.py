"""Meetings of workers in pairs, within a round: of a job of one, whose test plays the others."""

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
from changing_job import changing_job

import shoal
import shoal.torch
from shoal.errors import LostError
from shoal.sync import partners
from shoal.torch.local.partner import Partners


@pytest.fixture
def job(monkeypatch):
    """A job of one whose agent the test plays, and which shoal.join() returns; it is left at the
    end of the test.
    """
    job, _ = changing_job()
    monkeypatch.setattr(shoal.job, "_current", job)
    with job:
        yield job


class _Other:
    """The group of this worker and another one, whose tensors are 3; with `lost` that worker is
    lost amid the meeting. `waited` counts the calls that were waited for.
    """

    def __init__(self):
        """Of one who is there."""
        self.lost, self.sent, self.waited, self.of, self.tags = False, [], 0, None, []

    def send_async(self, x, other, tag):
        """Keep what this worker sends."""
        self.tags.append(tag)
        self.sent.append((x.clone(), other))
        return self

    def recv_async(self, x, other, tag):
        """Receive what the other one has."""
        self.tags.append(tag)
        if not self.lost:
            x.fill_(3)
        return self

    def wait(self):
        """The end of a call."""
        self.waited += 1
        if self.lost:
            raise LostError("rank 1 is lost")

    def free(self):
        """Free the group."""
        self.of = None


class _Timer:
    """Where the time of a step goes: how many calls were waited for before each note of a wait."""

    def __init__(self, other):
        """Of the calls with another worker."""
        self.other, self.waits = other, []

    def add_partner_wait(self, since_ns):
        """Note how many calls were waited for before."""
        self.waits.append(self.other.waited)


class _Step:
    """A step of a number, of which rank 0 has two samples and any other one."""

    def __init__(self, number):
        """The step of this number."""
        self.number = number

    def samples_of_ranks(self, ranks):
        """Two of rank 0, and one of any other."""
        return 2 if ranks == [0] else 1


def test_a_worker_meets_its_partner(job, monkeypatch):
    """Both have the mean of what they had, and who has lost its partner has what it had; the wait
    for a partner, also for one that is lost, is told as no compute. Of three workers one rests, who
    waits for nobody, and other members meet in a group of their own.
    """
    shoal.torch.loader(range(48), global_batch=6, seed=5)
    tensors = [torch.ones(2, 2), torch.full((3,), 5.0, dtype=torch.float64), torch.ones(1)]
    other, groups = _Other(), []
    timer = _Timer(other)
    waits = timer.waits
    job.size, job.generation = 2, 4

    def group(ranks):
        """Make the group of the members."""
        groups.append(list(ranks))
        return other

    monkeypatch.setattr(job, "group", group)
    monkeypatch.setattr(job._backend, "step_timer", timer)
    meeting = Partners(job, tensors)
    meeting.average(_Step(0), False)
    assert [t.tolist() for t in tensors] == [[[2, 2], [2, 2]], [4, 4, 4], [2]]
    assert waits == [4], "it has waited for both directions of both element types"
    assert [(x.tolist(), to) for x, to in other.sent] == [([1] * 5, 1), ([5] * 3, 1)]
    other.lost = True
    assert other.tags == [0] * 4
    meeting.average(_Step(1), True)
    assert other.tags[4:] == [1] * 4, "messages of a step are of that step alone"
    assert [t.tolist() for t in tensors] == [[[2, 2], [2, 2]], [4, 4, 4], [2]] and waits == [4, 8]
    job.size, job.generation, other.lost = 3, 5, False
    rests = next(i for i in range(99) if partners(5, i, 3)[0] == 0)
    meeting.average(_Step(rests), True)
    assert waits == [4, 8] and groups == [[0, 1], [0, 1, 2]]
    job.size = 1
    meeting.average(_Step(0), False)
    assert waits == [4, 8]
    job.size, other.lost = 5, False
    meets = next(i for i in range(99) if partners(5, i, 5)[0])
    meeting.average(_Step(meets), True)
    torch.testing.assert_close(tensors[1], torch.full((3,), 4 * 2 / 3 + 1, dtype=torch.float64))


def test_partners_average_a_part_of_each_tensor(job, monkeypatch):
    """In turns, also of a tensor whose elements do not lie in their order; of one with too few of
    them nothing in some steps, and of a type without others no message is sent then.
    """
    shoal.torch.loader(range(48), global_batch=6, seed=5)
    tensors = [torch.ones(2, 3).t(), torch.ones(4), torch.ones(1, dtype=torch.float64)]
    other = _Other()
    job.size, job.generation = 2, 4
    monkeypatch.setattr(job, "group", lambda ranks: other)
    monkeypatch.setattr(job._backend, "step_timer", _Timer(other))
    meeting = Partners(job, tensors)
    meeting.average(_Step(0), False, parts=2)
    assert [t.tolist() for t in tensors] == [[[2, 2], [2, 1], [1, 1]], [2, 2, 1, 1], [1]]
    assert [x.tolist() for x, _ in other.sent] == [[1] * 5]
    meeting.average(_Step(1), True, parts=2)
    assert tensors[1].tolist() == pytest.approx([2, 2, 5 / 3, 5 / 3])
    assert tensors[0][2].tolist() == pytest.approx([5 / 3, 5 / 3])
    assert tensors[2].item() == pytest.approx(5 / 3)
