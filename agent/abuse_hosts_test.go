package agent_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// Whatever is in the fields of a call that its kind does not use, or in a shape that holds nothing,
// the call goes through all hosts: the one that leads takes none of it for a fault of the host that
// it comes from.
func TestUnusedFieldsAcrossHosts(t *testing.T) {
	c := startHosts(t, 2, []int{1, 1}, agent.Orders{})
	workers := []*rawWorker{nil, nil}
	for range workers {
		at := <-c.started
		workers[at.number] = joinRawWithToken(t, at.agent, at.number, at.token)
	}
	// only then the job has both hosts
	awaitStatus(t, c.head, func(known agent.Status) bool { return known.Generation > 0 })
	for what, change := range map[string]func(d *arena.Descriptor){
		"peer":       func(d *arena.Descriptor) { d.Peer = math.MaxUint32 - 6 },
		"large peer": func(d *arena.Descriptor) { d.Peer = collective.MaxMembers },
		"tag":        func(d *arena.Descriptor) { d.Tag = math.MaxUint32 },
		"weight":     func(d *arena.Descriptor) { d.Weight = math.NaN() },
		"splits":     func(d *arena.Descriptor) { d.Splits = arena.Ref{Segment: 1, Count: 3} },
		"shape": func(d *arena.Descriptor) {
			d.In.Count, d.Out.Count, d.NDim = 0, 0, 2
			d.Shape = [arena.MaxDims]uint64{0, math.MaxInt64}
		},
		"barrier": func(d *arena.Descriptor) {
			d.Kind, d.Peer, d.NDim = uint8(collective.Barrier), math.MaxUint32-6, 1
			d.Shape = [arena.MaxDims]uint64{math.MaxUint64}
		},
		"all to all": func(d *arena.Descriptor) {
			d.Kind, d.Peer, d.Out.Offset = uint8(collective.AllToAll), math.MaxUint32-6, 64
		},
	} {
		for _, w := range workers {
			d := validCall()
			change(&d)
			w.submit(d)
		}
		for rank, w := range workers {
			want, words := arena.Done, ""
			if what == "shape" {
				want, words = arena.Failed, "shape: a dimension of 9223372036854775807"
			}
			status, text := w.wait()
			if status != want || !strings.Contains(text, words) {
				t.Fatalf("%s: rank %d, status %d: %s", what, rank, status, text)
			}
		}
		now := c.head.Status()
		hosts := now.HostNames()
		if slices.Sort(hosts); !slices.Equal(hosts, []string{"a", "b"}) {
			t.Fatalf("after %s the hosts are %v", what, hosts)
		}
	}
}

// A rank whose output overlaps its input in a wrong place has all ranks get an error, those of
// other hosts too, which cannot see it: they would wait for ever for its part.
func TestWrongOverlapAcrossHosts(t *testing.T) {
	c := startHosts(t, 2, []int{1, 1}, agent.Orders{})
	workers := []*rawWorker{nil, nil}
	for range workers {
		at := <-c.started
		workers[at.number] = joinRawWithToken(t, at.agent, at.number, at.token)
	}
	for kind, change := range map[collective.Kind]func(d *arena.Descriptor){
		collective.AllGather:     func(d *arena.Descriptor) { d.Out.Count = 2 * d.In.Count },
		collective.ReduceScatter: func(d *arena.Descriptor) { d.In.Count = 2 * d.Out.Count },
	} {
		for rank, w := range workers {
			d := validCall()
			d.Kind = uint8(kind)
			change(&d)
			d.Out.Offset = 1024
			if rank == 1 {
				d.Out.Offset = d.In.Offset
			}
			w.submit(d)
		}
		for rank, w := range workers {
			if status, text := w.wait(); status != arena.Failed ||
				!strings.Contains(text, "overlaps") {
				t.Errorf("%v: rank %d, status %d: %s", kind, rank, status, text)
			}
		}
	}
}
