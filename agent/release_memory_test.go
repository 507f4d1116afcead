package agent

import (
	"testing"

	"github.com/shoal-ml/shoal/agent/lanes"
	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// busy is a network whose payloads are in use until the test calls what asked holds. Only the
// test's goroutine uses it; the methods that are not here must not be called.
type busy struct {
	fabric.Network
	asked []func()
}

// Unused keeps f, for the test to call.
func (b *busy) Unused(f func()) { b.asked = append(b.asked, f) }

// The memory of a worker stays as long as pieces of a transfer that was aborted may be sent from
// it, and no longer: that of a reshape too.
func TestAbortedTransferLetsMemoryGo(t *testing.T) {
	e, err := newEngine(lanes.WithoutHelpers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	network, m := &busy{}, &worker{id: 3, over: true}
	e.byID[m.id] = m
	for id := range uint64(2) {
		e.transfers.Begin(&transfers.Transfer{ID: id, Network: network,
			Workers: []topo.WorkerID{m.id}, Reshapes: id > 0})
	}
	for id := range uint64(2) {
		e.abortTransfer(id)
		e.abortTransfer(id) // it is gone already
	}
	for range 2 {
		if m.reap(func(s *arena.Segment) { s.Close() }) {
			t.Fatal("the memory is freed while it is in use")
		}
		network.asked[0]()
		network.asked = network.asked[1:]
		e.runInbox()
	}
	if !m.reap(func(s *arena.Segment) { s.Close() }) || len(network.asked) > 0 {
		t.Error("the memory is not freed")
	}
}

// So it stays where a transfer counts without a host that is lost, which may not have got all of
// its pieces, and the memory of the transfer is not used again. Otherwise nothing is kept.
func TestTransferWithoutALostHostKeepsMemory(t *testing.T) {
	e, err := newEngine(lanes.WithoutHelpers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.driver = &driver{engine: e, record: member.Record{Hosts: []member.Host{{Name: "a"}}}}
	network, m := &busy{}, &worker{id: 3, over: true}
	e.byID[m.id] = m
	barrier := head.Part{Calls: []*collective.Posted{{Call: collective.Call{
		Kind: collective.Barrier, DType: tensor.U8}}}}
	for id, peers := range [][]fabric.Host{{"a"}, {"a", "lost"}} {
		moved := &transfers.Transfer{ID: uint64(id), Network: network, Peers: peers,
			Workers: []topo.WorkerID{m.id}}
		moved.Relay.Prepare(&moved.Schedule, []*collective.Call{&barrier.Calls[0].Call},
			collective.Sites{Of: []int{0}, N: len(peers)}, collective.DefaultRoute(0))
		e.transfers.Begin(moved)
		e.deliverTransfer(uint64(id), barrier)
		again := e.transfers.New() == moved
		if len(network.asked) != id || again != (id == 0) {
			t.Errorf("between %v, %d pieces are waited for, and the transfer is used again: %v",
				peers, len(network.asked), again)
		}
	}
	free := func(s *arena.Segment) { s.Close() }
	if m.reap(free) {
		t.Error("the memory is freed while it is in use")
	}
	network.asked[0]()
	e.runInbox()
	if !m.reap(free) {
		t.Error("the memory is not freed")
	}
}

// Nobody holds a transfer that was aborted, nor one of a reshape: it has room for all of the state.
func TestBegunTransfersAreForgotten(t *testing.T) {
	e, err := newEngine(lanes.WithoutHelpers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.name = "a"
	c := &driver{engine: e, network: &sent{t: t},
		batches: batches{running: map[head.BatchID]*batch{}},
		routes:  routes{fixed: true}}
	mine := collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
		Reduction: collective.Sum, In: make([]byte, 8), Out: make([]byte, 8)}
	other := mine
	other.In, other.Out, other.Far = nil, nil, &collective.Far{In: 2, Out: 2}
	part := head.Part{Calls: []*collective.Posted{{Call: mine}, {Worker: 1, Call: other}},
		Of: []int{0, 1}, Route: collective.DefaultRoute(8)}
	c.beginBatch(&head.Execute{Batch: 1, Hosts: []string{"a", "b"}, Parts: []head.Part{part}})
	if c.batches.running[1].open != 1 {
		t.Fatalf("%d transfers are under way", c.batches.running[1].open)
	}
	c.dropBatch(1)
	for _, held := range c.batches.begun[:cap(c.batches.begun)] {
		if held != nil {
			t.Error("a transfer that was dropped is held")
		}
	}
}

// The memory of a worker that has ended is given back beside the engine's thread, for which all
// other workers wait; at the end of the agent nobody else is there.
func TestMemoryOfTheDeadIsUnmappedBesideTheEngine(t *testing.T) {
	e, err := newEngine(lanes.WithoutHelpers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var beside []func()
	e.background = func(_ string, f func()) { beside = append(beside, f) }
	segment := func() *arena.Segment {
		s, err := arena.NewSegment("test", 4096)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	mapped := func(m *worker, own *arena.Segment) bool {
		return m.block.Mem != nil && own.Mem != nil
	}
	for _, ends := range []bool{false, true} {
		m, err := (&Agent{engine: e}).newWorker(0)
		if err != nil {
			t.Fatal(err)
		}
		own := segment()
		m.segments[1], m.left = own, true
		e.members, e.byID[0] = append(e.members, m), m
		if ends {
			if err := e.close(); err != nil {
				t.Error(err)
			}
		} else {
			e.scan()
			if len(e.members) > 0 || len(beside) != 1 || !mapped(m, own) {
				t.Errorf("%d members, %d tasks beside the engine", len(e.members), len(beside))
			}
			beside[0]()
		}
		if m.block.Mem != nil || own.Mem != nil {
			t.Errorf("ends %v: memory is still mapped", ends)
		}
	}
	if len(beside) != 1 {
		t.Errorf("%d tasks beside the engine", len(beside))
	}
}
