package accrual

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ms       = time.Millisecond
	interval = 50 * ms
)

// heardRhythm returns a detector that has heard these silences, so many rounds of them, and the
// moment in which it heard the last.
func heardRhythm(rounds int, silences ...time.Duration) (*Detector[time.Duration], time.Duration) {
	now := 7 * time.Second
	d := New(interval, now)
	for range rounds {
		for _, s := range silences {
			now += s
			d.Heard(now)
		}
	}
	return d, now
}

// TestPhi compares with values from a table of the normal distribution.
func TestPhi(t *testing.T) {
	half, one, two := -math.Log10(0.5), -math.Log10(0.158655254), -math.Log10(0.022750132)
	for _, c := range []struct {
		name     string
		silences []time.Duration
		silence  time.Duration
		want     float64
	}{
		{"nothing heard yet, mean 50 and spread 100", nil, 50 * ms, half},
		{"nothing heard yet, one spread", nil, 150 * ms, one},
		{"nothing heard yet, two spreads", nil, 250 * ms, two},
		{"a calm rhythm stands on the floors", []time.Duration{50 * ms}, 150 * ms, one},
		{"mean 200 and spread 100", []time.Duration{100 * ms, 300 * ms}, 300 * ms, one},
		{"mean 300 and spread 200", []time.Duration{100 * ms, 500 * ms}, 500 * ms, one},
		{"mean 300 and spread 200, at the mean", []time.Duration{100 * ms, 500 * ms}, 300 * ms,
			half},
	} {
		d, now := heardRhythm(window, c.silences...)
		if got := d.Phi(now + c.silence); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: φ of %v is %v, want %v", c.name, c.silence, got, c.want)
		}
	}
}

// suspectAfter returns the first silence after now, the moment in which the peer was heard last,
// that is suspicious: whole milliseconds.
func suspectAfter(d *Detector[time.Duration], now time.Duration) time.Duration {
	for s := time.Duration(0); ; s += ms {
		if d.Suspect(now + s) {
			return s
		}
	}
}

// TestSuspectAfter: the first silence that is suspicious follows from the silences before, in calm,
// slow and uneven rhythms.
func TestSuspectAfter(t *testing.T) {
	for _, c := range []struct {
		name     string
		silences []time.Duration
		want     time.Duration
	}{
		{"at the start", nil, 612 * ms}, // 50 + 5.612 · 100
		{"a calm rhythm", []time.Duration{50 * ms}, 612 * ms},
		{"one pause of 200 ms in 20",
			[]time.Duration{200 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms,
				50 * ms, 50 * ms}, 627 * ms},
		{"a pause longer than the spread explains",
			[]time.Duration{500 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms, 50 * ms,
				50 * ms, 50 * ms}, 1001 * ms},
		{"a slow rhythm", []time.Duration{400 * ms}, 962 * ms}, // 400 + 5.612 · 100
	} {
		d, now := heardRhythm(window, c.silences...)
		if got := suspectAfter(d, now); got != c.want {
			t.Errorf("%s: suspected after %v, want %v", c.name, got, c.want)
		}
	}
}

// TestBurst: a stream of data must not make the beat after it look late.
func TestBurst(t *testing.T) {
	d, now := heardRhythm(0)
	for range 100_000 {
		now += ms / 10
		d.Heard(now)
	}
	if got := suspectAfter(d, now); got != 612*ms {
		t.Errorf("after a stream of data a silence is suspected after %v", got)
	}
}

// TestForgets: a long pause counts for a while, and no longer once the window is full of other
// silences.
func TestForgets(t *testing.T) {
	d, now := heardRhythm(1, 900*ms)
	if got := suspectAfter(d, now); got <= 1800*ms {
		t.Errorf("one who was silent for 900 ms a moment ago is suspected after %v", got)
	}
	for range window {
		now += interval
		d.Heard(now)
	}
	if got := suspectAfter(d, now); got != 612*ms {
		t.Errorf("suspected after %v, long after the pause", got)
	}
}

// TestExcuse: a pause in which nobody listened neither counts as silence nor makes later ones look
// normal.
func TestExcuse(t *testing.T) {
	d, now := heardRhythm(window, interval)
	now += 30 * time.Second // this process was stopped
	d.ExcludePause(30*time.Second - interval)
	if got := d.Silence(now); got != interval {
		t.Errorf("silence of %v", got)
	}
	d.Heard(now)
	if got := suspectAfter(d, now); got != 612*ms {
		t.Errorf("after an excused pause a silence is suspected after %v", got)
	}
	d.ExcludePause(time.Hour) // more than was silent
	if d.Silence(now) != 0 || d.Suspect(now) {
		t.Error("an excuse made the silence negative")
	}
}

// TestAliveIsNotSuspected: with pauses of up to 250 ms, which are 200 ms of a loaded machine beyond
// a beat, nobody is suspected; and who is cut then is suspected within a second.
func TestAliveIsNotSuspected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "start"))
		d := New(interval, now)
		for _, s := range rapid.SliceOfN(rapid.Int64Range(0, int64(250*ms)), 0, 3*window).Draw(t,
			"silences") {
			if d.Suspect(now + time.Duration(s)) {
				t.Fatalf("suspected after %v", time.Duration(s))
			}
			now += time.Duration(s)
			d.Heard(now)
		}
		if got := suspectAfter(d, now); got < 500*ms || got > time.Second {
			t.Fatalf("suspected after %v", got)
		}
	})
}

// TestPhiOnlyGrows while nothing is heard, does not depend on when the clock began, and is a number
// or +Inf.
func TestPhiOnlyGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := time.Duration(rapid.Int64Range(0, 1e15).Draw(t, "shift"))
		a, b, now := New(interval, 0), New(interval, shift), time.Duration(0)
		for _, s := range rapid.SliceOf(rapid.Int64Range(0, int64(10*time.Second))).Draw(t,
			"silences") {
			now += time.Duration(s)
			a.Heard(now)
			b.Heard(now + shift)
		}
		before := 0.0
		for _, s := range rapid.SliceOfN(rapid.Int64Range(0, int64(time.Second)), 1, 20).Draw(t,
			"steps") {
			now += time.Duration(s)
			phi := a.Phi(now)
			if math.IsNaN(phi) || phi < before {
				t.Fatalf("φ went from %v to %v", before, phi)
			}
			if other := b.Phi(now + shift); phi != other {
				t.Fatalf("φ is %v, with another clock %v", phi, other)
			}
			before = phi
		}
	})
}
