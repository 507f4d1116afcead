"""A job of one whose test plays the agent that changes its setting."""

import dataclasses

from shoal._runtime.backend import DeclaredSync, Setting
from shoal._runtime.protocol import SETTING
from shoal._runtime.solo import Solo
from shoal._runtime.view import View
from shoal.job import Job


class ChangingSolo(Solo):
    """The agent that the test plays: `declared` has what the worker has stated, `declared_sync` the
    last that it has stated of how workers synchronise, and `rate`, `save` and `sync` are of the
    job's setting, of which `number` is the newest change. `rejected` is what the worker has told of
    changes that were void, and `goals` how many steps it has told the training to have.
    """

    def __init__(self):
        """A job of which nothing was stated yet."""
        super().__init__()
        self.declared, self.rate, self.save, self.told_save = [], 0.0, 0, None
        self.declared_sync, self.sync, self.number, self.rejected = DeclaredSync(), "", 0, []
        self.goals = []

    def declare_data(
        self, place, batch, batch_range=None, rate=0.0, save=None, sync=DeclaredSync(), people=()
    ):
        """Keep what the worker states."""
        self.declared.append((place.batch, batch, batch_range))
        self.rate, self.told_save, self.declared_sync = rate or self.rate, save, sync

    def ask_setting(self):
        """The setting, of which tests change rate, save, sync and number."""
        return Setting(self.rate, self.save, self.sync, self.number)

    def tell_goal(self, steps):
        """Keep what the worker tells."""
        self.goals.append(steps)

    def reject_sync_change(self, number, sync, why):
        """Keep what the worker tells."""
        self.rejected.append((number, sync, why))

    def change_batch(self, job, batch, flags=SETTING):
        """Have the view with which the step under way is committed bring another batch."""
        self.change(job, flags, batch=batch)

    def change(self, job, flags=SETTING, size=1, done=(True,), **parts):
        """Have the view with which the round under way is committed bring another batch or round,
        where `done` says by rank which of so many workers are part of the result.
        """
        after = job._progress.cursor.commit(size, done)
        self.view = View(
            generation=1, flags=flags, cursor=dataclasses.replace(after, **parts).pack()
        )
        job._progress.mark_view_changed()


def changing_job():
    """A job of one that a test changes, and its agent."""
    agent = ChangingSolo()
    return Job(agent), agent
