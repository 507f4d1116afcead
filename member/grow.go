package member

import (
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/internal/plural"
)

// A job can take every slot that its hosts offer: it grows when a host joins, and has its lost
// workers replaced where there are slots. One goroutine at a time uses a Machine, and nothing here
// blocks or does I/O.

// Growth says whether a job takes every slot that its hosts offer, up to its largest size.
type Growth string

// The values of Growth.
const (
	GrowNot  Growth = ""     // it has the size that somebody asks for
	GrowOn   Growth = "on"   // it takes every slot
	GrowHeld Growth = "held" // it did, and keeps a size that a person has asked for meanwhile
)

// Validate returns an error for a text that is none of the values of Growth.
func (g Growth) Validate() error {
	if g != GrowNot && g != GrowOn && g != GrowHeld {
		return fmt.Errorf("%.40q does not say whether a job grows", string(g))
	}
	return nil
}

// maxGrown is the largest size to which a job without a largest size grows.
const maxGrown = 1 << 10

// FollowsHosts reports whether the hosts of a job, or who allots their slots, decide its size: no
// policy and no setting does then.
func (r Record) FollowsHosts() bool { return r.Allotment != nil || r.Growth == GrowOn }

// FollowsHosts is that of Record, for what the next record will say.
func (m *Machine) FollowsHosts() bool { return m.cfg.Allotment != nil || m.cfg.Growth == GrowOn }

// Growth says whether the job takes every slot that its hosts offer.
func (m *Machine) Growth() Growth { return m.cfg.Growth }

// ResizeAndHold asks for n members, as Resize does, and has a job that grows keep that size, until
// Allot ends that without slots. Resize alone would have such a job grow on.
func (m *Machine) ResizeAndHold(n int, who string) error {
	if err := m.CheckSize(n); err != nil {
		return err
	}
	if m.cfg.Growth == GrowOn {
		m.cfg.Growth = GrowHeld
	}
	return m.Resize(n, who)
}

// CheckUnallotted returns why nobody but who allots slots can change the size of the job; nil where
// others can.
func (m *Machine) CheckUnallotted() error {
	a := m.cfg.Allotment
	if a == nil {
		return nil
	}
	return fmt.Errorf("%s allots the slots of this job (%s): ask there for another size, or end "+
		"that with shoal resize JOB --on any", a.Who, a)
}

// CheckSettable returns why the setting of the job cannot change its size; nil where it can.
func (m *Machine) CheckSettable() error {
	if m.cfg.Growth == GrowOn && m.cfg.Allotment == nil {
		return errors.New("this job takes every slot that its hosts offer (grow): give it a size " +
			"of its own with shoal resize JOB N")
	}
	return m.CheckUnallotted()
}

// isGrowing reports whether the job takes every slot now. A mesh has as many ranks as it says.
func (m *Machine) isGrowing() bool {
	return m.cfg.Growth == GrowOn && m.cfg.Allotment == nil && !m.whole
}

// growWant raises the wanted size to what the hosts offer, in a job that is growing. A host that
// takes any number of workers offers no more than it has.
func (m *Machine) growWant() {
	offered := 0
	for _, h := range m.hosts {
		if !h.Draining {
			offered += max(h.Slots, m.hostLoad(h))
		}
	}
	want := min(offered, maxGrown)
	if m.cfg.Max > 0 {
		want = min(offered, m.cfg.Max)
	}
	if want > m.cfg.Want {
		m.cfg.Want = want
		m.because = Because(fmt.Sprintf("the job grows to %s, since its hosts have %s",
			plural.Of(want, "worker"), plural.Of(offered, "slot")))
	}
}
