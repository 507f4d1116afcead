"""Training in steps: which worker takes which samples, and what happens between two steps when the
members of the job change.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator, List, Optional, Tuple

from ._checkpoint.checkpoints import Checkpoints
from ._live.epochs import End, Epochs
from ._live.lookahead import LocalBatch, SampleLookahead
from ._live.step import Step
from ._live.transfer import State
from ._runtime.backend import DeclaredSync
from ._runtime.listeners import LISTENERS
from ._runtime.log import log_line
from ._runtime.view import View
from .cursor import MAX_SAMPLES, Cursor
from .errors import ShoalError
from .world import World

# How workers synchronise where the program averages what it likes at the end of a round by itself.
OWN = "own"


class Progress:
    """The place of a job in its data, and what happens between one step and the next. A job has
    one. Only the thread of the training loop uses it, but for `mark_view_changed`; all workers call
    the methods at the same places. A method that waits for other workers says so.
    """

    def __init__(
        self,
        job: World,
        state: State,
        start: Cursor,
        batch_range: Optional[Tuple[int, int]] = None,
    ) -> None:
        """Begin at `start`, and tell the agent what the job trains on, whose answer this waits for.
        `batch_range` is what the batch of the job may be; None = it stays as it is. Raises
        ShoalError where workers contradict each other.
        """
        self.job = job
        self.step_timer = job._backend.step_timer
        self.cursor = start
        self.stated_start = start  # as the program states it: the batch of `cursor` may be another
        self.batch_range = batch_range
        # How workers synchronise in the round under way, such as "diloco:lr=0.7"; "" = gradients
        # are averaged in every step, as nobody has called `declare_sync`.
        self.sync = ""
        self._stated_sync = DeclaredSync()  # as the program states it
        # The number of the newest change of the job's setting; 0 = there was none.
        self.change_number = 0
        # By which factor the job's setting changes the learning rate; 0 = it says nothing of it.
        self.rate = 0.0
        self.rate_decided = False  # somebody has said how the learning rate follows the batch
        # What the samples of all steps before the one under way are worth, in samples of the stated
        # batch; the same on all members.
        self._effective = 0.0
        self.step: Optional[Step] = None  # the step under way
        self.state = state
        self._goal: Optional[int] = None  # how many steps the training has, as the agent was told
        self._stated_goal: Optional[End] = None  # where it ends, as the program states beside loops
        self._changed = False  # a view is there that `cross_step_boundary` has not followed yet
        # The cursor after the step under way; None = not known yet.
        self._next: Optional[Cursor] = None
        self.lookahead = SampleLookahead()
        self.averages = 1  # how many averages a step takes; the last one commits it
        # Where checkpoints are made; None = none are. With `meshed` only the last one of a job that
        # is stopped is made here, because the loop of shoal.train makes the others.
        self.checkpoints: Optional[Checkpoints] = None
        # Functions that say what may be wrong where a step was not committed; "" = nothing.
        self.hints: List[Callable[[], str]] = []
        # What to do where one more average was made in a committed step, in the words of an adapter
        # whose users do not call shoal.torch.loader; "" = there is no such adapter.
        self.one_average = ""
        # Called whenever a local step was opened, before the program computes in it.
        self.step_open_hooks: List[Callable[[], None]] = []
        self.meshed = False  # the model is cut over a mesh: each worker has a part of the state
        self.begun = False  # a loop of this process has taken the state of the job
        self._trained = False  # this process has opened a step
        self._stopped = False  # the job was stopped, and this worker is a job of one
        self._parked_at: Optional[View] = None  # the last view that asked to park the job
        self.epochs = Epochs(job, state)
        if batch_range is not None:
            state.register(
                "effective samples",
                lambda: [self._effective, self.rate],
                self._set_effective,
                alike=False,
                optional=True,
            )
        job._backend.declare_data(self.cursor, start.batch, batch_range)

    def declare_sync(self, sync: str, steps: int, auto: bool = False) -> None:
        """State how workers synchronise, such as "diloco:lr=0.7", and after how many steps, and
        have both change as the job's setting says, always between two rounds and on all workers.
        With `auto` policies of the job may choose that too, and else only people do. All workers
        call it before the first step, and wait for the agent. Raises ShoalError where they
        contradict each other, or a step was made, and ValueError for no number of steps.
        """
        stated = DeclaredSync(sync, steps, auto=auto)
        if stated == self._stated_sync:
            return
        if self._stated_sync.stated or self.begun or self._trained:
            why = self._stated_sync.stated or "its steps have begun"
            raise ShoalError(
                f"sync={sync!r} with {steps} steps a round comes too late ({why}): a job has one"
                " way to begin with, which is stated before its loop"
            )
        self.cursor = self.cursor.with_round(steps)
        self._stated_sync, self.sync = stated, sync
        self.state.register(
            "synchronisation", lambda: self.sync, self._set_sync, alike=False, optional=True
        )
        self.lookahead.discard()
        declare = self.job._backend.declare_data
        declare(self.cursor, self.stated_start.batch, self.batch_range, sync=stated)

    def _set_sync(self, value: str) -> None:
        """Take over from the members, or from a checkpoint, how workers synchronise."""
        self.sync = str(value)

    def _set_effective(self, value: List[float]) -> None:
        """Take over from the members, or from a checkpoint, what the committed samples are worth
        and by which factor the learning rate is changed.
        """
        self._effective, self.rate = map(float, value)

    def mark_view_changed(self) -> None:
        """Note that the agent has written another view, which `cross_step_boundary` follows. The
        thread that sees the view calls it, whichever that is.
        """
        self._changed = True

    def begin_loop(self, end: End) -> None:
        """Begin a loop, and end the one before if it was left by `break`.

        Raises ShoalError when an earlier loop of this process has reached the same end, such as a
        second loop with the number of epochs of the first: it would silently make no step.
        """
        self._end_broken_loop()
        self.epochs.begin_loop(end)
        if self.begun:
            self._tell_goal(end)
        if self.checkpoints is not None:
            self.checkpoints.discard_copy()
        if (
            self._trained
            and not end.each_loop_is_epoch
            and not self.job.released
            and end.is_reached_at(self.cursor, self.effective)
        ):
            whole = (
                f"{end.statistical} statistical epochs"
                if end.is_worth_reached(self.cursor, self.effective)
                else f"{end.loop_step_count(self.cursor)} steps"
            )
            raise ShoalError(
                f"all {whole} of this loop are over, and the job has made {self.cursor.step} steps:"
                " a loop goes on where the job is, so give it the epochs"
                " or the steps of the whole training, and loop once; or give it neither, and each"
                " loop is one epoch"
            )

    def state_goal(self, end: Optional[End]) -> None:
        """Take where the training ends from the program, whatever its loops say; None = they do."""
        self._stated_goal = end
        if self.begun:
            self._tell_goal(end)

    def _tell_goal(self, end: Optional[End]) -> None:
        """Tell the agent how many steps the training has, where the program has said that and the
        agent does not know it.
        """
        end = self._stated_goal or end
        if end is None:
            return
        goal = end.training_step_count(
            self.cursor, self.epochs.loop_count, self.effective, self.efficiency
        )
        if goal is not None and goal != self._goal and goal < 1 << 53:
            self._goal = goal
            self.job._backend.tell_goal(goal)

    def finish_step(self, end: End) -> bool:
        """Go from the committed step to the place between it and the next: members join and leave,
        and checkpoints are made. May wait for other workers. Returns whether the training ends
        there, or the epoch of this loop. Raises ShoalError when the step was not committed. Between
        two local steps of a round nothing of this happens.
        """
        if self.step is not None and not self.step.ends_round:
            self.step_timer.record_local_step_request()
            return False
        self.step_timer.record_step_request()
        if self.step is not None and not self.step.committed:
            why = [said for said in (hint() for hint in self.hints) if said] or [
                "Call step.allreduce(gradient), or step() of an optimizer that averages, once in"
                " every step"
            ]
            raise ShoalError(
                f"step {self.step.number} ended without an average of its gradients."
                f" {'. '.join(why)}"
            )
        if self.step is not None:
            made = self.step.local_steps
            for listener in LISTENERS:
                listener.on_step(self.job, self.cursor.step + made, self.cursor.count(), made)
        self._advance_cursor()
        if not self.catch_up(end):
            self._end_stopped()
            return True
        self._park_if_asked()
        ended = end.is_reached_at(self.cursor, self.effective)
        if self.checkpoints is not None and not self.meshed:
            if ended and self.epochs.is_final_loop(end, self.cursor, self.effective):
                self.checkpoints.save_last(self.cursor)
            else:
                self.checkpoints.save_if_due(self.cursor)
                # Where nobody has said that another loop follows, this may be the last one.
                if ended and self.epochs.loop_count is None:
                    self.checkpoints.copy_last(self.cursor)
        if ended:
            self.epochs.count_ended_loop(end)
        return ended

    def catch_up(self, end: Optional[End] = None) -> bool:
        """Go to where the job is; in the first loop, take the state of the others or of a
        checkpoint. Waits for the other members. False when this loop makes no more steps: this
        worker is released, or the job is beyond the epoch of the loop. `end` None = before a loop.
        """
        if not self.begun:
            self.state.discover()
            if (
                self.checkpoints is not None
                and not self.meshed
                and not self.job._backend.late
                and not self.epochs.is_behind_job(end, self.cursor)
            ):
                self._resume_from_checkpoint(self.checkpoints)
        # A state of a later epoch is set again in the loop of that epoch, because the code after
        # this loop changes it.
        if not self.cross_step_boundary(end) or self.epochs.is_behind_job(end, self.cursor):
            self.epochs.count_ended_loop(end, empty=True)
            return False
        if not self.begun:
            self._tell_goal(end)
        self.begun = True
        return True

    def _end_stopped(self) -> None:
        """If the job was stopped, make the last checkpoint, wait for it, and be a job of one."""
        if self.job._backend.view.stopped and not self._stopped:
            self._stopped = True
            if self.checkpoints is not None and self.begun:
                self.checkpoints.save_stopped(self.cursor)
            self.job._backend.become_job_of_one()

    def _park_if_asked(self) -> None:
        """If the job is to be parked here, make a checkpoint with all workers, and wait for the end
        of this process, so that the program does not go on; return where there is no checkpoint.
        """
        backend = self.job._backend
        if not backend.view.parks or backend.view is self._parked_at:
            return
        self._parked_at = backend.view
        if self.checkpoints is None:
            problem = (
                "the job makes no checkpoints: call job.checkpoint(folder) before the loop, on"
                " every worker, and it goes on from there"
            )
        else:
            problem = self.checkpoints.save_parked(self.cursor)
        backend.park(self.cursor.step, problem)

    def _end_broken_loop(self) -> None:
        """End the loop before this one where it was left by `break`: a step that it has committed
        counts, and one that it has not is dropped. After a loop that ended by itself only the
        samples are drawn anew. Does not wait.
        """
        self.drop_open_step()
        self._advance_cursor()
        self.lookahead.discard()
        self.epochs.count_broken_loop(self.cursor.epoch if self.begun else None)

    def epoch_loops(self, count: int, end: End, statistical: bool = False) -> Iterator[int]:
        """The numbers of the epochs from the one that the job is in, up to `count`, or until the
        training is worth so many `statistical` ones: each is for one loop, whose `end` is given. To
        begin may wait, as `catch_up`. Raises ShoalError where all of them are over.
        """
        epochs = self.epochs
        end.statistical = count if statistical else None

        def over() -> bool:
            """Whether all of them are over."""
            if statistical:
                return end.is_worth_reached(self.cursor, self.effective)
            return epochs.ended_loops >= count

        try:
            self._end_broken_loop()
            if not self.begun:
                if not self.catch_up():
                    return
                elsewhere = epochs.ended_loops_elsewhere
                epochs.ended_loops = self.cursor.reached if elsewhere is None else elsewhere
            elif over() and not self.job.released:
                raise ShoalError(
                    f"all {count} epochs of this loop are over: it goes on where the job is, so"
                    " give it those of the whole training"
                )
            epochs.loop_count = MAX_SAMPLES if statistical else count
            while not over() and not self.job.released:
                number = epochs.ended_loops
                yield number
                self._end_broken_loop()
                epochs.ended_loops = max(epochs.ended_loops, number + 1)
        finally:
            epochs.loop_count = end.statistical = None

    def _advance_cursor(self) -> None:
        """Go to the place after the committed step, if there is one, and forget the step."""
        if self.step is not None:
            self._effective = self.effective
            self.cursor, self._next, self.step = self.next_cursor(), None, None

    def _resume_from_checkpoint(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one. Reads it, and waits for the others."""
        place = checkpoints.resume(self.cursor, self.batch_range)
        save = checkpoints.schedule.chosen_interval_steps()
        if place != self.cursor or save is not None:
            self.move_to(place, save, checkpoints.people)

    def move_to(
        self, place: Cursor, save: Optional[int] = None, people: Tuple[str, ...] = ()
    ) -> None:
        """Go to the place of a checkpoint, before the first step or where state is lost, and tell
        the agent, for which it waits. `apart` stays, and `round` is that of the place only where
        the program states how workers synchronise. Where the checkpoint has not said what the
        samples before are worth, all count alike.
        `save` is how many steps the job has chosen to have between checkpoints, 0 = it has chosen
        nothing; None = it may not. `people` has the parts of the setting that people had set there.
        """
        stated, now = self._stated_sync, "" if self.sync == self._stated_sync.stated else self.sync
        round = (place.round or stated.round) if stated.stated else 0
        place = self.cursor = dataclasses.replace(place, apart=self.cursor.apart, round=round)
        self._effective = self._effective or float(place.committed())
        self.job._backend.declare_data(
            place,
            self.stated_start.batch,
            self.batch_range,
            self.rate,
            save,
            stated._replace(now=now),
            people,
        )
        self.lookahead.discard()

    @property
    def place(self) -> Cursor:
        """The place after the last committed step."""
        return self.next_cursor() if self.step is not None and self.step.committed else self.cursor

    @property
    def efficiency(self) -> float:
        """What a sample of a step is worth, in samples of a step of the stated batch, as the batch
        is: by the gain of AdaScale, how many steps of the stated batch bring as much as one
        (Johnson et al., ICML 2020, section 3), which is the rate in the job's setting. 1 where that
        has none: then all samples count alike.
        """
        ratio = self.stated_start.batch / self.cursor.batch
        if not self.rate:
            return 1.0
        return min(max(self.rate * ratio, min(ratio, 1.0)), max(ratio, 1.0))

    @property
    def effective(self) -> float:
        """What the committed samples are worth, in samples of the stated batch."""
        if self.batch_range is None:  # the batch has stayed, and who joins is told no more
            return float(self.place.committed())
        if self.step is None or not self.step.committed:
            return self._effective
        made = self.next_cursor().committed() - self.cursor.committed()
        return self._effective + self.efficiency * made

    def next_cursor(self) -> Cursor:
        """The cursor after the committed step: that of the agent's view where the members have
        changed.
        """
        if self._next is None:
            view = self.job._backend.view
            if self._changed and view.cursor:
                self._next = Cursor.unpack(view.cursor)
            else:
                self._next = self.cursor.commit(self.job.size, [True] * self.job.size)
        return self._next

    def open_step(self) -> Step:
        """Begin the next step, with this worker's samples, and return it. Waits for nobody."""
        batch = self.lookahead.take_next(self.cursor, self.job.rank, self.job.size)
        self.epochs.steps_in_loop += 1
        self._trained = True
        self.step = Step(self, batch)
        self.step_timer.record_body_start()
        for call in self.step_open_hooks:
            call()
        return self.step

    def open_whole_step(self) -> Step:
        """Begin the next step with all samples of its batch, for workers that divide them among
        themselves.
        """
        self._trained = True
        samples = self.lookahead.samples_of_round(self.cursor)
        self.step = Step(self, LocalBatch(samples, 1, 1, self.cursor.epoch))
        self.step_timer.record_body_start()
        return self.step

    def batch_ahead(self, k: int) -> LocalBatch:
        """This worker's samples of the k-th next local step (0: the next), if the members stay."""
        return self.lookahead.peek(k, self.cursor, self.job.rank, self.job.size)

    def drop_open_step(self) -> None:
        """Drop a step that was opened and not committed, and those before it in its round: they are
        made again.
        """
        if self.step is not None and not self.step.committed:
            self.epochs.steps_in_loop -= self.step.local_index + 1
            self.step = None
            self.lookahead.discard()

    def cross_step_boundary(self, end: Optional[End] = None) -> bool:
        """Pass from one step to the next, where members join and leave and the batch may become
        another one: send the state to newcomers, or receive it as one. Waits for the other members.
        False when this worker is released, or cannot join in the epoch of this loop (`end` None: it
        can in any).
        """
        job, backend, epoch = self.job, self.job._backend, self.epochs.entry_epoch(end)
        if backend.late:
            self.state.allocate_buffers()
            if not backend.enter(epoch):
                return False
        while self._changed:
            view = backend.view
            if view.released:
                return False
            if view.cursor:
                self.cursor = Cursor.unpack(view.cursor)
                if not self.cursor.round:  # written before the agent knew of `declare_sync`
                    self.cursor = self.cursor.with_round(self._stated_sync.round)
            if view.has_setting:
                setting = backend.ask_setting()
                self.rate = setting.rate
                self.sync = setting.sync or self._stated_sync.stated
                self.change_number = setting.number
                if self.checkpoints is not None:
                    self.checkpoints.schedule.follow_setting(setting.save)
                    self.checkpoints.people = setting.people
            self.lookahead.discard()
            if view.new:
                if not self.state.receive_from_members(job, view.joined):
                    if not backend.enter(epoch):
                        return False
                    continue
                self.epochs.check_joined_loop(end)
                if self.state.is_empty and not self.meshed:
                    log_line(
                        "this worker has joined a job that trains already, and has got no state"
                        " from the others, because none is registered: if the loop changes any"
                        " (parameters, an optimizer), this worker's differs now; call"
                        " job.register(name, get, set) before the loop, on every worker"
                    )
            else:
                self.state.absorb_losses()
                if view.joined:
                    backend.admit_newcomers()
                    # Optimizers that were made since the loop began: a worker that joins names what
                    # it lacks.
                    self.state.discover()
                    self.state.send_to_newcomers(job, view.joined, self.cursor.step)
            if view.joined:
                self.state.include_newcomers()
            self._tell_goal(end)
            self._changed = False
        return True


def steps_until(progress: Progress, end: End) -> Iterator[Step]:
    """The steps of a loop until its end, each opened when it is asked for, by the thread of the
    training loop. To ask for one may wait for other workers.
    """
    progress.begin_loop(end)
    while not progress.finish_step(end):
        yield progress.open_step()
