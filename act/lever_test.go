package act

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// What was taken back is not made again for long, and for twice as long each time, in steps and, if
// these are short, in time; other ways of the lever are free earlier.
func TestTakenBackWaits(t *testing.T) {
	l := &Loop{}
	way := setting.Change{From: "batch=32", To: "batch=54", Policy: "batch", Steps: 8,
		Phase: setting.Reverted}
	for i, want := range []uint64{128, 256, 512, 1024} {
		begin := l.now.Step
		l.entry.Step = begin
		l.learnChange(way)
		other := setting.Change{From: "batch=128", To: "batch=96"}
		for ; l.whyLeftAlone(way, false) != ""; l.now.Step++ {
			l.now.Now += sense.Second
			if free := l.whyLeftAlone(other, false) == ""; free && i == 0 && l.now.Step < begin+60 {
				t.Fatalf("the lever is free %d steps after a change was taken back",
					l.now.Step-begin)
			}
		}
		if waited := l.now.Step - begin; waited != want {
			t.Errorf("the time %d it waits %d steps, want %d", i+1, waited, want)
		}
	}
	l.learnChange(way)
	l.now.Step += 1 << 20 // of 25 µs
	if why := l.whyLeftAlone(way, false); !strings.Contains(why, "waits") {
		t.Errorf("it is made again in the same moment: %q", why)
	}
}

// A lever that was brought back to where it was within 8 patiences is left alone for as long; later
// than that it may go back.
func TestBackAndForthFreezes(t *testing.T) {
	for _, between := range []uint64{100, 400, 1000} {
		l := &Loop{}
		for i, c := range []setting.Change{{From: "batch=54", To: "batch=32"},
			{From: "batch=32", To: "batch=54"}} {
			c.Measured, c.Step, c.Phase, c.Policy = 1.2, uint64(i)*between, setting.Kept, "batch"
			l.entry.Step, l.now.Step = c.Step+10, c.Step+10
			l.learnChange(c)
		}
		next := setting.Change{From: "batch=54", To: "batch=128"}
		if frozen := l.whyLeftAlone(next, false) != ""; frozen !=
			(between <= frozenFor*leastFrozen) {
			t.Errorf("back after %d steps: frozen %v", between, frozen)
		}
	}
}

// Where rounds have come and gone, a lever is left alone by how many optimizer steps lie between,
// and not by how many commits.
func TestBackAndForthFreezesBySteps(t *testing.T) {
	const before, round = 1000, 64
	for _, commits := range []uint64{4, 20} { // of the rounds
		l := &Loop{}
		// enter has a change be entered and kept, which brings the job to another setting.
		enter := func(step uint64, from, to setting.Setting) {
			c := setting.Change{Step: step, Measured: 1.2, Policy: "sync", Phase: setting.Entered}
			c.From, c.To = from.Diff(to)
			l.EntryApplied(Entry{Step: step, Setting: to, Change: &c, Trial: &c})
			kept := c
			kept.Phase = setting.Kept
			l.now.Step, l.now.Setting = step+1, to
			l.EntryApplied(Entry{Step: step + 1, Setting: to, Change: &kept})
		}
		ssgd := setting.Setting{Batch: 64, Sync: setting.Ssgd, Round: 1}
		local := setting.Setting{Batch: 64, Sync: "local", Round: round}
		enter(before, ssgd, local)
		enter(before+commits, local, ssgd)
		next := setting.Change{}
		next.From, next.To = ssgd.Diff(local)
		l.now.Now += sense.Second // what the first change has brought it to wait for is over
		if frozen := l.whyLeftAlone(next, false) != ""; frozen !=
			(commits*round <= frozenFor*leastFrozen) {
			t.Errorf("back after %d rounds of %d steps: frozen %v", commits, round, frozen)
		}
	}
}

// A job that becomes another one is released from what it waits for, and ever more rarely where
// that happens again and again.
func TestReleasesAreRare(t *testing.T) {
	l, released := &Loop{}, 0
	for l.now.Step = 0; l.now.Step < 10_000; l.now.Step += 100 {
		if l.releaseLevers(false) {
			released++
		}
	}
	if released < 4 || released > 6 {
		t.Errorf("%d releases in 10,000 steps", released)
	}
	l.now.Step += 20_000
	if !l.releaseLevers(false) || l.calm != minCalm {
		t.Errorf("after a calm time there is none for %d steps", l.calm)
	}
}

// A change without parts is not held up, and makes no lever.
func TestNoPartsNoLever(t *testing.T) {
	l := &Loop{}
	if why := l.whyLeftAlone(setting.Change{}, true); why != "" || len(l.levers) > 0 {
		t.Errorf("%q, and %d levers", why, len(l.levers))
	}
}

// What waits for optimizer steps waits for as many where rounds become longer or shorter meanwhile,
// and says until which commit.
func TestWaitingOutlastsRounds(t *testing.T) {
	ssgd := setting.Setting{Batch: 64, Sync: setting.Ssgd, Round: 1}
	local := setting.Setting{Batch: 64, Sync: "local", Round: 64}
	way := setting.Change{From: "batch=32", To: "batch=54", Policy: "batch", Steps: 8,
		Phase: setting.Reverted}
	for _, c := range []struct {
		from, to setting.Setting
		commits  uint64
	}{{ssgd, ssgd, wayPatience}, {ssgd, local, wayPatience / 64}, {local, ssgd, wayPatience},
		{local, local, wayPatience / 64}} {
		l := &Loop{}
		l.EntryApplied(Entry{Step: 50, Setting: c.from})
		l.now.Step, l.now.Setting = 100, c.from
		l.learnChange(way)
		l.EntryApplied(Entry{Step: 100, Setting: c.to})
		l.now.Setting, l.now.Now = c.to, sense.Second*1e6
		until := fmt.Sprintf("until step %d", 100+c.commits)
		for ; l.now.Step < 100+c.commits; l.now.Step++ {
			if why := l.whyLeftAlone(way, false); !strings.HasSuffix(why, until) {
				t.Errorf("from %s to %s, after %d commits: %q", c.from, c.to, l.now.Step-100, why)
			}
		}
		if why := l.whyLeftAlone(way, false); why != "" {
			t.Errorf("from %s to %s: %q", c.from, c.to, why)
		}
	}
}

// Where workers train in rounds, it is forgotten after as many optimizer steps as elsewhere that
// the job became faster and slower by itself, whether they had begun then or not.
func TestSwingsAreForgottenBySteps(t *testing.T) {
	const begin, end = 100, 150 // of rounds
	for _, since := range []uint64{begin / 2, begin + 1, 2 * begin} {
		for _, round := range []uint64{1, 16, 64} {
			l := &Loop{twin: &twin.Twin{}}
			l.twin.Observe(sense.Observation{Steps: &sense.StepSeries{}})
			of := setting.Setting{Batch: 64, Sync: "local", Round: uint32(round)}
			l.EntryApplied(Entry{Step: begin, Setting: of})
			of.Round = 2
			l.EntryApplied(Entry{Step: end, Setting: of})
			made := func(commits uint64) uint64 {
				return min(commits, begin) + round*(min(max(commits, begin), end)-begin) +
					2*(max(commits, end)-end)
			}
			for _, factor := range []float64{2, 0.5, 2} {
				l.twin.RecordDrift(since, factor)
			}
			forgotten := uint64(0) // commits
			for l.now.Step = since; forgotten == 0 && l.now.Step < 1<<14; l.now.Step++ {
				if l.recentSwingFactor() == 0 {
					forgotten = l.now.Step
				}
			}
			if first := made(since) + swingSteps; forgotten == 0 || made(forgotten) <= first ||
				made(forgotten-1) > first {
				t.Errorf("rounds of %d steps, swings after %d commits: forgotten after %d", round,
					since, forgotten)
			}
		}
	}
}
