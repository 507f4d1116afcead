package policy

import (
	"encoding/json"
	"fmt"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense"
)

const (
	// spendSaved and saveSpent are which part of what was saved is spent in the next epoch, and of
	// what was spent too much is saved: all at once would have the size go back and forth.
	spendSaved, saveSpent = 0.7, 0.5
)

// Budget has the job train as fast as it can for a budget of money (Siren, INFOCOM 2019, without
// its learner): at the end of each epoch it chooses the size with which the next one takes least
// time of those whose cost is within what there is for it, by the twin. What an epoch has left over
// of its budget, the next ones may spend, and what it has spent too much they save. Of an epoch in
// which it begins to count, as a job does that goes on from a checkpoint, it knows a part, and as
// much of the budget counts for that.
type Budget struct {
	Epoch float64 // money that an epoch may cost
	Price float64 // money that a worker costs an hour
}

// Name implements decide.Policy.
func (Budget) Name() string { return "budget" }

// Levers implements decide.Policy.
func (Budget) Levers() []string { return []string{"size"} }

// spent is what Budget remembers. In the zero value nothing was seen.
type spent struct {
	Now    sense.Duration `json:"now"`    // of the newest look; 0 = there was none
	Epoch  uint64         `json:"epoch"`  // the one that is under way
	Begun  uint64         `json:"begun"`  // the one in which it was begun to count
	Part   float64        `json:"part"`   // of that one, which was counted; 0 = it is under way
	Step   uint64         `json:"step"`   // committed steps at the begin of the epoch
	Money  float64        `json:"money"`  // spent since it was begun to count
	Chosen bool           `json:"chosen"` // the size of this epoch is
}

// Decide implements decide.Policy.
func (b Budget) Decide(o sense.Observation, twin decide.Twin,
	state []byte) (decide.Decision, []byte) {
	var s spent
	if json.Unmarshal(state, &s) != nil || s.Now == 0 || o.Now < s.Now || o.Epoch < s.Epoch {
		s = spent{Now: o.Now, Epoch: o.Epoch, Begun: o.Epoch, Step: o.Step, Chosen: true}
	}
	s.Money += float64(o.Size) * b.Price * (o.Now - s.Now).Seconds() / 3600
	s.Now = o.Now
	if o.Epoch != s.Epoch {
		if commits := commitsOfEpoch(o); s.Epoch == s.Begun && commits > 0 {
			s.Part = min(float64(o.Step-s.Step)/float64(commits), 1)
		}
		s.Epoch, s.Step, s.Chosen = o.Epoch, o.Step, false
	}
	d := b.decide(o, twin, &s)
	state, err := json.Marshal(s)
	if err != nil { // a number is not finite
		state = nil
	}
	return d, state
}

// commitsOfEpoch returns in how many commits an epoch is over, if the batch and rounds stay as they
// are; 0 = nobody knows.
func commitsOfEpoch(o sense.Observation) uint64 {
	if o.Setting.Batch == 0 {
		return 0
	}
	steps := (o.Samples + o.Setting.Batch - 1) / o.Setting.Batch
	round := uint64(max(o.Setting.Round, 1))
	return (steps + round - 1) / round
}

// decide is Decide by what is remembered in s, which it updates.
func (b Budget) decide(o sense.Observation, twin decide.Twin, s *spent) decide.Decision {
	if why := sizeWaits(o); why != "" {
		return decide.NoChange(why)
	}
	commits := commitsOfEpoch(o)
	if commits == 0 {
		return decide.NoChange("the program states no data, so nobody knows when an epoch ends")
	}
	if s.Chosen {
		d := decide.NoChange(fmt.Sprintf("%.3g was spent, and the size stays until the end of "+
			"epoch %d", s.Money, o.Epoch+1))
		d.Again = max(s.Step+commits, o.Step+1) - o.Step
		return d
	}
	left, over := b.Epoch, s.Part+float64(o.Epoch-s.Begun-1)
	if saved := float64(b.Epoch*over) - s.Money; saved > 0 {
		left += float64(saved * spendSaved)
	} else {
		left += float64(saved * saveSpent)
	}
	rate, n := newestRate(o)
	if n == 0 {
		return decide.NoChange("no step was measured")
	}
	s.Chosen = true
	seconds := float64(o.Samples) / rate.Mid
	now := epochOf(o.Size, seconds, b.Price, left)
	best, to := now, decide.Scored{}
	list := scoreSizes(o, twin)
	for _, x := range list {
		if x.Gain() > 0 {
			e := epochOf(x.Members(o), seconds/x.Gain(), b.Price, left)
			if e.isBetter(best) {
				best, to = e, x
			}
		}
	}
	if best == now {
		return decide.NoChange(fmt.Sprintf("an epoch takes %.3g s and costs %.3g with %s, "+
			"there is %.3g for it, and no other size is better", seconds, now.money,
			plural.Of(o.Size, "member"), left))
	}
	d := decideSize(o, to, list)
	d.Least = anyGain
	d.Because = fmt.Sprintf("an epoch takes %.3g s and costs %.3g with %s, and %.3g s and "+
		"%.3g with %d; there is %.3g for it", seconds, now.money, plural.Of(o.Size, "member"),
		best.seconds, best.money, to.Members(o), left)
	return d
}

// epoch is what an epoch takes with a number of members.
type epoch struct {
	seconds, money float64
	fits           bool // it does not cost more than there is for it
}

// epochOf returns what an epoch of so many seconds takes, where members have a price an hour and so
// much money is left.
func epochOf(members int, seconds, price, left float64) epoch {
	money := float64(members) * price * seconds / 3600
	return epoch{seconds, money, money <= left}
}

// isBetter reports whether the epoch is better than another one: it alone fits, or both do and it
// takes less time, or the same and costs less, or none fits and it costs less. Less by no more than
// decide.SameGain counts as the same.
func (e epoch) isBetter(other epoch) bool {
	switch {
	case e.fits != other.fits:
		return e.fits
	case e.fits:
		return e.seconds*decide.SameGain < other.seconds ||
			e.seconds < other.seconds*decide.SameGain && e.money*decide.SameGain < other.money
	}
	return e.money*decide.SameGain < other.money
}
