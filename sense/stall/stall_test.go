package stall

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/topo"
)

// watched is a job that a detector observes. Its clock is the test's. The goroutine of the test
// uses it.
type watched struct {
	d       *Detector
	now     time.Duration // since the beginning
	applied uint64        // number of entries of the log
	calls   uint64        // number of the call that is under way
	news    []string      // what the detector has told, in words
	gone    map[topo.WorkerID]bool
}

// newWatched returns a job at time 0, with a new detector.
func newWatched() *watched {
	w := &watched{gone: map[topo.WorkerID]bool{}}
	w.d = New(func(x topo.WorkerID) bool { return w.gone[x] })
	return w
}

// passTime lets time pass in which the given workers are waited for in the call that is under way.
// This agent leads the job.
func (w *watched) passTime(d time.Duration, workers ...topo.WorkerID) {
	var waits []collective.Wait
	for _, x := range workers {
		waits = append(waits,
			collective.Wait{WaitID: collective.WaitID{Worker: x, Of: x, Number: w.calls}})
	}
	for end := w.now + d; w.now < end; {
		w.now += min(interval, end-w.now)
		w.observe(true, waits)
	}
}

// observe has the detector observe waits, and adds what it returns to w.news.
func (w *watched) observe(leads bool, waits []collective.Wait) {
	told, over := w.d.Observe(sense.Duration(w.now), leads, w.applied, waits)
	for _, v := range over {
		w.news = append(w.news,
			fmt.Sprintf("over %d after %v", v.Worker,
				time.Duration(w.d.Lasted(v)).Round(time.Second)))
	}
	for _, v := range told {
		w.news = append(w.news,
			fmt.Sprintf("wait %d for %v", v.Worker,
				time.Duration(w.d.Waited(v)).Round(time.Second)))
	}
}

// step makes a step: all work, then all but the slowest wait, then it is committed.
func (w *watched) step(work, slowest time.Duration) {
	w.passTime(work)
	w.passTime(slowest, 1)
	w.calls++
	w.applied++
}

// takeNews returns the news since it was last called, in words.
func (w *watched) takeNews() string {
	defer func() { w.news = nil }()
	return strings.Join(w.news, ", ")
}

// wantNews fails the test unless the news since it was last called are these.
func (w *watched) wantNews(t *testing.T, what, want string) {
	t.Helper()
	if got := w.takeNews(); got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

const (
	second   = time.Second
	interval = time.Duration(Interval)
)

// What takes as long as it has taken before is no news, however long that is, and what takes much
// longer is, once.
func TestDetectorGoesByTheRhythm(t *testing.T) {
	for _, c := range []struct {
		name          string
		work, slowest time.Duration
		steps         int
		wait, over    string
	}{
		{"steps of a second", 700 * time.Millisecond, 300 * time.Millisecond, 100, "wait 1 for 6s",
			"over 1 after 10m0s"},
		{"fast steps", 20 * time.Millisecond, 5 * time.Millisecond, 2000, "wait 1 for 6s",
			"over 1 after 10m0s"},
		{"steps of a minute", 50 * second, 10 * second, 20, "wait 1 for 2m22s",
			"over 1 after 10m0s"},
	} {
		w := newWatched()
		for range c.steps {
			w.step(c.work, c.slowest)
		}
		w.wantNews(t, c.name, "")
		w.passTime(600*second, 1)
		w.wantNews(t, c.name+", one hangs", c.wait)
		w.calls++
		w.applied++
		w.step(c.work, c.slowest)
		w.wantNews(t, c.name+", it goes on", c.over)
		for range c.steps {
			w.step(c.work, c.slowest)
		}
		w.passTime(600*second, 1)
		w.wantNews(t, c.name+", it hangs again", c.wait) // the first time is no part of the rhythm
	}
}

// Steps that take now this long, now that are no news either.
func TestDetectorBearsUnevenSteps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w := newWatched()
	w.step(20*second, 5*second) // libraries are read, kernels are tuned
	for range 500 {
		w.step(time.Duration(rng.Int64N(int64(30*second))),
			time.Duration(rng.Int64N(int64(20*second))))
	}
	w.wantNews(t, "uneven steps", "")
}

// The first call waits for those who still read their libraries: as long as that took the others is
// nothing.
func TestDetectorAtTheStart(t *testing.T) {
	w := newWatched()
	w.passTime(30 * second)
	w.passTime(20*second, 1, 2)
	w.wantNews(t, "two come later", "")
	w.passTime(20*second, 2)
	w.wantNews(t, "one comes very late", "")
	w.passTime(30*second, 2)
	w.wantNews(t, "one does not come", "wait 2 for 1m1s")
	w.calls++
	w.applied++
	for range 40 {
		w.step(700*time.Millisecond, 300*time.Millisecond)
	}
	w.takeNews()
	w.passTime(7*second, 1)
	w.wantNews(t, "one hangs when the beginning is forgotten", "wait 1 for 6s")
}

// A worker that is late from the first step on, much later than the others needed to begin, is told
// a few times.
func TestDetectorLearnsTheSlow(t *testing.T) {
	w := newWatched()
	for range 30 {
		w.step(second, 30*second)
	}
	if got := strings.Count(w.takeNews(), "wait"); got != minEnded {
		t.Errorf("told %d times", got)
	}
	w.passTime(600*second, 1)
	w.wantNews(t, "it hangs", "wait 1 for 1m37s")
}

// So is one that saves a model now and then while the others wait.
func TestDetectorLearnsHabits(t *testing.T) {
	w := newWatched()
	told := 0
	for range 20 {
		for range 1000 {
			w.step(200*time.Millisecond, 50*time.Millisecond)
		}
		w.step(200*time.Millisecond, 20*second)
		told += strings.Count(w.takeNews(), "wait")
	}
	if told != minEnded {
		t.Errorf("told %d times", told)
	}
	for range 1000 {
		w.step(200*time.Millisecond, 50*time.Millisecond)
	}
	w.passTime(100*second, 1)
	w.wantNews(t, "it hangs", "wait 1 for 40s")
}

// stallOnce has a worker be waited for so long, and a thousand steps follow.
func (w *watched) stallOnce(d time.Duration) {
	w.step(200*time.Millisecond, d)
	for range 1000 {
		w.step(200*time.Millisecond, 50*time.Millisecond)
	}
}

// newsOfHang returns after how long it is told that one hangs, if nobody is lost for it.
func (w *watched) newsOfHang() string {
	w.takeNews()
	w.passTime(600*second, 1)
	said, _, _ := strings.Cut(w.takeNews(), ",")
	return said
}

// A worker that hung until it was lost, or let go, had no habit, nor has one that was waited for by
// who is lost, or whose end nobody saw.
func TestDetectorLearnsNothingFromLosses(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(w *watched)
		want string
	}{
		{"they come in the end", func(w *watched) {}, "wait 1 for 1m40s"},
		{"they are lost", func(w *watched) { w.gone[1] = true }, "wait 1 for 6s"},
		{"who waits is lost", func(w *watched) { w.gone[2] = true }, "wait 1 for 6s"},
		{"another leads", func(w *watched) { w.observe(false, nil) }, "wait 1 for 6s"},
	} {
		w := newWatched()
		for range minEnded {
			w.stallOnce(0)
		}
		for range minEnded {
			wait := []collective.Wait{
				{WaitID: collective.WaitID{Worker: 1, Of: 2, Number: w.calls}}}
			for end := w.now + 50*second; w.now < end; {
				w.now += interval
				w.observe(true, wait)
			}
			c.end(w)
			w.calls++
			w.stallOnce(0)
			clear(w.gone)
		}
		if got := w.newsOfHang(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Waits that become longer are news a few times, as at first, and those that become shorter soon
// say what is usual.
func TestDetectorForgetsHabitsForNewerOnes(t *testing.T) {
	w := newWatched()
	for range maxEnded {
		w.stallOnce(20 * second)
	}
	w.takeNews()
	for range maxEnded {
		w.stallOnce(60 * second)
	}
	if got := strings.Count(w.takeNews(), "wait"); got != minEnded {
		t.Errorf("of longer waits it is told %d times", got)
	}
	for range minEnded {
		w.stallOnce(20 * second)
	}
	if got, want := w.newsOfHang(), "wait 1 for 40s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What has not come for much longer than it used to come is no habit any more.
func TestDetectorForgetsHabitsThatEnd(t *testing.T) {
	for quiet, want := range map[int]string{5: "wait 1 for 40s", 40: "wait 1 for 6s"} {
		w := newWatched()
		for range minEnded + 1 {
			w.stallOnce(20 * second)
		}
		for range quiet {
			w.stallOnce(0)
		}
		if got := w.newsOfHang(); got != want {
			t.Errorf("after %d times a thousand steps: %q, want %q", quiet, got, want)
		}
	}
}

// Several that are waited for are one piece of news as long as they come to be waited for together,
// and a call that follows is another wait.
func TestDetectorTellsWorkersApart(t *testing.T) {
	w := newWatched()
	for range 100 {
		w.step(time.Second, 0)
	}
	w.passTime(8*second, 1, 2)
	w.wantNews(t, "two hang", "wait 1 for 7s, wait 2 for 7s")
	w.passTime(4*second, 2)
	w.wantNews(t, "one comes", "over 1 after 8s")
	w.calls++
	w.applied++
	w.passTime(3*second, 1, 3)
	w.wantNews(t, "the other comes, and others have not come to the next call", "over 2 after 12s")
	w.calls++
	w.passTime(3*second, 1, 3)
	w.wantNews(t, "nor to the one after it", "")
	w.passTime(8*second, 1, 3)
	w.wantNews(t, "and hang", "wait 1 for 7s, wait 3 for 7s")
}

// A time in which the agent itself was stopped is not held against anybody, and waits that another
// host leads are not told of here.
func TestDetectorExcuses(t *testing.T) {
	w := newWatched()
	for range 100 {
		w.step(time.Second, 0)
	}
	w.passTime(2*second, 1)
	w.now += time.Hour
	w.passTime(2*second, 1)
	w.wantNews(t, "the agent was stopped", "")
	w.passTime(3*second, 1)
	w.wantNews(t, "the worker hangs", "wait 1 for 7s")
	w.now += interval
	w.observe(false, nil)
	w.wantNews(t, "another leads", "")
	w.passTime(6*second, 1)
	w.wantNews(t, "and does no more", "")
	w.passTime(second, 1)
	w.wantNews(t, "and it still hangs", "wait 1 for 7s")
}

// Looking costs no memory while nobody is waited for.
func TestDetectorAllocatesNothing(t *testing.T) {
	w := newWatched()
	if n := testing.AllocsPerRun(100, func() {
		w.now += interval
		w.applied++
		w.d.Observe(sense.Duration(w.now), true, w.applied, nil)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
