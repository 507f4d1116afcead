// Package accrual judges silence: how unlikely is it that one who is alive has not been heard for
// so long? It learns from the silences that there were, so nobody has to guess a time-out. It is
// the φ accrual detector of Hayashibara, Défago, Yared and Katayama (SRDS 2004), with a floor under
// the spread and a memory of the longest pause, because the pauses of a loaded machine are rarer
// and longer than a normal distribution has them.
//
// It has no clock: time is a number of nanoseconds since any moment that stays the same, in
// whichever type counts so, such as time.Duration.
package accrual

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

const (
	// Threshold is the φ from which on a silence is suspicious: one in 10⁸ of those that were
	// normal would last so long.
	Threshold = 8
	// window is how many silences are remembered.
	window = 200
	// spreadFloor times the interval is the least standard deviation that is believed, however calm
	// it has been: with an interval of 50 ms nothing under 0.6 s is suspicious, which leaves room
	// for pauses of 200 ms at either end.
	spreadFloor = 2
	// pauseFactor times the longest silence that was survived is not suspicious yet.
	pauseFactor = 2
)

// Detector judges the silence of one peer. D counts nanoseconds. It is not safe for concurrent use.
type Detector[D ~int64] struct {
	interval D // the longest time in which a calm peer says nothing
	last     D // when the peer was heard last
	sampled  D // when a silence was remembered last
	longest  D // the longest silence since then

	silences     [window]float64 // in seconds; a ring
	count        int             // how many there have been
	mean, spread float64         // of those in the window, not below their floors; in seconds
	pause        D               // the longest in the window
}

// New returns a Detector for a peer that says something at least once an interval, and has been
// heard now.
func New[D ~int64](interval, now D) *Detector[D] {
	d := &Detector[D]{interval: interval, last: now, sampled: now}
	d.updateStatistics()
	return d
}

// Heard records in d that something came from the peer. What comes in a burst counts as the longest
// silence in it: of each interval one is remembered, so that a stream of data does not make the
// pause after it suspicious.
func (d *Detector[D]) Heard(now D) {
	d.longest = max(d.longest, now-d.last)
	d.last = max(d.last, now)
	if now-d.sampled < d.interval/2 {
		return
	}
	d.silences[d.count%window] = seconds(d.longest)
	d.count++
	d.sampled, d.longest = now, 0
	d.updateStatistics()
}

// ExcludePause takes a time out of the present silence, in d, in which the peer could not have been
// heard, because nobody listened.
func (d *Detector[D]) ExcludePause(pause D) {
	d.last += pause
	d.sampled += pause
}

// updateStatistics computes d.mean, d.spread and d.pause from the silences in the window. New and
// Heard call it.
func (d *Detector[D]) updateStatistics() {
	known := d.silences[:min(d.count, window)]
	n := math.Max(float64(len(known)), 1)
	var mean, variance, longest float64
	for _, s := range known {
		mean += s / n
		longest = math.Max(longest, s)
	}
	for _, s := range known {
		variance += (s - mean) * (s - mean) / n
	}
	d.mean = math.Max(mean, seconds(d.interval))
	d.spread = math.Max(math.Sqrt(variance), spreadFloor*seconds(d.interval))
	d.pause = D(longest * 1e9)
}

// Silence returns for how long the peer has not been heard.
func (d *Detector[D]) Silence(now D) D { return max(0, now-d.last) }

// Phi returns −log₁₀ of the probability that one who is alive is silent for as long as this peer
// has been.
func (d *Detector[D]) Phi(now D) float64 {
	deviations := (seconds(d.Silence(now)) - d.mean) / d.spread
	return -portable.Log(portable.NormalBelow(-deviations)) / math.Ln10
}

// Suspect reports whether the peer has been silent for longer than its rhythm explains.
func (d *Detector[D]) Suspect(now D) bool {
	return d.Phi(now) >= Threshold && d.Silence(now) > pauseFactor*d.pause
}

// seconds returns a number of nanoseconds in seconds, as time.Duration does. It is pure.
func seconds[D ~int64](d D) float64 { return float64(d/1e9) + float64(d%1e9)/1e9 }
