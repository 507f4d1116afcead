package twin

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// What becomes of a step where workers synchronise otherwise. A round of R steps takes R times what
// a step takes a worker, and one exchange, so an Rth of that is in each step. How much waiting for
// others goes with it is not known: what comes by chance is shorter by the root of R, and a worker
// that is slow in each step is waited for as long. The methods of Twin are for the goroutine that
// uses it; those of way are of a value.

// way is a way to synchronise, and after how many steps.
type way struct {
	name  string // such as "local"
	round float64
	parts float64 // of the parameters, of which two workers that meet average one; else 1
}

// wayOf returns how workers synchronise by a setting.
func wayOf(s setting.Setting) way {
	return way{setting.SyncName(s.Sync), float64(max(s.Round, 1)), setting.PairParts(s.Sync)}
}

// averagesGradients reports whether gradients are averaged in every step, or whatever a program
// averages by itself, of which nothing is known.
func (w way) averagesGradients() bool { return !setting.IsLocal(w.name) }

// meetsInPairs reports whether each worker averages with another one in each step.
func (w way) meetsInPairs() bool { return setting.MeetsInPairs(w.name) }

// changesRound reports whether a change with these parts is one of rounds.
func changesRound(parts []string) bool {
	return slices.Contains(parts, "round") || slices.Contains(parts, "sync")
}

// exposedExchange returns how long a step exchanges something while nothing is computed, where an
// all-reduce takes whole seconds, of which synchronous SGD can hide some in a step. Two workers
// that meet send each other what they have once; in an all-reduce each of n sends 2·(n−1)/n of it.
func (w way) exposedExchange(whole, hides float64, members int) float64 {
	if w.averagesGradients() {
		return max(whole-hides, 0)
	}
	seconds := whole / w.round
	if n := float64(members); w.meetsInPairs() && n > 1 {
		seconds += whole * n / (2 * (n - 1)) / w.parts
	}
	return seconds
}

// wholeExchange returns how long an all-reduce takes, as far as nothing hides it, where a step
// exchanges something for so many seconds while nothing is computed.
func (w way) wholeExchange(exposed float64, members int) float64 {
	return exposed / w.exposedExchange(1, 0, members)
}

// waitingShare returns how much of the waiting for others that comes by chance there is in a step,
// as a part of that of synchronous SGD.
func (w way) waitingShare() float64 {
	if part := 1 / math.Sqrt(w.round); !w.meetsInPairs() {
		return part
	}
	return 0.5 // in each step for one other
}

// exchange is what was learnt of how workers exchange something. The zero value has learnt nothing.
type exchange struct {
	way      way     // of the newest observation
	since    uint64  // steps up to this one were made in another way, in rounds that are as long
	measured way     // of the newest observation that says how long the exchange takes
	whole    float64 // seconds of the exchange then, as far as nothing hid it
	hides    float64 // seconds of an all-reduce that a step of synchronous SGD can hide
	known    bool    // whether hides was measured
}

// learnExchange takes in how long workers exchange something now, which shows after a change from
// or to synchronous SGD how much of it that hides.
func (t *Twin) learnExchange() {
	x, now, s := &t.exchange, wayOf(t.now.Setting), t.now.Split
	if now != x.way && now.round == x.way.round {
		x.since = t.now.Step
	}
	x.way = now
	if !(s.Seconds > 0) {
		return
	}
	whole := now.wholeExchange(max(s.Exposed, 0), t.now.Size)
	if from := x.measured; from.round > 0 && from.averagesGradients() != now.averagesGradients() {
		hidden := x.whole - whole
		if from.averagesGradients() {
			hidden = -hidden
		}
		// What takes longer than a step computes was not hidden: the network has changed.
		if x.known = hidden > 0 && hidden <= s.Compute; x.known {
			x.hides = hidden
		} else {
			x.hides = 0
		}
	}
	x.measured, x.whole = now, whole
}

// roundThroughput returns by which factor the samples a second grow where workers synchronise in
// another way; zero = it is not known where the time of steps goes.
func (t *Twin) roundThroughput(to way) setting.Band {
	s, now := &t.now.Split, wayOf(t.now.Setting)
	if !(s.Seconds > 0) {
		return setting.Band{}
	}
	exposed, slack := min(max(s.Exposed, 0), s.Seconds), 0.0
	for _, wait := range s.Slack {
		slack += max(wait, 0) / float64(len(s.Slack))
	}
	chance := min(slack, s.Seconds-exposed)
	// growth returns the factor where so much of the waiting for others comes by chance, and where
	// a step of synchronous SGD can hide so many seconds of an all-reduce.
	growth := func(byChance, hides float64) float64 {
		whole := now.wholeExchange(exposed, t.now.Size)
		if now.averagesGradients() && exposed > 0 { // else less is hidden than could be
			whole += hides
		}
		then := s.Seconds - now.exposedExchange(whole, hides, t.now.Size) +
			to.exposedExchange(whole, hides, t.now.Size) -
			float64(byChance*chance*(1-to.waitingShare()/now.waitingShare()))
		return s.Seconds / max(then, 1e-3*s.Seconds)
	}
	hidden := []float64{t.exchange.hides}
	if !t.exchange.known {
		hidden = []float64{0, max(s.Compute, 0) / 2}
	}
	mid := growth(0.5, hidden[0])
	low, high := mid, mid
	for _, hides := range hidden {
		for _, byChance := range []float64{0, 1} {
			low, high = min(low, growth(byChance, hides)), max(high, growth(byChance, hides))
		}
	}
	spread := portable.Exp((portable.Log(t.rate.High) - portable.Log(t.rate.Low)) / math.Sqrt2)
	return setting.Band{Low: low / spread, Mid: mid, High: high * spread}
}

const (
	// staleLow, staleMid and staleHigh are the band of κ in sampleWorth, and ownLow, ownMid and
	// ownHigh that of what a step with the gradient of one worker brings. docs/experiments/sync.md
	// has what they rest on.
	staleLow, staleMid, staleHigh = 0.0, 0.15, 0.5
	ownLow, ownMid, ownHigh       = 0.7, 0.85, 1.0
	// unknownNoise is how many times the noise scale a batch is at the low end, where it is
	// unknown: with so little a sample of rounds brings as much as without any.
	unknownNoise = 1e9
)

// sampleWorth returns what a sample brings where workers synchronise in a way, as a part of what it
// brings to synchronous SGD with the same batch B, where the noise scale of the gradients is φ:
//
//	own · (φ + B) / (φ + B·(1 + κ·log₂R))
//
// A sample in a round of R steps so brings as much as in a step of synchronous SGD whose batch is
// 1 + κ·log₂R times as large. With κ = 0 nothing is lost, as with SGD on a quadratic loss, where
// local steps are never worse than one step with the batch R·B (Woodworth et al., "Is Local SGD
// Better than Minibatch SGD?", ICML 2020; elsewhere they can be). Where noise is most of a
// gradient, φ is large, and longer rounds cost little (Lin et al., "Don't Use Large Mini-Batches,
// Use Local SGD", 2018). Own is what is lost with rounds of one step already, by an optimizer that
// divides by the size of a worker's own gradient, as Adam does; it is 1 with SGD. That the loss
// grows with the logarithm of R was measured.
func (w way) sampleWorth(batch, scale, stale, own float64) float64 {
	if w.averagesGradients() {
		return 1
	}
	steps := w.round
	if w.meetsInPairs() { // replicas that meet in each step stay together as in rounds of two
		steps = min(steps, 2*w.parts)
	}
	larger := 1 + float64(stale*portable.Log2(steps))
	return own * (1 + batch/scale) / (1 + float64(batch*larger)/scale)
}

// roundEfficiency returns by which factor what a sample brings grows where workers synchronise in
// another way, and the factor at the low end of what local steps may be worth, which a decision
// rests on: synchronous SGD loses nothing, so the low end of what it is better by says less. Where
// the noise is unknown it may be anything, and none at the low end, where local steps bring least.
// Zero = gradients are not finite, or of what the program averages by itself nothing is known.
func (t *Twin) roundEfficiency(to way, step float64) (b setting.Band, careful float64) {
	now, batch := wayOf(t.now.Setting), float64(t.now.Setting.Batch)
	if t.now.Noise.NotFinite || now.name == setting.Own {
		return setting.Band{}, 0
	}
	scale := t.now.Noise.Scale
	switch {
	case !t.now.Noise.Known:
		scale = setting.Band{Low: batch / unknownNoise, Mid: batch, High: math.Inf(1)}
	case t.now.Noise.Above: // as in batchEfficiency
		scale = setting.Band{Low: 2 * scale.Low, Mid: 4 * scale.Low, High: math.Inf(1)}
	}
	kept := (1 - t.lostProgressShare(to, step)) / (1 - t.lostProgressShare(now, step))
	// grows returns the factor for a noise scale, κ and own.
	grows := func(scale, stale, own float64) float64 {
		return kept * to.sampleWorth(batch, scale, stale, own) /
			now.sampleWorth(batch, scale, stale, own)
	}
	low := grows(scale.Low, staleHigh, ownLow)
	mid := grows(scale.Mid, staleMid, ownMid)
	high := grows(scale.High, staleLow, ownHigh)
	return setting.Band{Low: min(low, mid, high), Mid: mid, High: max(low, mid, high)}, low
}

// lostProgressShare returns which part of the progress of a job is lost with workers that are lost,
// and while workers that join wait for the end of a round, where a step takes so many seconds: of
// each of them half of a round, on average, and of each that is lost as much again where workers
// keep replicas.
func (t *Twin) lostProgressShare(w way, step float64) float64 {
	churn := t.now.Steps.Churn(churnSeconds)
	left, joined := churn.Left, churn.Joined
	if setting.KeepsReplicas(w.name) {
		left *= 2
	}
	seconds := float64(w.round*step) / 2
	return min((left+joined)*seconds/max(float64(t.now.Size), 1), 0.5)
}

// churnSeconds is in how many seconds members that came and left count.
const churnSeconds = 600
