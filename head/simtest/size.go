package simtest

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// How a job comes to another size by a change of its setting, and what must hold then:
//
//   - where the job goes on without faults, the size in the setting is the one that the membership
//     of the head wants, on all hosts, whoever has changed it, and whoever has led before (T4);
//   - a change brings the size that it says, and taken back the one before (T5);
//   - asked for without a fault, a job comes to a size, and back (T6);
//   - it comes there too if the head is lost as soon as another host knows of the change, less the
//     members that are lost with the head (T7).
//
// One goroutine runs all of this, that of its Cluster. A check that fails is recorded in the
// invariants.

// checkWanted checks that the size that the hosts of the job have from the log is what the
// membership of the head wants (T4). The job has made steps without faults.
func (c *Cluster) checkWanted() {
	h := c.leadingHost()
	if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return
	}
	c.stabilizeUntil(h, func(s head.State) bool { // the last step may have had a loss
		want := 0
		if s.Elastic && s.Shape == nil && s.View.Generation > 0 {
			want = h.agent.Machine().Want()
		}
		return int(s.Setting.Size) == want
	}, "have the size in its log that its membership wants")
}

// sizeFault says what is wrong with the size after an entry of the log with a change; "" = nothing
// is (T5).
func sizeFault(is, was setAt, c *setting.Change) string {
	want := is.setting // as the membership has it
	switch {
	case !slices.Contains(c.Parts(), "size"):
	case c.Phase == setting.Entered:
		want, _ = setting.Setting{}.With(c.To)
	case c.Phase == setting.Reverted && is.setting.Size != was.setting.Size:
		// Where the log had the size before the change already, as members were lost, the entry
		// changes no size, and has what the membership wants after further losses.
		if from, _ := (setting.Setting{}).With(c.From); from.Size != was.setting.Size {
			want = from
		}
	}
	if is.setting.Size != want.Size {
		return fmt.Sprintf("comes to size=%d and not to size=%d", is.setting.Size, want.Size)
	}
	return ""
}

// checkSizes checks that a job that goes on comes to another size when somebody asks for it, and
// back when the change is taken back (T6).
func (c *Cluster) checkSizes() {
	h := c.leadingHost()
	if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() ||
		h.agent.State().Data == nil || h.agent.Machine().IsPaused() {
		return
	}
	before, m := h.agent.State(), h.agent.Machine()
	switch {
	case m.Allotment() != nil:
		c.checkAllots()
		return
	case c.isGrowing():
		c.checkGrowth()
		return
	}
	at := before.View.Size()
	to := at + 1
	if m.CheckSize(to) != nil || !c.hasRoomFor(to) {
		to = at - 1
	}
	if at != m.Want() || m.CheckSize(to) != nil || !c.hasRoomFor(at) || len(m.DrainingHosts()) > 0 {
		return
	}
	c.requestSetting(fmt.Sprintf("size=%d", to), "")
	isSet := func(s head.State) bool {
		return s.Setting.Number > before.Setting.Number && s.View.Size() == to
	}
	if !c.stabilizeUntil(h, isSet, fmt.Sprintf("come to size=%d", to)) {
		return
	}
	c.endTrial(setting.Reverted)
	c.stabilizeUntil(h, func(s head.State) bool { return s.Trial == nil && s.View.Size() == at },
		fmt.Sprintf("come back to size=%d", at))
}

// sizedJob is a job whose head is lost in a change of its size.
type sizedJob struct {
	number uint64 // of the change
	want   int    // that the others want
}

// changeSizeOfHead asks a host, which leads and is about to be lost, for another size, and lets the
// job go on until another host knows of the change; nil = no size can be asked for.
func (c *Cluster) changeSizeOfHead(h *host) *sizedJob {
	s, m := h.agent.State(), h.agent.Machine()
	if m == nil || s.Data == nil || s.Setting.Size == 0 || m.IsPaused() ||
		m.Want() != s.View.Size() || m.FollowsHosts() {
		return nil
	}
	at, to := m.Want(), m.Want()+1
	if c.invariants.newest%3 == 0 || !c.hasRoomFor(to) {
		to = at - 1
	}
	if _, waits := h.agent.RequestedChange(); waits || m.CheckSize(to) != nil {
		return nil
	}
	c.requestSetting(fmt.Sprintf("size=%d", to), "")
	number := s.Setting.Number + 1
	if !c.runUntil(func() bool {
		return slices.ContainsFunc(c.livingHosts(), func(other *host) bool {
			return other != h && other.agent.State().Setting.Number == number
		})
	}) {
		return nil
	}
	lost := 0
	for _, x := range c.newestRecord().View.Members {
		if x.Host == h.name {
			lost++
		}
	}
	if m.Spares() > 0 {
		lost = 0
	}
	return &sizedJob{number, max(min(to, max(to, at)-lost), c.newestRecord().Min)}
}

// checkSizeOutlives checks that a job goes on to the size that a head has entered which was lost
// (T7); nil = it has entered none.
func (c *Cluster) checkSizeOutlives(sized *sizedJob) {
	h := c.leadingHost()
	if sized == nil || h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return
	}
	s, want := h.agent.State(), h.agent.Machine().Want()
	if s.Trial == nil || s.Trial.Number != sized.number || want != sized.want ||
		int(s.Setting.Size) != want && !h.agent.Machine().IsPaused() {
		c.invariants.fail("%s leads on from change %d of one that is lost, and wants %d, not %d: "+
			"%+v", h.name, sized.number, want, sized.want, s)
	}
	if c.hasRoomFor(want) {
		c.stabilizeUntil(h, func(s head.State) bool { return s.View.Size() == want },
			fmt.Sprintf("go on to size=%d", want))
	}
}

// runUntil lets everything happen bit by bit until the job is as it must become; false = it does
// not soon.
func (c *Cluster) runUntil(is func() bool) bool {
	for range patience {
		for _, h := range c.livingHosts() {
			h.tick()
		}
		for range patience {
			for _, p := range c.net.busyLinks() {
				if m := c.net.popMessage(p, 0, false); m != nil {
					c.findHost(p.to).receive(p.from, m)
				}
				if is() {
					return true
				}
			}
			for _, w := range c.allWorkers() {
				w.askToJoin()
				w.doNext()
				if is() {
					return true
				}
			}
		}
	}
	return false
}

// hasRoomFor reports whether the hosts of the job have room for so many members, and live.
func (c *Cluster) hasRoomFor(size int) bool {
	slots := 0
	for _, r := range c.newestRecord().Hosts {
		switch h := c.findHost(r.Name); {
		case h == nil || !h.alive:
			return false
		case r.Slots == 0:
			return true
		default:
			slots += max(r.Slots, 0)
		}
	}
	return slots >= size+c.job.Spares
}

// sizeEvent returns an event in which a person or a policy asks for another size, which may be out
// of range, or a person resizes the job meanwhile.
func (g *generator) sizeEvent() string {
	n := 1 + g.rand.IntN(1+g.rand.IntN(8))
	switch g.rand.IntN(5) {
	case 0:
		return fmt.Sprintf("resize %d", n)
	case 1:
		return fmt.Sprintf("set size=%d,batch=%d", n, 1+g.rand.IntN(12))
	case 2:
		return fmt.Sprintf("set size=%d", n)
	}
	return fmt.Sprintf("set size=%d policy", n)
}

// isResizing reports whether the trial of a size is on, and its members are not all there, or not
// all gone.
func (g *generator) isResizing() bool {
	h := g.c.leadingHost()
	if h == nil {
		return false
	}
	s := h.agent.State()
	return s.Trial != nil && int(s.Setting.Size) != s.View.Size()
}

// resizingEvent returns a fault that hits the job while its size changes: the head is lost, a
// worker that is to join, or any; or the trial ends.
func (g *generator) resizingEvent() string {
	switch g.rand.IntN(6) {
	case 0, 1:
		return g.loseHeadEvent()
	case 2:
		for _, w := range g.c.allWorkers() {
			if !w.in && g.rand.IntN(2) == 0 {
				return fmt.Sprintf("kill w%d", w.id)
			}
		}
	case 3:
		return g.workerEvent("kill")
	case 4:
		return "end " + []string{"reverted", "kept", "void"}[g.rand.IntN(3)]
	}
	return g.sizeEvent()
}

// maxText returns the option of a job with the most members that it may have; "" = no limit, or
// what a job with so many workers to begin with cannot have.
func (g *generator) maxText(want int) string {
	if g.rand.IntN(3) == 0 {
		return ""
	}
	return fmt.Sprintf(" max=%d", want+g.rand.IntN(4))
}
