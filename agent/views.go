package agent

import (
	"fmt"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/topo"
)

// Which workers a worker means that names ranks before it hears of the newest view of the job. All
// functions of this file run on the engine's thread.

// toldView is a view of the job, and the number by which workers know its generation; 0 = that of
// when they joined, and all before the next view.
type toldView struct {
	topo.View
	number uint64
}

// generations are those of the job, as its workers and people know them. The driver has it.
type generations struct {
	after topo.Generation // generations that the job had before this start
	views []toldView      // the newest views that were applied, at most maxToldViews, oldest first
}

// maxToldViews is how many of the newest views the driver keeps. A worker is behind by more only if
// it has made so many steps and looked at the end of none.
const maxToldViews = 16

// recordView keeps the view that applies from an entry of the log on, if it is another one.
func (d *driver) recordView(v topo.View) {
	n := len(d.views)
	switch {
	case v.Generation == 0 || n > 0 && d.views[n-1].Generation == v.Generation:
		return
	case n == 0:
		d.views = append(d.views, toldView{v, 0})
		return
	case n == maxToldViews:
		d.views = append(d.views[:0], d.views[1:]...)
	}
	d.views = append(d.views, toldView{v, d.generationNumber(v.Generation)})
}

// toldViewIndex returns the index in d.views of the view with the number that a worker knows; -1 =
// that has ended long ago.
func (d *driver) toldViewIndex(known uint64) int {
	i := len(d.views) - 1
	for i >= 0 && d.views[i].number > known {
		i--
	}
	return i
}

// setPeerInView sets the peer of a send or a receive of all ranks, which is a rank in the view with
// the number that the worker m knows (0 = it does not say), to the rank which the same worker has
// now. It returns an error if that is no member any more.
func (d *driver) setPeerInView(m *worker, known uint32, c *collective.Call) error {
	newest := len(d.views) - 1
	if known == 0 || newest < 1 || !c.NamesPartner() {
		return nil
	}
	i := d.toldViewIndex(uint64(known))
	switch {
	case i == newest:
		return nil
	case i < 0:
		return fieldErrorOf(m, "view", "%d is a generation that has ended long ago: wait for the "+
			"end of a step before this %v", known, c.Kind)
	case c.Peer < 0 || c.Peer >= d.views[i].Size():
		return fieldErrorOf(m, "peer", "rank %d is outside a group of %d", c.Peer,
			d.views[i].Size())
	}
	partner := d.views[i].Members[c.Peer].Worker
	rank, is := d.views[newest].Rank(partner)
	if !is {
		return &collective.PartnerError{Kind: c.Kind, Partner: partner}
	}
	c.Peer = int(rank)
	return nil
}

// workersInView returns the workers that have some ranks in the view with the number that whoever
// lists them knows (0 = it does not say), in a new list. It returns an error if one of them is no
// member any more.
func (d *driver) workersInView(ranks []int, known uint64) ([]topo.WorkerID, error) {
	now := d.head.State().View
	then := now
	if known > 0 && len(d.views) > 0 {
		i := d.toldViewIndex(known)
		if i < 0 {
			return nil, &collective.FieldError{Field: "view",
				Problem: fmt.Sprintf("%d is a generation that has ended long ago: wait for the "+
					"end of a step before you make this group", known)}
		}
		then = d.views[i].View
	}
	list := make([]topo.WorkerID, len(ranks))
	for i, rank := range ranks {
		if rank < 0 || rank >= then.Size() {
			return nil, &collective.FieldError{Field: "ranks",
				Problem: fmt.Sprintf("%v: %d is no rank of the job", ranks, rank)}
		}
		list[i] = then.Members[rank].Worker
		if _, is := now.Rank(list[i]); !is {
			return nil, &collective.FieldError{Field: "ranks",
				Problem: fmt.Sprintf("%v: worker %d, which had rank %d, has left the members of "+
					"the job: make the group after the end of the step, of the ranks there are",
					ranks, list[i], rank)}
		}
	}
	return list, nil
}
